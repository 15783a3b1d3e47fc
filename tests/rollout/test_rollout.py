"""Rollouts equal a loop over lanes, whatever the chunks and wherever they run."""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import models
from diffnsd.identification import SumOverRuns
from diffnsd.integrators import MoreauJean
from diffnsd.rollout import rollout
from diffnsd.simulation import SaveAt, simulate


def stop(lane):
    mu, speed = lane
    run = simulate(
        models.sliding_block(mu=mu),
        MoreauJean(),
        0.0,
        0.2,
        1e-2,
        models.block_state(0.0, speed=speed),
        saveat=SaveAt.end(),
        throw=False,
    )
    return run.states.q[0]


@pytest.fixture(scope="module")
def batch():
    return jnp.linspace(0.1, 0.5, 7), jnp.linspace(1.0, 2.0, 7)


@pytest.fixture(scope="module")
def one_by_one(batch):
    single = jax.jit(stop)
    return np.array([single((m, s)) for m, s in zip(*batch, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 3])
def test_equals_a_loop(batch, one_by_one, chunk):
    np.testing.assert_allclose(rollout(stop, batch, chunk=chunk), one_by_one, atol=1e-12)


@pytest.mark.slow
def test_inside_jit_and_grad(batch, one_by_one):
    inside = jax.jit(lambda b: rollout(stop, b, chunk=3))(batch)
    np.testing.assert_allclose(inside, one_by_one, atol=1e-12)
    total = jax.jit(jax.grad(lambda b: jnp.sum(rollout(stop, b))))(batch)
    mapped = rollout(jax.grad(stop), batch)
    for a, b in zip(total, mapped, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.nightly
def test_closes_over_what_is_differentiated():
    """Before it stops a block slides `v T - mu g T^2 / 2`, so that the slope by mu is known."""
    speeds = jnp.linspace(1.0, 2.0, 7)

    def total(mu):
        return jnp.sum(rollout(lambda v: stop((mu, v)), speeds, chunk=3))

    exact = -7 * 9.81 * 0.2**2 / 2
    # Measured: 1e-14, the scheme is exact for a constant force.
    np.testing.assert_allclose(jax.grad(total)(0.3), exact, rtol=1e-10)
    np.testing.assert_allclose(jax.jvp(total, (0.3,), (1.0,))[1], exact, rtol=1e-10)
    assert jax.vmap(total)(jnp.array([0.2, 0.3])).shape == (2,)


@pytest.mark.slow
def test_on_a_mesh_and_differentiated(batch, one_by_one):
    mesh = jax.make_mesh((1,), ("lane",), axis_types=(jax.sharding.AxisType.Auto,))
    np.testing.assert_allclose(rollout(stop, batch, mesh=mesh), one_by_one, atol=1e-12)
    slope = jax.grad(lambda s: jnp.sum(rollout(lambda x: jnp.sin(s * x), batch[1], mesh=mesh)))
    np.testing.assert_allclose(slope(0.3), np.sum(batch[1] * np.cos(0.3 * batch[1])), rtol=1e-12)


def test_the_default_mesh():
    """Its axis is explicit, unlike that of `Mesh`."""
    mesh, batch = jax.make_mesh((1,), ("lane",)), jnp.linspace(0.0, 1.0, 7)
    np.testing.assert_allclose(rollout(looped, batch, mesh=mesh), jax.vmap(looped)(batch))
    summed = SumOverRuns(lambda p, x: p * looped(x), batch, mesh)
    np.testing.assert_allclose(summed(jnp.asarray(2.0)), 2 * jnp.sum(jax.vmap(looped)(batch)))


def test_no_lane_gives_empty_outputs(batch):
    none = jax.tree.map(lambda x: x[:0], batch)
    assert rollout(stop, none).shape == (0,)


@pytest.mark.parametrize("chunk", [0, -1, 2.5])
def test_chunks_that_make_no_sense_are_refused(batch, chunk):
    with pytest.raises((ValueError, TypeError), match="chunk must be a whole number"):
        rollout(stop, batch, chunk=chunk)


def test_a_mesh_of_two_axes_is_refused(batch):
    mesh = jax.make_mesh((1, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with pytest.raises(ValueError, match="one axis of devices"):
        rollout(stop, batch, mesh=mesh)


def test_leaves_of_different_length_are_refused():
    with pytest.raises(ValueError, match="leading axis"):
        rollout(stop, (jnp.ones(3), jnp.ones(4)))
    with pytest.raises(ValueError, match=r"such as jnp.array\(\[0.1, 0.2\]\)"):
        rollout(stop, [0.1, 0.2])


def looped(x):
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x)


def shapes_seen(batch, within=lambda f: f, **options):
    """The shapes of what a function with a loop is called with, in a rollout."""
    seen = []

    def note(x):
        seen.append(np.shape(x))
        return np.sin(x)

    def called(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(note, shape, x, vmap_method="expand_dims")

    def function(x):
        return jax.lax.fori_loop(0, 1, lambda _, y: called(y), x)

    found = within(lambda b: rollout(function, b, **options))(batch)
    np.testing.assert_allclose(found, np.sin(batch), rtol=1e-15)
    return sorted(seen)


@pytest.mark.filterwarnings("ignore:.*was defined anew")
@pytest.mark.parametrize("within", [lambda f: f, jax.jit])
def test_one_element_has_no_axis_for_the_batch(within):
    batch = np.linspace(0.1, 1.0, 5)
    assert shapes_seen(batch[:1], within) == [()]
    assert shapes_seen(batch, within, chunk=1) == [()] * 5


def test_one_element_under_transformations():
    batch = jnp.linspace(0.1, 1.0, 5)
    for of, options in ((batch[:1], {}), (batch, {"chunk": 1})):

        def total(b, options=options):
            return jnp.sum(rollout(looped, b, **options) ** 2)

        exact = jax.grad(lambda b: jnp.sum(jax.vmap(looped)(b) ** 2))(of)
        np.testing.assert_allclose(jax.grad(total)(of), exact, rtol=1e-14)
        np.testing.assert_allclose(jax.vmap(jax.grad(total))(of[None])[0], exact, rtol=1e-14)
        mesh = jax.make_mesh((1,), ("run",))
        np.testing.assert_allclose(rollout(looped, of, mesh=mesh, **options), jax.vmap(looped)(of))


@pytest.mark.filterwarnings("ignore:.*was defined anew")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="chunks fit the caches of a CPU")
def test_chunks_by_default():
    """At most 64 elements, of one size inside a program."""
    lanes = 200
    share = min(64, -(-lanes // (os.cpu_count() or 1)))
    assert set(shapes_seen(np.linspace(0.0, 1.0, lanes))) == {(share,)}
    assert shapes_seen(np.linspace(0.0, 1.0, lanes), jax.jit) == [(50,)] * 4


def test_chunks_inside_a_program_are_compiled_once():
    batch = jnp.linspace(0.0, 1.0, 7)
    whole = jax.jit(lambda b: rollout(looped, b, chunk=3))
    np.testing.assert_allclose(whole(batch), jax.vmap(looped)(batch), rtol=1e-15)
    assert whole.lower(batch).as_text().count("stablehlo.sine") == 1


def with_host(host):
    """A function with a loop, of which every pass calls the host."""

    def called(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(host, shape, x, vmap_method="sequential")

    return lambda x: jax.lax.fori_loop(0, 2, lambda _, y: called(y), x)


def test_rollouts_of_other_threads():
    """They take chunks themselves."""
    batch = jnp.linspace(0.0, 1.0, 12)
    with ThreadPoolExecutor(3) as threads:
        several = [threads.submit(rollout, looped, batch, chunk=2) for _ in range(6)]
    for each in several:
        np.testing.assert_allclose(each.result(), jax.vmap(looped)(batch))


def test_errors_of_a_chunk_reach_the_caller():
    def refuses(x):
        if x > 0.5:
            raise ArithmeticError("too large")
        return x

    with pytest.raises(Exception, match="too large"):
        rollout(with_host(refuses), jnp.linspace(0.0, 1.0, 12), chunk=2)
