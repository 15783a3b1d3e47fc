"""What the drops of a square show beyond rigid impacts: how far constants reach, and what soft corners add.

    python benchmarks/square_physics.py --json physics.json

Three measurements on the data set dropped_square, over 0.2 s from starts estimated in the first flight, on
drops that were not fitted:

* `height`: how far the model of `benchmarks/measured.py` is above the measured square, frame by frame
  about the first impact: in flight nothing, right after the impact some millimetres.
* `hindsight`: of many constants (friction, restitution, tangential restitution) the best for each drop,
  chosen with the drop known: one choice for all drops does worse, however it is found.
* `soft`: corners that yield, as a differential equation with steps of 0.1 ms: springs along the normal and
  along the floor, a damping that grows with the indentation (Hunt and Crossley 1975, doi:10.1115/1.3423596)
  and a power of the speed, round corners, Coulomb's friction with a power of the slip speed. Fitted by
  least squares with central differences, as wide as the roughness of the loss asks for.
"""

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

import _harness
import _measured
import _square
from diffnsd import identification
from diffnsd.rollout import rollout

STEPS = 40  # of the soft model, per frame
SPRING = (np.pi / 2.5e-3) ** 2 / 2  # two corners of a unit mass that touch for 2.5 ms [N/m]
START = {  # start value, width
    "log_stiffness": (np.log(SPRING), 1.0),
    "damping": (0.25, 0.3),
    "mu": (0.12, 0.1),
    "half": (0.0305, 1e-3),
    "gyration2": (6e-4, 1e-4),
    "offset_x": (0.0, 5e-4),
    "offset_z": (0.0, 5e-4),
    "turn": (np.radians(1.8), 0.01),
    "height": (0.0, 5e-4),
    "log_tangential_stiffness": (np.log(SPRING), 1.0),
    "radius": (0.0, 2e-3),
    "damping_power": (0.0, 0.3),
    "friction_power": (0.0, 0.3),
}
NOT_NEGATIVE = ("damping", "mu", "gyration2", "radius")
SLOW, DEPTH = 0.05, 1e-3  # m/s that keeps powers finite, m of indentation at which `damping` holds
WIDTHS, PULL = (0.3, 0.1, 0.05), 0.3


def soft_motion(x: dict, q, v):
    """The frames of one drop with corners that yield, `(f, 3)`; forces per mass."""
    k, kt = jnp.exp(x["log_stiffness"]), jnp.exp(x["log_tangential_stiffness"])
    c, ct = 2 * x["damping"] * jnp.sqrt(k), 2 * x["damping"] * jnp.sqrt(kt)
    h = _square.DT / STEPS
    signs = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
    corners = (x["half"] - x["radius"]) * signs + jnp.stack([x["offset_x"], x["offset_z"]])

    def step(state, _):
        q, v, stretch = state
        cos, sin = jnp.cos(q[2] + x["turn"]), jnp.sin(q[2] + x["turn"])
        arm_x = cos * corners[:, 0] - sin * corners[:, 1]
        arm_z = sin * corners[:, 0] + cos * corners[:, 1] - x["radius"]
        depth = jnp.maximum(x["height"] - q[1] - arm_z, 0)
        closing, slip = v[1] + v[2] * arm_x, v[0] - v[2] * arm_z
        loss = c * (depth / DEPTH) * (jnp.abs(closing) + SLOW) ** x["damping_power"]
        normal = jnp.where(depth > 0, jnp.maximum(k * depth - loss * closing, 0), 0)
        limit = x["mu"] * (jnp.abs(slip) + SLOW) ** x["friction_power"] * normal
        stretch = stretch + h * slip
        elastic = -kt * stretch - ct * slip
        friction = jnp.clip(elastic, -limit, limit)
        stretch = jnp.where(jnp.abs(elastic) > limit, -friction / kt, stretch)
        stretch = jnp.where(depth > 0, stretch, 0)
        couple = jnp.sum(normal * arm_x - friction * arm_z) / x["gyration2"]
        rates = jnp.stack([jnp.sum(friction), jnp.sum(normal), couple])
        v = v + h * (rates + _square.GRAVITY - _square.DRAG * v)
        return (q + h * v, v, stretch), None

    def frame(state, _):
        state, _ = jax.lax.scan(step, state, length=STEPS)
        return state, state[0]

    start = q, v + _square.GRAVITY * (_square.DT / 2), jnp.zeros(4)
    _, later = jax.lax.scan(frame, start, length=_square.FRAMES - 1)
    return jnp.concatenate([q[None], later])


def soft_fit(drops: _square.Drops, train: np.ndarray, q, v, evaluations: int) -> dict:
    """The constants of soft corners, by the loss of `measured.py` with a wide look at each."""
    names, start, widths = list(START), *np.array(list(START.values())).T
    run = jax.jit(jax.vmap(soft_motion, (None, 0, 0)))
    scale = np.array([1 / _square.SIDE, 1 / _square.SIDE, 1.0]) / _square.ERROR
    scale, there = scale * np.sqrt(_square.EFFECTIVE / _square.FRAMES), drops.there[train]
    huber = identification.Huber(_square.HUBER)

    def numbers(y):
        x = dict(zip(names, start + widths * y, strict=True))
        return {
            name: max(value, 0.0) if name in NOT_NEGATIVE else value for name, value in x.items()
        }

    def residual(y):
        x = {name: jnp.asarray(value) for name, value in numbers(y).items()}
        found = run(x, jnp.asarray(q[train]), jnp.asarray(v[train]))
        apart = np.asarray(found - drops.q[train]) * scale * there[..., None]
        weighed = np.asarray(huber.weigh(jnp.nan_to_num(jnp.asarray(apart), nan=10.0)))
        return np.concatenate([weighed.ravel(), PULL * y])

    def central(width):
        steps = width * np.eye(len(names))
        return lambda y: np.stack(
            [(residual(y + s) - residual(y - s)) / (2 * width) for s in steps], axis=1
        )

    best = None
    for width in WIDTHS:
        y = np.zeros(len(names)) if best is None else best.x
        found = least_squares(residual, y, central(width), max_nfev=evaluations)
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    return numbers(best.x)


def hindsight(drops: _square.Drops, square: _square.Square, test: np.ndarray, q, v) -> dict:
    """Errors with the best of many constants for each drop: position [% of the side], angle [deg]."""
    there = drops.there[test] & (np.arange(_square.FRAMES) <= 50)
    batch, count = (jnp.asarray(q[test]), jnp.asarray(v[test])), there.sum(axis=1)

    def one(x, start):
        return _square.motion(
            eqx.tree_at(lambda s: [s.mu, s.e, s.e_t], square, list(x)), *start, _square.FRAMES
        )

    errors = []
    for share in (0.3, 0.6, 1.0, 1.6, 2.5):
        for e in (0.25, 0.35, 0.45, 0.55, 0.65, 0.75):
            for e_t in (-0.4, 0.0, 0.4):
                x = jnp.stack([share * square.mu, jnp.asarray(e), jnp.asarray(e_t)])
                apart = np.asarray(rollout(eqx.Partial(one, x), batch, chunk=64)) - drops.q[test]
                place = np.linalg.norm(apart[..., :2], axis=-1) / _square.SIDE
                each = np.stack([place, np.abs(apart[..., 2])])
                errors.append((each * there).sum(axis=2) / count)
    found = np.array(errors)  # (constants, 2, drops)
    best = found.sum(axis=1).argmin(axis=0)
    place, angle = found[best, :, np.arange(len(test))].mean(axis=0)
    return {"constants": len(found), "pos_pct": 100 * place, "ang_deg": np.degrees(angle)}


def heights(drops: _square.Drops, seen: np.ndarray, test: np.ndarray) -> dict[int, float]:
    """The median height of the model over the measured square [mm], by frame from the last one in flight."""
    last = np.array([np.flatnonzero(row)[-1] for row in drops.flying[test]])
    found = {}
    for late in range(-3, 5):
        at = np.clip(last + late, 0, _square.FRAMES - 1)
        rows = np.flatnonzero(drops.there[test, at])
        apart = seen[rows, at[rows], 1] - drops.q[test[rows], at[rows], 1]
        found[late] = float(1e3 * np.median(apart))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drops", type=int, default=200, help="fitted by the soft model")
    parser.add_argument("--evaluations", type=int, default=40, help="at each width")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    drops = _square.Drops()
    q, v = _square.estimated_starts(drops)
    scored = drops.scored
    train, test = _measured.split(scored, _square.DROPS / len(scored), options.seed)
    rigid = _square.fitted(drops, train, q, v)
    seen = _square.predictions(rigid, q[test], v[test])
    facts = {
        "rigid": drops.score(test, seen, 0.2),
        "height_mm": heights(drops, seen, test),
        "hindsight": hindsight(drops, rigid, test, q, v),
    }
    print(json.dumps(facts, indent=1), flush=True)
    begun = time.perf_counter()
    train, test = _measured.split(scored, options.drops / len(scored), options.seed)
    x = soft_fit(drops, train, q, v, options.evaluations)
    run = jax.jit(jax.vmap(soft_motion, (None, 0, 0)))
    seen = np.asarray(run(jax.tree.map(jnp.asarray, x), jnp.asarray(q[test]), jnp.asarray(v[test])))
    facts["soft"] = {
        "drops": len(test),
        "numbers": x,
        "contact_ms": 1e3 * np.pi / np.exp(x["log_stiffness"] / 2),
        "fit_seconds": time.perf_counter() - begun,
        **{f"{until:g} s": drops.score(test, seen, until) for until in _square.HORIZONS},
    }
    print(json.dumps(facts["soft"], indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps({"header": _harness.header(), **facts}, indent=2) + "\n")


if __name__ == "__main__":
    main()
