"""Fits from several starts, for losses with several valleys."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..._arguments import checked_arguments
from ..._expects import expects
from .._base import check_parameters, named_values, parameter_nodes
from ._outcome import FitResult

_RIVAL = 2.0
"""A valley whose loss is at most that much larger is a rival: two standard deviations in a likelihood."""


class Valley(eqx.Module):
    """A minimum: physical values by name, its loss, and the indices of the starts that led there."""

    values: dict[str, np.ndarray]
    loss: float
    starts: tuple[int, ...]


class Starts(eqx.Module):
    """What `several_starts` finds.

    **Arguments:**

    - `best`: the fit of least loss.
    - `fits`: of every start, in their order; the first is the start that was given.
    - `valleys`: distinct minima by increasing loss.
    - `warnings`: sentences, each with its remedy.
    """

    best: FitResult
    fits: tuple[FitResult, ...]
    valleys: tuple[Valley, ...]
    warnings: tuple[str, ...]


@checked_arguments
def several_starts(
    minimise: Annotated[Callable[[PyTree], FitResult], "(params)"],
    params: PyTree[Array],
    *,
    count: int = 8,
    spread: float = 1.0,
    near: float = 0.02,
    key: PRNGKeyArray | None = None,
) -> Starts:
    """Fits from `params` and from starts spread around it, and keeps the fit of least loss.

        programs = identification.Programs()  # all fits share one program
        found = identification.several_starts(
            lambda p: identification.least_squares(residual, p, programs=programs, throw=False), params
        )
        print(found.best.values(), found.valleys, found.warnings)

    A gradient leads down into the valley where it starts. A loss has several where impacts may come in
    another order, or a body may land on another face.

    **Arguments:**

    - `minimise`: a fit from a pytree of parameters, such as `fit` or `least_squares` with `throw=False`.
    - `params`: pytree of floating arrays, usually from `parameters`: the first start.
    - `count`: number of starts, at least 2.
    - `spread`: a number between two bounds starts anywhere between them, evenly spread over the starts (Latin
      hypercube); of others the raw number `x` is moved by `spread max(|x|, 1)` times a normal number.
    - `near`: two fits are in one valley if their raw numbers `x` differ by at most `near max(|x|, 1)`.
    - `key`: for the random numbers; `jax.random.key(0)` by default.

    **Returns:** a `Starts`.

    **Raises:** `ValueError` for fewer than two starts, or if no fit has a finite loss; whatever `minimise`
    raises.

    Reference: M. D. McKay, R. J. Beckman, W. J. Conover (1979), doi:10.1080/00401706.1979.10489755.
    """
    check_parameters(params)
    if count < 2:
        raise ValueError(f"count must be at least 2, the given start and others, got {count}.")
    key = jax.random.key(0) if key is None else key
    flat, unravel = ravel_pytree(params)
    starts = [params, *(unravel(x) for x in spread_out(params, flat, count - 1, spread, key))]
    fits = tuple(_fitted(minimise, start) for start in starts)
    losses = np.array([fit.loss for fit in fits], float)
    if not np.any(np.isfinite(losses)):
        raise ValueError(
            f"none of {count} starts led to a finite loss; the first fit says: {fits[0].message}."
        )
    valleys = _valleys(fits, np.where(np.isfinite(losses), losses, np.inf), near)
    return Starts(fits[int(np.nanargmin(losses))], fits, valleys, tuple(_about(valleys, count)))


def _fitted(minimise: Callable, start: PyTree) -> FitResult:
    fit, what = minimise(start), "a FitResult, such as that of least_squares"
    expects("what minimise(params) returns", fit, FitResult, what)
    return fit


def spread_out(params, flat, count: int, spread: float, key) -> Float[Array, "count p"]:
    """Raw numbers of further starts."""
    normal, order, inside = jax.random.split(key, 3)
    size = jnp.maximum(jnp.abs(flat), 1.0)
    moved = flat[None] + spread * size[None] * jax.random.normal(
        normal, (count, flat.size), flat.dtype
    )
    ranks = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(order, flat.size))
    shares = ranks.T.astype(flat.dtype) + jax.random.uniform(inside, moved.shape, flat.dtype)
    shares, columns, at = shares / count, [], 0
    for _, raw, transform, _ in parameter_nodes(params):
        columns.append(moved[:, at : at + raw.size])
        lo, hi = transform.limits()
        if transform.is_box and np.all(np.isfinite(lo)) and np.all(np.isfinite(hi)):
            lo, hi = (
                jnp.broadcast_to(jnp.asarray(x, raw.dtype), raw.shape).ravel() for x in (lo, hi)
            )
            value = lo[None] + (hi - lo)[None] * shares[:, at : at + raw.size]
            columns[-1] = transform.inverse(value.reshape(count, *raw.shape)).reshape(count, -1)
        at += raw.size
    return jnp.concatenate(columns, axis=1)


def _valleys(fits: tuple[FitResult, ...], losses: np.ndarray, near: float) -> tuple[Valley, ...]:
    """The distinct minima, each named by its best fit."""
    found: list[tuple[np.ndarray, list[int]]] = []
    for i in np.argsort(losses):
        if not np.isfinite(losses[i]):
            break
        x = np.asarray(ravel_pytree(fits[i].params)[0], float)
        for centre, members in found:
            if np.all(np.abs(x - centre) <= near * np.maximum(np.abs(centre), 1.0)):
                members.append(int(i))
                break
        else:
            found.append((x, [int(i)]))
    return tuple(
        Valley(
            {n: np.asarray(v) for n, v in named_values(fits[at[0]].params).items()},
            float(losses[at[0]]),
            tuple(at),
        )
        for _, at in found
    )


def _about(valleys: tuple[Valley, ...], count: int) -> list[str]:
    sentences, best = [], valleys[0]
    if len(best.starts) == 1:
        sentences.append(
            f"only one of {count} starts led to the best fit: there may be a better one; take more starts, "
            "or shorter motions, whose loss is smoother."
        )
    rivals = [valley for valley in valleys[1:] if valley.loss - best.loss <= _RIVAL]
    for valley in rivals[:3]:
        numbers = ", ".join(
            f"{name} = {np.array2string(v, precision=4)}" for name, v in valley.values.items()
        )
        sentences.append(
            f"another fit is about as good, its loss {valley.loss - best.loss:.2g} larger: {numbers}; add "
            "data that tell the two apart."
        )
    return sentences
