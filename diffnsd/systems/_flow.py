"""First-order motions on groups and homogeneous spaces."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractAction, AbstractGroup
from ._base import AbstractSystem, Kind


class LieFlow(AbstractSystem):
    """`y' = d/ds exp(s A(t, y)) . y` at `s = 0`: a velocity field from a group action.

    States are `State(q=y, v=empty)`, made by `state(y)`: the point is the configuration, and there is
    no velocity. Integrated by `RKMK`, `CrouchGrossman`, `CommutatorFree`.

    **Arguments:**

    - `field`: `field(t, y, args) -> (n,)`, the coordinates of `A` in the algebra of the action's
      group. For an attitude or momentum that moves with body velocity `xi`
      (`RightTranslation`, `CoadjointAction`) this is `-xi`.
    - `action`: how the group acts on points.
    - `hamiltonian`: `hamiltonian(t, y) -> ()` [J], reported as potential energy; `None`: zero.

    Reference: H. Munthe-Kaas, High order Runge-Kutta methods on manifolds (1999),
    doi:10.1016/S0168-9274(98)00030-0.
    """

    field: Callable
    action: AbstractAction
    hamiltonian: Callable | None = None

    def state(self, y: Config) -> State:
        """The state at the point `y`."""
        return State(y, jnp.zeros(0, jnp.result_type(*jax.tree.leaves(y))))

    @property
    def group(self) -> AbstractGroup:
        return self.action.group

    @property
    def velocities(self) -> int:
        return 0

    @property
    def kind(self) -> Kind:
        return Kind.FLOW

    def check_point(self, q: Config) -> str | None:
        return self.action.check(q)

    @property
    def flow_group(self) -> AbstractGroup:
        return self.action.group

    def flow_apply(self, g: Config, state: State) -> State:
        return State(self.action.apply(g, state.q), state.v)

    def flow_rate(self, t: Scalar, state: State, args: Args) -> Vector:
        return self.field(t, state.q, args)

    def defect(self, q: Config) -> Scalar:
        return self.action.defect(q)

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t
        return jnp.zeros((0, 0), jnp.result_type(*jax.tree.leaves(q)))

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        del t, args
        return state.v

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Empty: the momenta of a flow are part of its points."""
        del t
        return state.v

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        """Zero: all energy is in `hamiltonian`."""
        del t
        return jnp.zeros((), state.v.dtype)

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """The Hamiltonian, or zero if none is given."""
        if self.hamiltonian is None:
            return jnp.zeros((), jnp.result_type(*jax.tree.leaves(q)))
        return self.hamiltonian(t, q)

    def check(self, q: Config | None = None) -> str | None:
        return None if q is None else self.check_point(q)
