"""Two boxes on a hinge, tossed onto a board: identified by gradients, predicted from the first frame.

Gravity and the slope of the board are measured first, in flights and at rest, since the axes of the data
are a degree off. The parameters are the friction of the board, normal and tangential restitution, damping of
the hinge, the three moments of inertia that both boxes share and how the mass is divided, each as
`start exp(width y)`, so that none is negative. The loss of a toss is the mean of the errors that the data
set is scored by, over 30 frames and over 45: `|dp| / 0.1 m` and the angle [rad] of both boxes, and half the
angle of the hinge. Half of the tosses start from the first frame as measured, the others from an estimate of
it. A toss amplifies errors at every impact, and some gradients are a thousand times the median: each is cut
to 1.5 times the median of its batch before Adam averages them. Derivatives of a step miss the times of
impacts, so Adam may go too far: of the way that it went, the share with the least loss is taken.
"""

import itertools
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import _measured
from _peer_fits import STEPS as PEER_STEPS, fit_by_differences, motion as peer_motion
from diffnsd import Model, SaveAt, identification, io, simulate
from diffnsd.groups import quaternion_log, quaternion_product, rotation_matrix
from diffnsd.integrators import MoreauJean
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.relations import ContactFrame
from diffnsd.rollout import rollout

MODEL = Path(__file__).with_name("elbow.xml")
SUBSTEPS, TRAINED, HORIZONS = 4, 45, (30, 45, 121)
KEYS = ("pos_pct", "rot_deg", "hinge_deg", "final_agree_pct")
START_RESTITUTION = 0.28, 0.5  # normal, tangential
BATCH, STEPS, RATE, PULL, CUT = 40, 40, 0.3, 0.001, 1.5
SHARES, SEARCHED = (0.5, 0.75, 1.0), 133
HUBER = 0.3
FREE = {  # parameter: leaves of the file, width of its logarithm, shape
    "mu": (("geom/board/friction",), 0.3, ()),
    "e": (("contact/restitution",), 0.3, (2,)),
    "damping": (("joint/hinge/damping",), 0.5, ()),
    "inertia": (("body/first/inertia", "body/second/inertia"), 0.6, (3,)),
    "second mass": (("body/second/mass",), 0.1, ()),
}
# Standard deviations of the start of a toss: pose [m, rad] and velocity [m/s, rad/s] of the first frame
# as measured, and the noise of a frame (README of the data set).
SPREAD_POSE = np.array([3e-4] * 3 + [4e-3] * 3 + [4e-3])
SPREAD_VELOCITY = np.array([0.041] * 3 + [0.43] * 3 + [1.06])
NOISE = np.array([1.5e-4] * 3 + [2e-3] * 3 + [2.5e-3])
FLIGHT = 23


def stabilized(mu, e):
    """The law of the board. `e`: normal and tangential restitution, since corners rebound sideways too.

    Of the fitted tosses all errors are lower for it: those of the hinge over 45 frames by 0.9 degrees.
    """
    normal, tangential = jnp.broadcast_to(e, 2)
    return GapStabilized(CoulombFriction(mu, normal, tangential), rest_speed=0.05)


def load() -> io.Elements:
    """The elements of the project's own file of the elbow."""
    elements = io.load_mjcf(MODEL, law=stabilized, max_active=8)[1]
    values = elements.values | {"contact/restitution": jnp.array(START_RESTITUTION)}
    return eqx.tree_at(lambda e: e.values, elements, values)


class Tosses:
    """The measured tosses as coordinates `q (n, f, 8)` and velocities of the first frame `v (n, 7)`."""

    def __init__(self):
        self.data, self.scorer = _measured.load("tossed_elbow")
        d = self.data
        self.dt = float(d["dt"])
        poses = d["position"], d["quaternion_wxyz"], d["hinge_angle"][..., None]
        self.q = np.concatenate(poses, -1).astype(float)
        rates = d["velocity_world"], d["angular_velocity_body"], d["hinge_rate"][..., None]
        self.v = np.concatenate(rates, -1)[:, 0].astype(float)
        self.clean = np.flatnonzero(d["flag"] == 0)

    def score(self, which: np.ndarray, motions: np.ndarray, frames: int) -> dict[str, float]:
        """The means of the scorer over the tosses `which`, of predicted motions `(n, f, 8)`."""
        prediction = {
            "toss_id": self.data["toss_id"][which],
            "position": motions[which, :, :3],
            "quaternion_wxyz": motions[which, :, 3:7],
            "hinge_angle": motions[which, :, 7],
        }
        return _measured.means(self.scorer.score(prediction, self.data, frames)[0], KEYS)


def calibrated(elements: io.Elements, tosses: Tosses, which: np.ndarray) -> io.Elements:
    """The elements with gravity and the slope of the board as the tosses `which` show them.

    Gravity is the median over flights of the acceleration of the middle of the boxes, the normal of the
    board the mean of the faces within 6 degrees of it, of boxes at rest.
    """
    d, falls, normals = tosses.data, [], []
    geometry = {k: d[k].astype(float) for k in ("hinge_position", "body2_com", "box_size")}
    for k in which:
        q, flight = tosses.q[k], int(d["flight_frames"][k]) - 1
        p1, turn1, p2, turn2 = tosses.scorer.bodies(q[:, :3], q[:, 3:7], q[:, 7], geometry)
        if flight > 10:
            middle = (p1 + p2)[:flight] / 2
            falls.append(2 * np.polyfit(tosses.dt * np.arange(flight), middle, 2)[0])
        for turn in (turn1[-1], turn2[-1]) if d["settled"][k] else ():
            face = np.argmax(np.abs(turn[2]))
            normals.append(turn[:, face] * np.sign(turn[2, face]))
    x, y, z = np.mean([n for n in normals if n[2] > np.cos(np.radians(6))], axis=0)
    slope = np.array([np.sqrt(x**2 + y**2 + z**2) + z, -y, x, 0.0])
    values = elements.values | {
        "option/gravity": jnp.asarray(np.median(falls, axis=0)),
        "geom/board/quat": jnp.asarray(slope / np.linalg.norm(slope)),
    }
    return eqx.tree_at(lambda e: e.values, elements, values)


def motion(model: Model, gravity, dt: float, q, v, frames: int):
    """The frames of one toss, `(f, 8)`.

    Measured velocities are backward differences, half a frame old: the start is moved by
    `g dt/2 (1 − 1/n)` with `n` steps a frame, see the README of the data set.
    """
    v = v.at[:3].add(gravity * (dt / 2) * (1 - 1 / SUBSTEPS))
    solution = simulate(
        model,
        MoreauJean(theta=1.0),
        0.0,
        (frames - 1) * dt,
        dt / SUBSTEPS,
        model.system.state(q, v),
        saveat=SaveAt(steps=SUBSTEPS),
        start_tolerance=float("inf"),  # measured poses penetrate the board
        throw=False,
    )
    return solution.states.q


def predictions(elements: io.Elements, dt: float, q, v, frames: int = 121) -> np.ndarray:
    """The motions of all tosses from their starts `q (n, 8)`, `v (n, 7)`."""

    def one(elements, start):
        return motion(elements.model(), elements["option/gravity"], dt, *start, frames)

    batch = jnp.asarray(q), jnp.asarray(v)
    return np.asarray(rollout(eqx.Partial(one, elements), batch, chunk=128))


def estimated_starts(elements: io.Elements, tosses: Tosses) -> tuple[np.ndarray, np.ndarray]:
    """The most probable starts from the frames before the first contact: Gauss-Newton, robust weights.

    The frames are those that the data set counts as flight. The motion is that of the model without its
    contacts, so that damping of the hinge and inertia act in flight too.
    """
    group, full = elements.system().group, elements.model()
    kept = tuple(i for i in full.interactions if not isinstance(i.relation, ContactFrame))
    flying = np.arange(FLIGHT)[None] < np.minimum(tosses.data["flight_frames"], FLIGHT)[:, None]

    def one(model, toss):
        (q, v, measured, mask), gravity = toss, model.system.gravity

        def moved(x):
            return group.compose(q, group.exp(x[:7] * SPREAD_POSE)), v + x[7:] * SPREAD_VELOCITY

        def residual(x):
            frames = motion(model, gravity, tosses.dt, *moved(x), FLIGHT)
            apart = jax.vmap(lambda a, b: group.log(group.compose(group.inverse(a), b)))
            return jnp.concatenate([(apart(measured, frames) / NOISE * mask[:, None]).ravel(), x])

        def step(x, _):
            r, slope = residual(x), jax.jacfwd(residual)(x)
            weight = 1 / jnp.sqrt(1 + (r.at[-14:].set(0) / 3) ** 2)
            normal = (slope * weight[:, None]).T
            return x - jnp.linalg.solve(normal @ slope, normal @ r), None

        return moved(jax.lax.scan(step, jnp.zeros(14), length=4)[0])

    batch = tosses.q[:, 0], tosses.v, tosses.q[:, :FLIGHT], flying.astype(float)
    batch = jax.tree.map(jnp.asarray, batch)
    q, v = rollout(eqx.Partial(one, Model(full.system, kept)), batch, chunk=128)
    return np.asarray(q), np.asarray(v)


def placed(elements: io.Elements, y: dict[str, Any]) -> io.Elements:
    """The elements with the parameters `start exp(width y)`."""
    values = dict(elements.values)
    for name, (leaves, width, _) in FREE.items():
        for leaf in leaves:
            values[leaf] = elements[leaf] * jnp.exp(width * y[name])
    return eqx.tree_at(lambda e: e.values, elements, values)


def boxes(q):
    """Centres [m] and quaternions of both boxes as the scorer places them."""
    position, quaternion, angle = q[:3], q[3:7], q[7]
    half = jnp.stack([jnp.cos(angle / 2), 0 * angle, jnp.sin(angle / 2), 0 * angle])
    second = quaternion_product(quaternion, half)
    hinge = rotation_matrix(quaternion) @ jnp.array([-0.035, 0.06, 0.0])
    centre = position + hinge + rotation_matrix(second) @ jnp.array([0.035, 0.0, 0.0])
    return (position, quaternion), (centre, second)


def apart(q, measured):
    """Displacement [0.1 m] and rotation [rad] of both boxes from where they were measured."""
    for (p, a), (p0, a0) in zip(boxes(q), boxes(measured), strict=True):
        back = a0 * jnp.array([1.0, -1.0, -1.0, -1.0])
        yield (p - p0) / 0.1, quaternion_log(quaternion_product(back, a))


def error(q, measured):
    """The mean over both boxes of `|dp| / 0.1 m` and of the angle, and half that of the hinge [rad]."""
    total = 0.0
    for moved, turn in apart(q, measured):
        total += jnp.sqrt(moved @ moved + 1e-6) + jnp.sqrt(turn @ turn + 1e-6)
    hinge = jnp.sqrt((q[7] - measured[7]) ** 2 + 1e-6)
    return (total + hinge) / 2


def fit(elements: io.Elements, tosses: Tosses, train: np.ndarray, seed: int = 0):
    """Adam over batches of the tosses `train`; towards the mean of the last third of its iterates.

    **Returns:** the elements found, the numbers `y`, the losses, and how many tosses were simulated,
    `BATCH * STEPS` of them with their gradient.
    """
    gravity = elements["option/gravity"]

    data = mixed_starts(elements, tosses, seed)

    def loss(y, q, v, measured):
        there = placed(elements, y)
        frames = motion(there.model(), gravity, tosses.dt, q, v, TRAINED)
        errors = jax.vmap(error)(frames, measured)
        value = (jnp.mean(errors[: HORIZONS[0]]) + jnp.mean(errors)) / 2
        return value, value

    # Few parameters: forward mode, each toss with its own gradient.
    gradients = jax.jit(jax.vmap(jax.jacfwd(loss, has_aux=True), (None, 0, 0, 0)))
    y = {name: jnp.zeros(shape) for name, (_, _, shape) in FREE.items()}
    optimiser = optax.adam(optax.cosine_decay_schedule(RATE, STEPS), b1=0.9, b2=0.98)
    memory, losses, late = optimiser.init(y), [], []
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(train) for _ in range(1 + BATCH * STEPS // len(train))])
    for k in range(STEPS):
        batch = order[k * BATCH : (k + 1) * BATCH]
        each, values = gradients(y, *(jnp.asarray(x[batch]) for x in data))
        mean = jax.tree.map(lambda g, x: g + PULL * x, cut_mean(each), y)
        change, memory = optimiser.update(mean, memory)
        y = optax.apply_updates(y, change)
        losses.append(float(jnp.mean(values)))
        if k >= STEPS * 2 // 3:
            late.append(y)
    y = jax.tree.map(lambda *x: jnp.mean(jnp.stack(x), axis=0), *late)
    some = [jnp.asarray(x[order[:SEARCHED]]) for x in data]
    value = jax.jit(lambda y: jnp.mean(jax.vmap(loss, (None, 0, 0, 0))(y, *some)[0]))
    tried = [jax.tree.map(lambda x, share=share: share * x, y) for share in SHARES]
    y = min(tried, key=lambda y: float(value(y)))
    return placed(elements, y), y, losses, BATCH * STEPS + len(SHARES) * SEARCHED


def cut_mean(gradients):
    """The mean over the first axis, each gradient cut to `CUT` times the median length."""
    flat = [g.reshape(BATCH, -1) for g in jax.tree.leaves(gradients)]
    length = jnp.linalg.norm(jnp.concatenate(flat, axis=1), axis=1)
    share = jnp.minimum(1, CUT * jnp.median(length) / length) / BATCH
    return jax.tree.map(lambda g: jnp.tensordot(share, g, 1), gradients)


def mixed_starts(elements: io.Elements, tosses: Tosses, seed: int):
    """Starts, measured for half of the tosses and estimated for the others, and the measured frames."""
    measured = np.random.default_rng(seed).random(len(tosses.q)) < 0.5
    both = zip((tosses.q[:, 0], tosses.v), estimated_starts(elements, tosses), strict=True)
    q, v = (np.where(measured[:, None], raw, estimate) for raw, estimate in both)
    return q, v, tosses.q[:, :TRAINED]


# Parameters of the peers, from the baselines that come with the data set: friction, solref, damping and
# friction loss of the hinge, scale of the boxes, gravity, inertia, the second mass.
SOLID, MASS = np.array([2.3, 5.8, 5.8]) * 1e-4, 0.37
INERTIA_D, INERTIA_E = 2.5 * np.array([1.5, 3.9, 3.9]) * 1e-4, 1.26 * SOLID
PEERS = {
    "mujoco A, not fitted": (0.18, (0.004, 0.5), 0.002, 0.001, 1.0, 9.65, SOLID, MASS),
    "mujoco D, 35,670 rollouts": (0.137, (0.0018, 2.0), 7e-4, 1e-4, 1.05, 10.3, INERTIA_D, MASS),
    "mujoco E, 35,670 rollouts": (
        0.217,
        (0.0023, 0.97),
        0.0034,
        1e-4,
        1.027,
        10.1,
        INERTIA_E,
        MASS,
    ),
}


def peer(parameters: tuple, tosses: Tosses, q, v, frames: int = 121) -> np.ndarray:
    """The motions of all tosses by MuJoCo in C with its soft contact, elliptic cones, 4 steps a frame."""
    import mujoco

    mu, softness, damping, loss, scale, gravity, inertia, second = parameters
    m = mujoco.MjModel.from_xml_path(str(MODEL))
    m.opt.cone, m.opt.timestep = mujoco.mjtCone.mjCONE_ELLIPTIC, tosses.dt / SUBSTEPS
    m.opt.gravity[2] = -gravity
    m.geom_friction[:, 0], m.geom_solref[:], m.body_inertia[1:] = mu, softness, inertia
    m.dof_damping[6], m.dof_frictionloss[6] = damping, loss
    m.geom_size[1:] *= scale
    m.body_mass[2] = second
    d, start = mujoco.MjData(m), v.copy()
    mujoco.mj_setConst(m, d)
    start[:, 2] -= gravity * tosses.dt / 2 * (1 - 1 / SUBSTEPS)
    return np.stack([peer_motion(m, d, *at, frames, SUBSTEPS) for at in zip(q, start, strict=True)])


PEER_START = np.array([0.18, 0.004, 0.5, 0.001, *SOLID, MASS])
"""Where it starts: friction, solref, damping of the hinge, three moments of inertia, the second mass."""


def peer_numbers(x: np.ndarray) -> tuple:
    """The parameters of `peer` for numbers relative to `PEER_START`."""
    mu, time_constant, ratio, damping, *inertia, second = x * PEER_START
    return mu, (time_constant, ratio), damping, 1e-5, 1.0, 9.62, np.array(inertia), second


def peer_fits(tosses: Tosses, elements: io.Elements, train: np.ndarray, seed: int, budgets) -> dict:
    """MuJoCo's least squares on `BATCH` of the tosses that the fit saw, from the same starts."""
    q, v, measured = mixed_starts(elements, tosses, seed)
    chosen = np.random.default_rng(seed).choice(train, BATCH, replace=False)
    huber = identification.Huber(HUBER)

    @jax.jit
    @jax.vmap
    @jax.vmap
    def weighed(q, measured):
        hinge = jnp.reshape((q[7] - measured[7]) / 2, 1)
        return huber.weigh(jnp.concatenate([hinge, *itertools.chain(*apart(q, measured))]))

    def residual(x):
        motions = peer(peer_numbers(x), tosses, q[chosen], v[chosen], TRAINED)
        return weighed(jnp.asarray(motions), jnp.asarray(measured[chosen]))

    bounds = np.full(8, 0.2), np.array([4.0, 20.0, 6.0, 10.0, 4.0, 4.0, 4.0, 1.5])
    bounds[0][-1] = 0.7
    return {
        f"mujoco, differences of {step:g}, {count} rollouts": peer_numbers(x)
        for step in PEER_STEPS
        for count, _, x in fit_by_differences(residual, BATCH, bounds, step, budgets)
    }


def rows(seed: int, quick: bool) -> list[dict[str, Any]]:
    """Models, ours and the peers', scored on tosses that were not fitted."""
    tosses, nominal = Tosses(), load()
    train, _ = _measured.split(tosses.clean, 0.7, seed)
    elements = calibrated(nominal, tosses, train)
    test = np.setdiff1d(np.arange(len(tosses.q)), train)
    if quick:
        test = test[:8]
    raw = tosses.q[:, 0], tosses.v
    models: dict[str, Any] = {"diffnsd, not fitted": (elements, {}, 0, 0.0)}
    if not quick:
        begun = time.perf_counter()
        fitted, y, _, count = fit(elements, tosses, train, seed)
        models["diffnsd, fitted"] = fitted, y, count, time.perf_counter() - begun
    found = []
    for name, (model, y, count, seconds) in models.items():
        for start, (q, v) in {"raw": raw, "estimated": estimated_starts(model, tosses)}.items():
            motions = np.zeros_like(tosses.q)
            motions[test] = predictions(model, tosses.dt, q[test], v[test])
            found += _rows(tosses, test, motions, name, start, count, seconds)
        if y:
            found[-1]["parameters"] = {
                leaf: np.asarray(model[leaf]).tolist()
                for leaves, _, _ in FREE.values()
                for leaf in leaves
            }
    begin = estimated_starts(nominal, tosses)
    peers = {}
    if not quick:
        count = 2000
        peers = PEERS | peer_fits(tosses, nominal, train, seed, [count, 3 * count])
    for name, parameters in peers.items():
        for start, (q, v) in {"raw": raw, "estimated": begin}.items():
            motions = np.zeros_like(tosses.q)
            motions[test] = peer(parameters, tosses, q[test], v[test])
            found += _rows(tosses, test, motions, name, start, 0, 0.0)
    return found


def _rows(tosses, test, motions, name, start, count, seconds):
    common = {"data": "tossed_elbow", "model": name, "start": start, "tosses": len(test)}
    common |= {"rollouts": count, "fit_seconds": round(seconds, 1)}
    return [common | {"frames": f} | tosses.score(test, motions, f) for f in HORIZONS]
