"""Valid calls of what is done with models: methods, states, diagnostics, fits, and files."""

from pathlib import Path

import jax.numpy as jnp
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
    models,
    viz,
)
from diffnsd.apps import fit, gallery, mechanism, pages, toss
from diffnsd.complementarity import solvers
from diffnsd.systems import elastic

FILE = """<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="ball" pos="0 0 1">
      <joint name="slide" type="slide" axis="0 0 1"/>
      <geom name="ball" size="0.1"/>
    </body>
  </worldbody>
</mujoco>
"""


def _speed(states):
    return states.v[-1, 0]


def _ball(parameters):
    return models.bouncing_ball(parameters["e"]), nsd.State(
        parameters["height"][None], jnp.zeros(1)
    )


def _of_momentum(mu):
    return mu


def _cubic(z, args):
    return z**3 - 1.0


def _told(name):
    pass


def _write_runs() -> Path:
    path = Path("runs.npz")
    np.savez(path, qpos=np.linspace(1.0, 0.9, 5)[:, None], times=0.01 * np.arange(5.0))
    return path


def _write_mesh() -> Path:
    path = Path("mesh.vtk")
    import meshio

    nodes = elastic.block((1.0, 1.0, 1.0), (1, 1, 1))
    meshio.write_points_cells(path, np.asarray(nodes.points), [("tetra", np.asarray(nodes.cells))])
    return path


def _tosses() -> dict:
    unit = np.tile((1.0, 0.0, 0.0, 0.0), (4, 1))
    return dict(
        toss_id=np.array([0]),
        offsets=np.array([0, 4]),
        position=np.ones((4, 3)),
        quaternion_wxyz=unit,
        velocity_world=np.zeros((4, 3)),
        angular_velocity_body=np.zeros((4, 3)),
        dt=0.01,
        half_width=0.05,
        mass=0.37,
        inertia=0.00081,
        gravity=9.81,
    )


def use_calls() -> dict:
    """Name, function, positional and keyword arguments; the files of the calls are in the working folder."""
    ball = nsd.LagrangianSystem(np.eye(1), f_ext=[-9.81])
    model = nsd.Model(ball, nsd.Interaction(nsd.GapRelation(lambda t, q: q), nsd.NewtonImpact(0.5)))
    start, scheme, smooth = ball.state(np.ones(1)), nsd.MoreauJean(), nsd.Model(ball)
    x, momentum, rotation = jnp.ones(2), jnp.asarray([1.0, 2.0, 3.0]), groups.SO3()
    matrices = np.zeros((2, 2)), np.ones((2, 1)), np.ones((1, 2))
    cubic = complementarity.NonlinearComplementarityProblem(
        _cubic, ((nsd.Complementarity(), (2, 1)),)
    )
    relay, relay_start = models.relay_oscillator(), nsd.State(None, jnp.asarray([1.0, 0.5, 0.2]))
    euler = nsd.EulerMoreau()
    relay_run = nsd.simulate(relay, euler, 0.0, 0.03, 0.01, relay_start)
    top, top_state = models.tippe_top(), models.tippe_top_state()
    elements = io.load_mjcf(FILE)[1]
    runs = _write_runs()
    Path("model.xml").write_text(FILE)
    frames, unit = np.zeros((4, 3)), np.tile((1.0, 0.0, 0.0, 0.0), (4, 1))
    corners, faces = np.eye(4, 3), np.array([[0, 1, 2]])
    solid = pages.Solid(0, corners, faces, True)
    motion = pages.Motion("run", (frames[:, None], unit[:, None]))
    row = pages.ParameterRow("e", 0.5, 0.4, 0.1)
    drawn = ident.posterior(
        lambda p: -jnp.sum(p["x"] ** 2), {"x": jnp.asarray(1.0)}, sampler=ident.Laplace(10)
    )
    figures = pages.RunFigures(1, 1, 1.0, 1.0)
    compared = pages.TossComparison("toss", np.arange(4.0), frames, unit, frames, unit)
    errors = pages.PoseErrors(np.ones(3), np.ones(3))
    curve = pages.LearnedCurve("e", np.arange(3.0), np.ones(3), "v", "e", np.ones(4))
    thrown = toss.Tosses(**_tosses())
    values = jnp.ones((2, 3))
    mask = jnp.ones((2, 3), bool)
    names = ["geom/ball/size"]
    return {
        # states and facts of the ready models
        "models.ball_impact_times": (
            models.ball_impact_times, (3,), dict(height=1.0, speed=0.0, e=0.9, g=9.81),
        ),
        "models.ball_state": (models.ball_state, (0.1,), dict(height=1.0, speed=0.0, e=0.9, g=9.81)),
        "models.block_state": (models.block_state, (0.1,), dict(speed=1.0, mu=0.3, g=9.81)),
        "models.block_stop_distance": (models.block_stop_distance, (1.0, 0.3), dict(g=9.81)),
        "models.block_stop_time": (models.block_stop_time, (1.0, 0.3), dict(g=9.81)),
        "models.diode_bridge_state": (
            models.diode_bridge_state,
            (0.1,),
            dict(voltage=10.0, resistance=1e3, inductance=0.01, capacitance=1e-6),
        ),
        "models.gene_network": (
            models.gene_network, (), dict(thresholds=(4.0, 4.0, 8.0, 8.0), rate=40.0, decay=(4.5, 1.5)),
        ),
        "models.heavy_top_state": (
            models.heavy_top_state, ((0.0, 0.0, 1.0),), dict(quaternion=(1.0, 0.0, 0.0, 0.0)),
        ),
        "models.rigid_body_state": (
            models.rigid_body_state, ((0.0, 0.0, 1.0),), dict(quaternion=(1.0, 0.0, 0.0, 0.0)),
        ),
        "models.kepler_state": (models.kepler_state, (0.1,), dict(e=0.25, a=1.0, mu=1.0)),
        "models.kirchhoff_body": (
            models.kirchhoff_body, (), dict(inertia=(1.0, 2.0, 3.0), mass=(1.0, 1.5, 2.0)),
        ),
        "models.kirchhoff_state": (
            models.kirchhoff_state,
            ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
            dict(position=(0.0, 0.0, 0.0), quaternion=(1.0, 0.0, 0.0, 0.0)),
        ),
        "models.pendulum_impact_rate": (
            models.pendulum_impact_rate, (0.5,), dict(length=1.0, distance=0.0, g=9.81),
        ),
        "models.pendulum_rebound_angle": (
            models.pendulum_rebound_angle, (0.5,), dict(e=0.8, length=1.0, distance=0.0),
        ),
        "models.pendulum_small_impact_time": (
            models.pendulum_small_impact_time, (0.1,), dict(length=1.0, distance=0.0, g=9.81),
        ),
        "models.pendulum_state": (models.pendulum_state, (0.1,), dict(rate=0.0)),
        "models.pendulum_wall_angle": (models.pendulum_wall_angle, (), dict(length=1.0, distance=0.0)),
        "models.slider_crank_state": (models.slider_crank_state, (), dict(speed=150.0)),
        "models.tippe_top_axis": (models.tippe_top_axis, (top_state,), {}),
        "models.tippe_top_jellett": (
            models.tippe_top_jellett, (top, top_state), dict(radius=0.02, offset=0.003),
        ),
        "models.tippe_top_state": (
            models.tippe_top_state, (), dict(tilt=0.1, spin=150.0, radius=0.02, offset=0.003),
        ),
        # methods
        "AtIterate": (nsd.AtIterate, (0.5,), {}),
        "D1MinusLinear": (nsd.D1MinusLinear, (), dict(solver=nsd.Auto())),
        "ZeroOrderHold": (nsd.ZeroOrderHold, (), dict(newton=nsd.Newton(), solver=nsd.Auto())),
        "ElasticImpact": (integrators.ElasticImpact, (nsd.LieVariational(),), {}),
        "step_matrices": (integrators.step_matrices, (scheme, model, 0.0, 0.01, start), {}),
        "symplectic_form": (integrators.symplectic_form, (rotation, momentum), {}),
        "symplecticity_defect": (
            integrators.symplecticity_defect, (smooth, nsd.LieVariational(), 0.0, 0.01, start), {},
        ),
        "AcceleratedProjectedGradient": (
            solvers.AcceleratedProjectedGradient, (50,), dict(tolerance=1e-9),
        ),
        "NonlinearComplementarityProblem": (
            complementarity.NonlinearComplementarityProblem,
            (_cubic, ((nsd.Complementarity(), (2, 1)),)),
            {},
        ),
        "solve_nonlinear_complementarity": (
            complementarity.solve_nonlinear_complementarity,
            (cubic, x),
            dict(solver=solvers.Newton(5), max_steps=3, adjoint=nsd.ImplicitAdjoint(), throw=False),
        ),
        "ExplicitSlidingMode": (control.ExplicitSlidingMode, matrices, dict(gain=1.0)),
        "ImprovedSlidingMode": (control.ImprovedSlidingMode, matrices, dict(gain=1.0)),
        "SlidingModeOT2": (control.SlidingModeOT2, matrices, dict(gain=1.0)),
        # diagnostics
        "casimirs": (diagnostics.casimirs, (rotation, momentum), {}),
        "spatial_momentum": (
            diagnostics.spatial_momentum, (rotation, jnp.asarray([1.0, 0.0, 0.0, 0.0]), momentum), {},
        ),
        "poisson_defect": (diagnostics.poisson_defect, (_of_momentum, rotation, momentum), {}),
        "first_order_residuals": (diagnostics.first_order_residuals, (relay, euler, relay_run), {}),
        "explain_gradient": (
            diagnostics.explain_gradient,
            (_speed, {"e": jnp.asarray(0.8), "height": jnp.asarray(1.0)}, _ball, scheme, 0.0, 0.02, 0.01),
            {},
        ),
        # identification
        "SecantJacobian": (ident.SecantJacobian, (jnp.ones(2),), dict(frames=2)),
        "Unbounded": (ident.Unbounded, (), dict(scale=1.0)),
        "masked_mean": (ident.masked_mean, (values, mask), {}),
        "mean_of_means": (ident.mean_of_means, (values, mask), {}),
        "pad": (ident.pad, ([np.ones((3, 2)), np.ones((2, 2))],), {}),
        # files, pictures and pages
        "load_mjcf": (
            io.load_mjcf,
            (FILE,),
            dict(
                ignore="tendon", restitution=0.1, law=nsd.CoulombFriction, max_active=4, max_vertices=8,
                near=2, assets={},
            ),
        ),
        "save_mjcf": (io.save_mjcf, (elements, FILE, "written.xml"), dict(assets={})),
        "read_mesh": (elastic.read_mesh, (_write_mesh(),), dict(cells="tetra", dimension=3)),
        "gradient_figure": (
            viz.gradient_figure, (np.arange(3.0), np.ones((3, 1, 1)), np.ones(3), ("e",)), {},
        ),
        "invariants_figure": (viz.invariants_figure, (np.arange(3.0), {"energy": np.ones(3)}), {}),
        "Tosses": (toss.Tosses, (), _tosses()),
        "save_tosses": (toss.save_tosses, (Path("tosses.npz"), thrown), {}),
        "load_tosses": (toss.load_tosses, (toss.save_tosses("known.npz", thrown),), {}),
        "save_predictions": (
            toss.save_predictions, ("predicted.npz", np.array([0]), np.array([0, 4]), frames, unit), {},
        ),
        "check_output_dir": (toss.check_output_dir, ("folder",), {}),
        "load_runs": (mechanism.load_runs, (runs, elements), {}),
        "mechanism_job": (
            mechanism.mechanism_job,
            (elements, mechanism.load_runs(runs, elements), names),
            dict(substeps=2, frames=0),
        ),
        "padded_frames": (fit.padded_frames, (10, 20), {}),
        "write_gallery": (
            gallery.write_gallery,
            (Path("."),),
            dict(names=("bouncing_ball",), notebooks=None, notify=_told),
        ),
        "hull_mesh": (pages.hull_mesh, (np.eye(4, 3),), {}),
        "write_motion": (
            pages.write_motion,
            ("motion.html",),
            dict(dt=0.01, size=1.0, solids=[solid], motions=[motion], title="run", speed=0.25),
        ),
        "write_replay": (
            pages.write_replay,
            ("replay.html",),
            dict(
                dt=0.01,
                half_width=0.05,
                measured=None,
                simulated=[(frames, unit)],
                labels=["toss"],
                max_tosses=1,
                speed=0.25,
                title="run",
            ),
        ),
        "write_learned": (
            pages.write_learned,
            ("learned.html", [curve]),
            dict(title="run", scores=None, loss_history=[1.0], warnings=(), details={"seed": "0"}),
        ),
        "write_posterior": (
            pages.write_posterior,
            ("posterior.html", drawn),
            dict(title="run", truth={"['x']": 1.0}, details={"seed": "0"}, level=0.9),
        ),
        "write_report": (
            pages.write_report,
            ("report.html",),
            dict(
                title="run",
                parameters=[row],
                loss_history=[1.0, 0.5],
                tosses_compared=[compared],
                errors=errors,
                meta=figures,
                correlations=np.eye(1),
                posterior=None,
                valleys=(),
            ),
        ),
    }  # fmt: skip
