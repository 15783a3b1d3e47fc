"""Bijections between the real numbers and the admissible values of a scalar physical quantity.

The bounded maps are algebraic, not logistic. With the softness `s` and `kappa = s^2`,

    soft(x) = (x + sqrt(x^2 + 4 kappa)) / 2          half line, x = (value - lo) / scale
    clip(x) = soft(x) - soft(x - 1)                  interval,  value = lo + (hi - lo) clip(x)

Each map is nearly the identity further than `s` from the bound, so that steps and curvatures are
those of the physical quantity itself. Its slope at `x = 0` is one half, so a parameter that starts on
its bound can leave it (a logistic map has slope zero there). Towards the bound the value decays like
`kappa / x` and `kappa / x^2`: the iteration approaches an optimum on the bound but never reaches it.
`soft` is the proximal map of `kappa` times the logarithmic barrier of the half line.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._arguments import AbstractChecked
from ..._jax import is_traced

_ON_BOUND = 1e-6
"""Start values closer to a bound than this fraction of the scale count as on it and are moved off."""

Bound = float | tuple


class AbstractTransform(AbstractChecked):
    """A bijection `value = forward(raw)` from the real numbers to the physically admissible values.

    Optimisers work on `raw`, which is unconstrained; models and reports use `value`. A transform has
    only static fields, so it can be part of the structure of a pytree of parameters.

    `is_box` means that each component of the value varies independently between `limits()`. A method
    that handles such bounds itself may then work on the value instead of on `raw`.
    """

    is_box: ClassVar[bool] = False

    @abstractmethod
    def forward(self, raw: Array) -> Array:
        """The physical value for unconstrained numbers `raw`."""

    @abstractmethod
    def to_raw(self, value: Array) -> Array:
        """The unconstrained numbers for a value strictly inside the admissible set."""

    def problem(self, value: np.ndarray) -> str | None:
        """Why `value` is inadmissible, in the user's terms; `None` if it is admissible."""
        lo, hi = self.limits()
        if np.all((value >= lo) & (value <= hi)):
            return None
        has_lo, has_hi = np.all(np.isfinite(lo)), np.all(np.isfinite(hi))
        if has_lo and has_hi:
            return f"the value must be between {lo} and {hi}, got {value}."
        side = f"at least {lo}" if has_lo else f"at most {hi}"
        return f"the value must be {side}, got {value}."

    def inside(self, value: Array) -> Array:
        """`value`, moved inside by a small amount, given by the class, if it lies on a bound."""
        return value

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound of the value, infinite if there is none."""
        return np.asarray(-np.inf), np.asarray(np.inf)

    def inverse(self, value: Array) -> Array:
        """`raw` with `forward(raw) = inside(value)`.

        **Raises:** `ValueError` for an inadmissible or non-finite value (outside compiled code).
        """
        value = jnp.asarray(value)
        if not is_traced(value):
            concrete = np.asarray(value)
            if not np.all(np.isfinite(concrete)):
                raise ValueError(f"the value {concrete} is not finite; give a finite start value.")
            problem = self.problem(concrete)
            if problem is not None:
                raise ValueError(problem)
        return self.to_raw(self.inside(value))


def _static(bound) -> Bound:
    """A bound as a float or nested tuple of floats, so that it can be hashed and compared."""

    def freeze(x):
        return tuple(freeze(y) for y in x) if isinstance(x, list) else float(x)

    return freeze(np.asarray(bound, dtype=float).tolist())


def _soft(x: Array, kappa: float) -> Array:
    """`(x + sqrt(x^2 + 4 kappa)) / 2` without cancellation at either end."""
    magnitude = jnp.where(x > 0, x, -x)
    total = jnp.sqrt(x * x + 4 * kappa) + magnitude
    return jnp.where(x > 0, total / 2, 2 * kappa / total)


def _clip_low(x: Array, kappa: float) -> Array:
    """`soft(x) - soft(x - 1)` for `x <= 1/2`, all terms positive."""
    a, b = jnp.sqrt(x * x + 4 * kappa), jnp.sqrt((x - 1) ** 2 + 4 * kappa)
    return (_soft(x, kappa) + 2 * kappa / (b + 1 - x)) / (a + b)


def _clip_inverse(y: Array, kappa: float) -> Array:
    """`x` with `soft(x) - soft(x - 1) = y`, for `0 < y <= 1/2`.

    With `A, B` the two roots and `c = 2 y - 1 = A - B`, `z = 2 x - 1 = A^2 - B^2 = c (A + B)`;
    eliminating `A` gives `z = c sqrt(1 + 16 kappa / (1 - c^2))`.
    """
    c = 2 * y - 1
    return (1 + c * jnp.sqrt(1 + 4 * kappa / (y * (1 - y)))) / 2


def _check_softness(softness: float) -> None:
    if not 0 < softness <= 0.25:
        raise ValueError(f"softness must be in (0, 0.25], got {softness}.")


def _check_scale(scale: Bound) -> None:
    if not (np.all(np.isfinite(scale)) and np.all(np.asarray(scale) > 0)):
        raise ValueError(f"scale must be positive, got {scale}.")


def _check_half_line(name: str, bound: Bound, scale: Bound, softness: float) -> None:
    _check_scale(scale)
    _check_softness(softness)
    if not np.all(np.isfinite(bound)):
        raise ValueError(f"{name} must be finite, got {bound}; without a bound use Unbounded().")


class Unbounded(AbstractTransform):
    """Any real value: `value = scale * raw`.

    **Arguments:** `scale`: size of a typical change, in the unit of the value. Gradient methods
    such as Adam take steps of the size of their learning rate in `raw`.

    **Raises:** `ValueError` if `scale` is not positive.
    """

    scale: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        _check_scale(self.scale)

    def forward(self, raw: Array) -> Array:
        return self.scale * raw

    def to_raw(self, value: Array) -> Array:
        return value / self.scale


class Positive(AbstractTransform):
    """Positive values with relative steps: `value = scale * exp(raw)`.

    For quantities that are never zero, such as masses, lengths and stiffnesses. For a quantity that
    may be zero, such as a friction coefficient, use `AtLeast(0)`.

    **Arguments:** `scale`: the value at `raw = 0`, in the unit of the value.

    **Raises:** `ValueError` if `scale` is not positive.
    """

    scale: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        _check_scale(self.scale)

    def forward(self, raw: Array) -> Array:
        return self.scale * jnp.exp(raw)

    def to_raw(self, value: Array) -> Array:
        return jnp.log(value / self.scale)

    def problem(self, value: np.ndarray) -> str | None:
        if np.all(value > 0):
            return None
        return (
            f"the value must be positive, got {value}; for a quantity that may be 0 use AtLeast(0)."
        )

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(0.0), np.asarray(np.inf)


class AtLeast(AbstractTransform):
    """Values from `lo` upwards: `value = lo + scale * (raw + sqrt(raw^2 + 4 softness^2)) / 2`.

    A start value on `lo` (less than a millionth of `scale` above it) is moved to
    `lo + softness * scale`, where the slope is one half, so that the parameter can leave its bound.
    Any other start value is kept.

    **Arguments:**

    - `lo`: the bound, a number or an array of the shape of the value, in its unit.
    - `scale`: typical distance of the value above the bound, in its unit; a number or an array like
      `lo`. For a pair `(lo, None)`, `parameters` takes it from the start value.
    - `softness`: width of the bend at the bound, as a fraction of `scale`.

    **Raises:** `ValueError` if `lo` is not finite, or `scale` or `softness` out of range.
    """

    lo: Bound = eqx.field(converter=_static, static=True)
    scale: Bound = eqx.field(default=1.0, converter=_static, static=True)
    softness: float = eqx.field(default=0.01, static=True)
    is_box: ClassVar[bool] = True

    def __check_init__(self):
        _check_half_line("lo", self.lo, self.scale, self.softness)

    def forward(self, raw: Array) -> Array:
        lo, scale = jnp.asarray(self.lo, raw.dtype), jnp.asarray(self.scale, raw.dtype)
        return lo + scale * _soft(raw, self.softness**2)

    def to_raw(self, value: Array) -> Array:
        lo, scale = jnp.asarray(self.lo, value.dtype), jnp.asarray(self.scale, value.dtype)
        y = (value - lo) / scale
        return y - self.softness**2 / y

    def inside(self, value: Array) -> Array:
        lo, scale = jnp.asarray(self.lo, value.dtype), jnp.asarray(self.scale, value.dtype)
        return jnp.where(value - lo < _ON_BOUND * scale, lo + self.softness * scale, value)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.lo), np.asarray(np.inf)


class AtMost(AbstractTransform):
    """Values up to `hi`: `-value` is `AtLeast(-hi, scale, softness)` of `-raw`.

    **Arguments:** `hi`: the bound, a number or an array of the shape of the value, in its unit;
    `scale`: typical distance below it; `softness`: as for `AtLeast`.

    **Raises:** `ValueError` if `hi` is not finite, or `scale` or `softness` out of range.
    """

    hi: Bound = eqx.field(converter=_static, static=True)
    scale: Bound = eqx.field(default=1.0, converter=_static, static=True)
    softness: float = eqx.field(default=0.01, static=True)
    is_box: ClassVar[bool] = True

    def __check_init__(self):
        _check_half_line("hi", self.hi, self.scale, self.softness)

    @property
    def _mirrored(self) -> AtLeast:
        return AtLeast(-np.asarray(self.hi), self.scale, self.softness)

    def forward(self, raw: Array) -> Array:
        return -self._mirrored.forward(-raw)

    def to_raw(self, value: Array) -> Array:
        return -self._mirrored.to_raw(-value)

    def inside(self, value: Array) -> Array:
        return -self._mirrored.inside(-value)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(-np.inf), np.asarray(self.hi)


class Interval(AbstractTransform):
    """Values between two bounds: `value = lo + (hi - lo) * (soft(raw) - soft(raw - 1))`.

    `soft` is defined at the top of this module. A start value on a bound (closer to it than a
    millionth of `hi - lo`) is moved `softness * (hi - lo)` inside, where the slope is one half. For
    example, a restitution coefficient of 0 starts at 0.01 and can move away from the bound. Any
    other start value is kept.

    **Arguments:**

    - `lo`, `hi`: the bounds, numbers or arrays of the shape of the value, in its unit.
    - `softness`: width of the bends at the bounds, as a fraction of `hi - lo`.

    **Raises:** `ValueError` unless `lo < hi` and both are finite, or if `softness` is out of range.
    """

    lo: Bound = eqx.field(converter=_static, static=True)
    hi: Bound = eqx.field(converter=_static, static=True)
    softness: float = eqx.field(default=0.01, static=True)
    is_box: ClassVar[bool] = True

    def __check_init__(self):
        _check_softness(self.softness)
        lo, hi = np.asarray(self.lo), np.asarray(self.hi)
        if not (np.all(np.isfinite(lo)) and np.all(np.isfinite(hi)) and np.all(lo < hi)):
            raise ValueError(f"the bounds must be finite with lo < hi, got ({self.lo}, {self.hi}).")

    def forward(self, raw: Array) -> Array:
        lo, hi = jnp.asarray(self.lo, raw.dtype), jnp.asarray(self.hi, raw.dtype)
        low = raw <= 0.5
        inside = (hi - lo) * _clip_low(jnp.where(low, raw, 1 - raw), self.softness**2)
        return jnp.where(low, lo + inside, hi - inside)

    def to_raw(self, value: Array) -> Array:
        lo, hi = jnp.asarray(self.lo, value.dtype), jnp.asarray(self.hi, value.dtype)
        low = value - lo <= hi - value
        y = jnp.where(low, value - lo, hi - value) / (hi - lo)
        raw = _clip_inverse(y, self.softness**2)
        return jnp.where(low, raw, 1 - raw)

    def inside(self, value: Array) -> Array:
        lo, hi = jnp.asarray(self.lo, value.dtype), jnp.asarray(self.hi, value.dtype)
        step, near = self.softness * (hi - lo), _ON_BOUND * (hi - lo)
        value = jnp.where(value - lo < near, lo + step, value)
        return jnp.where(hi - value < near, hi - step, value)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.lo), np.asarray(self.hi)
