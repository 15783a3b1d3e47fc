"""Polytopes: multipliers bounded by any number of faces."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._numerics import dot, lu_solve, matrix_inverse, stacked, unit_matrix
from ._base import AbstractSet, Blocks, Rows


class Polytope(AbstractSet):
    """`{z : H z >= b}`, with one row of `H` for each of `p` faces; it must not be empty.

    The projection lies on a face, an edge or a corner, or is the point itself. All of these are
    tried, elementwise, so this suits a few faces in a few dimensions. Where several are valid, the
    derivative is that of the one with the fewest faces.

    **Arguments:** `normals`: `H`, `p` tuples of `k` arrays; `offsets`: `b`, `p` arrays; each array
    broadcasts against one row, shape `()` or `(c,)`.

    Reference: N. Parikh, S. Boyd, Proximal algorithms (2014), doi:10.1561/2400000003.
    """

    normals: tuple[tuple[Array, ...], ...]
    offsets: tuple[Array, ...]

    def __check_init__(self):
        if len({len(row) for row in self.normals}) > 1 or len(self.normals) != len(self.offsets):
            raise ValueError(
                f"normals must be rows of one length, one for each of {len(self.offsets)} offsets, got "
                f"lengths {[len(row) for row in self.normals]}."
            )

    def refuses(self, rows: int) -> str | None:
        lengths = {len(row) for row in self.normals}
        if lengths == {rows}:
            return None
        return f"Polytope has normals of {sorted(lengths)} entries, got contacts of {rows} rows"

    def _faces(self, z: Rows) -> tuple[Array, Array]:
        """`H (p, k, ...)` and `b (p, ...)`, broadcast over the trailing axes of `z`."""

        def full(x):
            return jnp.broadcast_to(jnp.asarray(x, z.dtype), z[0].shape)

        h = jnp.stack([jnp.stack([full(x) for x in row]) for row in self.normals])
        return h, jnp.stack([full(x) for x in self.offsets])

    def _nearest(self, z: Rows) -> tuple[Rows, Array, Array]:
        """The projection, its derivative `(k, k, ...)`, and the distance to the nearest change of mode."""
        h, b = self._faces(z)
        k = z.shape[0]
        gap = jnp.stack([b[i] - dot(h[i], z) for i in range(len(h))])
        free = jnp.broadcast_to(unit_matrix(k, z), (k, *z.shape))
        points, slopes, signs = [z[None]], [free[None]], [jnp.full_like(z[:1], jnp.inf)]
        for size in range(1, min(len(h), k) + 1):
            # Sets of faces onto whose intersection a point may project.
            faces = list(combinations(range(len(h)), size))
            n, out = (
                [jnp.stack([x[face] for face in column]) for column in zip(*faces, strict=True)]
                for x in (h, gap)
            )
            back, regular = _guarded(stacked([[jnp.sum(x * y, axis=1) for y in n] for x in n]))
            mu = [dot(row, jnp.stack(out)) for row in back]
            points.append(sum((m[:, None] * x for m, x in zip(mu, n, strict=True)), z[None]))
            onto = [dot(row[:, :, None], jnp.stack(n)) for row in back]
            normal = [x[:, :, None] * y[:, None] for x, y in zip(n, onto, strict=True)]
            slopes.append(free[None] - sum(normal[1:], normal[0]))
            least = jnp.min(jnp.stack(mu), axis=0)
            signs.append(jnp.where(regular, least, -jnp.inf))
        points, signs = jnp.concatenate(points), jnp.concatenate(signs)
        inside = jnp.sum(h[None] * points[:, None], axis=2) - b[None]
        # Zero up to rounding for the projection; of equal candidates, take the first.
        wrong = jnp.maximum(jnp.maximum(-jnp.min(inside, axis=1), -signs), 0)
        small = 64 * jnp.finfo(z.dtype).eps * (1 + jnp.max(jnp.abs(gap), axis=0))
        best = jnp.argmin(jnp.where(wrong <= small[None], 0, wrong), axis=0)
        chosen = best[None] == np.arange(len(points)).reshape(-1, *(1,) * (z.ndim - 1))

        def pick(x):
            mask = chosen.reshape(
                chosen.shape[:1] + (1,) * (x.ndim - chosen.ndim) + chosen.shape[1:]
            )
            return jnp.sum(jnp.where(mask, x, 0), axis=0)

        here, on = pick(inside), pick(jnp.where(jnp.isfinite(signs), signs, 0)[:, None])[0]
        others = jnp.min(jnp.where(here > small[None], here, jnp.inf), axis=0)
        margin = jnp.minimum(others, jnp.where(best > 0, on, jnp.inf))
        return pick(points), pick(jnp.concatenate(slopes)), margin

    def project(self, z: Rows) -> Rows:
        return self._nearest(z)[0]

    def jacobian(self, z: Rows) -> Blocks:
        slope = self._nearest(z)[1]
        return [list(row) for row in slope]

    def margin(self, z: Rows) -> Array:
        return self._nearest(z)[2]

    def prox(self, z: Rows, kappa: Array) -> Rows:
        """Root of `p − z = kappa H^T (1/s)`, `s = H p − b`, by an interior point method.

        It may start outside: `s` and the forces `kappa/s` are unknowns that stay positive. Two further
        steps are differentiated: they give the root the derivatives of the implicit function.
        """
        h, b = self._faces(z)
        kappa = jnp.broadcast_to(jnp.asarray(kappa, z.dtype), z[0].shape)
        p, s, mu = _central(*jax.lax.stop_gradient((h, b, z, kappa)))
        for _ in range(2):
            dp, ds, dmu = _interior_step(h, b, z, kappa, p, s, mu)
            p, s, mu = p + dp, s + ds, mu + dmu
        return p


def _inside(h: Array, b: Array, x: Rows) -> Array:
    """`H x − b`, `(p, ...)`."""
    return jnp.stack([dot(row, x) for row in h]) - b


def _guarded(gram: Array) -> tuple[Array, Array]:
    """The inverse of a Gram matrix, the identity where it is singular, and where it is regular."""
    floor = 1e4 * jnp.finfo(gram.dtype).eps
    rest, kept = gram, []
    for i in range(len(gram)):
        pivot = rest[0, 0]
        kept.append(pivot > floor * gram[i, i])
        factor = rest[1:, 0] / jnp.where(pivot > 0, pivot, 1)[None]
        rest = rest[1:, 1:] - factor[:, None] * rest[:1, 1:]
    regular = jnp.all(jnp.stack(kept), axis=0)
    return matrix_inverse(jnp.where(regular, gram, unit_matrix(len(gram), gram[0]))), regular


def _interior_step(h, b, z, kappa, p, s, mu):
    """Newton step for `p − z = H^T mu`, `H p − b = s`, `mu s = kappa`."""
    slack = _inside(h, b, p) - s
    weight, target = mu / s, kappa[None] / s - mu
    matrix = unit_matrix(z.shape[0], z) + sum(
        w[None, None] * (x[:, None] * x[None]) for w, x in zip(weight, h, strict=True)
    )
    # dmu = target − weight ds, ds = H dp + slack
    force = mu + target - weight * slack
    right = z - p + sum(f[None] * x for f, x in zip(force, h, strict=True))
    dp = lu_solve(matrix, right)
    ds = jnp.stack([dot(x, dp) for x in h]) + slack
    return dp, ds, target - weight * ds


def _central(h, b, z, kappa):
    def body(_, carry):
        p, s, mu = carry
        dp, ds, dmu = _interior_step(h, b, z, kappa, p, s, mu)
        fall = jnp.maximum(jnp.max(-ds / s, axis=0), jnp.max(-dmu / mu, axis=0))
        length = (1 / jnp.maximum(1.0, fall / 0.95))[None]
        return p + length * dp, s + length * ds, mu + length * dmu

    s = jnp.maximum(_inside(h, b, z), jnp.sqrt(kappa)[None])
    return jax.lax.fori_loop(0, 60, body, (z, s, kappa[None] / s))
