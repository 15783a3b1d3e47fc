"""Complementarity problems in condensed form, `w = W z + q`, for any number of unknowns.

The methods of a chain work on this form, with dense linear algebra. A batch holds `l` problems. Matrices
have the batch on the first axis, `W (l, m, m)`, as LAPACK needs it; vectors have it on the last, `z (m, l)`,
as the laws do. Unknowns of a law come component by component: row `j` of contact `i` is `j c + i`.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._jax import one_by_one
from ...laws._base import AbstractLaw
from ._natural_map import argument, derivative, lost_power, projected
from ._problem import MixedProblem, join, row_steps, split


class Statistics(eqx.Module):
    """Statistics of a solve, each of shape `(...)`.

    **Arguments:**

    - `residual`: relative residual of the natural map, measured in velocity and impulse.
    - `violation`: the largest `|z · (w + lift e_N)|` of a contact, relative to `|z|` times the larger of
      `|w|` and `|q|`: the violation of the law, measured as power.
    - `iterations`: iterations of all methods together.
    - `margin`: distance of the projections' arguments to the nearest change of mode, relative to the size
      of the problem.
    - `solved_by`: index, in the solver's `names`, of the method that found the solution; 0 is the start,
      before any iteration.
    - `converged`: whether the residual is at most the accept tolerance.
    - `wedged`: contacts that slide where friction draws them in, see `wedged` of the natural map; counted by
      the step solver alone.
    """

    residual: Float[Array, "..."]
    violation: Float[Array, "..."]
    iterations: Int[Array, "..."]
    margin: Float[Array, "..."]
    solved_by: Int[Array, "..."]
    converged: Bool[Array, "..."]
    wedged: Int[Array, "..."] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))

    def then(self, other: "Statistics") -> "Statistics":
        """Combines two consecutive solves: iterations add up, the other entries are the worse ones."""
        return Statistics(
            residual=jnp.maximum(self.residual, other.residual),
            violation=jnp.maximum(self.violation, other.violation),
            iterations=self.iterations + other.iterations,
            margin=jnp.minimum(self.margin, other.margin),
            solved_by=jnp.maximum(self.solved_by, other.solved_by),
            converged=self.converged & other.converged,
            wedged=self.wedged + other.wedged,
        )

    @staticmethod
    def like(rhs: Any) -> "Statistics":
        """Shapes of the statistics; `rhs` has the shape of the unknowns, the batch on the last axes."""
        shape: Any = jax.ShapeDtypeStruct(rhs.shape[1:], rhs.dtype)
        count: Any = jax.ShapeDtypeStruct(rhs.shape[1:], jnp.int32)
        done: Any = jax.ShapeDtypeStruct(rhs.shape[1:], jnp.bool_)
        return Statistics(shape, shape, count, shape, count, done, count)


class Contacts(eqx.Module):
    """Consecutive unknowns under one law: `c` contacts of `k` rows each.

    **Arguments:** `law`: leaves of shape `(c, ...)`; `active`: shape `(c, ...)`; `shape`: `(c, k)`.
    """

    law: AbstractLaw
    active: Bool[Array, "c ..."]
    shape: tuple[int, int] = eqx.field(static=True)


def norm(x: Array) -> Array:
    """Euclidean norm over the first axis, of numbers whose squares may leave the range too."""
    top = jnp.max(jnp.abs(x), axis=0, initial=0)
    unit = jnp.where((top > 0) & jnp.isfinite(top), top, 1)
    return unit * jnp.sqrt(jnp.sum((x / unit[None]) ** 2, axis=0))


def ratio(a: Array, b: Array) -> Array:
    """`a / b`, and `a` where `b` is zero."""
    return a / jnp.where(b > 0, b, 1)


class DenseProblem(eqx.Module):
    """`w = W z + q`, `K* ∋ w + lift(w) e_N ⟂ z ∈ K`, for the `l` problems of a batch.

    **Arguments:** `W`: shape `(l, m, m)`, or, for methods that only use products, an operator on
    `(m, l)` with methods `frobenius` and `steps`; `q`: shape `(m, l)`; `contacts`: one entry for every law;
    `sizes`: the steps `(m, l)` and `|W| (l,)` if already computed.
    """

    W: Any
    q: Float[Array, "m l"]
    contacts: tuple[Contacts, ...]
    sizes: tuple[Array, Array] | None = None

    def prepared(self) -> "DenseProblem":
        """The same problem with `sizes`, so that loops do not compute them in every iteration."""
        return DenseProblem(self.W, self.q, self.contacts, (self.steps(), self.frobenius()))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """`(c, k)` of every law."""
        return tuple(part.shape for part in self.contacts)

    @property
    def active(self) -> Array:
        """Which unknowns take part, `(m, l)`."""
        rows = [
            jnp.broadcast_to(part.active[None], (part.shape[1], *part.active.shape))
            for part in self.contacts
        ]
        return join(rows)

    def split(self, x: Array) -> tuple[Array, ...]:
        """The parts of a vector, `(k, c, l)` for every law."""
        return split(self.shapes, x)

    def mixed(self) -> MixedProblem:
        """The same problem in the form of a step problem, with the batch on the last axis of all arrays."""
        return MixedProblem.of_matrix(jnp.moveaxis(self.W, 0, 2), self.q, self.contacts)

    def apply(self, z: Array) -> Array:
        """`W z`."""
        matrix: Any = self.W
        product: Any = matrix(z) if callable(matrix) else jnp.einsum("lij,jl->il", matrix, z)
        return product

    def frobenius(self) -> Array:
        """`|W|`, shape `(l,)`."""
        if self.sizes is not None:
            return self.sizes[1]
        if callable(self.W):
            return self.W.frobenius()
        return norm(self.W.reshape((len(self.W), -1)).T)

    def velocity(self, z: Array) -> Array:
        """`w = W z + q`."""
        return self.apply(z) + self.q

    def project(self, x: Array) -> Array:
        """Projection on the product of the sets; zero where a contact is not active."""
        return join(map(projected, self.contacts, self.split(x)))

    def lift(self, w: Array) -> Array:
        """`w + lift(w) e_N`."""
        parts = []
        for contacts, x in zip(self.contacts, self.split(w), strict=True):
            parts.append(jnp.concatenate([(x[0] + contacts.law.lift(x))[None], x[1:]]))
        return join(parts)

    def natural_map(self, z: Array, w: Array, rho) -> Array:
        """`z − P_K(z − rho (w + lift e_N))`, `rho` a number per problem or per row."""
        return z - self.project(z - rho * self.lift(w))

    def steps(self) -> Array:
        """The step `rho` of the natural map, one for each row and equal within a contact, `(m, l)`."""
        if self.sizes is not None:
            return self.sizes[0]
        if callable(self.W):
            return self.W.steps(self.shapes)
        return row_steps(self.shapes, jnp.moveaxis(self.W, 0, 2))

    def residuals(self, z: Array, w: Array) -> tuple[Array, Array]:
        """The natural map in two measures, each of shape `(l,)`.

            |F_1| / max(|q|, |z|, |w|)     and     |F_s| / (s max(|q|, |w|)),   s = sqrt(m) / |W|

        The first depends on units and is small for multipliers that grow without bound; the second
        is an error of the velocity, to which rounding adds `eps |W| |z|`.
        """
        size_q, size_z, size_w = norm(self.q), norm(z), norm(w)
        plain = norm(self.natural_map(z, w, 1.0))
        relative = ratio(plain, jnp.maximum(jnp.maximum(size_q, size_z), size_w))
        matrix = self.frobenius()
        s = math.sqrt(self.q.shape[0]) / jnp.where(matrix > 0, matrix, 1)
        scaled = norm(self.natural_map(z, w, s[None]))
        # Where multipliers cancel each other, rounding errors remain in the velocity.
        noise = jnp.finfo(z.dtype).eps * matrix * size_z
        return relative, ratio(scaled / s + noise, jnp.maximum(size_q, size_w))

    def residual(self, z: Array, w: Array) -> Array:
        """Both residuals in one number, `max(relative, velocity / 100)`; NaN counts as infinite."""
        relative, velocity = self.residuals(z, w)
        both = jnp.maximum(relative, velocity / 100)
        # Norms that overflow would make any residual relative to them zero.
        sizes = norm(self.q) + norm(z) + norm(w) + self.frobenius()
        return jnp.where(jnp.isfinite(both) & jnp.isfinite(sizes), both, jnp.inf)

    def violation(self, z: Array, w: Array) -> Array:
        """The largest `|z · (w + lift e_N)|` of a contact, relative to `|z| max(|w|, |q|)`, shape `(l,)`.

        At a bound of an interval `z` is measured from that bound, see `lost_power`.
        """
        worst = jnp.zeros(z.shape[1:], z.dtype)
        for contacts, p, u in zip(self.contacts, self.split(z), self.split(w), strict=True):
            worst = jnp.maximum(worst, jnp.max(lost_power(contacts, u, p), axis=0, initial=0))
        return ratio(worst, norm(z) * jnp.maximum(norm(w), norm(self.q)))

    def linearise(self, z: Array, w: Array, rho: Array):
        """Arguments of the projections and their derivatives `D`, `N` (`_natural_map.derivative`)."""
        x, d, n = [], [], []
        for part in zip(self.contacts, *map(self.split, (w, z, rho)), strict=True):
            contacts, u, p, r = part
            at = argument(contacts, u, p, r[0])
            pair = derivative(contacts, u, at, r[0])
            x.append(at)
            d.append(pair[0])
            n.append(pair[1])
        return tuple(x), tuple(d), tuple(n)

    def natural_slopes(self, z: Array, w: Array, rho: Array):
        """The natural map `F (m, l)` with the derivatives `D`, `N` of its projections."""
        x, d, n = self.linearise(z, w, rho)
        return z - join(map(projected, self.contacts, x)), d, n

    def newton_matrix(self, d, n, added: Any = 0.0) -> Array:
        """`G = 1 − D + N (W + diag(added))`, shape `(l, m, m)`; `added` of shape `(m, l)`."""
        diagonal = jnp.broadcast_to(jnp.asarray(added, self.q.dtype), self.q.shape).T
        identity = jnp.eye(self.q.shape[0], dtype=self.q.dtype)
        return newton_matrix(self.W + diagonal[:, None, :] * identity[None], self.shapes, d, n)

    def margin(self, z: Array, w: Array, rho: Array) -> Array:
        """Distance of the projections' arguments to the nearest change of mode, relative, `(l,)`."""
        least = jnp.full(self.q.shape[1:], jnp.inf, self.q.dtype)
        x, _, _ = self.linearise(z, w, rho)
        for contacts, part in zip(self.contacts, x, strict=True):
            distance = jnp.where(contacts.active, contacts.law.set().margin(part), jnp.inf)
            least = jnp.minimum(least, jnp.min(distance, axis=0, initial=jnp.inf))
        return ratio(least, norm(rho * self.q))

    def take(self, index: Array) -> "DenseProblem":
        """The problems of the batch at these indices."""
        rest = jax.tree.map(lambda x: x[..., index], (self.q, self.contacts, self.sizes))
        return DenseProblem(self.W[index], *rest)


def newton_matrix(W: Array, shapes, d, n) -> Array:
    """`G = 1 − D + N W`, shape `(l, m, m)`, from `W (l, m, m)` and `D`, `N (k, k, c, l)` per law."""
    lanes, m, _ = W.shape
    out, at = [], 0
    for (c, k), di, ni in zip(shapes, d, n, strict=True):
        rows = W[:, at : at + c * k].reshape((lanes, k, c, m))
        weight, own = (jnp.moveaxis(x, 3, 0) for x in (ni, di))  # (l, k, k, c)
        own = np.eye(k, dtype=W.dtype)[None, :, :, None] - own
        product = [sum(weight[:, i, j, :, None] * rows[:, j] for j in range(k)) for i in range(k)]
        square = jnp.swapaxes(own, 2, 3)[..., None] * np.eye(c, dtype=W.dtype)[None, None, :, None]
        placed = jnp.pad(
            square.reshape((lanes, k, c, c * k)), ((0, 0), (0, 0), (0, 0), (at, m - at - c * k))
        )
        out.append((jnp.stack(product, axis=1) + placed).reshape((lanes, c * k, m)))
        at += c * k
    return jnp.concatenate(out, axis=1)


def solve_matrix(matrix: Array, right: Array) -> Array:
    """`matrix^-1 right` for every problem, `(l, m, m)` and `(m, l)`; zero where that is not finite."""
    x = one_by_one(jnp.linalg.solve, matrix, right.T).T
    return jnp.where(jnp.all(jnp.isfinite(x), axis=0)[None], x, 0)


def by_factor(factor: Array, right: Array) -> Array:
    """`(L L^T)^-1 right` from `L (m, m)`."""
    x = jax.lax.linalg.triangular_solve(factor, right[:, None], left_side=True, lower=True)
    return jax.lax.linalg.triangular_solve(factor, x, left_side=True, lower=True, transpose_a=True)[
        :, 0
    ]


def solve_damped(matrix: Array, right: Array, damping: Array) -> Array:
    """The minimiser of `|G x − r|² + damping |G|²/m |x|²` for every problem (Levenberg, Marquardt)."""
    m = matrix.shape[-1]
    square = jnp.einsum("lki,lkj->lij", matrix, matrix)
    trace = jnp.einsum("lii->l", square) / m
    square = square + (damping * trace)[:, None, None] * jnp.eye(m, dtype=matrix.dtype)[None]
    target = jnp.einsum("lki,kl->li", matrix, right)
    x = one_by_one(lambda a, b: by_factor(jnp.linalg.cholesky(a), b), square, target).T
    return jnp.where(jnp.all(jnp.isfinite(x), axis=0)[None], x, 0)
