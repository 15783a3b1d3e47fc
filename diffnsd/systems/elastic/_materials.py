"""Materials: energies per reference volume as functions of the deformation gradient."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._arguments import AbstractChecked
from ..._expects import returned
from ..._jax import concrete, is_traced
from ..._numerics import as_float, entries, implicit_root, short_sum
from ..._types import Scalar

Gradient = Float[Array, "3 3"]


class Shared(eqx.Module):
    """A pytree that all elements share, whatever the shapes of its arrays (a network's weights).

    **Arguments:** `value`: any pytree.
    """

    value: Any


class AbstractMaterial(AbstractChecked):
    """A hyperelastic material: an energy per reference volume.

    Every array among its fields has one value, shape `()`, or one for each element, leading axis `e`. What
    all elements share whatever its shape is put into `Shared`. `energy` sees the values of one element.
    """

    @abstractmethod
    def energy(self, F: Gradient) -> Scalar:
        """Energy density [J/m³] at the deformation gradient `F = ∂x/∂X`, for one element."""

    def check(self) -> str | None:
        """Error message if a parameter with a known value is invalid, else `None`."""
        return None


class AbstractIsotropic(AbstractMaterial):
    """A material with the linear limit of Hooke's law, given by two constants.

    **Arguments:** `young`: Young's modulus E [Pa]; `poisson`: Poisson's ratio, −1 < ν < 1/2. Each one
    value, `()`, or one per element, `(e,)`.
    """

    young: eqx.AbstractVar[Array]
    poisson: eqx.AbstractVar[Array]

    @property
    def lame(self) -> tuple[Array, Array]:
        """Lamé's constants `(lambda, mu)` [Pa]."""
        mu = self.young / (2 * (1 + self.poisson))
        return 2 * mu * self.poisson / (1 - 2 * self.poisson), mu

    def check(self) -> str | None:
        young, poisson = concrete((self.young, self.poisson))
        name = type(self).__name__
        if not is_traced(young) and not np.all(np.asarray(young) > 0):
            return f"young of {name} must be positive, got {np.min(np.asarray(young)):.6g}"
        if not is_traced(poisson):
            value = np.asarray(poisson)
            if not np.all((value > -1) & (value < 0.5)):
                worst = value.flat[np.argmax(np.abs(value))]
                return (
                    f"poisson of {name} must be above -1 and below 0.5 (take 0.49 for a nearly "
                    f"incompressible material), got {worst:.6g}"
                )
        return None


class LinearElastic(AbstractIsotropic):
    """Hooke's law for small strains:  `ψ = μ ε:ε + λ/2 (tr ε)²`,  `ε = (F + Fᵀ)/2 − I`.

    Not invariant under rotations: a body that turns by a finite angle stretches. For small motions only.
    """

    young: Float[Array, "..."] = eqx.field(converter=as_float)
    poisson: Float[Array, "..."] = eqx.field(converter=as_float)

    def energy(self, F: Gradient) -> Scalar:
        lam, mu = self.lame
        (a, b, c), (d, e, f), (g, h, i) = entries(F)
        trace = a + e + i - 3
        diagonal = (a - 1) ** 2 + (e - 1) ** 2 + (i - 1) ** 2
        shear = ((b + d) ** 2 + (c + g) ** 2 + (f + h) ** 2) / 2
        return mu * (diagonal + shear) + lam / 2 * trace**2


class SaintVenantKirchhoff(AbstractIsotropic):
    """Hooke's law for Green's strain:  `ψ = μ E:E + λ/2 (tr E)²`,  `E = (Fᵀ F − I)/2`.

    For large rotations and small strains. It softens under compression and has no resistance to inversion.
    """

    young: Float[Array, "..."] = eqx.field(converter=as_float)
    poisson: Float[Array, "..."] = eqx.field(converter=as_float)

    def energy(self, F: Gradient) -> Scalar:
        lam, mu = self.lame
        (x, y, z), (p, q, r) = _cauchy_green(F)
        x, y, z = (x - 1) / 2, (y - 1) / 2, (z - 1) / 2
        square = x * x + y * y + z * z + (p * p + q * q + r * r) / 2
        return mu * square + lam / 2 * (x + y + z) ** 2


class NeoHookean(AbstractIsotropic):
    """The stable neo-Hookean material of Smith, de Goes and Kim.

        ψ = μ'/2 (I − 3) + λ'/2 (J − α)² − μ'/2 log(I + 1) + const,      I = tr Fᵀ F,  J = det F,
        μ' = 4/3 μ,   λ' = λ + 5/6 μ,   α = 1 + 3/4 μ'/λ',   ψ(1) = 0

    Finite for every `F`, also where an element turns inside out; its linear limit is Hooke's law.

    Reference: B. Smith, F. de Goes, T. Kim, Stable neo-Hookean flesh simulation (2018),
    doi:10.1145/3180491.
    """

    young: Float[Array, "..."] = eqx.field(converter=as_float)
    poisson: Float[Array, "..."] = eqx.field(converter=as_float)

    def energy(self, F: Gradient) -> Scalar:
        lam, mu = self.lame
        lam, mu = lam + 5 / 6 * mu, 4 / 3 * mu
        excess = 3 / 4 * mu / lam
        invariant, volume = _square(F), determinant(F)
        # Differences to the values at rest, so that small strains are not lost to rounding.
        growth = invariant - 3
        pressure = lam / 2 * (volume - 1) * (volume - 1 - 2 * excess)
        return mu / 2 * (growth - jnp.log1p(growth / 4)) + pressure


class Corotational(AbstractIsotropic):
    """Hooke's law in the frame that turns with the material:  `ψ = μ |F − R|² + λ/2 (tr Rᵀ F − 3)²`.

    `F = R S` is the polar decomposition. Only `tr S` is needed, `|F − R|² = |F|² − 2 tr S + 3`; it is the
    largest root `s` of `(s² − I)² = 8 J s + 4 II`, with the invariants `I, II` of `Fᵀ F` and `J = det F`,
    also where an element is inverted. Newton's method finds it from above.

    Reference: A. McAdams et al., Efficient elasticity for character skinning (2011),
    doi:10.1145/1964921.1964932.
    """

    young: Float[Array, "..."] = eqx.field(converter=as_float)
    poisson: Float[Array, "..."] = eqx.field(converter=as_float)

    def energy(self, F: Gradient) -> Scalar:
        lam, mu = self.lame
        stretch = trace_of_stretch(F)
        return mu * (_square(F) - 2 * stretch + 3) + lam / 2 * (stretch - 3) ** 2


class Hyperelastic(AbstractMaterial):
    """A material of the user's own, `ψ = function(F, parameters, shared)` [J/m³].

    **Arguments:** `function`: pure, for one element: `F (3, 3)`, and the parameters of this element;
    `parameters`: pytree of arrays with one value each, `()`, or one per element, leading axis `e`;
    `shared`: pytree that is passed on as it is. In a plane `F` has the thickness as third direction.
    """

    function: Callable
    parameters: Any
    shared: Shared

    def __init__(
        self,
        function: Annotated[Callable, "(F, parameters, shared)"],
        parameters: Any = None,
        shared: Any = None,
    ):
        self.function = function
        self.parameters = parameters
        self.shared = Shared(shared)

    def energy(self, F: Gradient) -> Scalar:
        value = self.function(F, self.parameters, self.shared.value)
        name = "the function(F, parameters, shared) of Hyperelastic"
        return returned(name, value, "an energy density, one real number", shape=(), smooth=True)


def determinant(F: Array) -> Scalar:
    """Determinant of a matrix of order 1, 2 or 3."""
    rows = entries(F)
    if len(rows) == 1:
        return rows[0][0]
    if len(rows) == 2:
        (a, b), (c, d) = rows
        return a * d - b * c
    (a, b, c), (d, e, f), (g, h, i) = rows
    return a * (e * i - f * h) + b * (f * g - d * i) + c * (d * h - e * g)


def trace_of_stretch(F: Gradient) -> Scalar:
    """`tr S` of the polar decomposition `F = R S`, `det R = 1`."""
    (x, y, z), (p, q, r) = _cauchy_green(F)
    first, volume = x + y + z, determinant(F)
    second = x * y + y * z + z * x - p * p - q * q - r * r

    def residual(s):
        return (s * s - first) ** 2 - 8 * volume * s - 4 * second

    # The residual is convex and grows beyond its largest root, and sqrt(3 I) is not below it.
    return implicit_root(residual, jnp.sqrt(3 * first), search=8)


def _square(F: Gradient) -> Scalar:
    return short_sum(short_sum(F * F, 0), 0)


def _cauchy_green(F: Gradient) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Diagonal `(xx, yy, zz)` and sides `(xy, yz, zx)` of `Fᵀ F`."""
    u, v, w = (list(jnp.unstack(column)) for column in jnp.unstack(F, axis=1))

    def times(a, b):
        return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]

    return (times(u, u), times(v, v), times(w, w)), (times(u, v), times(v, w), times(w, u))
