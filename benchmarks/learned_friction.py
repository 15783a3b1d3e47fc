"""Friction as a function of speed, learned through contact from motions of a sliding block.

    python benchmarks/learned_friction.py --json learned.json

The block slides to rest; its friction falls with speed (Stribeck). The measured motions are solutions of the
ordinary differential equation `dv/dt = −g mu(v)`, with noise. The model does not know that law: friction is
a small network of the speed, positive by construction, inside Coulomb's law of a simulated contact, and is
trained with Optax through the simulation. What the data do not say, the regularisation does: it draws the
network towards a constant. The program prints what was learned beside the truth.
"""

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import _harness
import diffnsd as nsd
from diffnsd import identification, models

G, DT, FRAMES, SUBSTEPS = 9.81, 0.02, 40, 5
NOISE = 5e-4
"""Standard deviation of a measured place [m]."""
SPEEDS = 0.4, 0.8, 1.2, 1.6, 2.0
WEIGHT = 1e-3
"""Weight of the square of the deviation from a constant friction, relative to 0.1 in a frame."""


def true_friction(speed):
    """Stribeck's law: 0.35 at rest, 0.2 at speed."""
    return 0.2 + 0.15 * np.exp(-speed / 0.4)


class Unit(eqx.Module):
    """`height tanh(slope x + place)`; its numbers are scalars, as parameters of a law are."""

    height: Array
    slope: Array
    place: Array

    def __call__(self, x: Array) -> Array:
        return self.height * jnp.tanh(self.slope * x + self.place)


class Network(eqx.Module):
    """Friction as a positive function of the slip speed [m/s]: one hidden layer."""

    units: tuple[Unit, ...]
    offset: Array

    def __init__(self, key, width: int = 6):
        numbers = jax.random.normal(key, (width, 3)) * jnp.array([0.1, 1.0, 1.0])
        self.units = tuple(Unit(*row) for row in numbers)
        self.offset = jnp.zeros(())

    def __call__(self, speed: Array) -> Array:
        # Near 0.3 at the start, where softplus(0) = log 2.
        total = sum((unit(speed) for unit in self.units), self.offset)
        return 0.3 / np.log(2) * jax.nn.softplus(total)


class FrictionOfSpeed(nsd.laws.AbstractLaw):
    """Coulomb friction whose coefficient depends on the slip speed at the start of a step."""

    friction: Network
    mu: Array

    least_rows = 2
    is_unilateral = True
    slides = True

    def _coulomb(self):
        return nsd.CoulombFriction(self.mu)

    def in_step(self, context):
        slip = jnp.sqrt(jnp.sum(context.u_minus[1:] ** 2, axis=0) + 1e-12)
        return FrictionOfSpeed(self.friction, self.friction(slip))

    def set(self):
        return self._coulomb().set()

    def shift(self, context):
        return self._coulomb().shift(context)

    def lift(self, w):
        return self._coulomb().lift(w)

    def lift_gradient(self, w):
        return self._coulomb().lift_gradient(w)


def slide(friction: Network, speed: Float[Array, ""]) -> Float[Array, " f"]:
    """Places of a block at the frames [m], from a start speed [m/s]."""
    model = models.sliding_block(law=FrictionOfSpeed(friction, jnp.asarray(0.3)))
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


def train(data: np.ndarray, steps: int, seed: int):
    """The trained network and its fit."""
    network = Network(jax.random.key(seed))
    speeds, grid = jnp.array(SPEEDS), jnp.linspace(0.0, 2.0, 21)

    def loss(friction):
        errors = (jax.vmap(lambda v: slide(friction, v))(speeds) - data) / NOISE
        values = friction(grid)
        roughness = jnp.mean((values - jnp.mean(values)) ** 2) / 0.1**2
        return jnp.mean(errors**2) / 2 + WEIGHT * roughness

    schedule = optax.exponential_decay(0.05, steps, 0.02)
    fit = identification.fit(loss, network, optax.adam(schedule), max_steps=steps, throw=False)
    return fit.params, fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    begin = time.perf_counter()
    data = measured(np.random.default_rng(options.seed))
    network, fit = train(data, options.steps, options.seed)
    grid = np.linspace(0.1, 1.9, 10)
    learned = np.asarray(network(jnp.asarray(grid)))
    print("speed [m/s]  learned  true")
    for speed, mu in zip(grid, learned, strict=True):
        print(f"{speed:10.2f}  {mu:7.4f}  {true_friction(speed):.4f}")
    worst = float(np.max(np.abs(learned - true_friction(grid))))
    seconds = time.perf_counter() - begin
    print(
        f"largest error of friction {worst:.4f}; loss {fit.loss:.3f} (0.5 is the noise); {seconds:.0f} s"
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


if __name__ == "__main__":
    main()
