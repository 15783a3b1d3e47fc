"""A square dropped in a plane: friction, restitution and shape identified over the first 0.2 s.

Four corners on a floor, `CoulombFriction(mu, e, e_t)`, linear drag as measured in flight. The fit is
weighted least squares from starts that are estimated from the frames of the first flight. `lean` turns
the normal of the floor without its height: in the data impulses at a corner lean by 0.02 rad against the
floor at rest.
"""

import functools
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _measured
from _peer_fits import STEPS as PEER_STEPS, fit_by_differences, motion as peer_motion
from diffnsd import Interaction, Model, SaveAt, identification, simulate
from diffnsd.integrators import MoreauJean
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.relations import PlanarContact
from diffnsd.rollout import rollout
from diffnsd.systems import LagrangianSystem

SUBSTEPS, FRAMES, FLIGHT = 5, 52, 18
DT, SIDE, HORIZONS = 1 / 250, 0.06, (0.1, 0.2)
KEYS = ("pos_pct", "ang_deg")
DRAG, GRAVITY = np.array([0.45, 0.45, 0.61]), np.array([0.0, -9.84, 0.0])  # measured in flight
SPREAD = np.array([1e-4, 1e-4, 1e-3, 0.01, 0.02, 0.3])  # of the first row [m, rad, m/s, rad/s]
NOISE = np.array([3e-5, 6e-5, 1e-3])  # of a row
ERROR, HUBER, EFFECTIVE = 0.3, 0.3, 10.0
DROPS, STEPS = 100, 18
PRIOR = {  # standard deviations about the nominal values
    "e_t": 0.3,
    "gyration2": 1e-4,
    "half": 1e-3,
    "offset": np.array([5e-4, 5e-4, 0.01]),
    "height": 5e-4,
    "lean": 5e-3,
}
BOUNDS = {
    "mu": (0, None),
    "e": (0, 1),
    "e_t": (-1, 1),
    "gyration2": (1e-4, None),
    "half": (0.02, None),
}


class Corners(eqx.Module):
    """The corners of the square above a floor."""

    half: Any
    offset: Any
    height: Any
    lean: Any

    def __call__(self, t, q):
        turn = q[2] + self.offset[2]
        c, s = jnp.cos(turn), jnp.sin(turn)
        signs = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
        corners = self.half * signs + self.offset[None, :2]
        x = q[0] + c * corners[:, 0] - s * corners[:, 1]
        z = q[1] + s * corners[:, 0] + c * corners[:, 1]
        points, normal = (
            jnp.stack([x, z], axis=1),
            jnp.stack([-jnp.sin(self.lean), jnp.cos(self.lean)]),
        )
        floor = points - (z - self.height)[:, None] * normal[None]
        return points, floor, jnp.broadcast_to(normal[None], points.shape)


class Square(eqx.Module):
    """The parameters that are fitted.

    Friction, restitutions, squared radius of gyration [m²], half the side [m], marker against body
    (m, m, rad), height of the floor [m], lean of its normal [rad].
    """

    mu: Any
    e: Any
    e_t: Any
    gyration2: Any
    half: Any
    offset: Any
    height: Any
    lean: Any

    @staticmethod
    def nominal() -> "Square":
        """Values of the README of the data set and its measured restitution."""
        offset = [0.0, 0.0, np.radians(1.8)]
        numbers = 0.17, 0.47, 0.0, 6e-4, 0.0305, offset, 0.0, 0.0
        return Square(*(jnp.asarray(x, float) for x in numbers))

    def model(self) -> Model:
        """Corners on the floor, and drag."""
        mass = jnp.stack([jnp.ones(()), jnp.ones(()), self.gyration2])
        system = LagrangianSystem(jnp.diag(mass), lambda t, q, v: mass * (DRAG * v - GRAVITY))
        law = GapStabilized(CoulombFriction(self.mu, self.e, self.e_t), rest_speed=0.02)
        corners = Corners(self.half, self.offset, self.height, self.lean)
        return Model(system, (Interaction(PlanarContact(corners, 0), law),))


class Drops:
    """The measured drops: rows by camera frame `q (n, f, 3)`, which are there, and their first rows."""

    def __init__(self, frames: int = FRAMES):
        self.data, self.scorer = _measured.load("dropped_square")
        d, offsets = self.data, self.data["offsets"]
        count = len(offsets) - 1
        self.scored = np.flatnonzero((d["flag"] & 28) == 0)
        rows = np.concatenate([d["position_xz"], d["angle"][:, None]], axis=1).astype(float)
        rates = np.concatenate([d["velocity_xz"], d["angular_velocity"][:, None]], axis=1)
        self.q0, self.v0 = rows[offsets[:-1]], rates[offsets[:-1]].astype(float)
        self.q, self.there = np.zeros((count, frames, 3)), np.zeros((count, frames), bool)
        self.flying = np.zeros((count, FLIGHT))
        for j in range(count):
            at = slice(offsets[j], offsets[j + 1])
            frame, ok = d["frame"][at], d["ok"][at]
            early = frame < frames
            self.q[j, frame[early]], self.there[j, frame[early]] = rows[at][early], ok[early]
            last = frame[max(0, int(d["flight_rows"][j]) - 1)]
            self.flying[j] = (np.arange(FLIGHT) <= last) & self.there[j, :FLIGHT]

    def score(self, which: np.ndarray, motions: np.ndarray, until: float) -> dict[str, float]:
        d, offsets = self.data, self.data["offsets"]
        frames = [np.minimum(d["frame"][offsets[j] : offsets[j + 1]], FRAMES - 1) for j in which]
        rows = np.concatenate([motions[i][f] for i, f in enumerate(frames)])
        prediction = {
            "toss_id": d["toss_id"][which],
            "offsets": np.cumsum([0, *map(len, frames)]),
            "position_xz": rows[:, :2],
            "angle": rows[:, 2],
        }
        return _measured.means(self.scorer.score(prediction, d, until)[0], KEYS)


def run_of(square, q, v, frames: int, saveat: SaveAt):
    """One drop; velocities of the data are half a frame old. `square`: anything with a `model()`."""
    model = square.model()
    return simulate(
        model,
        MoreauJean(theta=1.0),
        0.0,
        (frames - 1) * DT,
        DT / SUBSTEPS,
        model.system.state(q, v + GRAVITY * (DT / 2) * (1 - 1 / SUBSTEPS)),
        saveat=saveat,
        start_tolerance=float("inf"),
        throw=False,
    )


def motion(square, q, v, frames: int):
    """The frames of one drop, `(f, 3)`."""
    return run_of(square, q, v, frames, SaveAt(steps=SUBSTEPS)).states.q


def predictions(square, q, v) -> np.ndarray:
    def one(square, start):
        return motion(square, *start, FRAMES)

    return np.asarray(rollout(eqx.Partial(one, square), (jnp.asarray(q), jnp.asarray(v)), chunk=64))


def estimated_starts(drops: Drops) -> tuple[np.ndarray, np.ndarray]:
    """The most probable starts from the rows of the first flight, with drag: robust Gauss-Newton."""
    t = jnp.arange(FLIGHT)[:, None] * DT
    decay = jnp.exp(-DRAG * t)

    def one(q, v, measured, mask):
        def residual(x):
            p, w = q + x[:3] * SPREAD[:3], v + x[3:] * SPREAD[3:] + GRAVITY * DT / 2
            fall = GRAVITY / DRAG
            frames = p + (w - fall) * (1 - decay) / DRAG + fall * t
            return jnp.concatenate([((frames - measured) / NOISE * mask[:, None]).ravel(), x])

        def step(x, _):
            r, slope = residual(x), jax.jacfwd(residual)(x)
            weight = 1 / jnp.sqrt(1 + (r.at[-6:].set(0) / 3) ** 2)
            normal = (slope * weight[:, None]).T
            return x - jnp.linalg.solve(normal @ slope, normal @ r), None

        x = jax.lax.scan(step, jnp.zeros(6), length=3)[0]
        return q + x[:3] * SPREAD[:3], v + x[3:] * SPREAD[3:]

    batch = drops.q0, drops.v0, drops.q[:, :FLIGHT], drops.flying
    q, v = jax.jit(jax.vmap(one))(*(jnp.asarray(x) for x in batch))
    return np.asarray(q), np.asarray(v)


def errors(square, batch):
    """Errors of the drops, in units of `ERROR`; a drop counts as `EFFECTIVE` frames."""
    frames = batch[2].shape[1]

    def one(q, v, measured, mask):
        apart = motion(square, q, v, frames) - measured
        scale = jnp.array([1 / SIDE, 1 / SIDE, 1.0]) / ERROR * np.sqrt(EFFECTIVE / frames)
        return apart * scale * mask[:, None]

    return jax.vmap(one)(*batch)


def from_nominal(square: Square, nominal: Square) -> dict[str, Any]:
    """The residuals of the priors."""
    return {k: (getattr(square, k) - getattr(nominal, k)) / s for k, s in PRIOR.items()}


class Residual(eqx.Module):
    """`errors` and the priors."""

    rebuild: Any
    batch: Any
    nominal: Square

    def __call__(self, params):
        square = self.rebuild(params)
        return errors(square, self.batch), from_nominal(square, self.nominal)


def batch_of(drops: Drops, which: np.ndarray, q, v):
    """What `errors` takes of some drops."""
    batch = q[which], v[which], drops.q[which], drops.there[which].astype(float)
    return jax.tree.map(jnp.asarray, batch)


def chosen() -> tuple[identification.Parameters, identification.Rebuild]:
    """The numbers that are fitted, at their nominal values, and how a square is made from them."""
    return identification.parameters(
        Square.nominal(), lambda s: {name: getattr(s, name) for name in BOUNDS | PRIOR}, BOUNDS
    )


def fitted(drops: Drops, train: np.ndarray, q, v) -> Square:
    """The square with the values of `fit`."""
    return chosen()[1](fit(drops, train, q, v).params)


def fit(drops: Drops, train: np.ndarray, q, v) -> identification.FitResult:
    """Levenberg-Marquardt from the nominal values."""
    params, rebuild = chosen()
    residual = Residual(rebuild, batch_of(drops, train, q, v), Square.nominal())
    found = identification.least_squares(
        residual,
        params,
        robust=identification.Huber(HUBER),
        max_steps=STEPS,
        rtol=1e-3,
        throw=False,
    )
    return found


SQUARE = """
<mujoco>
  <option cone="elliptic" gravity="0 0 -9.84"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body>
      <joint type="slide" axis="1 0 0"/>
      <joint type="slide" axis="0 0 1"/>
      <joint type="hinge" axis="0 -1 0"/>
      <inertial pos="0 0 0" mass="1" diaginertia="6e-4 6e-4 6e-4"/>
      <geom type="sphere" size="0.002"/> <geom type="sphere" size="0.002"/>
      <geom type="sphere" size="0.002"/> <geom type="sphere" size="0.002"/>
    </body>
  </worldbody>
</mujoco>
"""
PEER_START = np.array([0.17, 0.004, 0.3, 0.0305, 0.002, 6e-4])
"""Friction, solref, half the side [m], radius of the corners [m], squared radius of gyration [m²]."""


def peer(numbers: np.ndarray, q, v) -> np.ndarray:
    """The frames of all drops by MuJoCo in C: a body in a plane with four balls as corners, `(n, f, 3)`."""
    import mujoco

    mu, time_constant, ratio, half, radius, gyration2 = numbers
    m = mujoco.MjModel.from_xml_string(SQUARE)
    m.opt.timestep = DT / SUBSTEPS
    m.geom_friction[:, 0], m.geom_solref[:] = mu, (time_constant, ratio)
    corners = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) * (half - radius)
    turn = np.radians(1.8)
    c, s = np.cos(turn), np.sin(turn)
    m.geom_pos[1:, 0] = c * corners[:, 0] - s * corners[:, 1]
    m.geom_pos[1:, 2] = s * corners[:, 0] + c * corners[:, 1]
    m.geom_size[1:, 0] = m.geom_rbound[1:] = radius
    m.body_inertia[1] = gyration2
    m.dof_damping[:] = DRAG * np.array([1.0, 1.0, gyration2])
    d, start = mujoco.MjData(m), v + GRAVITY * (DT / 2) * (1 - 1 / SUBSTEPS)
    mujoco.mj_setConst(m, d)
    return np.stack([peer_motion(m, d, *at, FRAMES, SUBSTEPS) for at in zip(q, start, strict=True)])


def peer_fits(drops: Drops, train: np.ndarray, q, v, budgets: list[int]) -> list[tuple]:
    """MuJoCo's least squares on the same drops from the same starts: names, rollouts and numbers."""
    huber, there = identification.Huber(HUBER), drops.there[train][..., None]
    scale = np.array([1 / SIDE, 1 / SIDE, 1.0]) / ERROR * np.sqrt(EFFECTIVE / FRAMES)

    def residual(x):
        apart = peer(x * PEER_START, q[train], v[train]) - drops.q[train]
        return huber.weigh(jnp.asarray(apart * scale * there))

    bounds = np.full(6, 0.2), np.array([4.0, 10.0, 5.0, 1.15, 5.0, 2.0])
    bounds[0][3:] = 0.85, 0.1, 0.5
    return [
        (f"mujoco, differences of {step:g}", count, x * PEER_START)
        for step in PEER_STEPS
        for count, _, x in fit_by_differences(residual, len(train), bounds, step, budgets)
    ]


def rows(seed: int, quick: bool) -> list[dict[str, Any]]:
    """The model with nominal and with fitted values, scored on drops that were not fitted."""
    drops = Drops()
    train, test = _measured.split(drops.scored, DROPS / len(drops.scored), seed)
    estimated, raw = estimated_starts(drops), (drops.q0, drops.v0)
    models: dict[str, Any] = {"not fitted": (Square.nominal(), 0, 0.0)}
    if not quick:
        begun = time.perf_counter()
        result = fit(drops, train, *estimated)
        rebuilt = chosen()[1](result.params)
        count = DROPS * result.evaluations.gradient
        models["fitted"] = rebuilt, count, time.perf_counter() - begun
    runs = [
        (name, functools.partial(predictions, square), count, seconds, square)
        for name, (square, count, seconds) in models.items()
    ]
    if not quick:
        count = models["fitted"][1]
        for name, spent, numbers in peer_fits(drops, train, *estimated, [count, 3 * count]):
            runs.append((name, functools.partial(peer, numbers), spent, 0.0, None))
    found = []
    for name, run, count, seconds, square in runs:
        for start, (q, v) in {"raw": raw, "estimated": estimated}.items():
            seen = run(q[test], v[test])
            for until in HORIZONS:
                row = {"data": "dropped_square", "model": name, "start": start, "drops": len(test)}
                row |= {"seconds": until} | drops.score(test, seen, until)
                found.append(row | {"rollouts": count, "fit_seconds": round(seconds, 1)})
        if square is not None and count:
            found[-1]["parameters"] = {
                k: np.asarray(getattr(square, k)).tolist() for k in BOUNDS | PRIOR
            }
    return found
