"""The density that is sampled: likelihood times priors, in unconstrained coordinates."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._base import named_values, parameter_nodes
from ..unknowns._transforms import AbstractTransform
from ._likelihood import log_density
from ._priors import AbstractPrior, Flat


class Target(eqx.Module):
    """`log L(value(x)) + log prior(value(x)) + log |d value / dx|` of flat raw numbers `x`.

    **Arguments:**

    - `log_likelihood`: function of a pytree of parameters.
    - `priors`: one for each parameter, in the order of `parameter_nodes`.
    - `unravel`: from flat raw numbers to the pytree of parameters.
    """

    log_likelihood: Callable
    priors: tuple[AbstractPrior, ...]
    unravel: Callable = eqx.field(static=True)

    def __call__(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        return log_density(self.log_likelihood, self.unravel(x)) + self.log_prior(x)

    def log_prior(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Logarithm of the prior density of the raw numbers, up to a constant."""
        nodes = parameter_nodes(self.unravel(x))
        parts = [
            prior.log_density(transform.forward(raw)) + _log_volume(transform, raw)
            for (_, raw, transform, _), prior in zip(nodes, self.priors, strict=True)
        ]
        return sum(parts, jnp.zeros((), x.dtype))

    def standard(self, x: Float[Array, " p"]) -> Float[Array, " k"]:
        """Physical values in standard deviations from the centres of their priors, NaN without one."""
        nodes = parameter_nodes(self.unravel(x))
        parts = [
            prior.standard(transform.forward(raw)).ravel()
            for (_, raw, transform, _), prior in zip(nodes, self.priors, strict=True)
        ]
        return jnp.concatenate(parts)

    def chart(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """The values themselves of what has bounds of its own, the raw numbers of the rest."""
        nodes = parameter_nodes(self.unravel(x))
        parts = [(t.forward(raw) if t.is_box else raw).ravel() for _, raw, t, _ in nodes]
        return jnp.concatenate(parts)

    def physical(self, x: Float[Array, " p"]) -> Float[Array, " k"]:
        """Physical values, flattened in the order of the labels of `uncertainty`."""
        nodes = parameter_nodes(self.unravel(x))
        return jnp.concatenate([t.forward(raw).ravel() for _, raw, t, _ in nodes])


def target(
    log_likelihood: Callable, params: PyTree, priors: Mapping[str, AbstractPrior] | None
) -> tuple[Target, Float[Array, " p"]]:
    """The target and the flat raw numbers of `params`.

    **Raises:** `ValueError` for a prior of an unknown parameter or whose numbers do not fit the
    parameter's shape; `TypeError` for one that is no prior.
    """
    priors, known = dict(priors or {}), named_values(params)
    if unknown := [name for name in priors if name not in known]:
        named = ", ".join(map(repr, known))
        raise ValueError(
            f"priors has {unknown[0]!r}, but the names of the parameters are {named}; parameters(...) makes "
            "parameters with names of their own."
        )
    for name, prior in priors.items():
        if not isinstance(prior, AbstractPrior):
            raise TypeError(
                f"the prior of {name} must be a prior such as Normal(mean, deviation), got {prior!r}."
            )
        shape = known[name].shape
        for number in jax.tree.leaves(prior):
            if np.shape(number) not in ((), shape):
                raise ValueError(
                    f"the prior of {name} has numbers of shape {np.shape(number)}, the parameter "
                    f"has shape {shape}."
                )
    x, unravel = ravel_pytree(params)
    return Target(log_likelihood, tuple(priors.get(name, Flat()) for name in known), unravel), x


def _log_volume(transform: AbstractTransform, raw: Array) -> Float[Array, ""]:
    """Logarithm of the volume of physical values per volume of raw numbers.

    For a box the derivative is diagonal. A symmetric matrix has more entries than raw numbers:
    `sqrt(det(T^T T))` is its volume in the space of symmetric matrices, up to a constant.
    """
    if transform.is_box:
        slope = jax.jvp(transform.forward, (raw,), (jnp.ones_like(raw),))[1]
        return jnp.sum(jnp.log(jnp.abs(slope)))
    blocks = raw.reshape(-1, raw.shape[-1]) if raw.ndim else raw.reshape(1, 1)
    shape = raw.shape[-1:]

    def one(block):
        derivative = jax.jacfwd(lambda r: transform.forward(r.reshape(shape)).ravel())(block)
        return jnp.linalg.slogdet(derivative.T @ derivative)[1] / 2

    return jnp.sum(jax.vmap(one)(blocks))
