"""Several systems combined into one: a mechanism with the circuits that drive it."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array

from .._arguments import AbstractChecked
from .._numerics import as_float, lu_solve
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Euclidean, Product
from ._base import AbstractSystem, Kind, shaped


class SystemProduct(AbstractSystem):
    """Several systems as one, with the forces that couple them.

        M = diag(M_1, M_2, ...),     f = (f_1, f_2, ...) + sum of couplings(t, states, args)

    Its states are made by `state(first, second, ...)` from the states of its systems, and separated by
    `split`. Relations of one of them are stated with `OnPart(system, part, relation)`. A relation between the
    positions of several, such as a `GapRelation`, receives `q` as the tuple of their configurations.

    A first-order system next to a mechanism is one more velocity, `v = x`, with the mass matrix `E`. Its
    configuration is the integral of `x` since the start: for currents, the charges. Products with a
    mechanism are stepped by mechanical methods (`MoreauJean`, ...), in which relations of states hold at
    the end of a step, as in `EulerMoreau`. Products of first-order systems alone are stepped by the
    methods for those. Systems need not be coupled.

    **Arguments:**

    - `systems`: at least one, each mechanical or first-order.
    - `couplings`: functions `(t, states, args) -> forces`, `states` a tuple with the `State` of every
      system, and `forces` a tuple with the generalised force `(n_i,)` on every system. They may be
      `equinox.Module`s, whose leaves are parameters; `Gyrator` is one.

    The `args` of a simulation are passed to every system and coupling.

    **Raises:** `ValueError` if there is no system; in a simulation, before it is compiled, if a coupling
    returns another shape.

    Reference: B. Maschke, A. van der Schaft, Port-controlled Hamiltonian systems (1992),
    doi:10.1016/S1474-6670(17)52308-3.
    """

    systems: tuple[AbstractSystem, ...]
    couplings: tuple[Callable, ...]

    def __init__(self, systems: Sequence[AbstractSystem], couplings=()):
        self.systems = tuple(systems)
        self.couplings = (couplings,) if callable(couplings) else tuple(couplings)
        if not self.systems:
            raise ValueError("systems must be one system at least, such as SystemProduct((a, b)).")

    @property
    def kind(self) -> Kind:
        """That of its systems; mechanical if mechanisms and first-order systems are combined."""
        kinds = {s.kind for s in self.systems}
        if Kind.FLOW in kinds:
            return Kind.FLOW
        return Kind.MECHANICAL if Kind.MECHANICAL in kinds else Kind.STATE_SPACE

    @property
    def group(self) -> AbstractGroup:
        if not self.kind.has_positions:
            return Euclidean(0)
        return Product(
            tuple(
                s.group if s.kind.has_positions else Euclidean(s.velocities) for s in self.systems
            )
        )

    @property
    def velocities(self) -> int:
        return sum(s.velocities for s in self.systems)

    def slices(self) -> tuple[slice, ...]:
        """The slices of `v` that hold the velocities of each system."""
        sizes = [s.velocities for s in self.systems]
        return tuple(slice(e - n, e) for n, e in zip(sizes, accumulate(sizes), strict=True))

    def split(self, state: State) -> tuple[State, ...]:
        """The states of its systems; a leading time axis is kept."""
        parts = []
        for i, (system, where) in enumerate(zip(self.systems, self.slices(), strict=True)):
            q = state.q[i] if system.kind.has_positions else None
            parts.append(State(q, state.v[..., where]))
        return tuple(parts)

    def state(self, *states: State) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The state composed of those of its systems, in their order.

        **Raises:** `ValueError` if their number is not that of the systems.
        """
        if len(states) != len(self.systems):
            raise ValueError(
                f"the product has {len(self.systems)} systems, got {len(states)} states: give one "
                "for each, such as product.state(rotor.state(...), circuit.state(...))."
            )
        dtype = jnp.result_type(*(as_float(s.v) for s in states))
        v = jnp.concatenate([as_float(s.v, dtype) for s in states])
        if not self.kind.has_positions:
            return State(None, v)
        pairs = zip(self.systems, states, strict=True)
        q = tuple(x.q if s.kind.has_positions else jnp.zeros(s.velocities, dtype) for s, x in pairs)
        return State(q, v)

    def _each(self, name: str, t: Scalar, state: State, *args) -> list[Array]:
        """The results of a method of every system at its own state."""
        pairs = zip(self.systems, self.split(state), strict=True)
        return [getattr(system, name)(t, own, *args) for system, own in pairs]

    def _points(self, q: Config) -> list[Config]:
        if not self.kind.has_positions:
            return [None] * len(self.systems)
        pairs = zip(self.systems, q, strict=True)
        return [x if s.kind.has_positions else None for s, x in pairs]

    def mass(self, t: Scalar, q: Config) -> Matrix:
        blocks = [s.mass(t, x) for s, x in zip(self.systems, self._points(q), strict=True)]
        dtype = jnp.result_type(*jax.tree.leaves(blocks if q is None else q))
        return jax.scipy.linalg.block_diag(*(x.astype(dtype) for x in blocks))

    def scales(self, state: State) -> tuple[Scalar, Scalar]:
        # Contacts are between positions, and currents have another unit.
        pairs = zip(self.systems, self.split(state), strict=True)
        found = [s.scales(x) for s, x in pairs if s.kind.has_positions]
        if not found:
            return super().scales(state)
        lengths, speeds = zip(*found, strict=True)
        return jnp.max(jnp.stack(lengths)), jnp.max(jnp.stack(speeds))

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        return self._coupled(self._each("force", t, state, args), t, state, args)

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        return self._coupled(self._each("applied", t, state, args), t, state, args)

    def _coupled(self, forces: list[Array], t: Scalar, state: State, args: Args) -> Vector:
        states = self.split(state)
        for coupling in self.couplings:
            more = coupling(t, states, args)
            if len(more) != len(forces):
                raise ValueError(
                    f"a coupling of {len(forces)} systems must return as many forces, got {len(more)}."
                )
            for i, (old, new) in enumerate(zip(tuple(forces), more, strict=True)):
                name = f"the force of a coupling on system {i}"
                forces[i] = old + shaped(name, new, old.shape, old.dtype)
        return jnp.concatenate(forces)

    def linear_step(
        self, t: Scalar, state: State, args: Args, h: Scalar
    ) -> tuple[Matrix, Vector] | None:
        """Those of its systems, if all give them, and the derivatives of the couplings."""
        own = self._each("linear_step", t, state, args, h)
        if any(part is None for part in own):
            return None
        matrices, forces = zip(*own, strict=True)

        def coupled(step):
            q = self.group.compose(state.q, self.group.exp(h * step))
            rest = [jnp.zeros_like(force) for force in forces]
            total = self._coupled(rest, t, State(q, state.v + step), args)
            return total, total

        slope, more = jax.jacfwd(coupled, has_aux=True)(jnp.zeros_like(state.v))
        return jax.scipy.linalg.block_diag(*matrices) - h * slope, jnp.concatenate(forces) + more

    @property
    def uncoupled(self) -> tuple[AbstractSystem, ...]:
        return () if self.couplings else self.systems

    def is_large(self, t: Scalar | float, state: State, args: Args) -> bool:
        pairs = zip(self.uncoupled, self.split(state), strict=False)
        return any(system.is_large(t, own, args) for system, own in pairs)

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        return jnp.concatenate(self._each("inertia_force", t, state))

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        return jnp.concatenate(self._each("kinetic_slope", t, state))

    def momentum(self, t: Scalar, state: State) -> Vector:
        return jnp.concatenate(self._each("momentum", t, state))

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        return sum(self._each("kinetic", t, state))  # pyright: ignore[reportReturnType]

    def potential(self, t: Scalar, q: Config) -> Scalar:
        pairs = zip(self.systems, self._points(q), strict=True)
        dtype = jnp.result_type(*jax.tree.leaves(q), *([] if jax.tree.leaves(q) else [float]))
        return jnp.sum(jnp.stack([jnp.asarray(s.potential(t, x), dtype) for s, x in pairs]))

    @property
    def has_energy(self) -> bool:
        return all(s.has_energy for s in self.systems)

    def flaws(self, t: Scalar, q: Config) -> dict[str, Array]:
        pairs = zip(self.systems, self._points(q), strict=True)
        found = {i: known for i, (s, x) in enumerate(pairs) if (known := s.flaws(t, x))}
        # One system that may have some needs no number, as beside the integrals of a simulation.
        several = len(found) > 1
        return {
            f"of system {i}, {words}" if several else words: mask
            for i, known in found.items()
            for words, mask in known.items()
        }

    def check(self, q: Config | None = None) -> str | None:
        points = [None] * len(self.systems) if q is None else self._points(q)
        found = [s.check(x) for s, x in zip(self.systems, points, strict=True)]
        return next((f"system {i}: {p}" for i, p in enumerate(found) if p is not None), None)

    def check_point(self, q: Config) -> str | None:
        if not self.kind.has_positions:
            return None if q is None else "first-order systems have no positions: q is None"
        if not isinstance(q, tuple) or len(q) != len(self.systems):
            return (
                f"q must be a tuple of {len(self.systems)} configurations; use product.state(...)"
            )
        found = [s.check_point(x) for s, x in zip(self.systems, self._points(q), strict=True)]
        return next((f"system {i}: {p}" for i, p in enumerate(found) if p is not None), None)

    def defect(self, q: Config) -> Scalar:
        points = zip(self.systems, self._points(q), strict=True)
        return jnp.max(jnp.stack([jnp.asarray(s.defect(x), float) for s, x in points]))

    @property
    def flow_group(self) -> AbstractGroup:
        return super().flow_group if self.kind.has_positions else Euclidean(self.velocities)

    def flow_apply(self, g: Config, state: State) -> State:
        return super().flow_apply(g, state) if self.kind.has_positions else State(None, state.v + g)

    def flow_rate(self, t: Scalar, state: State, args: Args) -> Vector:
        if self.kind.has_positions:
            return super().flow_rate(t, state, args)
        rate = self.force(t, state, args)
        return lu_solve(self.mass(t, None).astype(rate.dtype), rate)


class Gyrator(AbstractChecked):
    """A coupling of a `SystemProduct` that conserves power: a motor constant, a moving coil.

        f_a = k v_b,     f_b = −k v_a

    For a motor, `a` is the angular velocity of the rotor and `b` the current. This gives the torque
    `k i`, and the voltage `−k ω` in the circuit `L i' = −R i + U`.

    **Arguments:** `constant`: `k` [N m/A]; `first`, `second`: for `a` and `b`, the index of the system
    and of the entry of its velocity.
    """

    constant: Array = eqx.field(converter=as_float)
    first: tuple[int, int] = eqx.field(default=(0, 0), static=True)
    second: tuple[int, int] = eqx.field(default=(1, 0), static=True)

    def __call__(self, t: Scalar, states: tuple[State, ...], args: Args) -> tuple[Array, ...]:
        del t, args
        (i, a), (j, b) = self.first, self.second
        k = self.constant.astype(states[i].v.dtype)
        forces = [jnp.zeros_like(s.v) for s in states]
        forces[i] = forces[i].at[a].add(k * states[j].v[b])
        forces[j] = forces[j].at[b].add(-k * states[i].v[a])
        return tuple(forces)
