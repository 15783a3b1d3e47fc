"""Equal operations computed once: the same values, the same derivatives, fewer equations."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd._jax._repetition import without_repetition


@jax.jit
def turned(x):
    return jnp.sin(x) * 2


@jax.custom_jvp
def square(x):
    return x * x


@square.defjvp
def _(given, along):
    return given[0] ** 2, 2 * given[0] * along[0]


def body(carry, i):
    q = carry["q"]
    once, again = turned(q) + jnp.cos(q + i), turned(q) * jnp.cos(q + i)
    return {"q": once + again, "none": None}, (square(q), jnp.cos(q + i), 3.0)


def test_the_same_values_and_derivatives_from_fewer_equations():
    q, i = jnp.array([0.3, -1.0, 2.0]), 0.7
    x, y = np.asarray(q), np.cos(np.asarray(q) + i)
    merged = without_repetition(body)
    (carry, (squares, cosines, number)), slopes = jax.jvp(
        lambda q: merged({"q": q, "none": None}, i), (q,), (jnp.ones(3),)
    )
    np.testing.assert_allclose(carry["q"], 2 * np.sin(x) + y + 2 * np.sin(x) * y, rtol=1e-15)
    np.testing.assert_allclose(squares, x**2, rtol=1e-15)
    np.testing.assert_allclose(cosines, y, rtol=1e-15)
    assert carry["none"] is None and number == 3.0
    up, down = 2 * np.cos(x), -np.sin(x + i)
    expected = up + down + up * y + 2 * np.sin(x) * down
    np.testing.assert_allclose(slopes[0]["q"], expected, rtol=1e-14)
    np.testing.assert_allclose(slopes[1][0], 2 * x, rtol=1e-15)

    def counts(function):
        jaxpr = jax.make_jaxpr(function)({"q": q, "none": None}, i)
        names = [equation.primitive.name for equation in jaxpr.eqns]
        return names.count("jit"), names.count("cos")

    assert counts(body) == (2, 3) and counts(merged) == (1, 1)


def test_batched_values_that_are_closed_over_stay_batched():
    def total(x):
        def step(carry, i):
            return carry * jnp.exp(x) + jnp.exp(x) * i, None

        return jax.lax.scan(without_repetition(step), 1.0, jnp.arange(3.0))[0]

    x = jnp.array([0.1, -0.2])
    grown = np.exp(np.asarray(x))
    expected = grown**3 + 1 * grown**2 + 2 * grown
    np.testing.assert_allclose(jax.vmap(total)(x), expected, rtol=1e-14)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(total))(x), 3 * grown**3 + 2 * grown**2 + 2 * grown, rtol=1e-14
    )
