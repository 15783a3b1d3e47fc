"""Fits that go on after the end of their process: the same bits as without an interruption."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from diffnsd import Checkpointing
from diffnsd.identification import (
    FIT_RESULTS,
    Huber,
    ResidualOverRuns,
    fit,
    joint_least_squares,
    least_squares,
    robust_least_squares,
)

EVERY = 7
START = {"a": jnp.asarray(-1.2), "b": jnp.asarray([1.0, 0.3])}


def valley(p):
    """Rosenbrock's, with a third number."""
    a, (b, c) = p["a"], p["b"]
    return jnp.stack([10 * (b - a**2), 1 - a, 0.1 * (c - jnp.sin(a))])


def loss(p):
    return jnp.sum(valley(p) ** 2) / 2, {"seen": p["a"] * 3}


def by_adam(save=None, rate=0.05, **options):
    given = {"max_steps": 40, "throw": False, **options}
    return fit(loss, START, optax.adam(rate), save=save, **given)


def by_line_search(save=None, **options):
    return fit(loss, START, optax.lbfgs(), save=save, max_steps=30, throw=False, **options)


def by_least_squares(save=None, **options):
    return least_squares(valley, START, robust=Huber(0.5), save=save, throw=False, **options)


def by_joint_least_squares(save=None, **options):
    """Rosenbrock's curve, seen from starts that are not known."""
    seen = jnp.asarray(np.random.default_rng(3).normal(size=(3, 2)))

    def residual(p, own, run):
        return jnp.concatenate([valley(p) + own, 3 * jnp.sin(own - run[0]), own[:1] * run[1]])

    return joint_least_squares(
        residual, START, jnp.zeros((3, 1)), seen, robust=Huber(0.5), save=save, throw=False,
        rtol=1e-14, **options,
    )  # fmt: skip


def same(one, other):
    """All but the times."""
    without = {"compile_seconds": 0, "run_seconds": 0}
    one, other = (
        dataclasses.replace(x, **without, history=dataclasses.replace(x.history, seconds=0))
        for x in (one, other)
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fitted", [by_adam, by_line_search, by_least_squares, by_joint_least_squares]
)
def test_it_goes_on_from_what_is_there(fitted, tmp_path):
    whole, save = fitted(), Checkpointing(tmp_path, every=EVERY)
    assert whole.steps > 2 * EVERY
    same(fitted(save), whole)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"part_{i:06d}.npz" for i in range((whole.steps - 1) // EVERY)]
    for kept in (len(names), 1):
        for name in names[kept:]:
            (tmp_path / name).unlink()
        calls = []
        same(fitted(save, callback=lambda step, progress, calls=calls: calls.append(step)), whole)
        # What is in the files is not evaluated again.
        assert min(step for step in calls if step) >= kept * EVERY


def test_more_steps_than_before(tmp_path):
    save = Checkpointing(tmp_path, every=EVERY)
    same(by_adam(save, max_steps=20), by_adam(max_steps=20))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    same(by_adam(save, max_steps=40), by_adam(max_steps=40))
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_a_fit_that_ends_by_ctrl_c_goes_on(tmp_path):
    def stop(step, progress):
        if step == 2 * EVERY + 3:
            raise KeyboardInterrupt

    save = Checkpointing(tmp_path, every=EVERY)
    assert by_adam(save, callback=stop).result is FIT_RESULTS.interrupted
    same(by_adam(save), by_adam())


def test_rejected_iterates_are_kept(tmp_path):
    def rough(p):
        return jnp.where(p < 0.5, jnp.nan, (p - 0.4) ** 2)

    def fitted(save=None):
        start = jnp.asarray(2.0)
        return fit(rough, start, optax.sgd(1.2), max_steps=12, save=save, throw=False)

    whole = fitted()
    assert whole.rejected > 1
    for every in (1, 2, 3):
        save = Checkpointing(tmp_path / str(every), every)
        same(fitted(save), whole)
        same(fitted(save), whole)


def test_other_data_and_rates_are_refused(tmp_path):
    def fitted(data, rate=0.1):
        save = Checkpointing(tmp_path, every=2)
        return fit(
            lambda p: jnp.sum((p - data) ** 2), jnp.ones(2), optax.sgd(rate), max_steps=6,
            save=save, throw=False,
        )  # fmt: skip

    fitted(np.array([1.0, 2.0]))
    fitted(np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"part_000000.npz belongs to another run"):
        fitted(np.array([1.0, 2.5]))
    with pytest.raises(ValueError, match=r"part_000000.npz belongs to another run"):
        fitted(np.array([1.0, 2.0]), rate=0.2)


@pytest.mark.slow
def test_rounds_of_a_robust_fit_have_folders(tmp_path):
    data = jnp.asarray(np.random.default_rng(0).standard_normal(30)).at[:4].add(20.0)

    def found(save=None):
        return robust_least_squares(lambda p: p - data, jnp.zeros(()), save=save)

    whole, save = found(), Checkpointing(tmp_path, every=1)
    for _ in range(2):
        again = found(save)
        same(again.fit, whole.fit)
        assert (again.scale, again.rounds) == (whole.scale, whole.rounds)
    assert sorted(p.name for p in tmp_path.iterdir())[0] == "round_01"


@pytest.mark.slow
def test_a_fit_spread_over_devices(tmp_path):
    mesh = jax.sharding.Mesh(jax.devices(), ("run",))
    rng = np.random.default_rng(1)
    runs = {"t": rng.uniform(0, 3, (6, 20)), "y": rng.standard_normal((6, 20))}

    def residual(p, run):
        return p[0] * jnp.exp(-p[1] * run["t"]) - run["y"]

    spread = ResidualOverRuns(residual, runs, mesh)

    def fitted(save=None):
        start = jnp.asarray([3.0, 2.0])
        return least_squares(spread, start, rtol=1e-14, save=save, throw=False)

    whole, save = fitted(), Checkpointing(tmp_path, every=1)
    same(fitted(save), whole)
    last = sorted(tmp_path.iterdir())[-1]
    last.unlink()
    same(fitted(save), whole)
