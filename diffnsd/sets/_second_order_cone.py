"""The friction cone."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows, bisect, lengths, positive_root


class SecondOrderCone(AbstractSet):
    """`K = {(z_N, z_T) : |z_T| <= mu z_N}`, round, with any number of tangential rows.

    Outside the cone and its polar the projection lands on the ray

        z_N' = (z_N + mu |z_T|) / (1 + mu^2),     z_T' = mu z_N' z_T / |z_T|.

    With one tangential row this is the planar cone; `mu = 0` is the half line with `z_T = 0`. At
    the apex the derivative of the projection is taken to be 0 (an open contact).

    **Arguments:** `mu`: friction coefficient, shape `()` or `(c,)`, nonnegative.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    mu: Array

    def _parts(self, z: Rows):
        normal, (length, *parts) = z[0], lengths(z[1:])
        reach = self.mu * normal
        inside = (length <= reach) & (reach > 0)
        apex = (self.mu * length <= -normal) & ~inside
        on_ray = (normal + self.mu * length) / (1 + self.mu * self.mu)
        return normal, length, inside, apex, on_ray, parts

    def unilateral(self) -> bool:
        return True

    def refuses(self, rows: int) -> str | None:
        return None if rows >= 2 else f"SecondOrderCone needs at least 2 rows, got {rows}"

    def project(self, z: Rows) -> Rows:
        normal, _, inside, apex, on_ray, (unit, along, size) = self._parts(z)
        height = jnp.where(apex, 0, on_ray)
        factor = jnp.where(inside, unit, self.mu * height / size)
        new_normal = jnp.where(inside, normal, height)
        return jnp.concatenate([new_normal[None], factor[None] * along])

    def jacobian(self, z: Rows) -> Blocks:
        """`1` inside, `0` at the apex, and on the lateral surface, with `e = z_T / |z_T|`,

        `w w^T / (1 + mu^2) + mu z_N'/|z_T| (1 - e e^T)`, where `w = (1, mu e)`.
        """
        _, length, inside, apex, on_ray, (_, along, size) = self._parts(z)
        e = along / size[None]
        slide = ~(inside | apex)
        ray = jnp.where(slide, 1 / (1 + self.mu * self.mu), 0)
        turn = jnp.where(slide, self.mu * on_ray / jnp.where(length > 0, length, 1), 0)
        keep = jnp.where(inside, 1, 0).astype(ray.dtype)
        cross_term = ray * self.mu
        mantle = ray * self.mu * self.mu - turn
        k = z.shape[0]
        first = [ray + keep] + [cross_term * e[j] for j in range(k - 1)]
        rows = [first]
        for i in range(k - 1):
            row = [cross_term * e[i]]
            for j in range(k - 1):
                entry = mantle * e[i] * e[j]
                row.append(entry + turn + keep if i == j else entry)
            rows.append(row)
        return rows

    def prox(self, z: Rows, kappa: Array) -> Rows:
        """Minimises `|p - z|^2 / 2 - kappa log(p_N^2 - |p_T|^2 / mu^2)`, for `kappa > 0`.

        In the spectral values `(p_N - |p_T|/mu, p_N + |p_T|/mu)` the equations have no singular
        coefficient, not even at `mu = 0`. The root is found without derivatives; two further Newton
        steps give it the derivatives of the implicit function, to the second order.
        """
        given = z[0], lengths(z[1:])[0], self.mu, kappa
        low, high = _spectral_values(*jax.lax.stop_gradient(given))
        for _ in range(2):
            low, high = _newton_step(low, high, *given)
        # |p_T| / |z_T| from the stationarity in p_T: smooth where z_T = 0.
        opening = self.mu * self.mu * low * high
        factor = opening / (opening + 2 * kappa)
        return jnp.concatenate([((low + high) / 2)[None], factor[None] * z[1:]])

    def margin(self, z: Rows) -> Array:
        normal, length, *_ = self._parts(z)
        scale = jnp.sqrt(1 + self.mu * self.mu)
        return (
            jnp.minimum(jnp.abs(length - self.mu * normal), jnp.abs(self.mu * length + normal))
            / scale
        )


# The minimiser of the barrier problem in its spectral values `low, high > 0`:
#
#     same low  + other high - (normal - mu length)/2 = kappa / low
#     other low + same  high - (normal + mu length)/2 = kappa / high
#
# with `same = (1 + mu^2)/4`, `other = (1 - mu^2)/4`: the half-line law in two coupled rows.


def _spectral_values(normal, length, mu, kappa):
    """The root by bisection on a logarithmic scale: `low` follows from `high` in closed form.

    The remaining equation is increasing in `high`, and `|p| <= |z| + sqrt(2 kappa)` brackets its root.
    """
    same, other = (1 + mu * mu) / 4, (1 - mu * mu) / 4

    def low_from(high):
        c = (normal - mu * length) / 2 - other * high
        return positive_root(same, c, kappa)

    def excess(high):
        return other * low_from(high) + same * high - (normal + mu * length) / 2 - kappa / high

    size = jnp.sqrt(normal * normal + length * length)
    right = 2 * (size + jnp.sqrt(2 * kappa))
    left = kappa / ((same + jnp.abs(other)) * right + (1 + mu) * size)
    high = bisect(excess, left, right, 60)
    return low_from(high), high


def _newton_step(low, high, normal, length, mu, kappa):
    """One step of Newton's method on the equations above."""
    same, other = (1 + mu * mu) / 4, (1 - mu * mu) / 4
    f_low = same * low + other * high - (normal - mu * length) / 2 - kappa / low
    f_high = other * low + same * high - (normal + mu * length) / 2 - kappa / high
    a, c = same + kappa / (low * low), same + kappa / (high * high)
    determinant = a * c - other * other
    return (
        low - (c * f_low - other * f_high) / determinant,
        high - (a * f_high - other * f_low) / determinant,
    )
