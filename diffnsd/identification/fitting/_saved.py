"""Fits that survive the end of their process."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..._checkpointing import Checkpointing, Parts
from .._base import named_values

MISSING: Any = object()
"""Stands for an `aux` that a line search has discarded."""


class SavedFit:
    """The files of a fit: each holds what the iteration carries and the iterates since the file before."""

    def __init__(
        self,
        save: Checkpointing,
        given: PyTree,
        params: PyTree,
        like: Callable[[], tuple[PyTree, PyTree, PyTree]],
    ):
        """**Arguments:**

        - `given`: everything that the iterates depend on.
        - `like`: makes trees with the shapes of what `kept` gets, and of the `extra` of the best iterate.
        """
        self._files, self._every = Parts(save, (given, params)), save.every
        self._params, self._like = params, like

    def kept(self, record, carry: PyTree, known: PyTree | None) -> tuple[PyTree, PyTree | None]:
        """As the files have it at the start; later both are written after every interval.

        **Arguments:** `record`: the `Recorder`; `carry`: what the iteration always has, plain numbers among
        it; `known`: what it has at some times only, else `None`.
        """
        if not record.steps:
            return self._resumed(record, carry, known)
        if record.steps % self._every == 0:
            _, known_like, extra_like = self._like()
            self._files.write(self._part(record, carry, known, known_like, extra_like))
        return carry, known

    def _part(self, record, carry, known, known_like, extra_like) -> dict[str, Any]:
        extra = None if record.extra is MISSING else record.extra
        counts = record.loss_evaluations, record.gradient_evaluations
        rows = record.rows[-self._every :]
        return {
            "carry": jax.tree.map(_as_array, carry),
            "known": _maybe(known, known_like),
            "extra": _maybe(extra, extra_like),
            "best": (record.params, np.float64(record.loss)),
            "counts": np.array([*counts, record.rejected, record.in_a_row]),
            "rows": jax.tree.map(lambda *x: np.stack(x), *rows),
        }

    def _shapes(self) -> dict[str, Any]:
        carry, known, extra = self._like()
        many = self._every
        values = {
            name: np.zeros((many, *np.shape(x)), x.dtype)
            for name, x in named_values(self._params).items()
        }
        real = np.zeros(many)
        return {
            "carry": jax.tree.map(_as_array, carry),
            "known": (np.array(False), known),
            "extra": (np.array(False), extra),
            "best": (self._params, np.float64(0)),
            "counts": np.zeros(4, int),
            "rows": (real, real, np.zeros(many, bool), values, np.zeros(many, int), real),
        }

    def _resumed(self, record, carry, known):
        last = None
        while record.steps + self._every < record.max_steps:
            part = self._files.found(self._shapes)
            if part is None:
                break
            last, rows = part, part["rows"]
            record.rows.extend(_row(rows, i) for i in range(self._every))
        if last is None:
            return carry, known
        record.start = time.perf_counter() - record.rows[-1][-1]
        record.params, record.loss = last["best"][0], float(last["best"][1])
        losses, gradients, record.rejected, record.in_a_row = map(int, last["counts"])
        record.loss_evaluations, record.gradient_evaluations = losses, gradients
        has_extra, extra = last["extra"]
        record.extra = extra if has_extra or extra is None else MISSING
        loss, norm, _, values, _, _ = record.rows[-1]
        record.last = loss, norm, values
        carry = jax.tree.map(_as_before, self._like()[0], last["carry"])
        return carry, last["known"][1] if last["known"][0] else None


def _row(rows: tuple, i: int) -> tuple:
    """The `i`-th of stacked rows of a `Recorder`."""
    loss, norm, accepted, values, count, seconds = jax.tree.map(lambda x: x[i], rows)
    return float(loss), float(norm), bool(accepted), values, int(count), float(seconds)


def _maybe(x: PyTree | None, like: PyTree) -> tuple[np.ndarray, PyTree]:
    """Whether there is a tree, and it, or zeros."""
    if x is None:
        return np.array(False), jax.tree.map(
            lambda y: jnp.zeros(y.shape, y.dtype) if hasattr(y, "shape") else y, like
        )
    return np.array(True), x


def _as_array(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, bool | int | float) else x


def _as_before(like: Any, x: Any) -> Any:
    """A plain number where there was one."""
    return type(like)(x) if isinstance(like, bool | int | float) else x
