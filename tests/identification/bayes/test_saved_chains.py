"""Chains that go on after the end of their process: the same bits as without an interruption."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Checkpointing
from diffnsd.identification import NUTS, Ensemble, GaussianNoise, Laplace, Normal, posterior

T = np.linspace(0, 2, 30)
DATA = 2 * np.exp(-1.3 * T) + 0.05 * np.random.default_rng(0).standard_normal(30)
START = {"a": jnp.asarray(1.8), "b": jnp.asarray(1.2)}


def residual(p):
    return p["a"] * jnp.exp(-p["b"] * T) - DATA


def found(sampler, save=None, width=5.0):
    prior = {"['a']": Normal(2.0, width)}
    return posterior(
        GaussianNoise(residual, deviation=0.05), START, priors=prior, sampler=sampler, save=save
    )


def same(one, other):
    for name in ("samples", "raw", "log_density", "rhat", "effective_sizes", "divergences", "acceptance",
                 "evaluations", "log_evidence", "warnings"):  # fmt: skip
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "every", "parts"),
    [
        (NUTS(chains=2, draws=45, warmup=15), 25, 4),
        (Ensemble(walkers=8, draws=45, warmup=15), 25, 3),
        (Laplace(draws=50), 25, 3),
    ],
    ids=["nuts", "ensemble", "laplace"],
)
def test_it_goes_on_from_what_is_there(sampler, every, parts, tmp_path):
    save = Checkpointing(tmp_path, every=every)
    whole = found(sampler, save)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"part_{i:06d}.npz" for i in range(parts)]
    for kept in (parts, 2, 0):
        for name in names[kept:]:
            (tmp_path / name).unlink()
        old = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        same(found(sampler, save), whole)
        assert all(path.stat().st_mtime_ns == when for path, when in old.items())
    # Another length of the compiled loop may round differently: measured 3e-14 (NUTS), 0 (others).
    without = found(sampler)
    np.testing.assert_allclose(without.samples, whole.samples, rtol=1e-10)
    with pytest.raises(ValueError, match=r"part_000000.npz belongs to another run"):
        found(sampler, save, width=4.0)


def test_keys_tell_runs_apart(tmp_path):
    save, noise = Checkpointing(tmp_path, every=30), GaussianNoise(residual, deviation=0.05)
    posterior(noise, START, sampler=Laplace(30), save=save, key=jax.random.key(1))
    with pytest.raises(ValueError, match="belongs to another run"):
        posterior(noise, START, sampler=Laplace(30), save=save, key=jax.random.key(2))
