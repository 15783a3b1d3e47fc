"""Roots with derivatives to second order, and the methods that find one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd._numerics import implicit_root


def cube_root(a):
    return implicit_root(lambda x: x**3 - a, jax.lax.stop_gradient(a) ** (1 / 3))


def test_a_number():
    a = jnp.array(2.0)
    for found, known in (
        (cube_root(a), 2 ** (1 / 3)),
        (jax.grad(cube_root)(a), 2 ** (-2 / 3) / 3),
        (jax.grad(jax.grad(cube_root))(a), -2 / 9 * 2 ** (-5 / 3)),
        (jax.jacfwd(jax.jacrev(cube_root))(a), -2 / 9 * 2 ** (-5 / 3)),
    ):
        np.testing.assert_allclose(found, known, rtol=1e-14)
    batch = jnp.linspace(0.5, 3.0, 5)
    np.testing.assert_allclose(jax.vmap(jax.grad(cube_root))(batch), batch ** (-2 / 3) / 3, 1e-13)


def test_a_search_from_a_guess():
    def root(a):
        return implicit_root(lambda x: x * x - a, jnp.array(1.2), search=6, bound=3.0)

    np.testing.assert_allclose(root(jnp.array(2.0)), np.sqrt(2), rtol=1e-15)
    np.testing.assert_allclose(jax.hessian(root)(jnp.array(2.0)), -0.25 * 2**-1.5, rtol=1e-13)


def test_a_root_where_nothing_falls_is_left_alone():
    def root(a):
        return implicit_root(lambda x: x + a, jnp.array(0.5), search=3, falls=True)

    assert root(jnp.array(1.0)) == 0.5 and jax.grad(root)(jnp.array(1.0)) == 0


def test_many_numbers():
    """`x_0 = a²`, `x_1 = a³` from equations that mix them."""

    def root(a):
        guess = jax.lax.stop_gradient(jnp.stack([a**2, a**3]))
        return implicit_root(lambda x: jnp.stack([x[0] * a - x[1], x[0] - a * a]), guess)

    a = jnp.array(1.3)
    np.testing.assert_allclose(jax.jacfwd(root)(a), [2 * 1.3, 3 * 1.3**2], rtol=1e-14)
    np.testing.assert_allclose(jax.hessian(root)(a), [2, 6 * 1.3], rtol=1e-13)


@pytest.mark.parametrize("order", [jax.hessian, lambda f: jax.jacfwd(jax.jacfwd(f))])
def test_second_derivatives_of_an_implicit_runge_kutta_method(order):
    """The midpoint rule of `y' = −k y` is `y (1 − k h/2)/(1 + k h/2)`."""
    h = 0.25

    def decays(t, x, args):
        return -args * x

    def run(k):
        system = nsd.FirstOrderSystem(decays, n=1)
        method = nsd.RKMK(nsd.ButcherTableau.gauss(1))
        end = nsd.simulate(nsd.Model(system), method, 0.0, 1.0, h, system.state([1.0]), k)
        return end.states.v[-1, 0]

    def known(k):
        return ((1 - k * h / 2) / (1 + k * h / 2)) ** 4

    k = jnp.array(0.8)
    np.testing.assert_allclose(run(k), known(k), rtol=1e-13)
    np.testing.assert_allclose(order(run)(k), jax.hessian(known)(k), rtol=1e-11)


def test_second_derivatives_of_an_elastic_impact():
    """A ball that rebounds without loss. The error depends on where in its step the impact falls."""
    g, end = 9.81, 0.7

    def run(q0, h):
        model, last = nsd.models.bouncing_ball(e=1.0, g=g), nsd.SaveAt.end()
        method, start = nsd.integrators.ElasticImpact(), model.system.state(q0[None])
        ends = nsd.simulate(model, method, 0.0, end, h, start, max_steps=700, saveat=last).states
        return ends.q[0]

    def known(q0):
        fall = jnp.sqrt(2 * q0 / g)
        return g * fall * (end - fall) - g * (end - fall) ** 2 / 2

    def error(q0, h):
        return jnp.stack([d(run)(q0, h) / d(known)(q0) - 1 for d in (jax.grad, jax.hessian)])

    evaluate = eqx.filter_jit(error)
    errors = np.stack([evaluate(jnp.array(1.0), h) for h in (1e-2, 1e-3)], axis=1)
    # Measured 3e-2 and 3e-3, 6.6e-3 and 6.5e-4: first order.
    np.testing.assert_allclose(errors, [[-3.09e-2, -3.03e-3], [-6.58e-3, -6.52e-4]], rtol=2e-2)
