"""The tossed cube as a model with named parameters, and its residuals against measured tosses."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...groups import quaternion_log, quaternion_product
from ...integrators import MoreauJean
from ...models import cube_state, tossed_cube
from ...simulation import SaveAt, Solution, simulate
from .._statistics import median_and_error
from ..fit import Job, Quantity, Simulated
from ._data import Tosses

QUANTITIES = {
    "mu": Quantity("", (0.0, None)),
    "e": Quantity("", (0.0, 1.0), 0.1),
    "half_width": Quantity("m", (1e-3, None)),
    "gravity": Quantity("m/s²", (0.1, 100.0)),
    "inertia_over_mass": Quantity("m²", (0.0, None)),
    "tilt_x": Quantity("rad", (-0.5, 0.5), 0.01),
    "tilt_y": Quantity("rad", (-0.5, 0.5), 0.01),
    "length_factor": Quantity("", (0.5, 2.0), 0.02),
    "clock_factor": Quantity("", (0.5, 2.0), 0.01),
    "clock_delay": Quantity("s", (-0.1, 0.1), 2e-3),
}
"""What can be identified. The last five are errors of the measurement that all tosses share."""
RELATIVE = {"half_width": 0.02, "gravity": 0.02, "inertia_over_mass": 0.3}
"""Standard deviations of priors as fractions of the values in the file. Lengths in the tracked tosses, and
hence gravity, are known to about 2 %."""
SIGMA = 0.03, 0.03
"""Model error of a pose: position in units of the cube's width, rotation in [rad]."""
SIGMA_VELOCITY, SIGMA_SPIN = 0.010, 0.08
"""Standard deviation of the measured start velocity [m/s] and spin [rad/s]."""


class CubeParameters(eqx.Module):
    """The parameters of a tossed cube that can be identified from poses; its mass cannot.

    **Arguments:** `mu`, `e`; `half_width` [m]; `gravity` [m/s²]; `inertia_over_mass` [m²]. Errors of the
    measurement that all tosses share: `tilt_x`, `tilt_y`: slopes of the vertical against the z axis of
    the data, gravity acting along `(tilt_x, tilt_y, −1)` [rad]; `length_factor`: measured lengths over
    true ones; `clock_factor`: measured times over true ones; `clock_delay`: how much older the measured
    start velocities are than half a frame [s].
    """

    mu: Float[Array, ""]
    e: Float[Array, ""]
    half_width: Float[Array, ""]
    gravity: Float[Array, ""]
    inertia_over_mass: Float[Array, ""]
    tilt_x: Float[Array, ""]
    tilt_y: Float[Array, ""]
    length_factor: Float[Array, ""]
    clock_factor: Float[Array, ""]
    clock_delay: Float[Array, ""]

    @staticmethod
    def nominal(tosses: Tosses, mu: float = 0.25, e: float = 0.1) -> "CubeParameters":
        """The values given in a file, with a guess of friction and restitution.

        **Raises:** `ValueError` if the box in the file is not a cube.
        """
        ratio = _isotropic("inertia", tosses.inertia) / float(tosses.mass)
        numbers = mu, e, half_width(tosses), float(tosses.gravity), ratio, 0.0, 0.0, 1.0, 1.0, 0.0
        return CubeParameters(*(jnp.asarray(x, float) for x in numbers))


def half_width(tosses: Tosses) -> float:
    """Half the edge length of the tossed cube [m].

    **Raises:** `ValueError` if its edges differ.
    """
    return _isotropic("half_width", tosses.half_width)


def _isotropic(key: str, value: float | np.ndarray) -> float:
    numbers = np.atleast_1d(value)
    if np.ptp(numbers) > 1e-6 * numbers.max():
        raise ValueError(
            f"`{key}` is {numbers.tolist()}: this box is no cube, and only a cube can be identified "
            "here; if it is one within the accuracy of these numbers, store their mean. Other "
            "bodies: `diffnsd.identification` with a model of your own."
        )
    return float(numbers[0])


class Lane(eqx.Module):
    """One toss: measured poses (padded to `frames`) with their mask, and the start velocity."""

    position: Float[Array, "f 3"]
    quaternion: Float[Array, "f 4"]
    mask: Float[Array, " f"]
    velocity: Float[Array, "3"]
    spin: Float[Array, "3"]


def lanes(tosses: Tosses, frames: int | None = None) -> Lane:
    """Tosses as a batch, padded (or cut) to `frames`, by default to the longest toss.

    **Returns:** a `Lane` whose arrays have a leading axis of tosses.
    """
    padded = tosses.padded()
    count = padded.position.shape[1] if frames is None else frames
    extra = max(0, count - padded.position.shape[1])

    def fit(x, mode):
        x = np.asarray(x)[:, :count]
        return jnp.asarray(np.pad(x, [(0, 0), (0, extra)] + [(0, 0)] * (x.ndim - 2), mode=mode))

    return Lane(
        fit(padded.position, "edge"),
        fit(padded.quaternion_wxyz, "edge"),
        fit(padded.mask.astype(float), "constant"),
        jnp.asarray(padded.velocity_world[:, 0]),
        jnp.asarray(padded.angular_velocity_body[:, 0]),
    )


def toss_run(
    cube: CubeParameters, lane: Lane, dt: float, substeps: int, saveat: SaveAt, law=None
) -> Solution:
    """The simulation of a toss from its first frame; `law`: in place of the cube's own.

    Measured velocities are backward differences, that is, velocities half a frame earlier. With `n`
    steps per frame the scheme starts from `v + g dt/2 (1 − 1/n)`, so that at the frames it lies on
    the exact parabola.

    The motion is simulated in measured lengths and times: with lengths times `s` and times times `c`,
    gravity is `g s / c²`, a width `s` and a moment of inertia over mass `s²` times as large.
    """
    frames, longer = lane.position.shape[0], cube.length_factor
    pull = cube.gravity * longer / cube.clock_factor**2
    slopes = jnp.stack([cube.tilt_x, cube.tilt_y])
    down = jnp.concatenate([slopes, -jnp.ones(1)]) / jnp.sqrt(1 + slopes @ slopes) * pull
    velocity = lane.velocity + down * (dt / 2 * (1 - 1 / substeps) + cube.clock_delay)
    model = tossed_cube(
        cube.mu,
        cube.e,
        mass=1.0,
        inertia=cube.inertia_over_mass * longer**2,
        half_width=cube.half_width * longer,
        gravity=pull,
        law=law,
    )
    model = eqx.tree_at(lambda m: m.system.gravity, model, down)
    return simulate(
        model,
        MoreauJean(theta=1.0),
        0.0,
        (frames - 1) * dt,
        dt / substeps,
        cube_state(lane.position[0], lane.quaternion[0], velocity, lane.spin),
        saveat=saveat,
        start_tolerance=float("inf"),  # measured poses penetrate the plane
        throw=False,
    )


def toss(cube: CubeParameters, lane: Lane, dt: float, substeps: int):
    """Simulates a toss from its first frame, see `toss_run`.

    **Returns:** positions `(f, 3)`, quaternions `(f, 4)`, largest residual, number of failed steps
    (0 or 1) and deepest penetration [m].
    """
    solution = toss_run(cube, lane, dt, substeps, SaveAt(steps=substeps))
    pose = solution.states.q
    (gap,) = solution.gaps
    assert gap is not None  # corners against a plane have gaps
    failed = (solution.stats.failed_step >= 0).astype(jnp.int32)
    return (
        pose.position[:, 0],
        pose.orientation[:, 0],
        jnp.max(solution.stats.residual),
        failed,
        -jnp.minimum(jnp.min(gap), 0.0),
    )


def pose_error(lane: Lane, position, quaternion, width: float) -> Float[Array, "f 2 3"]:
    """Position error in units of the cube's width, and rotation error [rad] as a rotation vector."""
    conjugate = lane.quaternion * jnp.array([[1.0, -1.0, -1.0, -1.0]])
    relative = quaternion_product(conjugate.T, quaternion.T)
    return jnp.stack([(position - lane.position) / width, quaternion_log(relative).T], axis=1)


class CubeMotion(eqx.Module):
    """The error of a toss from another start velocity and spin, for a `Job`.

    **Arguments:** `width` [m]; `dt`: between frames [s]; `substeps`: steps per frame.
    """

    width: float = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    def __call__(self, cube: CubeParameters, lane: Lane, start: Float[Array, "6"]):
        moved = eqx.tree_at(lambda x: (x.velocity, x.spin), lane, (start[:3], start[3:]))
        shown = toss(cube, moved, self.dt, self.substeps)
        position, quaternion, _, failed, _ = shown
        return Simulated(pose_error(lane, position, quaternion, self.width), failed > 0, shown)


def cube_job(start: CubeParameters, batch: Lane, free: tuple[str, ...], motion: Callable) -> Job:
    """The identification of a cube from tosses; `motion` is a `CubeMotion`."""
    spread = {name: part * float(getattr(start, name)) for name, part in RELATIVE.items()}
    return Job(
        start,
        motion,
        batch,
        jnp.broadcast_to(batch.mask[:, :, None] > 0, (*batch.mask.shape, 2)),
        jnp.concatenate([batch.velocity, batch.spin], axis=1),
        jnp.array([SIGMA_VELOCITY] * 3 + [SIGMA_SPIN] * 3),
        jnp.array(SIGMA),
        getattr,
        QUANTITIES | {n: replace(QUANTITIES[n], deviation=x) for n, x in spread.items()},
        free,
    )


def check_free(names: list[str]) -> tuple[str, ...]:
    """Validates the names of free parameters.

    **Raises:** `ValueError` listing the existing names.
    """
    unknown = [n for n in names if n not in QUANTITIES]
    if unknown or len(names) == 0:
        raise ValueError(
            f"unknown parameter {', '.join(map(repr, unknown)) or '(none given)'}; "
            f"there are: {', '.join(QUANTITIES)}."
        )
    return tuple(name for name in QUANTITIES if name in names)


def _flights(tosses: Tosses, clearance: float) -> list[int]:
    """How many frames of each toss come before the lowest corner is within `clearance` [m]."""
    model = tossed_cube(half_width=half_width(tosses))

    def lowest(position, quaternion):
        (gap,) = model.gaps(
            jnp.zeros(()), cube_state(position, quaternion, jnp.zeros(3), jnp.zeros(3)).q
        )
        assert gap is not None  # corners against a plane have gaps
        return jnp.min(gap)

    low = np.asarray(jax.jit(jax.vmap(lowest))(tosses.position, tosses.quaternion_wxyz))
    counts = []
    for at, end in zip(tosses.offsets[:-1], tosses.offsets[1:], strict=True):
        closed = np.flatnonzero(low[at:end] < clearance)
        counts.append(int(closed[0]) if closed.size else int(end - at))
    return counts


def flight_gravity(tosses: Tosses, clearance: float = 0.005) -> tuple[float, float] | None:
    """The downward acceleration of the free flights [m/s²], and its standard error between tosses.

    The median of parabolas through the heights of at least eight frames before first contact; `None`
    if fewer than two tosses have so many.
    """
    found = []
    for at, n in zip(tosses.offsets[:-1], _flights(tosses, clearance), strict=True):
        if n >= 8:
            t = np.arange(n) * float(tosses.dt)
            found.append(-2 * np.polyfit(t, tosses.position[at : at + n, 2], 2)[0])
    if len(found) < 2:
        return None
    return median_and_error(np.array(found))


def check_flight(tosses: Tosses, clearance: float = 0.005) -> tuple[float, float] | None:
    """`flight_gravity`, which must be the gravity of the file within a factor of two.

    **Raises:** `ValueError` if it is not: lengths or times are in other units where it is larger; where it is
    smaller, or upwards, these frames are no flight.
    """
    found = flight_gravity(tosses, clearance)
    share = 1.0 if found is None else found[0] / float(tosses.gravity)
    if found is None or 0.5 < share < 2:
        return found
    if abs(share) < 2:
        remedy = (
            "these frames are no free flight. Usual causes: `half_width` is too small, so that contact "
            "begins unnoticed; `position` is not the centre of the body, or the table is not at z = 0; "
            "frames that are no measurement."
        )
    else:
        remedy = (
            "positions must be in metres, `dt` in seconds and z up; divide millimetres by 1000, milliseconds "
            "too."
        )
    raise ValueError(
        f"before their first contact the tosses fall with {found[0]:.4g} m/s², but `gravity` is "
        f"{float(tosses.gravity):.4g} m/s²: {remedy}"
    )


def smooth_start(tosses: Tosses, clearance: float = 0.005) -> Tosses:
    """Replaces the velocities of the first frame by a fit over the frames before first contact.

    Fits a parabola with the file's gravity to the positions and a constant spin to the attitudes, in
    the frames before the lowest corner comes within `clearance` [m]. The poses stay as measured. A
    toss with fewer than four such frames keeps its velocities.

    **Returns:** tosses that differ only in the velocities of each first frame.

    **Raises:** `ValueError` if the box in the file is not a cube.
    """
    velocity, spin = tosses.velocity_world.copy(), tosses.angular_velocity_body.copy()
    dt, fall = float(tosses.dt), np.array([0.0, 0.0, -float(tosses.gravity)])
    q = tosses.quaternion_wxyz
    start = np.repeat(q[tosses.offsets[:-1]], tosses.lengths, axis=0)
    conjugate = start * np.array([1.0, -1.0, -1.0, -1.0])
    angle = np.asarray(
        quaternion_log(quaternion_product(jnp.asarray(conjugate.T), jnp.asarray(q.T)))
    ).T
    for at, n in zip(tosses.offsets[:-1], _flights(tosses, clearance), strict=True):
        if n < 4:
            continue
        t = np.arange(n) * dt
        moved = tosses.position[at : at + n] - tosses.position[at] - fall / 2 * t[:, None] ** 2
        # Files store the velocity half a frame before each frame.
        velocity[at] = (t @ moved) / (t @ t) - fall * dt / 2
        spin[at] = (t @ angle[at : at + n]) / (t @ t)
    return replace(tosses, velocity_world=velocity, angular_velocity_body=spin)
