"""The cone of friction and rolling resistance."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows, bisect, lengths, positive_root


class RollingCone(AbstractSet):
    """`K = {(z_N, z_T, z_R) : |z_T| <= mu z_N, |z_R| <= mu_r z_N}`.

    The rows are the normal, then as many tangential as rolling ones: 5 in space, 3 in the plane.
    The projection keeps the directions of `z_T` and `z_R`; its height `t = z_N'` solves

        t = z_N + mu (|z_T| − mu t)⁺ + mu_r (|z_R| − mu_r t)⁺

    whose right side is a maximum of four straight lines, so `t` is the largest of their roots. At
    the apex the derivative of the projection is taken to be 0 (an open contact).

    **Arguments:** `mu`: friction coefficient; `mu_r`: rolling friction coefficient, in the units
    of a couple over a force [m]; both of shape `()` or `(c,)`, nonnegative.

    Reference: A. Tasora, M. Anitescu, A complementarity-based rolling friction model for rigid
    contacts (2013), doi:10.1007/s11012-013-9694-y (there without the shift of friction).
    """

    mu: Array
    mu_r: Array

    def unilateral(self) -> bool:
        return True

    def refuses(self, rows: int) -> str | None:
        if rows in (3, 5):
            return None
        return f"RollingCone needs 5 rows, or 3 in the plane, got {rows}"

    def _parts(self, z: Rows):
        half = (z.shape[0] - 1) // 2
        mu, mu_r, normal = self.mu, self.mu_r, z[0]
        (a, *slip), (b, *roll) = map(lengths, (z[1 : 1 + half], z[1 + half :]))
        both = normal + mu * a + mu_r * b
        height = jnp.maximum(
            jnp.maximum(normal, both / (1 + mu * mu + mu_r * mu_r)),
            jnp.maximum((normal + mu * a) / (1 + mu * mu), (normal + mu_r * b) / (1 + mu_r * mu_r)),
        )
        return height, ((mu, a, slip), (mu_r, b, roll))

    def project(self, z: Rows) -> Rows:
        height, parts = self._parts(z)
        height = jnp.maximum(height, 0)
        rows = [height[None]]
        for mu, length, (unit, along, size) in parts:
            factor = jnp.where(_outside(mu, length, height), mu * height / size, unit)
            rows.append(factor[None] * along)
        return jnp.concatenate(rows)

    def jacobian(self, z: Rows) -> Blocks:
        """With `s` = 1 for a part outside its cone, else 0, and `e = z_T/|z_T|`, `t' = dt/dz`:

        `t' = (1, s mu e, s_r mu_r e_r) / (1 + s mu² + s_r mu_r²)`, and a part outside has the rows
        `mu e t'ᵀ + mu t/|z_T| (1 − e eᵀ)`; a part inside has identity rows.
        """
        height, parts = self._parts(z)
        on = jnp.where(height > 0, jnp.ones_like(height), jnp.zeros_like(height))
        slope, spread, sides = [on], on, []
        for mu, length, (_, along, size) in parts:
            e = along / size[None]
            s = jnp.where(_outside(mu, length, height), on, 0)
            turn = s * mu * height / jnp.where(length > 0, length, 1)
            slope += [s * mu * x for x in e]
            spread = spread + s * mu * mu
            sides.append((mu, s, e, turn))
        scale = on / jnp.where(spread > 0, spread, 1)
        slope = [scale * x for x in slope]
        blocks, at = [slope], 1
        for mu, s, e, turn in sides:
            for i in range(e.shape[0]):
                row = [s * mu * e[i] * x for x in slope]
                for j in range(e.shape[0]):
                    same = turn + on - s if i == j else 0
                    row[at + j] = row[at + j] + same - turn * e[i] * e[j]
                blocks.append(row)
            at += e.shape[0]
        return blocks

    def prox(self, z: Rows, kappa: Array) -> Rows:
        """Minimises `|p − z|²/2 − kappa (log(p_N² − |p_T|²/mu²) + log(p_N² − |p_R|²/mu_r²))`.

        In `(p_N, |p_T|/mu, |p_R|/mu_r)` no coefficient is singular, not even at `mu = 0`. The
        root is found without derivatives; two further Newton steps give it those of the implicit
        function.
        """
        half = (z.shape[0] - 1) // 2
        a, b = (lengths(part)[0] for part in (z[1 : 1 + half], z[1 + half :]))
        sides = (self.mu, a), (self.mu_r, b)
        given = z[0], sides, jnp.broadcast_to(jnp.asarray(kappa, z.dtype), z[0].shape)
        n, low = _root(*jax.lax.stop_gradient(given))
        for _ in range(2):
            n, low = _newton_step(n, low, *given)
        rows = [n[None]]
        for d, (mu, _), part in zip(low, sides, (z[1 : 1 + half], z[1 + half :]), strict=True):
            # |p_T| / |z_T| from the stationarity in p_T: smooth where z_T = 0.
            opening = mu * mu * d * (2 * n - d)
            rows.append((opening / (opening + 2 * given[2]))[None] * part)
        return jnp.concatenate(rows)

    def margin(self, z: Rows) -> Array:
        _, ((mu, a, _), (mu_r, b, _)) = self._parts(z)
        normal = z[0]
        least = jnp.abs(normal + mu * a + mu_r * b) / jnp.sqrt(1 + mu * mu + mu_r * mu_r)
        for own, length, other, rest in ((mu, a, mu_r, b), (mu_r, b, mu, a)):
            # The height without this part, and how it changes with z.
            spread = jnp.where(rest > other * normal, 1 + other * other, 1)
            alone = jnp.maximum(normal, (normal + other * rest) / (1 + other * other))
            distance = jnp.abs(length - own * alone) / jnp.sqrt(1 + own * own / spread)
            least = jnp.minimum(least, jnp.where(alone > 0, distance, jnp.inf))
        return least


def _outside(mu, length, height):
    """Whether a part is outside its own cone at a given height; always true without friction."""
    reach = mu * height
    return ~((length <= reach) & (reach > 0))


# The minimiser of the barrier problem in its height `n > 0` and the distances `d = n − |p_T|/mu`
# of both parts to their cones, `0 < d <= n`:
#
#     n − z_N = Σ kappa (1/d + 1/(2 n − d))                               (height)
#     mu² (n − d) − mu |z_T| + kappa/d − kappa/(2 n − d) = 0              (each part)


def _distance(n, mu, length, kappa):
    """`d` of a part at a given height: the left side of its equation falls and is convex in `d`.

    With `kappa/n`, a bound of the last term, in its place the root has a closed form and lies below the
    one sought; Newton's method goes up from there.
    """
    b = mu * mu * n - mu * length - kappa / n
    d = jnp.minimum(positive_root(mu * mu, b, kappa), n)
    for _ in range(5):
        value, slope = _part(n, d, mu, length, kappa)
        d = jnp.minimum(d + value / slope, n)
    return d


def _part(n, d, mu, length, kappa):
    """The left side of a part's equation, and minus its derivative with respect to `d`."""
    near, far = 1 / d, 1 / (2 * n - d)
    value = mu * mu * (n - d) - mu * length + kappa * (near - far)
    return value, mu * mu + kappa * (near * near + far * far)


def _root(normal, sides, kappa):
    """The height by bisection on a logarithmic scale; its equation is monotonic."""
    left = (normal + jnp.sqrt(normal * normal + 16 * kappa)) / 2
    floor = 2 * kappa / (jnp.abs(normal) + jnp.sqrt(kappa))
    left = jnp.maximum(left, floor)
    size = jnp.sqrt(normal * normal + sum(length * length for _, length in sides))
    right = 2 * (jnp.maximum(left, size) + 4 * jnp.sqrt(kappa))

    def excess(n):
        rest = n - normal
        for mu, length in sides:
            d = _distance(n, mu, length, kappa)
            rest = rest - kappa * (1 / d + 1 / (2 * n - d))
        return rest

    n = bisect(excess, left, right, 48)
    return n, tuple(_distance(n, mu, length, kappa) for mu, length in sides)


def _newton_step(n, low, normal, sides, kappa):
    """One step of Newton's method on the equations above, with the parts eliminated."""
    value, slope = n - normal, jnp.ones_like(n)
    steps = []
    for d, (mu, length) in zip(low, sides, strict=True):
        near, far = 1 / d, 1 / (2 * n - d)
        f, f_d = _part(n, d, mu, length, kappa)
        f_n = mu * mu + 2 * kappa * far * far
        # −f_d dd + f_n dn + f = 0, and the derivatives of the height's equation with respect to d and n.
        g_d = kappa * (near * near - far * far)
        value = value - kappa * (near + far) + g_d * f / f_d
        slope = slope + 2 * kappa * far * far + g_d * f_n / f_d
        steps.append((f, f_n, f_d))
    dn = -value / slope
    moved = tuple(d + (f + f_n * dn) / f_d for d, (f, f_n, f_d) in zip(low, steps, strict=True))
    return n + dn, moved
