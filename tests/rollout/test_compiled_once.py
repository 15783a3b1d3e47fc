"""What a rollout compiles: once for every function and kind of batch, and never a stale program."""

import functools
import gc
import sys
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd.rollout import rollout

LANES = jnp.arange(6.0)
TRACES = []
FACTOR = 2.0


def counted(x):
    """Appends to a list of the module at every trace; the list is not data of a program."""
    TRACES.append(0)
    return x


@pytest.fixture(autouse=True)
def no_trace():
    TRACES.clear()


def iterated(x, a):
    return jax.lax.fori_loop(0, 3, lambda _, y: y + a, x)


@pytest.fixture
def traces():
    """Names of the functions of one lane that were traced, by the events of JAX."""
    found = []

    def listen(event, duration_secs, **kwargs):
        if event.endswith("jaxpr_trace_duration") and kwargs.get("fun_name") == "one_lane":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_new_values_trace_nothing():
    for i in range(3):
        np.testing.assert_array_equal(rollout(counted, LANES + i), LANES + i)
    assert len(TRACES) == 1
    rollout(counted, LANES[:4])
    assert len(TRACES) == 1  # a lane is a lane, whatever the batch
    rollout(counted, LANES.astype(jnp.float32))
    assert len(TRACES) == 2


@pytest.mark.parametrize("loop", [False, True])
def test_a_function_that_is_defined_anew(loop, traces):
    """Arrays in a closure are arguments; numbers are constants, and a new one is another program."""

    def scaled(a, b):
        return rollout(lambda x: iterated(x * a, b) if loop else x * a + 3 * b, LANES)

    for a in (1.0, 2.0, 3.0):
        value = scaled(jnp.asarray(a), 0.5)
        np.testing.assert_allclose(value, a * np.arange(6.0) + 1.5, rtol=1e-15)
    assert len(traces) == 1
    np.testing.assert_allclose(scaled(jnp.asarray(1.0), 1.0), np.arange(6.0) + 3, rtol=1e-15)
    assert len(traces) == 2
    scaled(jnp.asarray(1.0), 1)
    assert len(traces) == 3  # a whole number is no real one


def test_gradients_by_what_is_closed_over():
    def total(a):
        wave = Wave()
        return jnp.sum(rollout(lambda x: wave(a, x), LANES, chunk=2))

    x = np.arange(6.0)
    for a in (0.3, 0.7):
        slope = jax.grad(total)(jnp.asarray(a))
        np.testing.assert_allclose(slope, np.sum(x * np.cos(a * x)), rtol=1e-13)
        value = total(jnp.asarray(a))
        np.testing.assert_allclose(value, np.sum(np.sin(a * x)), rtol=1e-13)
    assert len(TRACES) == 1
    slope = jax.jit(jax.grad(total))(0.3)
    np.testing.assert_allclose(slope, np.sum(x * np.cos(0.3 * x)), rtol=1e-13)
    both = jax.vmap(total)(jnp.array([0.3, 0.7]))
    np.testing.assert_allclose(both, [np.sum(np.sin(a * x)) for a in (0.3, 0.7)], rtol=1e-13)


def test_derivatives_of_a_lane_are_functions_of_their_own():
    def slopes(a):
        return rollout(jax.grad(lambda x: a * x**2), LANES)

    np.testing.assert_allclose(slopes(jnp.asarray(1.0)), 2 * np.arange(6.0))
    np.testing.assert_allclose(slopes(jnp.asarray(3.0)), 6 * np.arange(6.0))


class Wave(eqx.Module):
    def __call__(self, a, x):
        return counted(jnp.sin(a * x))


class Scaled(eqx.Module):
    factor: jax.Array
    offset: float = eqx.field(static=True, default=0.0)

    def __call__(self, x):
        return counted(x * self.factor + self.offset)

    def minus(self, x):
        return -self(x)


def test_modules_are_data():
    for a in (1.0, 2.0):
        np.testing.assert_array_equal(rollout(Scaled(jnp.asarray(a)), LANES), a * LANES)
    assert len(TRACES) == 1
    np.testing.assert_array_equal(rollout(Scaled(jnp.asarray(1.0), 1.0), LANES), 1 + LANES)
    for a in (1.0, 2.0):
        np.testing.assert_array_equal(rollout(Scaled(jnp.asarray(a)).minus, LANES), -a * LANES)
    assert len(TRACES) == 3
    partly = functools.partial(lambda a, x: a * x, jnp.asarray(4.0))
    np.testing.assert_array_equal(rollout(partly, LANES), 4 * LANES)


def by_factor(x):
    return FACTOR * x


def test_what_a_global_name_means_now(monkeypatch):
    """Also through a function that is called; `jax.jit` would not notice."""

    def run():
        return rollout(lambda x: by_factor(x) + 1, LANES)

    np.testing.assert_array_equal(run(), 2 * LANES + 1)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    np.testing.assert_array_equal(run(), 3 * LANES + 1)
    monkeypatch.setattr(sys.modules[__name__], "by_factor", lambda x: -x)
    np.testing.assert_array_equal(run(), 1 - LANES)


@pytest.mark.parametrize("changed", ["array", "list", "name"])
def test_what_a_closure_holds_now(changed):
    numbers, held, factor = np.ones(1), [jnp.ones(())], 1.0

    def run(x):
        return numbers[0] * held[0] * factor * x

    np.testing.assert_array_equal(rollout(run, LANES), LANES)
    if changed == "array":
        numbers[0] = 2.0
    elif changed == "list":
        held[0] = 2 * held[0]
    else:
        factor = 2.0
    np.testing.assert_array_equal(rollout(run, LANES), 2 * LANES)


def test_what_the_value_of_an_array_decides():
    """It cannot be an argument then, and is compiled in."""

    def power(n):
        return rollout(lambda x: x ** int(n), LANES)

    np.testing.assert_array_equal(power(jnp.asarray(2)), LANES**2)
    np.testing.assert_array_equal(power(jnp.asarray(3)), LANES**3)
    with pytest.raises(TypeError, match="Concret|concret"):
        rollout(lambda x: x if x > 0 else -x, LANES)


def test_code_that_belongs_to_no_module():
    names = {}
    exec("factor = 2.0\ndef f(x):\n    return factor * x", names)
    np.testing.assert_array_equal(rollout(names["f"], LANES), 2 * LANES)
    names["factor"] = 3.0
    np.testing.assert_array_equal(rollout(names["f"], LANES), 3 * LANES)


def test_a_function_that_calls_itself():
    def factorial(x, n=4):
        return x if n == 0 else n * factorial(x, n - 1)

    np.testing.assert_array_equal(rollout(factorial, LANES), 24 * LANES)


class Counter:
    count = 0

    def __call__(self, x):
        self.count += 1
        return x + self.count


def test_other_objects_are_known_by_their_identity():
    counter = Counter()
    for _ in range(2):
        np.testing.assert_array_equal(rollout(counter, LANES), LANES + 1)  # as jax.jit
    np.testing.assert_array_equal(rollout(Counter(), LANES), LANES + 1)
    assert counter.count == 1


def test_a_function_that_compiles_again_says_so():
    def run():
        seen = []

        def lane(x):
            seen.append(0)
            return x

        rollout(lane, LANES)
        rollout(lane, LANES)
        return len(seen)

    assert run() == 1
    with pytest.warns(
        UserWarning, match="lane was defined anew and compiles again.*equinox.Module"
    ):
        assert run() == 1


def test_a_traced_value_in_an_object_is_not_kept():
    class Holder:
        def __init__(self, a):
            self.a = a

        def __call__(self, x):
            return self.a * x

    holder = Holder(1.0)

    def total(a):
        holder.a = a
        return jnp.sum(rollout(holder, LANES))

    for _ in range(2):
        assert jax.grad(total)(0.3) == 15
        assert jax.jit(jax.grad(total))(0.3) == 15
    np.testing.assert_array_equal(jax.vmap(total)(jnp.array([1.0, 2.0])), [15.0, 30.0])


def test_what_was_closed_over_is_released():
    array = jnp.ones(1000)
    rollout(lambda x: x + array[0], LANES)
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


def test_lanes_over_chunks_that_overlap():
    for lanes in (5, 6, 7, 11):
        batch = jnp.arange(float(lanes)), np.ones((lanes, 2))
        for chunk in (2, 4, None):
            out = rollout(lambda p: dict(y=iterated(p[0], 1.0), z=p[1][0]), batch, chunk=chunk)
            np.testing.assert_array_equal(out["y"], np.arange(lanes) + 3)
            assert out["z"].shape == (lanes,)
