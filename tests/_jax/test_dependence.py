"""A value that is given, with the derivative of another one; a value that is differentiated once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd._jax import (
    SecondDerivativeError,
    differentiable_once,
    differentiable_once_where,
    evaluated_again,
    with_value,
)


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


def once(x):
    """A loop whose end may be differentiated once, with an integer beside it."""
    y = jax.lax.scan(lambda c, _: (jnp.sin(c) * x[0], None), x, None, length=3)[0]
    return jnp.sum(differentiable_once({"y": y, "i": jnp.arange(3)}, "use another method")["y"])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_what_is_differentiable_once_raises_in_every_second_derivative(wrap):
    x, f = jnp.array([0.3, 0.4]), wrap(once)
    np.testing.assert_allclose(jax.jacfwd(f)(x), jax.grad(f)(x), rtol=1e-14)
    lanes = jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(lanes[1], jax.grad(f)(2 * x), rtol=1e-14)
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            with pytest.raises(SecondDerivativeError, match="use another method"):
                outer(inner(f))(x)


@pytest.mark.parametrize("flag", [False, True])
def test_what_may_be_differentiated_once_where_a_flag_says_so_overflows(flag):
    """The flag is known at run time only; value and first derivatives do not change."""

    def marked(x, flag):
        return jnp.sum(differentiable_once_where({"y": jnp.sin(x), "i": jnp.arange(3)}, flag)["y"])

    def infinite(x, flag):
        return jnp.sum(differentiable_once_where(x + jnp.array([jnp.inf, 0.0]), flag))

    x, on = jnp.array([0.3, 0.4]), jnp.array(flag)
    assert marked(x, on) == jnp.sum(jnp.sin(x))
    for mode in (jax.jacfwd, jax.jacrev):
        np.testing.assert_array_equal(mode(marked)(x, on), jnp.cos(x))
        np.testing.assert_array_equal(mode(infinite)(x, on), 1)
        # Slopes above 1 must not overflow either.
        np.testing.assert_array_equal(
            mode(lambda x: marked(1e3 * x, on))(x), 1e3 * jnp.cos(1e3 * x)
        )
        for outer in (jax.jacfwd, jax.jacrev):
            bend = jax.jit(outer(mode(marked)))(x, on)
            known = -jnp.diag(jnp.sin(x))
            if flag:
                assert np.all(np.abs(np.diag(bend)) > 1e300)
            else:
                np.testing.assert_allclose(bend, known, atol=1e-16)


def test_derivatives_by_a_direction_are_first_derivatives():
    """`J d` by `d`, `c J` by `c`, and the columns of `J^T J`."""
    x, d = jnp.array([0.3, 0.4]), jnp.array([1.0, -2.0])
    slope = jax.grad(once)(x)
    by_direction = jax.grad(lambda d: jax.jvp(once, (x,), (d,))[1])(d)
    np.testing.assert_allclose(by_direction, slope, rtol=1e-14)
    by_weight = jax.grad(lambda c: jnp.sum(jax.vjp(once, x)[1](c)[0]))(1.0)
    np.testing.assert_allclose(by_weight, jnp.sum(slope), rtol=1e-14)

    def normal(d):
        return jax.vjp(once, x)[1](jax.jvp(once, (x,), (d,))[1])[0]

    np.testing.assert_allclose(jax.jacfwd(normal)(d), np.outer(slope, slope), rtol=1e-14)
