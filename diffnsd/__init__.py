"""Differentiable nonsmooth dynamics: contact, impact and dry friction in JAX.

A tour in twenty lines. A `Model` is a system with its interactions, an `Interaction` a relation
(where contacts are) with a law (what happens there), and an integrator steps it as a pure function:

    import jax, jax.numpy as jnp
    import diffnsd as nsd

    jax.config.update("jax_enable_x64", True)          # recommended; never forced

    def height(t, q):                                   # a gap function, positive when open
        return q

    def final_height(e):
        ball = nsd.LagrangianSystem([[1.0]], f_ext=[-9.81])
        ground = nsd.Interaction(nsd.GapRelation(height), nsd.NewtonImpact(e))
        start = ball.state(jnp.array([1.0]))
        model, method = nsd.Model(ball, ground), nsd.MoreauJean()
        return nsd.simulate(model, method, 0.0, 0.7, 1e-3, start).states.q[-1, 0]

    value, slope = jax.value_and_grad(final_height)(0.8)
    heights = nsd.rollout(final_height, jnp.linspace(0.5, 0.9, 64))

Rigid bodies are `NewtonEulerSystem`, friction is `CoulombFriction`, ready examples are in `models`,
fits to measurements in `identification`. What a model is made of is named here; what goes deeper is
in the folders (`relations`, `laws`, `systems`, `complementarity.solvers`, ...). Not everything
differentiated is true: plain time stepping loses the derivative of impact times (see `MoreauJean`).
"""

# Floor 0: the state, how a computation ended, programs that are compiled again, large linear systems.
from . import linear as linear
from ._recompilation import RecompilationWarning as RecompilationWarning
from ._result import RESULTS as RESULTS
from ._types import State as State

# isort: split
# Floor 1: groups of configurations and convex sets.
from . import groups as groups, sets as sets
from .groups import (
    SE3 as SE3,
    SO3 as SO3,
    Cayley as Cayley,
    Euclidean as Euclidean,
    Exponential as Exponential,
    Pose as Pose,
    PoseGroup as PoseGroup,
    Product as Product,
    QuaternionVector as QuaternionVector,
)

# isort: split
# Floor 2: systems, relations, laws, and the problem that they lead to.
from . import laws as laws, relations as relations, systems as systems
from .laws import (
    Cohesive as Cohesive,
    Complementarity as Complementarity,
    CoulombFriction as CoulombFriction,
    DryFriction as DryFriction,
    Equality as Equality,
    GapStabilized as GapStabilized,
    NewtonImpact as NewtonImpact,
    Relay as Relay,
    RollingFriction as RollingFriction,
)
from .relations import (
    BodyPointsPlane as BodyPointsPlane,
    ContactFrame as ContactFrame,
    FirstOrderLinear as FirstOrderLinear,
    FirstOrderRelation as FirstOrderRelation,
    GapRelation as GapRelation,
    OnPart as OnPart,
    PlanarContact as PlanarContact,
    PrescribedVelocity as PrescribedVelocity,
    RateRelation as RateRelation,
    ball_joint as ball_joint,
    cylindrical as cylindrical,
    fixed_joint as fixed_joint,
    hinge as hinge,
    prismatic as prismatic,
    sphere_on_plane as sphere_on_plane,
    sphere_on_sphere as sphere_on_sphere,
)
from .systems import (
    Elastic as Elastic,
    FirstOrderSystem as FirstOrderSystem,
    Gyrator as Gyrator,
    LagrangianSystem as LagrangianSystem,
    LieFlow as LieFlow,
    Multibody as Multibody,
    NewtonEulerSystem as NewtonEulerSystem,
    SpringDamper as SpringDamper,
    SystemProduct as SystemProduct,
)

# isort: split
from .complementarity import (
    Auto as Auto,
    ComplementarityProblem as ComplementarityProblem,
    ComplementaritySolution as ComplementaritySolution,
    ImplicitAdjoint as ImplicitAdjoint,
    SmoothedAdjoint as SmoothedAdjoint,
    solve_complementarity as solve_complementarity,
)

# isort: split
# Floors 3 to 5: models, the methods that step them, and the loop over time.
from .integrators import (
    RKMK as RKMK,
    Adaptive as Adaptive,
    AtIterate as AtIterate,
    AtPrediction as AtPrediction,
    AtStart as AtStart,
    BackwardEuler as BackwardEuler,
    ButcherTableau as ButcherTableau,
    CombinedProjection as CombinedProjection,
    CommutatorFree as CommutatorFree,
    Corrected as Corrected,
    CrouchGrossman as CrouchGrossman,
    D1MinusLinear as D1MinusLinear,
    EulerMoreau as EulerMoreau,
    EventDriven as EventDriven,
    Galerkin as Galerkin,
    LieVariational as LieVariational,
    Located as Located,
    MoreauJean as MoreauJean,
    Newton as Newton,
    Projected as Projected,
    SchatzmanPaoli as SchatzmanPaoli,
    ThetaGamma as ThetaGamma,
    ZeroOrderHold as ZeroOrderHold,
)
from .model import ContactMask as ContactMask, Interaction as Interaction, Model as Model
from .simulation import (
    Checkpointed as Checkpointed,
    Checkpointing as Checkpointing,
    Direct as Direct,
    Event as Event,
    Integral as Integral,
    SaveAt as SaveAt,
    Solution as Solution,
    simulate as simulate,
)

# isort: split
# Floor 6: batches, identification, ready models. `rollout` is the function; its folder keeps its
# name for `from diffnsd.rollout import rollout`.
from . import (
    control as control,
    diagnostics as diagnostics,
    identification as identification,
    models as models,
    sensors as sensors,
)
from .rollout import bundled_gradient as bundled_gradient, rollout as rollout
