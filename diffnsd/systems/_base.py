"""The interface of a system: `M(t, q) dv = f(t, q, v) dt + H^T dP` on a group."""

import enum
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Bool

from .._argument_rules import of_numbers
from .._arguments import AbstractChecked
from .._expects import listed, no_reals
from .._jax import is_traced
from .._numerics import as_float, lu_solve, matvec, max_abs
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Euclidean, Product


class Kind(enum.Enum):
    """The kind of a system, which decides the integrators that can step it.

    `MECHANICAL`: `M dv = f dt + H^T dP` with positions that move with `v`; `STATE_SPACE`:
    `E dx = f dt + dr`, without positions; `FLOW`: a motion of points without velocities.
    """

    MECHANICAL = enum.auto()
    STATE_SPACE = enum.auto()
    FLOW = enum.auto()

    @property
    def has_positions(self) -> bool:
        """Whether states have a configuration, in addition to the velocities that may jump."""
        return self is not Kind.STATE_SPACE


def in_words(flaws: dict[str, Array]) -> list[str]:
    """The sentences of `AbstractSystem.flaws` that hold, with numbers; outside of `jit`."""
    known = {words: np.flatnonzero(np.asarray(mask)) for words, mask in flaws.items()}
    return [words.format(listed(numbers)) for words, numbers in known.items() if numbers.size]


class AbstractSystem(AbstractChecked):
    """A system without its contacts. Parameters are leaves of the module."""

    @property
    @abstractmethod
    def group(self) -> AbstractGroup:
        """The configuration group, of dimension `n`."""

    @abstractmethod
    def mass(self, t: Scalar, q: Config) -> Matrix:
        """Mass matrix `M(t, q)`, shape `(n, n)`."""

    @abstractmethod
    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        """Total smooth force, gyroscopic terms included, shape `(n,)`."""

    @abstractmethod
    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy [J] of the conservative part of the force."""

    def state(self, q, v=None) -> State:
        """The state with configuration `q` and velocity `v`, shape `(n,)`, zero by default.

        **Raises:** `ValueError` if `v` has another shape.
        """
        q = jax.tree.map(as_float, q, is_leaf=lambda x: isinstance(x, list))
        dtype = jnp.result_type(*jax.tree.leaves(q), float)
        n = self.velocities
        return State(q, jnp.zeros(n, dtype) if v is None else shaped("v", v, (n,), dtype))

    @abstractmethod
    def check(self, q: Config | None = None) -> str | None:
        """Error message if a parameter with a known value is invalid, else `None`.

        If a configuration `q` is given, the mass matrix there is checked too.
        """

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        """The inertia force besides `−M v'`: `ad_v^T M v + ∂(v^T M v/2)/∂q − (dM/dt) v`.

        The Euler-Poincaré equations of the kinetic energy, `d/dt (M v) = ad_v^T (M v) + ∂K/∂q`, with
        derivatives along the motions of the group. Zero on `R^n` for a constant mass matrix.
        """
        group, q, v = self.group, state.q, state.v
        t, one = jnp.asarray(t, v.dtype), jnp.ones((), v.dtype)

        def along(s):
            return self.momentum(t + s, State(group.compose(q, group.exp(s * v)), v))

        momentum, drift = jax.jvp(along, (jnp.zeros_like(one),), (one,))
        return matvec(group.ad(v).T, momentum) + self.kinetic_slope(t, state) - drift

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        """`∂K/∂q` along the motions of the group, `(n,)`: zero for a constant mass matrix."""
        group, q, v = self.group, state.q, state.v

        def kinetic(eta):
            return self.kinetic(t, State(group.compose(q, group.exp(eta)), v))

        return jax.grad(kinetic)(jnp.zeros_like(v))

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        """The force without the inertia terms of the kinetic energy, shape `(n,)`.

        `d/dt (M v) = ad_v^T (M v) + ∂K/∂q + applied`: the term in d'Alembert's principle that does
        not come from the kinetic energy.
        """
        return self.force(t, state, args) - self.inertia_force(t, state)

    @property
    def velocities(self) -> int:
        """Number of entries of `v`: the dimension of the group if velocities are its tangent vectors."""
        return self.group.dim

    @property
    def block_size(self) -> int | None:
        """Size of the blocks of `v` whose inertia and forces are independent, or `None`.

        For free bodies: linear systems are then solved body by body.
        """
        return None

    def linear_step(
        self, t: Scalar, state: State, args: Args, h: Scalar
    ) -> tuple[Matrix, Vector] | None:
        """An approximation of `M − h ∂f/∂v − h² ∂f/∂q`, `(n, n)`, and the force `f`; `None`, the default.

        Where it is given, linearised steps use the matrix in place of derivatives of their equations, and
        start from the velocity that both predict, so that they keep their order. Methods of second order do
        not use it where there are joints, or contacts at `HalfExplicit()`: their reactions last, and are not
        in the prediction.

        **Arguments:** `h`: the length of the step times the weight of its end.
        """
        return None

    def step_operator(
        self, t: Scalar, state: State, args: Args, a: Scalar, b: Scalar
    ) -> lx.AbstractLinearOperator | None:
        """The matrix of an implicit step as an operator, `M − a ∂f/∂v − b ∂f/∂q`; `None`, the default.

        For large systems, whose matrices are not formed: where it is given, the theta schemes solve their
        steps with it, see `linear`. It must be the exact derivative, since the derivatives of a step are
        solved with it too. Such a system also defines `momentum` and `force` by products, and has no use
        for `mass`. The derivative along `q` is that of `q exp(eta)` by `eta`.

        **Arguments:** `a`, `b`: `h theta` and `(h theta)²`.
        """
        return None

    @property
    def uncoupled(self) -> tuple["AbstractSystem", ...]:
        """The systems that it consists of, if these act on each other by contacts alone; by default none.

        The matrix of a step then has one block for each. It also has `split(state)` and `slices()`.
        """
        return ()

    def is_large(self, t: Scalar | float, state: State, args: Args) -> bool:
        """Whether it, or one of those that it consists of, gives a `step_operator`."""
        one = jnp.ones((), state.v.dtype)
        operator = eqx.filter_eval_shape(
            lambda: self.step_operator(jnp.asarray(t), state, args, one, one)
        )
        return operator is not None

    @property
    def has_joints(self) -> bool:
        """Whether joints place its bodies: it then has `frames`, `moving_frames`, `moving_rows`."""
        return False

    def bodies(self, state: State) -> State | None:
        """The `Pose` of its bodies and their velocities `(6 b,)`; `None`, the default, if it has none."""
        return None

    def flaws(self, t: Scalar, q: Config) -> dict[str, Bool[Array, " e"]]:
        """Which of its parts are where the model does not hold, as elements that are inside out.

        Masks, by a sentence with `{}` for the numbers and with the remedy; none by default. A simulation
        looks at them after every step, and `Solution.message` tells the first.
        """
        del t, q
        return {}

    @property
    def kind(self) -> Kind:
        """The kind of the system, by default mechanical."""
        return Kind.MECHANICAL

    @property
    def has_energy(self) -> bool:
        """Whether the energy of a state is known."""
        return True

    def check_point(self, q: Config) -> str | None:
        """Error message if a concrete configuration is invalid, else `None`."""
        return self.group.check(q)

    def defect(self, q: Config) -> Scalar:
        """How far the stored numbers of `q` are from a valid configuration (norms, orthogonality)."""
        return self.group.defect(q)

    # The same system as the motion of one group on states, for integrators without velocities:
    # (g, w) . (q, v) = (q g^-1, v + w) of the group times R^n, at the rate (-v, M^-1 f).

    @property
    def flow_group(self) -> AbstractGroup:
        """The group that moves states."""
        return Product((self.group, Euclidean(self.velocities)))

    def flow_apply(self, g: Config, state: State) -> State:
        """A state moved by an element of `flow_group`."""
        turn, w = g
        return State(self.group.compose(state.q, self.group.inverse(turn)), state.v + w)

    def flow_rate(self, t: Scalar, state: State, args: Args) -> Vector:
        """Velocity of the state in the algebra of `flow_group`."""
        rate = lu_solve(self.mass(t, state.q), self.force(t, state, args))
        return jnp.concatenate([-state.v, rate])

    def scales(self, state: State) -> tuple[Scalar, Scalar]:
        """Magnitudes of coordinates and velocities, to which the rounding of gaps and rates is relative."""
        sizes = [max_abs(x) for x in jax.tree.leaves(state.q)]
        speed = max_abs(state.v)
        return (jnp.max(jnp.stack(sizes)) if sizes else jnp.zeros_like(speed)), speed

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Generalised momentum `M v`, shape `(n,)`."""
        return matvec(self.mass(t, state.q), state.v)

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        """Kinetic energy `v^T M v / 2` [J]."""
        return jnp.sum(state.v * self.momentum(t, state)) / 2


def shaped(name: str, value, shape: tuple[int, ...], dtype) -> Array:
    """The value of a user's function as an array; raises `ValueError` if it would be broadcast.

    **Raises:** `TypeError` if it is no array of real numbers.
    """
    if not of_numbers(value):
        raise TypeError(f"{name} must be real numbers of shape {shape}, got {no_reals(value)}.")
    array = as_float(value, dtype)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def positive_definite(name: str, matrix) -> str | None:
    """An error message if a known matrix is not symmetric positive definite, else `None`."""
    if is_traced(matrix):
        return None
    matrix = np.asarray(matrix)
    if not np.all(np.isfinite(matrix)):
        return f"{name} has entries that are not finite"
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-12 * max(np.max(np.abs(matrix)), 1.0)):
        return f"{name} is not symmetric"
    smallest = float(np.min(np.linalg.eigvalsh(matrix))) if matrix.size else 1.0
    if smallest <= 0:
        return f"{name} is not positive definite (smallest eigenvalue {smallest:.3g})"
    return None
