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

The same for the rest of that package; a dash where nothing is needed or offered.

Systems

| there | here |
|---|---|
| `FirstOrderNonLinearDS`, `...LinearDS`, `...LinearTIDS` | `FirstOrderSystem`, `FirstOrderSystem.linear` |
| `LinearComplementaritySystemsNSDS` | `FirstOrderSystem.linear`, `FirstOrderLinear`, `Complementarity` |
| `RigidBodyDS`, `RigidBody2dDS` | `NewtonEulerSystem`; `LagrangianSystem` with `PlanarContact` |
| `Disk`, `Circle`, `SphereLDS`, `SphereNEDS` | `disk_on_line`, `disk_on_disk`, `sphere_on_plane`, ... |
| `M_gyr`, null gyroscopic term | part of `force`, with its derivative |
| springs between bodies | `SpringDamper`, `Wrenches` |
| sparse twins, finite elements, CAD | - |

Relations

| there | here |
|---|---|
| `Interaction`, its `y` and `lambda` by level | `Interaction`; `Solution.gaps`, `.impulses`, `.details` |
| `FirstOrderNonLinearR`, `...Type1R`, `...2R` | `FirstOrderRelation`, `FirstOrderType1`, `FirstOrderType2` |
| `FirstOrderLinearR`, `FirstOrderLinearTIR` | `FirstOrderLinear`, arrays or functions of `t` |
| Jacobians `C`, `D`, `K`, `B`; residuals | derived; `integrators.step_residuals` |
| `LagrangianScleronomousR`, `LagrangianRheonomousR` | `GapRelation`: `t` is an argument |
| `LagrangianCompliantR`, `...CompliantLinearTIR` | `CompliantRelation`, `CompliantRelation.linear` |
| `LagrangianLinearTIR`, `NewtonEulerR` | `GapRelation` |
| `Lagrangian2d1DR`, `...2d2DR`, `...2d3DR` | `PlanarContact`, its rolling row on request |
| `NewtonEuler1DR`, `...3DR`, `...5DR`, `ContactR` | `ContactFrame`, `BodyPointsPlane` |
| knee, pivot, prismatic, cylindrical, fixed joints | `ball_joint`, `hinge`, `prismatic`, ... |
| `CouplerJointR`, joint stops, joint friction | `JointCoupler`, `JointLimits`, `RateRelation` |
| plane, sphere, box, capsule, height map | `sphere_on_plane`, `BodyPointsPlane`, `sphere_on_surface`, ... |

Laws

| there | here |
|---|---|
| `ComplementarityConditionNSL`, `EqualityConditionNSL` | `Complementarity`, `Equality` |
| `MixedComplementarityConditionNSL`, `RelayNSL` | `Mixed`, `Relay` |
| `NormalConeNSL` | `NormalCone` |
| `NewtonImpactNSL`, `NewtonImpactFrictionNSL` | `NewtonImpact`, `CoulombFriction` |
| `NewtonImpactRollingFrictionNSL` | `RollingFriction` |
| `FremondImpactFrictionNSL` | `fremond_impact` |
| `MultipleImpactNSL`, plasticity | - |

Integrators and simulation

| there | here |
|---|---|
| `EulerMoreauOSI`, its theta-gamma sibling | `EulerMoreau`, `ThetaGamma` |
| `MoreauJeanOSI`, `MoreauJeanGOSI` | `MoreauJean`: `v` and `P` together, but for n > 12 |
| `W` of a step, the compliance of contacts | `integrators.step_matrices` |
| `...DirectProjectionOSI`, `...CombinedProjectionOSI` | `Projected`, `CombinedProjection` |
| `SchatzmanPaoliOSI`, `D1MinusLinearOSI` | `SchatzmanPaoli`, `D1MinusLinear` |
| `ZeroOrderHoldOSI` | `ZeroOrderHold` |
| `LsodarOSI` and other event-driven ones | `EventDriven`, `Located` |
| `TimeStepping`, `TimeDiscretisation` | `simulate(model, integrator, t0, t1, dt, state0)` |
| index sets, activation | `AbstractLaw.active` of a `Context`; `Interaction.max_active` |
| callbacks on failure | `Solution.result`, `Solution.message` |
| `LCP`, `MLCP`, `Relay`, `AVI`, friction, `QP` | `ComplementarityProblem`, by its sets |
| `NCP`, `MCP`, `VI` | `NonlinearComplementarityProblem` |
| numerics solvers | `complementarity.solvers`, with a table of when which |
| `ControlManager`, `ControlZOHSimulation`, `PID` | `control.Sampled`, `control.PID` |
| sensors with delay, `LuenbergerObserver` | `control.Delayed`, `control.Luenberger` |
| `LinearSMC`, `ExplicitLinearSMC` | `control.ImplicitSlidingMode`, `.ExplicitSlidingMode` |
| `LinearSMCOT2`, `LinearSMCimproved` | `control.SlidingModeOT2`, `.ImprovedSlidingMode` |
| `Twisting`, `ExplicitTwisting` | `control.Twisting`, `.ExplicitTwisting` |
| restart, output, viewers | `equinox.tree_serialise_leaves`; `numpy.savez`; `viz` |
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
