"""One valid call of every public constructor and function that users call with arguments of their own."""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax

import diffnsd as nsd
from diffnsd import (
    complementarity,
    control,
    groups,
    identification,
    integrators,
    laws,
    models,
    relations,
    sensors,
    sets,
    shapes,
    systems,
)
from diffnsd.complementarity import solvers

Call = tuple[Callable, tuple, dict[str, Any]]


def _force(t, q, v):
    return 0 * v


def _input(t, state, args):
    return 0 * state.v


def _points(t, q):
    return jnp.zeros((1, 3)), jnp.zeros((1, 3)), jnp.array([[0.0, 0.0, 1.0]])


def _square(x):
    return jnp.sum(x**2)


def _field(t, x, args):
    return -x


def _body() -> nsd.NewtonEulerSystem:
    return nsd.NewtonEulerSystem(1.0, 1.0)


def calls() -> dict[str, Call]:
    """Name, function, positional and keyword arguments."""
    gap = nsd.GapRelation(lambda t, q: q)
    impact, scheme = nsd.NewtonImpact(0.5), nsd.MoreauJean()
    ball = nsd.LagrangianSystem(np.eye(1), f_ext=[-9.81])
    model = nsd.Model(ball, nsd.Interaction(gap, impact))
    start = ball.state(np.ones(1))
    pose = _body().group.identity()
    problem = nsd.ComplementarityProblem(np.eye(2), np.ones(2), ((nsd.Complementarity(), (2, 1)),))
    site, pid = sensors.Site(0), control.PID(1.0)
    geoms = relations.Geom(shapes.Sphere(0.1), 0), relations.Geom(shapes.HalfSpace(), None)
    circuit = nsd.FirstOrderSystem.linear(-np.eye(2))
    matrices = np.zeros((2, 2)), np.ones((2, 1)), np.ones((1, 2))
    params = {"x": jnp.ones(2)}
    hinge = systems.Hinge((0.0, 1.0, 0.0))
    plain: dict[str, Call] = {
        # systems
        "LagrangianSystem": (
            nsd.LagrangianSystem,
            (np.eye(2),),
            dict(
                f_int=_force,
                f_ext=np.zeros(2),
                f_gyr=lambda q, v: 0 * v,
                forcing=_input,
                potential_energy=_square,
                space=nsd.Euclidean(2),
            ),
        ),
        "LagrangianSystem.linear": (
            nsd.LagrangianSystem.linear,
            (np.eye(2),),
            dict(damping=np.eye(2), stiffness=np.eye(2)),
        ),
        "NewtonEulerSystem": (
            nsd.NewtonEulerSystem,
            (1.0, np.ones(3)),
            dict(wrench=_input, gravity=(0.0, 0.0, -9.81)),
        ),
        "FirstOrderSystem": (
            nsd.FirstOrderSystem,
            (_field,),
            dict(E=np.eye(2), n=2, storage=_square),
        ),
        "FirstOrderSystem.linear": (
            nsd.FirstOrderSystem.linear,
            (-np.eye(2),),
            dict(b=np.zeros(2), inputs=np.ones((2, 1))),
        ),
        "Multibody": (
            nsd.Multibody,
            (systems.Body(1.0, 1.0, hinge),),
            dict(gravity=(0.0, 0.0, -9.81), forcing=_input, wrench=_input),
        ),
        "Body": (
            systems.Body,
            (1.0, 1.0, hinge),
            dict(parent=None, position=(0.0, 0.0, 0.0)),
        ),
        "Hinge": (
            systems.Hinge,
            ((0.0, 1.0, 0.0),),
            dict(
                point=(0.0, 0.0, 0.0),
                stiffness=1.0,
                damping=1.0,
                armature=0.1,
                rest=0.0,
                reference=0.0,
            ),
        ),
        "Slide": (
            systems.Slide,
            ((0.0, 1.0, 0.0),),
            dict(stiffness=1.0, damping=1.0, armature=0.1),
        ),
        "Ball": (systems.Ball, (), dict(point=(0.0, 0.0, 0.0), stiffness=1.0)),
        "SystemProduct": (nsd.SystemProduct, ((ball, circuit),), {}),
        "Gyrator": (nsd.Gyrator, (1.0,), dict(first=(0, 0), second=(1, 0))),
        "SpringDamper": (
            nsd.SpringDamper,
            ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0), 10.0),
            dict(damping=1.0, length=1.0, body1=0, body2=None),
        ),
        # relations
        "GapRelation": (nsd.GapRelation, (lambda t, q: q,), dict(rows_per_contact=1)),
        "RateRelation": (nsd.RateRelation, (lambda t, q, v: v,), {}),
        "PrescribedVelocity": (nsd.PrescribedVelocity, (0,), dict(rate=1.0)),
        "Harmonic": (relations.Harmonic, (0.0, 1.0, 2.0), dict(phi=0.0)),
        "BodyPointsPlane": (
            nsd.BodyPointsPlane,
            (np.eye(3),),
            dict(normal=(0.0, 0.0, 1.0), offset=0.0, body=0),
        ),
        "ContactFrame": (nsd.ContactFrame, (_points,), dict(body1=0, body2=None, rolling=False)),
        "PlanarContact": (nsd.PlanarContact, (_points,), dict(body1=0, body2=None, rolling=False)),
        "sphere_on_plane": (
            nsd.sphere_on_plane,
            (0.1,),
            dict(normal=(0.0, 0.0, 1.0), offset=0.0, body=0, rolling=False),
        ),
        "sphere_on_sphere": (
            nsd.sphere_on_sphere,
            (0.1, 0.2),
            dict(body1=0, body2=1, rolling=False),
        ),
        "capsule_on_plane": (
            relations.capsule_on_plane,
            (0.1, (0.0, 0.0, 0.2)),
            dict(normal=(0.0, 0.0, 1.0), offset=0.0, body=0),
        ),
        "disk_on_line": (
            relations.disk_on_line,
            (0.1,),
            dict(normal=(0.0, 1.0), offset=0.0, body=0),
        ),
        "disk_on_disk": (relations.disk_on_disk, (0.1, 0.2), dict(body1=0, body2=1)),
        "sphere_on_surface": (relations.sphere_on_surface, (0.1, lambda x, y: 0 * x), dict(body=0)),
        "Geom": (relations.Geom, (shapes.Sphere(0.1),), dict(body=0, position=(0.0, 0.0, 0.0))),
        "shape_contacts": (relations.shape_contacts, ([geoms],), {}),
        "touching_pairs": (
            relations.touching_pairs,
            (list(geoms),),
            dict(parents=[None], excluded=[(1, 2)], groups=[1, 1], touches=[1, 1]),
        ),
        "ball_joint": (nsd.ball_joint, (pose, (0.0, 0.0, 0.0)), dict(body1=0, body2=None)),
        "hinge": (nsd.hinge, (pose, (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)), dict(body1=0, body2=None)),
        "prismatic": (nsd.prismatic, (pose, (0.0, 0.0, 1.0)), dict(body1=0, body2=None)),
        "cylindrical": (nsd.cylindrical, (pose, (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)), dict(body1=0)),
        "fixed_joint": (nsd.fixed_joint, (pose,), dict(body1=0, body2=None)),
        "FirstOrderLinear": (
            nsd.FirstOrderLinear,
            (np.ones((1, 2)), np.ones((2, 1))),
            dict(D=np.zeros((1, 1)), e=np.zeros(1)),
        ),
        "FirstOrderRelation": (
            nsd.FirstOrderRelation,
            (lambda t, x, lam: x[:1], lambda t, x, lam: lam),
            dict(contacts=1, rows_per_contact=1),
        ),
        "JointLimits": (relations.JointLimits, (lambda t, q: q[0], -1.0, 1.0), {}),
        # laws
        "NewtonImpact": (nsd.NewtonImpact, (0.5,), {}),
        "CoulombFriction": (nsd.CoulombFriction, (0.3,), dict(e=0.1, e_t=0.0)),
        "RollingFriction": (nsd.RollingFriction, (0.3, 0.1), dict(e=0.0, e_t=0.0)),
        "DryFriction": (nsd.DryFriction, (1.0,), {}),
        "Cohesive": (nsd.Cohesive, (1.0, 0.1), dict(e=0.0)),
        "Relay": (nsd.Relay, (-1.0, 1.0), {}),
        "GapStabilized": (nsd.GapStabilized, (impact,), dict(rest_speed=0.0)),
        "Mixed": (laws.Mixed, (1,), {}),
        # sets and shapes
        "SecondOrderCone": (sets.SecondOrderCone, (0.5,), {}),
        "Box": (sets.Box, (-1.0, 1.0), {}),
        "Product": (sets.Product, (sets.HalfLine(), sets.Free(), 1), {}),
        "Sphere": (shapes.Sphere, (0.1,), {}),
        "Capsule": (shapes.Capsule, (0.1, 0.2), {}),
        "Cylinder": (shapes.Cylinder, (0.1, 0.2), {}),
        "shapes.Box": (shapes.Box, ((0.1, 0.2, 0.3),), {}),
        "Ellipsoid": (shapes.Ellipsoid, ((0.1, 0.2, 0.3),), {}),
        "HeightField": (shapes.HeightField, (np.zeros((3, 3)), (1.0, 1.0, 0.1)), {}),
        "ConvexHull": (
            shapes.ConvexHull,
            (np.concatenate([np.eye(3), -np.eye(3)]),),
            dict(max_vertices=64),
        ),
        # groups
        "Euclidean": (nsd.Euclidean, (2,), {}),
        "PoseGroup": (nsd.PoseGroup, (2,), {}),
        "groups.Product": (groups.Product, ((nsd.Euclidean(1), nsd.SO3()),), {}),
        "Exponential": (nsd.Exponential, (), dict(power=4)),
        # models
        "Interaction": (nsd.Interaction, (gap, impact), dict(max_active=None, mask=[True])),
        "ContactMask": (nsd.ContactMask, ([True],), dict(closed=[False], restitution=[1.0])),
        "Model": (nsd.Model, (ball, nsd.Interaction(gap, impact)), dict(prescribed=())),
        # problems
        "ComplementarityProblem": (
            nsd.ComplementarityProblem,
            (np.eye(2), np.ones(2), ((nsd.Complementarity(), (2, 1)),)),
            dict(active=[True, True]),
        ),
        "solve_complementarity": (nsd.solve_complementarity, (problem, nsd.Auto()), {}),
        "Auto": (
            nsd.Auto,
            (),
            dict(tolerance=1e-9, newton_steps=5, rounds=20, damping=0.1, penalty=1.0),
        ),
        "SmoothedAdjoint": (nsd.SmoothedAdjoint, (1e-3,), {}),
        "Delassus": (complementarity.Delassus, (np.ones((1, 6)), np.eye(6)[None]), {}),
        "Chain": (solvers.Chain, ((solvers.Newton(5),),), dict(repeats=1)),
        "solvers.Newton": (solvers.Newton, (5,), dict(damping=0.1, tolerance=1e-9)),
        "Splitting": (solvers.Splitting, (100,), dict(relaxation=1.6, penalty=0.3)),
        "Lemke": (solvers.Lemke, (), dict(pivots=10, most=100)),
        "Enumeration": (solvers.Enumeration, (), dict(most=100)),
        "InteriorPoint": (solvers.InteriorPoint, (50,), dict(shrink=0.2, cones=True)),
        "ProjectedGaussSeidel": (solvers.ProjectedGaussSeidel, (50,), dict(inner=8)),
        # integrators
        "Newton": (nsd.Newton, (3,), dict(tolerance=1e-10)),
        "AtPrediction": (nsd.AtPrediction, (0.5,), {}),
        "ButcherTableau": (
            nsd.ButcherTableau,
            (((0.0, 0.0), (0.5, 0.0)), (0.0, 1.0), (0.0, 0.5), 2),
            {},
        ),
        "MoreauJean": (
            nsd.MoreauJean,
            (),
            dict(
                theta=0.5,
                gamma=0.5,
                newton=nsd.Newton(),
                contacts_at=nsd.AtStart(),
                solver=nsd.Auto(),
                adjoint=nsd.ImplicitAdjoint(),
            ),
        ),
        "BackwardEuler": (nsd.BackwardEuler, (), dict(gamma=0.5, newton=nsd.Newton())),
        "SchatzmanPaoli": (nsd.SchatzmanPaoli, (), dict(theta=0.5, newton=nsd.Newton())),
        "EulerMoreau": (nsd.EulerMoreau, (), dict(theta=0.5, gamma=1.0)),
        "ThetaGamma": (nsd.ThetaGamma, (), dict(theta=0.5, gamma=0.5)),
        "Located": (nsd.Located, (scheme,), dict(max_impacts=2, slow=4.0, simultaneous=1e-6)),
        "Corrected": (nsd.Corrected, (scheme,), dict(slow=4.0, max_impacts=2)),
        "Projected": (nsd.Projected, (scheme,), dict(tolerance=1e-8, passes=2)),
        "EventDriven": (nsd.EventDriven, (), dict(tolerance=1e-12, max_impacts=16, looks=64)),
        "Galerkin": (nsd.Galerkin, (2,), dict(quadrature=integrators.gauss(2))),
        "LieVariational": (
            nsd.LieVariational,
            (),
            dict(retraction=nsd.Cayley(), newton=nsd.Newton()),
        ),
        "RKMK": (nsd.RKMK, (), dict(retraction=nsd.Exponential())),
        "Adaptive": (
            nsd.Adaptive,
            (nsd.RKMK(diffrax.Dopri8()),),
            dict(tolerance=1e-8, max_steps=256),
        ),
        "CrouchGrossman": (nsd.CrouchGrossman, (), {}),
        "gauss": (integrators.gauss, (2,), {}),
        "lobatto": (integrators.lobatto, (3,), {}),
        # simulation
        "SaveAt": (nsd.SaveAt, (), dict(steps=2, t0=True, impacts=0)),
        "Event": (nsd.Event, (lambda t, state, args: state.q[0],), dict(locate=False)),
        "Integral": (nsd.Integral, (lambda t, state, args: state.q[0],), {}),
        "Checkpointed": (nsd.Checkpointed, (), dict(segment_steps=10, threshold=100)),
        "simulate": (
            nsd.simulate,
            (model, scheme, 0.0, 0.02, 0.01, start),
            dict(
                saveat=nsd.SaveAt(),
                max_steps=2,
                event=None,
                integrals=(),
                adjoint=nsd.Direct(),
                start_tolerance=1e-3,
                throw=True,
            ),
        ),
        "rollout": (nsd.rollout, (_square, np.ones((4, 2))), dict(chunk=2)),
        "bundled_gradient": (
            nsd.bundled_gradient,
            (_square, jnp.ones(2), jax.random.key(0)),
            dict(scale=0.1, samples=4),
        ),
        # sensors and control
        "Site": (
            sensors.Site,
            (0,),
            dict(position=(0.0, 0.0, 0.0), orientation=(1.0, 0.0, 0.0, 0.0)),
        ),
        "Gyro": (sensors.Gyro, (site,), {}),
        "FrameAxis": (sensors.FrameAxis, (site,), dict(axis=0)),
        "Magnetometer": (sensors.Magnetometer, (site, (0.0, 0.0, 1.0)), {}),
        "Touch": (sensors.Touch, (site, shapes.Sphere(0.1)), {}),
        "JointPosition": (sensors.JointPosition, (0,), {}),
        "ContactForce": (sensors.ContactForce, (0,), dict(interaction=0)),
        "Sensors": (sensors.Sensors, ({"gyro": sensors.Gyro(site)},), {}),
        "PID": (control.PID, (1.0,), dict(ki=0.1, kd=0.1, reference=0.0)),
        "Sampled": (control.Sampled, (scheme, pid), {}),
        "Delayed": (control.Delayed, (pid, 2), {}),
        "ExplicitTwisting": (control.ExplicitTwisting, (1.0,), dict(ratio=0.5)),
        "ImplicitSlidingMode": (control.ImplicitSlidingMode, matrices, dict(gain=1.0)),
        # identification
        "parameters": (
            identification.parameters,
            (model, lambda m: {"e": m.interactions[0].law.e}),
            dict(bounds={"e": (0.0, 1.0)}),
        ),
        "least_squares": (identification.least_squares, (lambda p: p["x"] - 2.0, params), {}),
        "fit": (
            identification.fit,
            (lambda p: _square(p["x"]), params, optax.sgd(0.1)),
            dict(max_steps=2),
        ),
        "Interval": (identification.Interval, (0.0, 1.0), {}),
        "AtLeast": (identification.AtLeast, (0.0,), {}),
        "Huber": (identification.Huber, (1.0,), {}),
    }
    scalars = {
        "bouncing_ball": dict(e=0.9, g=9.81, mass=1.0),
        "sliding_block": dict(mu=0.3, g=9.81, mass=1.0),
        "tossed_cube": dict(mu=0.2, e=0.0, mass=0.37, inertia=0.0008, half_width=0.05),
        "pendulum_wall": dict(e=0.8, length=1.0, distance=0.0, g=9.81, mass=1.0),
        "double_pendulum": dict(masses=(1.0, 1.0), lengths=(1.0, 1.0), g=9.81),
        "rocking_block": dict(e=0.5, width=1.0, height=2.0, mass=1.0),
        "column_of_beads": dict(n=3, e=0.9, radius=0.1, mass=1.0),
        "impacting_bar": dict(elements=5, e=0.0, length=1.0),
        "slider_crank": dict(mu=0.01, e=0.4, clearance=0.001),
        "diode_bridge": dict(resistance=1000.0, inductance=0.01, capacitance=1e-6),
        "relay_oscillator": dict(gain=1.0, stiffness=3.0, damping=2.0),
        "heavy_top": dict(inertia=(1.0, 1.0, 0.5), lever=(0.0, 0.0, 1.0)),
        "kepler": dict(mu=1.0),
        "spherical_pendulum": dict(length=1.0, g=9.81, mass=1.0),
        "tippe_top": dict(mu=0.3, radius=0.02, offset=0.003, mass=0.02),
    }
    return plain | {f"models.{n}": (getattr(models, n), (), k) for n, k in scalars.items()}
