"""The identification of numbers of a file from measured runs.

The error of a frame is that of all bodies: for each, the displacement of its centre of mass in units of the
size of the mechanism, and its rotation in radians. Joint coordinates would weigh a hinge at the trunk and one
at the fingertip alike, and an angle of a long arm like that of a short one; the motion of bodies is what a
camera sees and what contacts depend on. The frames of bodies are those of the file as it was loaded, for
measured and for simulated coordinates: the metric does not depend on the parameters.
"""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._arguments import checked_arguments
from ..._result import RESULTS
from ...groups import quaternion_log, quaternion_product, rotate
from ...integrators import MoreauJean
from ...io import Elements, SampledControls
from ...model import Interaction, Model
from ...simulation import SaveAt, Solution, simulate
from ...systems import Multibody
from ..fit import Job, Simulated
from ._data import Runs, widths_of
from ._names import quantities

TOLERANCE = 0.03
"""Model error of a body: of its place in sizes of the mechanism, of its rotation [rad]."""
START_SPEED, START_RATE = 0.1, 0.08
"""Standard deviations of a measured start velocity: of a displacement [sizes/s], of a rotation [rad/s]."""
METHODS = MoreauJean(), MoreauJean(theta=1.0)
"""The first that the laws of a model allow: the second order of `theta = 1/2`, else positions that move with
the end velocity, which contacts without penetration need."""


class Run(eqx.Module):
    """One run, or all with a leading axis: its start, the places of its bodies, and its controls."""

    q: Float[Array, " nq"]
    position: Float[Array, "f b 3"]
    orientation: Float[Array, "f b 4"]
    controls: Float[Array, "f nu"] | None


class Metric(eqx.Module):
    """Places of bodies, by the geometry of the file as it was loaded; `size` [m]."""

    system: Multibody
    size: Float[Array, ""]

    def places(self, q: Float[Array, "f nq"]) -> tuple[Array, Array]:
        """Centres of mass `(f, b, 3)` and orientations `(f, b, 4)`."""

        def one(q):
            pose = self.system.frames(q)
            arm = rotate(pose.orientation.T, self.system.centres.T).T
            return pose.position + arm, pose.orientation

        return jax.vmap(one)(q)

    def error(self, run: Run, position: Array, orientation: Array) -> Float[Array, "f k 3"]:
        """Displacements [sizes], then rotations [rad], of all bodies from such places, `k = 2 b`."""
        back = run.orientation * jnp.array([1.0, -1.0, -1.0, -1.0])[None, None]
        turned = quaternion_log(
            quaternion_product(jnp.moveaxis(back, -1, 0), jnp.moveaxis(orientation, -1, 0))
        )
        moved = (position - run.position) / self.size
        return jnp.concatenate([moved, jnp.moveaxis(turned, 0, -1)], axis=1)


def is_contact(interaction: Interaction) -> bool:
    """Whether it is a contact or a limit of a joint or tendon; not the limit of an activation."""
    return interaction.law.is_unilateral and interaction.relation.needs_positions


class Shown(eqx.Module):
    """What a prediction shows of a run: coordinates, places of bodies, the largest residual of a step, and
    whether more contacts closed than are solved at a time.
    """

    q: Float[Array, "f nq"]
    position: Float[Array, "f b 3"]
    orientation: Float[Array, "f b 4"]
    residual: Float[Array, ""]
    overflowed: Bool[Array, ""]


class MechanismMotion(eqx.Module):
    """The motion of a file from a measured start, and its error, for a `Job`.

    **Arguments:** `metric`; `dt`: between two frames [s]; `substeps`: steps per frame; `touches`: without,
    contacts and limits are left out.
    """

    metric: Metric
    dt: float = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    touches: bool = eqx.field(default=True, static=True)

    def simulate(self, elements: Elements, run: Run, velocity: Float[Array, " nv"]) -> Solution:
        """The motion at the frames of a run.

        A scheme of first order starts `(theta − 1/2) h` earlier with respect to the acceleration, so that
        under constant forces its frames lie on the exact parabola.
        """
        model, frames = elements.model(), run.position.shape[0]
        method = next((m for m in METHODS if m.supports(model) is None), METHODS[-1])
        if not self.touches:
            model = Model(model.system, tuple(i for i in model.interactions if not is_contact(i)))
        args = None
        if run.controls is not None:
            args = SampledControls(self.dt * np.arange(frames), run.controls)
        h, start, zero = self.dt / self.substeps, elements.state(run.q, velocity), jnp.zeros(())
        rates = jnp.linalg.solve(
            model.system.mass(zero, start.q), model.system.force(zero, start, args)
        )
        acceleration = rates[: len(velocity)]
        return simulate(
            model,
            method,
            0.0,
            (frames - 1) * self.dt,
            h,
            elements.state(run.q, velocity - (method.theta - 0.5) * h * acceleration),
            args,
            saveat=SaveAt(steps=self.substeps),
            start_tolerance=np.inf,  # measured poses penetrate
            throw=False,
        )

    def __call__(self, elements: Elements, run: Run, velocity: Float[Array, " nv"]):
        solution = self.simulate(elements, run, velocity)
        q = elements.split(solution.states)[0].q
        places = self.metric.places(q)
        overflowed = solution.result == RESULTS.contact_overflow
        shown = Shown(q, *places, jnp.max(solution.stats.residual), overflowed)
        return Simulated(self.metric.error(run, *places), solution.stats.failed_step >= 0, shown)


@checked_arguments
def mechanism_job(
    elements: Elements, runs: Runs, names: list[str], substeps: int = 4, frames: int = 0
) -> Job:
    """The identification of the named numbers of a file from measured runs.

    **Arguments:** `elements`: of `io.load_mjcf`; `runs`: of `load_runs`; `names`: such as
    `geom/floor/friction`; `substeps`: steps per frame; `frames`: to which the
    runs are padded, at least.

    **Raises:** `ValueError` for names that cannot be fitted.
    """
    metric = metric_of(elements)
    found = quantities(elements, names, float(metric.size))
    n, b = len(runs), len(elements.plan.bodies)
    batch, known = as_batch(metric, elements, runs, frames)
    return Job(
        elements,
        MechanismMotion(metric, runs.dt, substeps),
        batch,
        jnp.asarray(
            np.broadcast_to(known[:, :, None], (n, known.shape[1], 2, b)).reshape(n, -1, 2 * b)
        ),
        jnp.asarray(runs.velocities),
        deviations_of(metric),
        jnp.full(2 * b, TOLERANCE),
        operator.getitem,
        found,
        tuple(found),
    )


def deviations_of(metric: Metric) -> Float[Array, " nv"]:
    """Standard deviations of a measured start velocity."""
    system = metric.system
    linear = np.array([not turns for turns in system.tree.tables.turns]).reshape(system.group.dim)
    return jnp.where(linear, START_SPEED * metric.size, START_RATE)


def metric_of(elements: Elements) -> Metric:
    """The metric of a file with its own numbers."""
    return Metric(elements.tree(), jnp.asarray(size_of(elements)))


def as_batch(
    metric: Metric, elements: Elements, runs: Runs, frames: int = 0
) -> tuple[Run, np.ndarray]:
    """The runs as one batch of `frames`, or of the longest if that is more; and which places of bodies were
    measured, `(n, f, b)`.
    """
    padded = runs.padded(runs.qpos, frames)
    missing = np.isnan(padded)
    known = runs.mask(frames)[:, :, None] & ~_reaches(elements, missing)
    # What is missing stays where it was last seen: its error has no weight, but must be finite.
    frame = np.where(missing, 0, np.arange(padded.shape[1])[None, :, None])
    filled = np.take_along_axis(padded, np.maximum.accumulate(frame, axis=1), axis=1)
    position, orientation = _placed(metric, jnp.asarray(filled))
    controls = None if runs.controls is None else jnp.asarray(runs.padded(runs.controls, frames))
    return Run(jnp.asarray(filled[:, 0]), position, orientation, controls), known


@jax.jit
def _placed(metric: Metric, q: Float[Array, "n f nq"]) -> tuple[Array, Array]:
    return jax.vmap(metric.places)(q)


def moving(elements: Elements) -> np.ndarray:
    """Which bodies a joint moves, their own or one that carries them, `(b,)`."""
    jointed, found = {joint[1] for joint in elements.plan.joints}, []
    for body, (_, parent) in enumerate(elements.plan.bodies):
        found.append(body in jointed or (parent is not None and found[parent]))
    return np.array(found)


def _reaches(elements: Elements, missing: np.ndarray) -> np.ndarray:
    """Whether a missing coordinate `(..., nq)` moves a body `(..., b)`; or whether nothing moves it."""
    plan, widths = elements.plan, widths_of(elements)
    found: list[np.ndarray] = []
    for i, (_, parent) in enumerate(plan.bodies):
        own = [(j[3], w) for j, w in zip(plan.joints, widths, strict=True) if j[1] == i]
        lost = found[parent].copy() if parent is not None else np.zeros(missing.shape[:-1], bool)
        for at, width in own:
            lost |= missing[..., at : at + width].any(axis=-1)
        found.append(lost)
    return np.stack(found, axis=-1) | ~moving(elements)


def size_of(elements: Elements) -> float:
    """The size of a mechanism [m]: the largest edge of a box with the mass and the moments of a body, on
    average over its axes, or the largest arm from a joint to the centre of mass.
    """
    found = [1e-6]
    for i, (name, _) in enumerate(elements.plan.bodies):
        mass, moments = float(elements[f"{name}/mass"]), np.asarray(elements[f"{name}/inertia"])
        if mass > 0:
            found.append(float(np.sqrt(6 * np.mean(moments) / mass)))
        for joint in (j for j in elements.plan.joints if j[1] == i):
            point = elements.values.get(f"{joint[0]}/pos", 0.0)  # of a free joint the origin
            arm = np.asarray(elements[f"{name}/ipos"]) - np.asarray(point)
            found.append(float(np.linalg.norm(arm)))
    return max(found)
