"""Friction as a function of speed, learned through contact from motions whose friction is known.

    python benchmarks/learned_friction.py --json learned.json --page learned.html

A block slides to rest; its friction falls with speed (Stribeck). The measured motions are solutions of the
ordinary differential equation `dv/dt = −g mu(v)`, with noise. The model does not know that law: friction is
a small network of the speed inside Coulomb's law of a simulated contact (`_learned.py`), and is trained with
Optax through the simulation. What the data do not say, the regularisation does: it draws the network towards
a constant. The program prints what was learned beside the truth. `learned_parts.py` does the same with
measured motions.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import _harness
import diffnsd as nsd
from _learned import Curve, law_of_speed, trained
from diffnsd import models
from diffnsd.apps.pages import LearnedCurve, write_learned

G, DT, FRAMES, SUBSTEPS = 9.81, 0.02, 40, 5
NOISE = 5e-4
"""Standard deviation of a measured place [m]."""
SPEEDS = 0.4, 0.8, 1.2, 1.6, 2.0


def true_friction(speed):
    """Stribeck's law: 0.35 at rest, 0.2 at speed."""
    return 0.2 + 0.15 * np.exp(-speed / 0.4)


def slide(friction: Curve, speed: Float[Array, ""]) -> Float[Array, " f"]:
    """Places of a block at the frames [m], from a start speed [m/s]."""
    model = models.sliding_block(law=law_of_speed(friction, Curve.constant(0.0)))
    start = models.block_state(0.0, speed)
    steps = nsd.SaveAt(steps=SUBSTEPS)
    run = nsd.simulate(
        model, nsd.MoreauJean(), 0.0, FRAMES * DT, DT / SUBSTEPS, start, saveat=steps, throw=False
    )
    return run.states.q[1:, 0]


def measured(rng: np.random.Generator) -> Float[np.ndarray, "n f"]:
    """Places of the true blocks: the differential equation in small steps, with noise."""
    rows, parts = [], 400
    h = DT / parts
    for v in SPEEDS:
        x, track = 0.0, []
        for _ in range(FRAMES):
            for _ in range(parts):
                after = max(v - h * G * true_friction(v - h / 2 * G * true_friction(v)), 0.0)
                x, v = x + h * (v + after) / 2, after
            track.append(x)
        rows.append(track)
    return np.array(rows) + NOISE * rng.normal(size=(len(SPEEDS), FRAMES))


def train(data: np.ndarray, steps: int):
    """The trained curve and its fit."""
    speeds = jnp.array(SPEEDS)

    def loss(friction):
        errors = (jax.vmap(lambda v: slide(friction, v))(speeds) - data) / NOISE
        return (jnp.sum(errors**2) / 2 + friction.unlikely()) / data.size

    return trained(loss, Curve.constant(0.3), steps, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="an HTML page of what was learned")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    data = measured(np.random.default_rng(options.seed))
    friction, fit, seconds = train(data, options.steps)
    grid = np.linspace(0.1, 1.9, 10)
    learned = np.asarray(friction(jnp.asarray(grid)))
    print("speed [m/s]  learned  true")
    for speed, mu in zip(grid, learned, strict=True):
        print(f"{speed:10.2f}  {mu:7.4f}  {true_friction(speed):.4f}")
    worst = float(np.max(np.abs(learned - true_friction(grid))))
    print(
        f"largest error of friction {worst:.4f}; loss {fit.loss:.3f} (0.5 is the noise); {seconds:.0f} s of "
        "processor"
    )
    if options.json is not None:
        facts = {
            "header": _harness.header(),
            "speed": grid.tolist(),
            "learned": learned.tolist(),
            "true": true_friction(grid).tolist(),
            "loss": fit.loss,
            "seconds": seconds,
        }
        options.json.write_text(json.dumps(facts, indent=2) + "\n")
    if options.page is not None:
        x = np.linspace(0.0, 2.2, 45)
        y, drawn_to = (np.asarray(friction(jnp.asarray(x))), float(jax.nn.sigmoid(friction.level)))
        seen = np.diff(np.concatenate([np.zeros((len(SPEEDS), 1)), data], axis=1), axis=1) / DT
        labels = "slip speed [m/s]", "friction"
        part = LearnedCurve(
            "Friction", x, y, *labels, seen[seen > 0.01], drawn_to, true_friction(x)
        )
        history = np.asarray(fit.history.loss, float)
        write_learned(options.page, [part], loss_history=history, details=_harness.header())


if __name__ == "__main__":
    main()
