"""Which map is differentiated at the solution of a step problem.

The natural map `F = z − P_K(x)` has kinks: the derivative is zero for a contact that is open or sticks,
and it jumps where the mode changes. Replacing `P_K` by the proximal map of `kappa` times the logarithmic
barrier gives the central path, `w_N z_N = kappa` on a half line. It is smooth, and a contact on it is
never fully open or fully stuck.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._arguments import AbstractChecked
from ..._numerics import lu_solve
from ..problem._dense import Statistics
from ..problem._elimination import back_substitute, eliminate, linearised
from ..problem._natural_map import UnderLaw, argument, derivative, relative
from ..problem._problem import MixedProblem


class AbstractAdjoint(AbstractChecked):
    """How the solution of the laws is differentiated. It never changes the values."""

    kappa: eqx.AbstractVar[Array | float | None]
    """Parameter of the central path where the derivative is taken; `None` for the solution itself."""


class ImplicitAdjoint(AbstractAdjoint):
    """The derivative of the solution itself, by the implicit function theorem."""

    kappa: Array | float | None = eqx.field(init=False, default=None)


class SmoothedAdjoint(AbstractAdjoint):
    """The derivative of the relaxed solution on the central path, attached to the exact solution.

        w_N z_N = kappa  instead of  0 <= w_N ⟂ z_N >= 0,   and the analogue for every set

    The value stays the exact solution; the derivative is that of the solution with the barrier. It
    is biased, but it is not zero for open or sticking contacts and does not jump. Use it for
    optimisation across changes of contact, not for sensitivities. Open contacts count only if they
    take part in the step: with `GapStabilized` all do; other laws leave out open contacts.

    **Arguments:** `kappa` [J] (velocity times impulse), positive; compare it with the energy
    `m v²/2` of the motions that matter.

    **Raises:** `ValueError` if `kappa` is not positive.

    Reference: T. Howell et al., Dojo: a differentiable physics engine for robotics (2022),
    arXiv:2203.00806.
    """

    kappa: Array | float

    def __check_init__(self):
        if isinstance(self.kappa, float | int) and not self.kappa > 0:
            raise ValueError(f"kappa must be positive, got {self.kappa}; ImplicitAdjoint() is 0.")


def surface(block: UnderLaw, x: Array, rho: Array, kappa) -> Array:
    """The projection `P_K`, or with `kappa` the proximal map that replaces it; 0 if not active."""
    law_set = block.law.set()
    value = law_set.project(x) if kappa is None else law_set.prox(x, rho * kappa[None])
    return jnp.where(block.active[None], value, 0)


def pair(block: UnderLaw, w: Array, x: Array, rho: Array, kappa) -> tuple[Array, Array]:
    """`D` and `N` of `_natural_map.derivative` for the map of `surface`."""
    if kappa is None:
        return derivative(block, w, x, rho)
    columns = []
    for j in range(x.shape[0]):
        unit = jnp.zeros_like(x).at[j].set(1)
        columns.append(
            jax.jvp(lambda x: block.law.set().prox(x, rho * kappa[None]), (x,), (unit,))[1]
        )
    rows = [[columns[j][i] for j in range(x.shape[0])] for i in range(x.shape[0])]
    return derivative(block, w, x, rho, rows)


PASSES = 40
STEPS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)


def central_path(problem: MixedProblem, z0: tuple[Array, ...], kappa):
    """Finds the relaxed solution by Newton's method, with the best of several step lengths.

    **Arguments:** `z0`: the exact solution. **Returns:** `v`, `z`, `Statistics`.
    """
    rho = problem.penalties()

    def visit(z):
        load = problem.load(z)
        v = load if problem.matrix is None else lu_solve(problem.matrix, load)
        w = problem.local(v)
        x = tuple(map(argument, problem.blocks, w, z, rho))
        f = tuple(
            a - surface(b, y, r, kappa)
            for a, b, y, r in zip(z, problem.blocks, x, rho, strict=True)
        )
        size = jnp.sqrt(sum(jnp.sum(a * a, axis=(0, 1)) for a in z))
        return v, w, x, f, relative(f, z, jnp.maximum(size, 1e-30))

    def body(carry):
        z, _, count = carry
        _, w, x, f, here = visit(z)
        pairs = [
            pair(b, a, y, r, kappa) for b, a, y, r in zip(problem.blocks, w, x, rho, strict=True)
        ]
        system = linearised(problem, [d for d, _ in pairs], [n for _, n in pairs])
        true = jnp.array(True)
        factors = eliminate(system, jnp.full_like(here, 1e-14), true)
        _, dz = back_substitute(factors, system, None, tuple(-a for a in f), true)
        best, least = z, here
        for step in STEPS:
            trial = tuple(a + step * b for a, b in zip(z, dz, strict=True))
            norm = visit(trial)[-1]
            better = norm < least
            best = tuple(jnp.where(better, a, b) for a, b in zip(trial, best, strict=True))
            least = jnp.where(better, norm, least)
        return best, least, count + 1

    tolerance = 1e-10 if jnp.finfo(problem.rhs.dtype).bits >= 64 else 1e-5

    def proceed(carry):
        _, norm, count = carry
        return jnp.any(norm > tolerance) & (count < PASSES)

    _, w, x, _, _ = visit(z0)
    start = tuple(surface(b, y, r, kappa) for b, y, r in zip(problem.blocks, x, rho, strict=True))
    norm = visit(start)[-1]
    z, norm, count = jax.lax.while_loop(proceed, body, (start, norm, jnp.zeros((), jnp.int32)))
    v = visit(z)[0]
    count = count + jnp.zeros(norm.shape, jnp.int32)
    done = norm <= tolerance
    stats = Statistics(norm, norm, count, norm, jnp.zeros_like(count), done, jnp.zeros_like(count))
    return v, z, stats
