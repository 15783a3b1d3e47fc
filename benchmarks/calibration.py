"""Are intervals and bands what they say? Synthetic bounces whose truth is drawn from the prior.

    python benchmarks/calibration.py --json calibration.json
    python benchmarks/calibration.py --repetitions 20

In each repetition restitution and gravity are drawn from the prior, a start from a box, its heights follow
from the closed form with noise, and are fitted: least squares with standard errors, and draws by NUTS.
Counted is how often 90 % intervals hold the truth, what share of the frames of another toss the 90 % bands
hold, and whether the rank of the truth among the draws is uniform (simulation-based calibration: S. Talts, M.
Betancourt, D. Simpson, A. Vehtari, A. Gelman (2018), arXiv:1804.06788).
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaincc

import _harness
from _bounces import BOUNDS, DT, FRAMES, NOISE, Bounce, Seen, exact, parameters, simulated
from diffnsd import identification
from diffnsd.rollout import rollout

LEVEL, BINS = 0.9, 10
PRIORS = {"e": identification.Normal(0.75, 0.05), "g": identification.Normal(9.8, 0.1)}
STARTS = {"height": (0.3, 0.9), "speed": (-1.0, 1.0)}
"""Heights [m] and speeds [m/s] are uniform between these ends. They are measured so well that the ends
do not matter, and the fits do not know of them."""


def ball(values: np.ndarray) -> Bounce:
    return Bounce(*(jnp.asarray(x) for x in values))


def guess(data: np.ndarray) -> Bounce:
    """A start of the fit: a parabola through the first frames, the middle of the prior for the rest."""
    t = DT * np.arange(1, 7)
    speed, height = np.polyfit(t, data[:6] + 9.75 / 2 * t**2, 1)
    inside = [
        np.clip(x, lo + 0.01, hi - 0.01)
        for x, (lo, hi) in zip((0.75, 9.75, height, speed), BOUNDS.values(), strict=True)
    ]
    return ball(np.array(inside))


def repetition(rng: np.random.Generator, programs: identification.Programs) -> dict:
    """One synthetic experiment; what each interval and band holds, and the ranks of the truth."""
    lo, hi = np.array(list(STARTS.values())).T
    constants = [rng.normal(float(p.mean), float(p.deviation)) for p in PRIORS.values()]
    truth = np.array([*constants, *rng.uniform(lo, hi)])
    data = np.asarray(jax.jit(exact)(ball(truth))) + NOISE * rng.normal(size=FRAMES)
    params, rebuild = parameters(guess(data))
    residual = Seen(rebuild, jnp.asarray(data))
    fit = identification.least_squares(residual, params, programs=programs, throw=False)
    classical = identification.uncertainty(fit.params, fit.linearisation).interval(LEVEL)
    drawn = identification.posterior(
        identification.GaussianNoise(residual, deviation=1.0),
        fit.params,
        priors=PRIORS,
        sampler=identification.NUTS(chains=4, draws=200, warmup=100),
        key=jax.random.key(int(rng.integers(2**31))),
    )
    ends, kept = drawn.interval(LEVEL), drawn.samples[:, ::8].reshape(-1, len(drawn.labels))[:99]
    at = {name: drawn.labels.index(name) for name in BOUNDS}
    other = np.array([*constants, *rng.uniform(lo, hi)])
    seen = np.asarray(jax.jit(exact)(ball(other))) + NOISE * rng.normal(size=FRAMES)
    flat = drawn.samples.reshape(-1, len(drawn.labels))
    starts = np.broadcast_to(other[2:], (len(flat), 2))
    batch = Bounce(*(jnp.asarray(x) for x in (flat[:, at["e"]], flat[:, at["g"]], *starts.T)))
    predicted = np.asarray(rollout(simulated, batch)) + NOISE * rng.normal(size=(len(flat), FRAMES))
    held = dict(zip(BOUNDS, truth, strict=True))
    return {
        "loss": fit.loss,
        "interval": {n: ends[n][0] <= held[n] <= ends[n][1] for n in held},
        "classical": {n: classical[n][0] <= held[n] <= classical[n][1] for n in held},
        "band": identification.coverage(predicted, seen, LEVEL),
        "rank": {n: int(np.sum(kept[:, at[n]] < held[n])) for n in held},
        "rhat": float(np.max(drawn.rhat)),
        "divergences": drawn.divergences,
    }


def uniform(ranks: np.ndarray) -> float:
    """The p value of a chi-square test that ranks of 0 to 99 are uniform."""
    counts = np.bincount(ranks * BINS // 100, minlength=BINS)
    expected = len(ranks) / BINS
    statistic = np.sum((counts - expected) ** 2 / expected)
    return float(gammaincc((BINS - 1) / 2, statistic / 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng, programs, rows = np.random.default_rng(options.seed), identification.Programs(), []
    begin = time.perf_counter()
    for i in range(options.repetitions):
        rows.append(repetition(rng, programs))
        if (i + 1) % 20 == 0:
            print(f"{i + 1} repetitions, {time.perf_counter() - begin:.0f} s", flush=True)
    result = {
        "repetitions": len(rows),
        "band": float(np.mean([row["band"] for row in rows])),
        "largest_rhat": max(row["rhat"] for row in rows),
        "divergences": sum(row["divergences"] for row in rows),
        "seconds": time.perf_counter() - begin,
    }
    for name in BOUNDS:
        result[name] = {
            "posterior_interval": float(np.mean([row["interval"][name] for row in rows])),
            "least_squares_interval": float(np.mean([row["classical"][name] for row in rows])),
            "p_of_ranks": uniform(np.array([row["rank"][name] for row in rows])),
        }
        print(name, ", ".join(f"{k} {v:.3g}" for k, v in result[name].items()))
    print(
        f"90 % bands hold {result['band']:.1%}; R-hat at most {result['largest_rhat']:.3f}, "
        f"{result['divergences']} divergences, {result['seconds']:.0f} s"
    )
    if options.json is not None:
        facts = {"header": _harness.header(), "seed": options.seed, **result}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
