"""A program on scalars, in a batch and differentiated is the same program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import _numerics as numerics, _scalar_kernels as kernels
from diffnsd._jax import on_components


def program(stage, x, m):
    """Elementwise operations, shuffles, short sums, contractions, a factorisation, a closure."""

    def turned(x, m):
        y = m @ x + numerics.cross(x, m[0])
        y = jnp.where(y > 0, y, jnp.sin(y)) / jnp.sqrt(1 + jnp.sum(x * x))
        return jnp.concatenate([y[::-1], m.T.reshape(-1)[2:4]]), jnp.all(y > -10)

    (first, fine), (second, _) = stage(turned, x, m), stage(turned, 2 * x, m)
    solved = jnp.linalg.solve(m + 5 * jnp.eye(3, dtype=x.dtype), x)
    return {"y": first + second, "fine": fine, "solved": solved, "max": jnp.max(first[:3])}


def plain(x, m):
    return program(lambda part, *operands: part(*operands), x, m)


X = jnp.asarray(np.random.default_rng(0).normal(size=3))
M = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)))


def equal(a, b, atol=1e-14):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


def test_values():
    found = eqx.filter_jit(on_components(program))(X, M)
    equal(found, plain(X, M))
    assert found["fine"].dtype == bool
    assert {
        x.dtype
        for x in jax.tree.leaves(
            on_components(program)(*jax.tree.map(lambda x: x.astype(jnp.float32), (X, M)))
        )
    } == {jnp.dtype("float32"), jnp.dtype(bool)}


def test_rows_of_an_empty_array():
    """A sum over no forces unstacks an array without rows."""

    def total(stage, x, forces):
        return stage(lambda x, forces: x + sum(jnp.unstack(forces)), x, forces)

    equal(on_components(total)(X, jnp.zeros((0, 3))), X)
    equal(on_components(total)(X, M), X + M.sum(0))


def test_batches():
    xs = jnp.stack([X, -X, 2 * X])
    found = eqx.filter_jit(jax.vmap(on_components(program), in_axes=(0, None)))(xs, M)
    equal(found, jax.vmap(plain, in_axes=(0, None))(xs, M))


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_derivatives(derivative):
    def loss(function, x):
        return function(x, M)["y"]

    found = eqx.filter_jit(derivative(lambda x: loss(on_components(program), x)))(X)
    equal(found, jax.jacfwd(lambda x: loss(plain, x))(X))


def test_derivatives_of_what_is_closed_over():
    def end(a):
        return on_components(lambda stage, x: stage(lambda x: a * jnp.sin(x), x))(X[0])

    assert jax.grad(end)(2.0) == pytest.approx(np.sin(X[0]), abs=1e-15)


# ----------------------------------------------------------------------------------------
# Kernels for one step, to the third derivative, against the switched ones.

NEAR = {
    "cos half": (kernels.cos_half_near, lambda t: kernels.cos_kernel(t / 4)),
    "sinc half": (kernels.sinc_half_near, lambda t: kernels.sinc_kernel(t / 4)),
    "sine defect": (kernels.sine_defect_near, kernels.sine_defect_kernel),
    "bernoulli": (kernels.bernoulli_near, kernels.bernoulli_kernel),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEAR)
def test_near_kernels(name):
    near, switched = NEAR[name]
    t = jnp.linspace(0.0, np.pi**2, 201)
    for tolerance in (4e-16, 1e-14, 1e-12, 5e-11):  # value, first, second and third derivative
        a, b = eqx.filter_jit(jax.vmap(near))(t), eqx.filter_jit(jax.vmap(switched))(t)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
        near, switched = jax.grad(near), jax.grad(switched)
