"""The posterior of friction and restitution of the measured cube, by the No-U-Turn sampler.

    python benchmarks/cube_posterior.py --json posterior.json

The data lie in the folder `DIFFNSD_DATA`. The residuals are those of `diffnsd identify` over the first frames
of each toss: weighed by how far the noise of the start velocity has grown, each worth 20 observations. Their
scale, set by the error of the model, is unknown and integrated out. A row has the mean and the standard
deviation of the draws beside the estimate and the standard error of the fit, R-hat, effective sample sizes,
divergences, and wall times. Ends with status 1 where the chains say that they are not to be trusted.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

# Compiles in half the time.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import jax
import jax.numpy as jnp
import numpy as np

import _harness
import _measured
from diffnsd import identification
from diffnsd.apps.fit import identify
from diffnsd.apps.fit._job import OBSERVATIONS, Job
from diffnsd.apps.toss import load_tosses
from diffnsd.apps.toss._cube import CubeMotion, CubeParameters, cube_job, lanes, smooth_start

FREE = "mu", "e"


def job_of(tosses, frames: int, substeps: int) -> Job:
    """The identification of the first frames of these tosses."""
    start = CubeParameters.nominal(tosses)
    motion = CubeMotion(2 * float(start.half_width), float(tosses.dt), substeps)
    return cube_job(start, lanes(smooth_start(tosses), frames), FREE, motion)


def noise_of(fit) -> identification.GaussianNoise:
    """The rough likelihood, with the weights at the estimate of a fit."""
    job = fit.job
    value = fit.motions.weights(job, fit.raw)[0][..., None]

    def residual(params):
        model = fit.motions.rebuild(params)
        return (
            jax.vmap(lambda run, v: job.motion(model, run, v).errors)(job.runs, job.velocities)
            * value
        )

    share = OBSERVATIONS * len(job) / float(3 * jnp.sum(value > 0))
    return identification.GaussianNoise(residual, weight=share)


def guided(noise: identification.GaussianNoise, fit, params) -> identification.Guided:
    """The likelihood with the plane about some parameters, through two standard errors of a fit."""
    wide = 2 * np.sqrt(np.diag(fit.spread.covariance))
    secant = identification.SecantJacobian(jnp.asarray(wide), frames=4)
    plane = identification.linearise(noise.residual, params, jacobian=secant)
    return identification.Guided(noise, plane, params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tosses", type=int, default=30)
    parser.add_argument("--frames", type=int, default=30, help="of each toss")
    parser.add_argument("--substeps", type=int, default=8, help="steps of a frame")
    parser.add_argument("--draws", type=int, default=500, help="of each of 4 chains")
    parser.add_argument("--pilot", type=int, default=50, help="draws and warm-up of a first run")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    tosses = load_tosses(_measured.folder("tossed_cube") / "tossed_cube_open.npz")
    drawn = np.random.default_rng(options.seed).choice(len(tosses), options.tosses, replace=False)
    begin = time.perf_counter()
    fit = identify(job_of(tosses.select(np.sort(drawn)), options.frames, options.substeps))
    fitted = time.perf_counter()
    params, noise = fit.motions.unravel(jnp.asarray(fit.raw)), noise_of(fit)

    def sampled(params, draws: int, warmup: int):
        return identification.posterior(
            guided(noise, fit, params),
            params,
            # No step is so short that rough values are accepted as often as smooth ones.
            sampler=identification.NUTS(
                draws=draws, warmup=warmup, target_acceptance=0.4, max_doublings=3
            ),
            key=jax.random.key(options.seed),
        )

    # A plane through the middle of the posterior guides better than one through the estimate beside it.
    pilot = sampled(params, options.pilot, options.pilot)
    middle = fit.motions.unravel(jnp.asarray(pilot.raw.mean(axis=(0, 1))))
    found = sampled(middle, options.draws, options.warmup)
    row = {
        "tosses": options.tosses,
        "frames": options.frames,
        "substeps": options.substeps,
        "fit": {name: (fit.value(name), fit.standard_errors[name]) for name in FREE},
        "posterior": {name: found[name] for name in FREE},
        "rhat": found.rhat.tolist(),
        "effective_sizes": found.effective_sizes.tolist(),
        "divergences": found.divergences,
        "acceptance": found.acceptance,
        "gradients": pilot.evaluations + found.evaluations,
        "fit_s": fitted - begin,
        "posterior_s": time.perf_counter() - fitted,
        "warnings": list(found.warnings),
    }
    facts = _harness.header()
    _harness.print_header("Posterior of the measured cube", facts)
    print(json.dumps(row, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps({"header": facts, "rows": [row]}, indent=1))
    if found.warnings:
        sys.exit(1)


if __name__ == "__main__":
    main()
