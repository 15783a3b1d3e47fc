"""Dynamical systems: mass, force and the group they live on.

For readers who come from Siconos, whose class `LagrangianDS` holds state, operators and life cycle
in one object: here a system holds parameters only, a `State` the state, and a step returns what is
new.

| there | here |
|---|---|
| `LagrangianDS` without mass, with `M`, with `M(q)` | `LagrangianSystem(eye(n))`, `(M)`, `(mass, n=n)` |
| `LagrangianLinearTIDS`, `LagrangianLinearDiagonalDS` | `LagrangianSystem.linear(M, C, K)` |
| `fInt`, `fExt`, `fGyr` and their `compute...` | arguments `f_int(t, q, v)`, `f_ext(t)`, `f_gyr(q, v)` |
| `forces`, `computeForces`, `init_forces` | `force(t, state, args)`, with the same signs |
| plugins with `z`, `updatePlugins`, `_zeroPlugin` | functions; Modules, whose leaves are `z`; `args` |
| `jacobianqForces`, `jacobianvForces`, of every part | derived; `jax.custom_jvp` on a function overrides |
| operators at a given `(q, v)` | every function takes the state |
| `q`, `velocity`, `acceleration`; `q[0]`, `q[1]`, `q[2]` | `state.q`, `state.v`, `state_rate(...)[n:]` |
| `q0`, `resetToInitialState`; `qMemory`, `swapInMemory` | `state0` of `simulate`; what a method carries |
| `initRhs`, `computeRhs` | `state_rate` |
| `computeJacobianRhsx`, `jacobianXBloc10`, `...11` | `state_rate_jacobian`, exact: dM⁻¹/dq is part of it |
| `p(level)` and its reset, `r` | `Solution.impulses`; `relation.input` maps them back to forces |
| `inverseMass`, its initialisation and update | factorised once per step |
| `computeKineticEnergy` | `kinetic(t, state)`, `Model.energy(t, state)` |
| `computePostImpactVelocity` | `velocity_after(system, t, state, p)` |
| `BoundaryCondition`, `FixedBC`, `HarmonicBC` | `Model(..., prescribed=PrescribedVelocity(index, rate))` |
| `reactionToBoundaryConditions` | the last of `Solution.impulses` |
| `NewtonEulerDS`, torques in the inertial frame | `NewtonEulerSystem`, `wrench_at(..., couple)` |
| copies, pointers (`setQ`, `setQPtr`, ...), visitors, `display` | values: `equinox.tree_at`; `print` |
"""

from ._base import AbstractSystem as AbstractSystem
from ._euler_lagrange import EulerLagrangeSystem as EulerLagrangeSystem
from ._first_order import FirstOrderSystem as FirstOrderSystem, LinearField as LinearField
from ._first_order_form import (
    state_rate as state_rate,
    state_rate_jacobian as state_rate_jacobian,
    velocity_after as velocity_after,
)
from ._flow import LieFlow as LieFlow
from ._lagrangian import LagrangianSystem as LagrangianSystem
from ._newton_euler import NewtonEulerSystem as NewtonEulerSystem
from ._springs import (
    SpringDamper as SpringDamper,
    Wrenches as Wrenches,
    wrench_at as wrench_at,
)
