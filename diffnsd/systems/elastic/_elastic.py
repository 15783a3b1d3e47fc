"""Elastic bodies as one mechanical system: energies summed over the elements of a mesh."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._expects import expects
from ..._jax import eval_now
from ..._numerics import as_float, cross
from ..._types import Args, Config, Matrix, Scalar, State, Vector
from ...groups import SO3, AbstractGroup, Euclidean, JointSpace, RotationVectors
from ...linear import ElementSum, NodePattern
from .._base import AbstractSystem
from . import _base as assembly
from ._base import AbstractElements, Nodal
from ._boundary import AbstractLoad, Prescribed
from ._checks import check_elastic, check_layout, inverted_elements, unused_coordinates
from ._inertia import AbstractMass, Lumped, Rayleigh
from ._mesh import Mesh
from ._operator import WIDEST_BAND, element_sum, step_matrix


class Elastic(AbstractSystem):
    """Elastic bodies:  `M q'' = −∂E/∂q + M g + loads − damping`,  `E(q) = Σ_e w_e ψ(F_e(q), θ_e)`.

    The unknowns `q`, `(n,)`, are the coordinates of the nodes [m, rad] that are not prescribed, node by
    node; `positions(t, q)` returns those of all nodes. Nodes of `Beams` turn: three of their coordinates are
    a rotation vector, those of `v` an angular velocity in the frame of the node, and the group is a product
    with `RotationVectors`. Prescribed coordinates leave the system, and `reactions` returns the forces that
    hold them.

    **Arguments:**

    - `points`: coordinates of the nodes at rest [m], `(p, d)`, or a `Mesh`.
    - `elements`: `Tetrahedra`, `Triangles`, `Membranes`, `Hinges`, `Bars`, `Springs`, `PlanarBeams`,
      `Beams`, `Masses`, one or a sequence; their energies and masses are added.
    - `gravity`: acceleration [m/s²], `(d,)`; default none.
    - `prescribed`: one or more `Prescribed`. `loads`: one or more `NodalForce` or `Pressure`.
    - `mass_model`: `Lumped()`, the default, or `Consistent()`. `damping`: a `Rayleigh`; default none.

    **Raises:** `ValueError` if nodes are missing, used by no element, or prescribed twice; if elements
    are inverted or degenerate at rest (it names them); in a simulation, before it is compiled, if a
    parameter is out of its range, a coordinate has no mass, or an element is inverted at the start.

    Reference: T. Belytschko, W. K. Liu, B. Moran, Nonlinear finite elements for continua and structures
    (2000), chapter 4; J. Bonet, R. D. Wood (2008), doi:10.1017/CBO9780511755446.
    """

    points: Float[Array, "p d"]
    elements: tuple[AbstractElements, ...]
    gravity: Float[Array, " d"] | None
    prescribed: tuple[Prescribed, ...]
    loads: tuple[AbstractLoad, ...]
    mass_model: AbstractMass
    damping: Rayleigh | None
    free: Int[Array, " n"]
    unknown: Int[Array, "p w"]
    pattern: NodePattern | None
    bandwidth: int = eqx.field(static=True)
    rotations: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        points: Float[Array, "p d"] | Mesh,
        elements: AbstractElements | Sequence[AbstractElements],
        *,
        gravity=None,
        prescribed: Prescribed | Sequence[Prescribed] = (),
        loads: AbstractLoad | Sequence[AbstractLoad] = (),
        mass_model: AbstractMass | None = None,
        damping: Rayleigh | None = None,
    ):
        self.points = as_float(getattr(points, "points", points))
        self.elements = _sequence("elements", elements, AbstractElements, "Tetrahedra(...)")
        self.prescribed = _sequence("prescribed", prescribed, Prescribed, "Prescribed(nodes)")
        self.loads = _sequence("loads", loads, AbstractLoad, "NodalForce(nodes, force)")
        self.gravity = None if gravity is None else as_float(gravity, self.points.dtype)
        self.mass_model = Lumped() if mass_model is None else mass_model
        expects("mass_model", self.mass_model, AbstractMass, "Lumped() or Consistent()")
        self.damping = damping
        if problem := check_layout(self):
            raise ValueError(f"{problem}.")
        out = unused_coordinates(self)
        for part in self.prescribed:
            axes = range(out.shape[1]) if part.axes is None else part.axes
            out[np.asarray(part.nodes)[:, None], np.array(axes)] = True
        free = np.flatnonzero(~out.reshape(-1)).astype(np.int32)
        unknown = np.full(out.size, free.size, np.int32)
        unknown[free] = np.arange(free.size)
        self.free = eval_now(jnp.asarray, free)
        self.unknown = eval_now(jnp.asarray, unknown.reshape(out.shape))
        self.bandwidth = _bandwidth(self.elements, unknown.reshape(out.shape), free.size)
        is_banded = self.bandwidth <= min(WIDEST_BAND, free.size - 1)
        turning = unknown.reshape(out.shape)[:, self.points.shape[1] :]
        turning = turning[:, 0] if turning.shape[1] == 3 else np.zeros(0, int)
        self.rotations = tuple(int(i) for i in turning[turning < free.size])
        groups = [np.asarray(part.nodes) for part in self.elements]
        self.pattern = None if is_banded else NodePattern.of(groups, out.shape[0])

    # Configurations: all nodes from the unknowns.

    @property
    def group(self) -> AbstractGroup:
        n = self.free.shape[0]
        if not self.rotations:
            return Euclidean(n)
        return JointSpace(n, self.rotations, RotationVectors())

    @property
    def turns(self) -> bool:
        """Whether nodes turn in space, by a rotation vector each."""
        return self.unknown.shape[1] == self.points.shape[1] + 3

    @property
    def rest_nodes(self) -> Nodal:
        """All coordinates at rest, `(p, w)`: positions, then angles, which are zero."""
        extra = self.unknown.shape[1] - self.points.shape[1]
        return jnp.pad(self.points, ((0, 0), (0, extra)))

    @property
    def rest(self) -> Vector:
        """The configuration at rest, `(n,)`."""
        return self.rest_nodes.reshape(-1)[self.free]

    def state(self, q=None, v=None) -> State:
        """The state with configuration `q` and velocity `v`, `(n,)`, by default at rest.

        **Raises:** `ValueError` if `v` has another shape.
        """
        return super().state(self.rest if q is None else q, v)

    def positions(self, t: Scalar, q: Config) -> Nodal:
        """Coordinates of all nodes, `(p, w)` [m, rad], prescribed ones included."""
        x = self.rest_nodes
        for part in self.prescribed:
            x = part.moved(x, t)
        return self._spread(q, x)

    def nodal_velocities(self, t: Scalar, state: State) -> Nodal:
        """Velocities of all nodes, `(p, w)`, prescribed ones included."""
        return self._spread(state.v, self._prescribed_rates(t)[0])

    def unknowns_of(self, nodes, axes=None) -> Array:
        """Where coordinates of nodes are in `q`, `(m, axes)`; `n` where they are prescribed."""
        part = self.unknown[np.atleast_1d(np.asarray(nodes))]
        return part if axes is None else part[:, np.atleast_1d(axes)]

    def _spread(self, value: Vector, nodal: Nodal) -> Nodal:
        flat = nodal.astype(value.dtype).reshape(-1)
        return flat.at[self.free].set(value, unique_indices=True).reshape(nodal.shape)

    def _prescribed_rates(self, t: Scalar) -> tuple[Nodal, Nodal]:
        """Velocity of the prescribed coordinates, zero elsewhere, and its rate."""
        rest = self.rest_nodes
        if not any(callable(part.displacement) for part in self.prescribed):
            return jnp.zeros_like(rest), jnp.zeros_like(rest)
        t = jnp.asarray(t, rest.dtype)

        def along(t):
            x = rest
            for part in self.prescribed:
                x = part.moved(x, t)
            return x

        def rate(t):
            x, change = jax.jvp(along, (t,), (jnp.ones_like(t),))
            if not self.turns:
                return change
            spin = jax.vmap(SO3().dexp)(-x[:, 3:], change[:, 3:])
            return jnp.concatenate([change[:, :3], spin], axis=1)

        return jax.jvp(rate, (t,), (jnp.ones_like(t),))

    # Forces and energies.

    def _each(self, function, *nodal: Nodal) -> Nodal:
        """`Σ function(elements, *coordinates that they use)` over the groups of elements."""
        total = jnp.zeros_like(nodal[0])
        for part in self.elements:
            width = part.width(self.points.shape[1])
            total = total.at[:, :width].add(function(part, *(y[:, :width] for y in nodal)))
        return total

    def mass_times(self, y: Nodal) -> Nodal:
        """The mass matrix of all nodes times a vector, `(p, w)`."""
        return self._each(self.mass_model.times, self.rest_nodes.astype(y.dtype), y)

    def _weight(self, x: Nodal) -> Nodal:
        if self.gravity is None:
            return jnp.zeros_like(x)
        field = jnp.pad(self.gravity, (0, x.shape[1] - self.gravity.shape[0]))
        return self.mass_times(jnp.broadcast_to(field.astype(x.dtype), x.shape))

    def nodal_force(self, t: Scalar, state: State, args: Args = None) -> Nodal:
        """Force on every coordinate of every node, reactions left out, `(p, w)`."""
        x, v = self.positions(t, state.q), self.nodal_velocities(t, state)
        viscosity = None if self.damping is None else self.damping.stiffness

        def internal(part, X, x, v):
            return assembly.internal_force(part, X, x, v, viscosity)

        total = self._each(internal, self.rest_nodes.astype(x.dtype), x, v) + self._weight(x)
        if self.turns:
            total = total + self._gyroscopic(v)
        for load in self.loads:
            total = total + load.force(t, x, args)
        return total if self.damping is None else total - self.damping.mass * self.mass_times(v)

    def _gyroscopic(self, v: Nodal) -> Nodal:
        """`J ω × ω` at every node; their rotary inertias are not coupled."""
        momentum = self.mass_times(v)[:, 3:]
        return jnp.pad(cross(momentum.T, v[:, 3:].T).T, ((0, 0), (3, 0)))

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        total = self.nodal_force(t, state, args)
        if any(callable(part.displacement) for part in self.prescribed):
            total = total - self.mass_times(self._prescribed_rates(t)[1])
        return total.reshape(-1)[self.free]

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        """Gyroscopic moments of nodes that turn; else zero, as the mass matrix is constant."""
        if not self.turns:
            return jnp.zeros_like(state.v)
        return self._gyroscopic(self.nodal_velocities(t, state)).reshape(-1)[self.free]

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        """Zero: the mass matrix is constant."""
        del t
        return jnp.zeros_like(state.v)

    def elastic_energy(self, t: Scalar, q: Config) -> Scalar:
        """`E(q)` [J]."""
        x = self.positions(t, q)
        X, d = self.rest_nodes.astype(x.dtype), self.points.shape[1]
        widths = ((part, part.width(d)) for part in self.elements)
        total = jnp.zeros((), x.dtype)
        return sum((assembly.energy(p, X[:, :w], x[:, :w]) for p, w in widths), total)

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Energy of the elements, of gravity and of constant nodal forces [J]."""
        x = self.positions(t, q)
        known = (load.potential(x) for load in self.loads)
        others = sum((e for e in known if e is not None), jnp.zeros((), x.dtype))
        return self.elastic_energy(t, q) - jnp.sum(self._weight(x) * x) + others

    def momentum(self, t: Scalar, state: State) -> Vector:
        """`M v` of the unknowns, `(n,)`, without forming `M`."""
        del t
        y = self._spread(state.v, jnp.zeros_like(self.rest_nodes))
        return self.mass_times(y).reshape(-1)[self.free]

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        """Kinetic energy of all nodes [J], of prescribed ones too."""
        v = self.nodal_velocities(t, state)
        return jnp.sum(v * self.mass_times(v)) / 2

    def mass(self, t: Scalar, q: Config) -> Matrix:
        """The mass matrix as an array `(n, n)`, for small systems: large ones use products, `momentum`."""
        zero = jnp.zeros((), self.points.dtype)
        state = State(q, jnp.zeros_like(q))
        return element_sum(self, t, state, None, zero, zero).as_matrix()

    def step_operator(
        self, t: Scalar, state: State, args: Args, a: Scalar, b: Scalar
    ) -> lx.AbstractLinearOperator:
        """`M − a ∂f/∂v − b ∂f/∂q`: tridiagonal or banded for nodes in a row, else by blocks between nodes."""
        return step_matrix(self, t, state, args, a, b)

    def element_sum(self, t: Scalar, state: State, args: Args, a: Scalar, b: Scalar) -> ElementSum:
        """The same matrix as a sum over elements, whatever its bandwidth."""
        return element_sum(self, t, state, args, a, b)

    def stiffness(self, t: Scalar, q: Config, args: Args = None) -> lx.AbstractLinearOperator:
        """The tangent stiffness `−∂f/∂q` at rest velocities, as an operator of order `n`."""
        one, zero = jnp.ones((), q.dtype), jnp.zeros((), q.dtype)
        state = State(q, jnp.zeros_like(q))
        return step_matrix(self, t, state, args, zero, one, massless=True)

    def reactions(
        self, t: Scalar, state: State, args: Args = None, acceleration: Vector | None = None
    ) -> Nodal:
        """Forces that hold the prescribed coordinates [N, N m], `(p, w)`, zero at the others.

        **Arguments:** `acceleration`: of the unknowns, `(n,)`, which a consistent mass needs; default zero,
        as in equilibrium.
        """
        own = jnp.zeros_like(state.v) if acceleration is None else acceleration
        moved = self._spread(own, self._prescribed_rates(t)[1])
        held = self.mass_times(moved) - self.nodal_force(t, state, args)
        return jnp.where(self.unknown == self.free.shape[0], held, 0)

    # Elements that turn inside out.

    def volume_ratios(self, t: Scalar, q: Config) -> tuple[Float[Array, " e"] | None, ...]:
        """Volume over volume at rest of every element, per group; `None` for those without a volume."""
        x = self.positions(t, q)
        X, d = self.rest_nodes.astype(x.dtype), self.points.shape[1]
        widths = ((part, part.width(d)) for part in self.elements)
        return tuple(assembly.volume_ratios(p, X[:, :w], x[:, :w]) for p, w in widths)

    def inverted(self, t: Scalar, q: Config) -> Bool[Array, " e"]:
        """Which elements are inside out, numbered through the groups that have a volume."""
        known = [ratio for ratio in self.volume_ratios(t, q) if ratio is not None]
        return jnp.concatenate([jnp.zeros(0, bool), *(ratio <= 0 for ratio in known)])

    def flaws(self, t: Scalar, q: Config) -> dict[str, Bool[Array, " e"]]:
        names = [type(part).__name__ for part in self.elements]
        places = (f" (elements[{i}])" if names.count(x) > 1 else "" for i, x in enumerate(names))
        groups = zip(names, places, self.volume_ratios(t, q), strict=True)
        return {INVERTED.format(x + y): r <= 0 for x, y, r in groups if r is not None}

    def inside_out(self, t: Scalar, state: State, args: Args = None) -> Bool[Array, ""]:
        """Whether any element is inside out: the condition of an `Event` that ends a run there."""
        del args
        return jnp.any(self.inverted(t, state.q))

    def inversion(self, t: Scalar, q: Config) -> str | None:
        """Which elements are inside out, in words, or `None`; outside of `jit`."""
        return inverted_elements(self, t, q)

    def check(self, q: Config | None = None) -> str | None:
        return check_elastic(self, q)


INVERTED = (
    "elements {{}} of {} are inside out; take a smaller step, a finer mesh, a material that resists it "
    "(NeoHookean), or coordinates nearer to those at rest"
)


def _sequence(name: str, given, kind, example: str) -> tuple:
    parts = tuple(given) if isinstance(given, Sequence) else (given,)
    for part in parts:
        expects(name, part, kind, f"made of {example}, one or a sequence of them")
    return parts


def _bandwidth(elements, unknown: np.ndarray, n: int) -> int:
    """The largest distance between two unknowns of an element."""
    widest = 0
    for part in elements:
        own = unknown[np.asarray(part.nodes)].reshape(part.nodes.shape[0], -1)
        least, most = own.min(axis=1), np.where(own < n, own, -1).max(axis=1)
        widest = max(widest, int(np.max(most - least, initial=0)))
    return widest
