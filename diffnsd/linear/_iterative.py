"""Krylov methods, by products with the matrix alone."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .._arguments import AbstractChecked
from ._base import AbstractSolver, positive, square, symmetric
from ._preconditioners import AbstractPreconditioner, BlockJacobi, Jacobi

Options = dict[str, Any]


class Products(eqx.Module):
    """A matrix and an approximate inverse, each as a function of a vector."""

    operator: lx.AbstractLinearOperator
    inverse: Callable[[Array], Array]


class AbstractKrylov(AbstractSolver, AbstractChecked):
    """A method that ends where `|b − A x| <= rtol |b|`, or after `max_steps` iterations."""

    preconditioner: eqx.AbstractVar[AbstractPreconditioner]
    rtol: eqx.AbstractVar[float]
    max_steps: eqx.AbstractVar[int]

    @abstractmethod
    def demand(self, operator: lx.AbstractLinearOperator) -> None:
        """Raises `ValueError` if the matrix is not known to be of the kind that the method needs."""

    def init(self, operator: lx.AbstractLinearOperator, options: Options) -> Products:
        self.demand(operator)
        return Products(operator, self.preconditioner.inverse(operator))

    def relative(self, vector: Array, options: Options) -> Array:
        """The relative residual to be reached: `rtol`, or `options["rtol"]` if that is larger."""
        return jnp.maximum(jnp.asarray(options.get("rtol", 0.0), vector.dtype), self.rtol)


class ConjugateGradients(AbstractKrylov):
    """The method of conjugate gradients for positive definite matrices.

    An iteration takes one product and one application of the preconditioner. Where it meets a
    direction of negative curvature, `p · A p <= 0`, the matrix is not positive definite: it ends there
    with the result `breakdown`, and what it returns is still a direction of descent of `x · A x/2 − b · x`.

    **Arguments:** `preconditioner`, for example `BlockJacobi(3)`; `rtol`: relative residual to be reached;
    `max_steps`: limit on the iterations.

    **Raises:** `ValueError` if the operator does not say that it is positive definite.

    Reference: M. Hestenes, E. Stiefel (1952), doi:10.6028/jres.049.044.
    """

    preconditioner: AbstractPreconditioner = Jacobi()
    rtol: float = 1e-11
    max_steps: int = eqx.field(default=10_000, static=True)

    def demand(self, operator: lx.AbstractLinearOperator) -> None:
        positive("ConjugateGradients", operator)

    def compute(self, state: Products, vector: Array, options: Options):
        limit = self.relative(vector, options) * _norm(vector)

        def proceed(carry):
            _, r, _, _, count, curved = carry
            return (_norm(r) > limit) & (count < self.max_steps) & ~curved

        def body(carry):
            x, r, p, rz, count, _ = carry
            ap = state.operator.mv(p)
            curvature = jnp.sum(p * ap)
            curved = ~(curvature > 0)
            alpha = jnp.where(curved, 0, rz / jnp.where(curved, 1, curvature))
            x1, r1 = x + alpha * p, r - alpha * ap
            z = state.inverse(r1)
            rz1 = jnp.sum(r1 * z)
            p1 = z + rz1 / jnp.where(rz > 0, rz, 1) * p
            # In the first iteration there is no better direction than the preconditioned gradient.
            x1 = jnp.where(curved & (count == 0), p, x1)
            return x1, r1, p1, rz1, count + 1, curved

        z = state.inverse(vector)
        start = (jnp.zeros_like(vector), vector, z, jnp.sum(vector * z), 0, jnp.array(False))
        x, r, _, _, count, curved = jax.lax.while_loop(proceed, body, start)
        result = _outcome(_norm(r) <= limit)
        result = lx.RESULTS.where(curved, lx.RESULTS.breakdown, result)
        return x, result, {"num_steps": count}


class BiCGStab(AbstractKrylov):
    """The stabilised method of biconjugate gradients for matrices that need not be symmetric.

    An iteration takes two products and two applications of the preconditioner. The best iterate is kept;
    where the method breaks down it starts again from there.

    **Arguments:** as of `ConjugateGradients`; the preconditioner is one for matrices that are not symmetric:
    `Jacobi`, `BlockJacobi`, none.

    Reference: H. van der Vorst (1992), doi:10.1137/0913035.
    """

    preconditioner: AbstractPreconditioner = BlockJacobi(3)
    rtol: float = 1e-11
    max_steps: int = eqx.field(default=10_000, static=True)

    def demand(self, operator: lx.AbstractLinearOperator) -> None:
        square("BiCGStab", operator)

    def transpose(self, state: Products, options: Options):
        return self.init(state.operator.transpose(), options), options

    def compute(self, state: Products, vector: Array, options: Options):
        limit = self.relative(vector, options) * _norm(vector)
        tiny = jnp.finfo(vector.dtype).tiny

        def over(a, b):
            return a / jnp.where(jnp.abs(b) > tiny, b, 1)

        def proceed(carry):
            _, r, *_, count, stuck = carry
            return (_norm(r) > limit) & (count < self.max_steps) & ~stuck

        def body(carry):
            x, r, shadow, p, ap, rho, count, _ = carry
            rho1 = jnp.sum(shadow * r)
            # The direction and the image of the last one are zero after a start.
            p = r + over(rho1, rho) * p
            y = state.inverse(p)
            ap = state.operator.mv(y)
            curvature = jnp.sum(shadow * ap)
            alpha = over(rho1, curvature)
            s = r - alpha * ap
            z = state.inverse(s)
            t = state.operator.mv(z)
            omega = over(jnp.sum(t * s), jnp.sum(t * t))
            x1, r1 = x + alpha * y + omega * z, s - omega * t
            broken = (
                (jnp.abs(rho1) <= 1e-12 * _norm(shadow) * _norm(r))
                | (jnp.abs(curvature) <= tiny)
                | (omega == 0)
                | ~jnp.all(jnp.isfinite(r1))
            )
            stuck = broken & jnp.all(shadow == r)
            p1 = jnp.where(broken, 0, p - omega * ap)
            x1, r1 = jnp.where(broken, x, x1), jnp.where(broken, r, r1)
            shadow = jnp.where(broken, r, shadow)
            rho2 = jnp.where(broken, 1, rho1 * over(omega, alpha))
            return x1, r1, shadow, p1, ap, rho2, count + 1, stuck

        zero, one = jnp.zeros_like(vector), jnp.ones((), vector.dtype)
        start = zero, vector, vector, zero, zero, one, 0, jnp.array(False)
        x, r, *_, count, stuck = jax.lax.while_loop(proceed, body, start)
        result = _outcome(_norm(r) <= limit)
        result = lx.RESULTS.where(stuck, lx.RESULTS.breakdown, result)
        return x, result, {"num_steps": count}


class MINRES(AbstractKrylov):
    """The method of minimal residuals for symmetric matrices, indefinite ones too.

    The residual is measured in the norm of the preconditioner, which must be positive definite: `Jacobi`,
    whose entries are taken without their sign. With another one the result is `breakdown`.

    **Arguments:** as of `ConjugateGradients`.

    **Raises:** `ValueError` if the operator does not say that it is symmetric.

    Reference: C. Paige, M. Saunders (1975), doi:10.1137/0712047.
    """

    preconditioner: AbstractPreconditioner = Jacobi()
    rtol: float = 1e-11
    max_steps: int = eqx.field(default=10_000, static=True)

    def demand(self, operator: lx.AbstractLinearOperator) -> None:
        symmetric("MINRES", operator)

    def compute(self, state: Products, vector: Array, options: Options):
        y = state.inverse(vector)
        beta = jnp.sqrt(jnp.maximum(jnp.sum(vector * y), 0))
        rtol = self.relative(vector, options)
        zero = jnp.zeros_like(vector)

        def proceed(carry):
            going = (carry["phi"] > rtol * beta) & (carry["count"] < self.max_steps)
            return going & ~carry["broken"]

        def body(c):
            # Lanczos: v is the normalised preconditioned residual.
            size = jnp.where(c["beta"] > 0, c["beta"], 1)
            v = c["y"] / size
            ap = state.operator.mv(v) - jnp.where(c["count"] > 0, c["beta"] / c["old"], 0) * c["r1"]
            alpha = jnp.sum(v * ap)
            r = ap - alpha / size * c["r2"]
            y = state.inverse(r)
            square = jnp.sum(r * y)
            after = jnp.sqrt(jnp.maximum(square, 0))
            broken = square < -1e-8 * _norm(r) * _norm(y)
            # The plane rotations of the tridiagonal matrix, one more column.
            epsilon = c["epsilon"]
            delta = c["cos"] * c["bar"] + c["sin"] * alpha
            gbar = c["sin"] * c["bar"] - c["cos"] * alpha
            gamma = jnp.maximum(jnp.sqrt(gbar * gbar + after * after), jnp.finfo(v.dtype).tiny)
            cos, sin = gbar / gamma, after / gamma
            w = (v - epsilon * c["w1"] - delta * c["w2"]) / gamma
            return {
                "x": c["x"] + cos * c["phi"] * w,
                "y": y,
                "r1": c["r2"],
                "r2": r,
                "w1": c["w2"],
                "w2": w,
                "old": size,
                "beta": after,
                "bar": -c["cos"] * after,
                "epsilon": c["sin"] * after,
                "cos": cos,
                "sin": sin,
                "phi": sin * c["phi"],
                "broken": broken,
                "count": c["count"] + 1,
            }

        none, one = jnp.zeros_like(beta), jnp.ones_like(beta)
        start = {
            "x": zero,
            "y": y,
            "r1": vector,
            "r2": vector,
            "w1": zero,
            "w2": zero,
            "old": one,
            "beta": beta,
            "bar": none,
            "epsilon": none,
            "cos": -one,
            "sin": none,
            "phi": beta,
            "broken": jnp.sum(vector * y) < 0,
            "count": 0,
        }
        end = jax.lax.while_loop(proceed, body, start)
        result = _outcome(end["phi"] <= rtol * beta)
        result = lx.RESULTS.where(end["broken"], lx.RESULTS.breakdown, result)
        return end["x"], result, {"num_steps": end["count"]}


def _norm(x: Array) -> Array:
    return jnp.sqrt(jnp.sum(x * x))


def _outcome(reached: Array) -> lx.RESULTS:
    return lx.RESULTS.where(reached, lx.RESULTS.successful, lx.RESULTS.max_steps_reached)
