"""Which toss tells most of restitution? A start found by gradients against random ones, checked by fits.

    python benchmarks/experiment.py --json experiment.json

A ball is thrown and seen by a noisy camera; restitution, gravity and the start are unknown. The expected
standard error of restitution is known before the toss (`identification.informative`), and its gradient by the
start leads to a better one, within bounds on height and speed. Then the random toss of median error and the
one that was found are each made many times with new noise, and fitted; the scatter of the estimates is
compared.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import _harness
from _bounces import NOISE, Bounce, Seen, exact, parameters, simulated
from diffnsd import identification

E, G = 0.8, 9.81
LIMITS = {"height": (0.1, 1.5), "speed": (-3.0, 3.0)}
"""What a hand can do: height [m] and upward speed [m/s] of the start."""
RANDOM, STEPS = 64, 40


def designs(height, speed) -> Bounce:
    """Tosses of the ball with the expected constants."""
    height, speed = (jnp.asarray(x, float) for x in (height, speed))
    constants = (jnp.full_like(height, x) for x in (E, G))
    return Bounce(*constants, height, speed)


def expected_error(toss: Bounce) -> Float[Array, ""]:
    """The standard error of restitution that a toss will give, with gravity and start unknown."""
    numbers = jnp.stack([toss.e, toss.g, toss.height, toss.speed])
    information = identification.fisher_information(
        lambda x, _: simulated(Bounce(*x)), numbers, None, NOISE
    )
    return jnp.sqrt(jnp.linalg.inv(information)[0, 0])


def observe(numbers: Float[Array, "4"], toss: Bounce) -> Float[Array, " f"]:
    """The heights of a toss whose numbers differ from those expected by `numbers`."""
    parts = (toss.e, toss.g, toss.height, toss.speed)
    return simulated(Bounce(*(a + b for a, b in zip(parts, numbers, strict=True))))


def random_tosses(rng: np.random.Generator) -> tuple[Bounce, np.ndarray]:
    """Random starts within the limits, and the errors of restitution that they promise."""
    lo, hi = np.array(list(LIMITS.values())).T
    tosses = designs(*rng.uniform(lo, hi, (RANDOM, 2)).T)
    found = identification.informative(observe, jnp.zeros(4), tosses, deviation=NOISE)
    return tosses, found.standard_errors[:, 0]


def improved(height: float, speed: float) -> tuple[Bounce, float]:
    """The best toss that descent by gradients finds from this one, and its error."""
    start = {"height": jnp.asarray(height), "speed": jnp.asarray(speed)}
    design, rebuild = identification.parameters(start, lambda m: dict(m), LIMITS)

    def loss(design):
        return jnp.log(expected_error(designs(**rebuild(design))))

    fit = identification.fit(loss, design, optax.adam(0.05), max_steps=STEPS, throw=False)
    return designs(**rebuild(fit.params)), float(np.exp(fit.loss))


def scatter(toss: Bounce, repetitions: int, rng, programs) -> float:
    """The standard deviation of the restitutions that are fitted to a toss with new noise each time."""
    params, rebuild = parameters(toss)
    truth, estimates = np.asarray(jax.jit(exact)(toss)), []
    for _ in range(repetitions):
        data = jnp.asarray(truth + NOISE * rng.normal(size=truth.shape))
        fit = identification.least_squares(Seen(rebuild, data), params, programs=programs)
        estimates.append(float(fit.values()["e"]))
    return float(np.std(estimates, ddof=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng, begin = np.random.default_rng(options.seed), time.perf_counter()
    tosses, errors = random_tosses(rng)
    order = np.argsort(errors)
    typical, best = order[len(order) // 2], order[0]
    chosen, promised = improved(float(tosses.height[best]), float(tosses.speed[best]))
    programs = identification.Programs()
    result = {
        "random_error_median": float(errors[typical]),
        "random_error_best": float(errors[best]),
        "random_start": [float(tosses.height[typical]), float(tosses.speed[typical])],
        "found_error": promised,
        "found_start": [float(chosen.height), float(chosen.speed)],
    }
    for name, toss in (
        ("random", jax.tree.map(lambda x: x[typical], tosses)),
        ("found", chosen),
    ):
        result[f"{name}_scatter"] = scatter(toss, options.repetitions, rng, programs)
    result["seconds"] = time.perf_counter() - begin
    for name, value in result.items():
        print(name, np.round(value, 6))
    gain = result["random_scatter"] / result["found_scatter"]
    print(f"the standard error of restitution is {gain:.1f} times smaller than of a random toss")
    if options.json is not None:
        facts = {"header": _harness.header(), "seed": options.seed, **result}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
