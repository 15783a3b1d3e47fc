"""Valid calls of what `_calls.py` has not: identification, linear algebra, elastic bodies, sensors, spins."""

import functools

import jax
import jax.numpy as jnp
import lineax
import numpy as np

import diffnsd as nsd
from diffnsd import (
    complementarity,
    control,
    diagnostics,
    groups,
    identification as ident,
    integrators,
    io,
    laws,
    linear,
    models,
    relations,
    sensors,
    sets,
    shapes,
    systems,
)
from diffnsd.complementarity import solvers
from diffnsd.systems import elastic


def _residual(p):
    return p["x"] - jnp.array([[1.0, 2.5], [1.1, 2.4]])


def _of_restitution(p):
    return p["e"] * jnp.array([1.0, 2.0, 3.0]) + p["mu"] - jnp.array([0.7, 1.3, 1.7])


def _of_run(p, run):
    return jnp.sum((p["x"] - run) ** 2)


def _of_unknown(p, unknown, run):
    return p["x"] * run - unknown


def _observed(p, design):
    return p["x"] * design


def _energy(q, v):
    return jnp.sum(v**2) / 2


def _height(p):
    return p[..., 2]


def more_calls() -> dict:
    """Name, function, positional and keyword arguments."""
    params = {"x": jnp.ones(2)}
    fitted = ident.least_squares(_residual, params)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("run",))
    ball = nsd.LagrangianSystem(np.eye(1), f_ext=[-9.81])
    model = nsd.Model(ball, nsd.Interaction(nsd.GapRelation(lambda t, q: q), nsd.NewtonImpact(0.5)))
    law = nsd.CoulombFriction(0.3, e=0.5)
    restitution, _ = ident.parameters(law, lambda law: {"e": law.e, "mu": law.mu})
    start, scheme = ball.state(np.ones(1)), nsd.MoreauJean()
    body, site = nsd.NewtonEulerSystem(1.0, 1.0), sensors.Site(0)
    geoms = relations.Geom(shapes.Sphere(0.1), 0), relations.Geom(shapes.HalfSpace(), None)
    pair = relations.Geom(shapes.Sphere(0.1), 0), relations.Geom(shapes.Sphere(0.1), 1)
    frame = shapes.Frame(jnp.zeros(3), jnp.eye(3))
    matrices = -np.eye(2), np.ones((2, 1)), np.ones((1, 2))
    nodes, steel = elastic.block((1.0, 1.0, 1.0), (1, 1, 1)), elastic.LinearElastic(1e5, 0.3)
    cubes = elastic.Tetrahedra(nodes.cells, steel, density=1.0)
    spd = lineax.MatrixLinearOperator(jnp.eye(2), lineax.positive_semidefinite_tag)
    noise = ident.GaussianNoise(_residual, deviation=0.1)
    few = ident.Laplace(10)
    return {
        # identification
        "robust_least_squares": (
            ident.robust_least_squares,
            (_residual, params),
            dict(tuning=1.3, rounds=2, groups=np.arange(2)),
        ),
        "several_starts": (
            ident.several_starts,
            (lambda p: fitted, params),
            dict(count=2, spread=0.5, near=0.1),
        ),
        "joint_least_squares": (
            ident.joint_least_squares,
            (_of_unknown, params, jnp.ones((3, 1)), jnp.ones((3, 1))),
            dict(max_steps=2, throw=False),
        ),
        "SumOverRuns": (ident.SumOverRuns, (_of_run, np.ones((3, 2)), mesh), dict(chunk=2)),
        "ResidualOverRuns": (ident.ResidualOverRuns, (_of_run, np.ones((3, 2)), mesh), dict(chunk=2)),
        "posterior": (
            ident.posterior,
            (noise, params),
            dict(priors={"['x']": ident.Normal(1.0, 1.0)}, sampler=few, key=jax.random.key(1)),
        ),
        "GaussianNoise": (ident.GaussianNoise, (_residual,), dict(deviation=0.1, weight=0.5)),
        "StudentNoise": (ident.StudentNoise, (_residual, 0.1), dict(weight=0.5, freedom=4.0)),
        "Guided": (ident.Guided, (noise, fitted.linearisation, params), {}),
        "Normal": (ident.Normal, (0.0, 1.0), {}),
        "LogNormal": (ident.LogNormal, (1.0, 1.0), {}),
        "Laplace": (ident.Laplace, (), dict(draws=10, starts=2)),
        "NUTS": (
            ident.NUTS,
            (),
            dict(
                chains=2, draws=10, warmup=10, target_acceptance=0.8, max_doublings=2, starts=2
            ),
        ),
        "Ensemble": (ident.Ensemble, (), dict(ensembles=2, walkers=8, draws=10, warmup=1, stretch=2.0)),
        "uncertainty": (ident.uncertainty, (fitted.params, fitted.linearisation), dict(value_limit=0.5)),
        "linearise": (ident.linearise, (_residual, params), dict(robust=ident.Huber(1.0))),
        "linearise_by_run": (
            ident.linearise_by_run,
            (_of_unknown, params, jnp.ones((3, 1)), jnp.ones((3, 1))),
            {},
        ),
        "profile": (
            ident.profile,
            (_of_restitution, ident.least_squares(_of_restitution, restitution), "e", [0.4, 0.6]),
            {},
        ),
        "fisher_information": (
            ident.fisher_information,
            (_observed, params, jnp.ones(2)),
            dict(deviation=0.1),
        ),
        "informative": (ident.informative, (_observed, params, jnp.ones((3, 2))), dict(deviation=0.1)),
        "coverage": (ident.coverage, (np.ones((20, 3)), np.ones(3)), dict(level=0.9)),
        "segments": (ident.segments, ([10, 12], 4), dict(min_frames=1)),
        "AtMost": (ident.AtMost, (1.0,), {}),
        "Positive": (ident.Positive, (), dict(scale=1.0)),
        "Checkpointing": (
            functools.partial(nsd.Checkpointing, "folder"), (), dict(every=10, skip_damaged=False),
        ),
        # linear algebra
        "NodeBlocks": (
            linear.NodeBlocks, (jnp.eye(3)[None, None], jnp.zeros((1, 1), int), jnp.ones(3, bool)), {},
        ),
        "ElementSum": (linear.ElementSum, (jnp.eye(2)[None], jnp.arange(2)[None], 2), {}),
        "BlockTridiagonal": (
            linear.BlockTridiagonal, (jnp.ones((3, 1, 1)), jnp.zeros((2, 1, 1)), jnp.zeros((2, 1, 1))), {},
        ),
        "linear_solve": (linear.linear_solve, (spd, jnp.ones(2)), {}),
        "ConjugateGradients": (linear.ConjugateGradients, (), dict(rtol=1e-10, max_steps=10)),
        "Chebyshev": (linear.Chebyshev, (), dict(degree=4, size=3, ratio=30.0)),
        # elastic bodies
        "Elastic": (elastic.Elastic, (nodes, cubes), dict(gravity=(0.0, 0.0, -9.81))),
        "LinearElastic": (elastic.LinearElastic, (1e5, 0.3), {}),
        "NeoHookean": (elastic.NeoHookean, (1e5, 0.3), {}),
        "Tetrahedra": (elastic.Tetrahedra, (nodes.cells, steel), dict(density=1.0)),
        "elastic.Mesh": (elastic.Mesh, (nodes.points, nodes.cells), {}),
        "elastic.bar": (elastic.bar, (1.0, 2), dict(dimension=1)),
        "elastic.block": (elastic.block, ((1.0, 1.0, 1.0), (1, 1, 1)), {}),
        "elastic.sheet": (elastic.sheet, ((1.0, 1.0), (1, 1)), dict(dimension=2)),
        "Bars": (elastic.Bars, (np.array([[0, 1]]), 10.0), dict(line_density=1.0)),
        "elastic.Springs": (elastic.Springs, (np.array([[0, 1]]), 10.0), dict(length=1.0)),
        "Rayleigh": (elastic.Rayleigh, (), dict(mass=0.1, stiffness=0.1)),
        # spins, contacts, laws and sets
        "ContactFrame of six": (
            nsd.ContactFrame,
            (lambda t, q: (jnp.zeros((1, 3)), jnp.zeros((1, 3)), jnp.array([[0.0, 0.0, 1.0]])),),
            dict(spin=0.1, roll=0.1),
        ),
        "shape_contacts of six": (relations.shape_contacts, ([geoms],), dict(near=1, spin=0.1, roll=0.1)),
        "neighbour_contacts": (
            relations.neighbour_contacts, (pair,), dict(reach=0.5, capacity=4, per_cell=4),
        ),
        "JointCoupler": (
            relations.JointCoupler, (lambda t, q: q[0], lambda t, q: q[1]), dict(ratio=2.0, offset=0.1),
        ),
        "CompliantRelation": (relations.CompliantRelation, (lambda t, q, lam: q, 1), {}),
        "fremond_impact": (laws.fremond_impact, (0.3,), dict(e=0.1)),
        "Polytope": (sets.Polytope, (((jnp.ones(1),),), (jnp.ones(1),)), {}),
        "NormalCone": (laws.NormalCone, (np.array([[1.0]]), np.array([0.0])), {}),
        "Implicit": (shapes.Implicit, (_height,), {}),
        "closest": (shapes.closest, (shapes.Sphere(0.1), frame, shapes.Sphere(0.2), frame), {}),
        # systems, methods and models
        "SpringChain": (systems.SpringChain, ([1.0, 1.0], 10.0), dict(damping=0.1, load=0.0)),
        "EulerLagrangeSystem": (nsd.systems.EulerLagrangeSystem, (_energy, None, 2), {}),
        "SampledControls": (io.SampledControls, (np.arange(3.0), np.zeros((3, 1))), {}),
        "LevenbergMarquardt": (solvers.LevenbergMarquardt, (5,), dict(tolerance=1e-9)),
        "RegularisedNewton": (solvers.RegularisedNewton, (5,), dict(more=2, rounds=2, tolerance=1e-9)),
        "AndersonGradient": (complementarity.AndersonGradient, (5,), dict(memory=3, tolerance=1e-9)),
        "ColouredGaussSeidel": (complementarity.ColouredGaussSeidel, (5,), dict(inner=3, relaxation=1.2)),
        "SemismoothNewton": (complementarity.SemismoothNewton, (), dict(steps=4, rounds=2)),
        "TripleJump": (nsd.integrators.TripleJump, (nsd.LieVariational(),), {}),
        "Quadrature": (integrators.Quadrature, ((0.0, 1.0), (0.5, 0.5), 2), {}),
        "CombinedProjection": (nsd.CombinedProjection, (scheme,), dict(tolerance=1e-8, passes=2)),
        "Luenberger": (
            control.Luenberger, (control.PID(1.0), *matrices, np.ones((2, 1))), dict(x0=np.zeros(2)),
        ),
        "Twisting": (control.Twisting, (1.0,), dict(ratio=0.5)),
        "SO": (groups.SO, (3,), {}),
        "JointSpace": (groups.JointSpace, (3,), dict(rotations=())),
        "step_map": (diagnostics.step_map, (model, scheme, 0.0, 0.1), {}),
        "defect": (diagnostics.defect, (model, start), {}),
        "drift": (diagnostics.drift, (jnp.ones(3),), {}),
        "Accelerometer": (sensors.Accelerometer, (site,), {}),
        "FramePosition": (sensors.FramePosition, (site,), dict(reference=site)),
        "JointVelocity": (sensors.JointVelocity, (0,), {}),
        "CentreOfMass": (sensors.CentreOfMass, (), dict(bodies=(0,))),
        "wrench_at": (
            systems.wrench_at,
            (body.state(np.zeros(3)), 0, jnp.zeros(3), jnp.ones(3)),
            dict(couple=jnp.zeros(3)),
        ),
        "models.rlc_diode": (models.rlc_diode, (), dict(resistance=1e3, inductance=0.01)),
        "models.buck_converter": (models.buck_converter, (), dict(duty=0.5, source=20.0)),
        "models.woodpecker": (models.woodpecker, (), dict(mu=0.3, e_beak=0.5)),
        "models.ball_on_vibrating_table": (models.ball_on_vibrating_table, (), dict(amplitude=0.05)),
        "models.gravity_gradient": (models.gravity_gradient, (), dict(mass=1.0, mu=1.0)),
        "models.free_rigid_body": (models.free_rigid_body, (), dict(inertia=(1.0, 2.0, 3.0))),
        "models.cube_state": (
            models.cube_state, ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0), np.zeros(3), np.zeros(3)), {},
        ),
    }  # fmt: skip
