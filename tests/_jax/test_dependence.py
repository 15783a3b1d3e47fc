"""A value that is given, with the derivative of another one."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd._jax import evaluated_again, with_value


def function(x):
    """`sin(x)` in derivatives, 7 where it is evaluated."""
    return with_value(jnp.sin(x), 7.0 * jnp.ones_like(x))


def test_the_value_is_exact_and_the_derivative_the_other_one():
    x = jnp.array([0.3, -1.2])
    value, slope = jax.jvp(function, (x,), (jnp.ones(2),))
    np.testing.assert_array_equal(value, 7.0)
    np.testing.assert_allclose(slope, np.cos(x), rtol=1e-15)
    np.testing.assert_allclose(jax.grad(lambda x: function(x).sum())(x), np.cos(x), rtol=1e-15)
    np.testing.assert_array_equal(jax.jit(jax.vmap(function))(x), 7.0)


def test_what_is_multiplied_sees_the_value_and_higher_derivatives_both():
    """`(v sin(x))' = v' sin`: of a product with `v = 7` at one order, and `v'' = −sin` at the next."""
    x = jnp.array(0.4)
    np.testing.assert_allclose(jax.grad(lambda x: function(x) ** 2)(x), 14 * np.cos(x), rtol=1e-15)
    second = jax.jacfwd(jax.jacrev(lambda x: function(x) ** 2))(x)
    np.testing.assert_allclose(second, 2 * np.cos(x) ** 2 - 14 * np.sin(x), rtol=1e-14)


def test_the_given_value_has_no_derivative():
    assert jax.grad(lambda x: with_value(1.0, x))(2.0) == 0


def test_a_rule_survives_in_the_body_of_a_loop():
    """Forward over reverse mode, where JAX drops the rule of a `custom_jvp`: it saw -0.42."""

    def through(x, step):
        body = evaluated_again(lambda x, _: (step(x), None))
        return jax.lax.scan(body, x, None, length=3)[0]

    def held(x):
        return with_value(jnp.sin(x), jax.lax.stop_gradient(jnp.sin(x)))

    x = jnp.array(0.7)
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            found, known = (outer(inner(lambda x, s=s: through(x, s)))(x) for s in (held, jnp.sin))
            np.testing.assert_allclose(found, known, rtol=1e-14)
