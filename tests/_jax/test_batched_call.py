"""Kernels as one operation: batches, derivatives of any order, loops over steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd._jax import AbstractKernel, call


class Shape(AbstractKernel):
    """Tells what it saw through its values: traces alone would not prove a call."""

    def __call__(self, a, b):
        shape = jnp.asarray((a.shape * 3)[:3]).reshape(3, *(1,) * (a.ndim - 1))
        return a + b, dict(total=jnp.sum(a * b, axis=0), shape=jnp.broadcast_to(shape, a.shape))

    def shapes(self, a, b):
        total = jax.ShapeDtypeStruct(b.shape[1:], b.dtype)
        return a, dict(total=total, shape=jax.ShapeDtypeStruct(a.shape, jnp.int64))


class Root(AbstractKernel):
    """Cube root by Newton's iterations, which reverse mode cannot follow."""

    def __call__(self, x):
        def body(carry):
            y, _ = carry
            new = y - (y**3 - x) / (3 * y * y)
            return new, jnp.max(jnp.abs(new - y)) > 1e-15 * jnp.max(jnp.abs(y))

        return jax.lax.while_loop(lambda c: c[1], body, (jnp.ones_like(x) + x, True))[0], x > 0

    def shapes(self, x):
        return x, jax.ShapeDtypeStruct(x.shape, jnp.bool_)

    def jvp(self, primals, tangents):
        y, positive = call(self, *primals)
        return (y, positive), (tangents[0] / (3 * y * y), None)


class Halve(AbstractKernel):
    """Halves until no lane is above one, and counts."""

    def __call__(self, x):
        def body(carry):
            x, passes = carry
            return jnp.where(x > 1, x / 2, x), passes + 1

        start = x, jnp.zeros((), jnp.int32)
        x, passes = jax.lax.while_loop(lambda c: jnp.any(c[0] > 1), body, start)
        return x, jnp.broadcast_to(passes, x.shape)

    def shapes(self, x):
        return x, jax.ShapeDtypeStruct(x.shape, jnp.int32)


class Beside(AbstractKernel):
    """Adds what lies beside: nothing, of a model without friction, or a mask of rows."""

    def __call__(self, a, beside):
        return a + jnp.sum(beside, axis=0).astype(a.dtype)

    def shapes(self, a, beside):
        return a


def test_sees_all_lanes_at_once_and_last():
    a = np.random.default_rng(0).normal(size=(4, 5, 3))
    b = np.random.default_rng(1).normal(size=(3, 5))
    inner = jax.vmap(lambda x, y: call(Shape(), x, y), in_axes=(0, 1))
    added, more = jax.vmap(inner, in_axes=(0, None))(jnp.asarray(a), jnp.asarray(b))
    # Two nested maps, of 5 and of 4 lanes: one call, on three rows.
    assert np.all(np.asarray(more["shape"]) == [3, 5, 4])
    np.testing.assert_allclose(added, a + b.T, rtol=1e-15)
    np.testing.assert_allclose(more["total"], np.sum(a * b.T, axis=-1), rtol=1e-13)
    np.testing.assert_allclose(call(Shape(), jnp.ones(3), jnp.ones(3))[0], 2 * np.ones(3))


def test_a_loop_ends_with_the_last_lane():
    x, passes = jax.jit(jax.vmap(lambda x: call(Halve(), x)))(jnp.asarray([1.0, 2.0, 32.0]))
    assert np.all(x == 1) and np.all(passes == 5)


def test_without_a_rule_there_is_no_derivative():
    with pytest.raises(NotImplementedError, match="Halve"):
        jax.grad(lambda x: call(Halve(), x)[0])(2.0)


def repeated(x):
    """The cube root three times in a loop: `x^(1/27)`."""
    return jax.lax.scan(lambda c, _: (call(Root(), c)[0], None), x, length=3)[0]


ORDERS = {
    "forward, forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "forward, reverse": lambda f: jax.jacfwd(jax.grad(f)),
    "reverse, forward": lambda f: jax.grad(jax.jacfwd(f)),
    "reverse, reverse": lambda f: jax.grad(jax.grad(f)),
    "checkpointed": lambda f: jax.hessian(jax.checkpoint(f)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_second_derivatives_in_a_loop(name):
    x, p = 5.0, 1 / 27
    exact = p * (p - 1) * x ** (p - 2)
    # Measured: 3e-16.
    np.testing.assert_allclose(jax.jit(ORDERS[name](repeated))(x), exact, rtol=1e-13)
    lanes = jnp.asarray([2.0, 5.0, 9.0])
    mapped = jax.vmap(ORDERS[name](repeated))(lanes)
    np.testing.assert_allclose(mapped, p * (p - 1) * lanes ** (p - 2), rtol=1e-13)


def test_gradient_of_a_mapped_kernel():
    lanes = jnp.asarray([2.0, 5.0, 9.0])
    gradient = jax.grad(lambda x: jnp.sum(jax.vmap(repeated)(x)))(lanes)
    np.testing.assert_allclose(gradient, lanes ** (1 / 27 - 1) / 27, rtol=1e-13)


@pytest.mark.parametrize("first", [1.0, -np.inf, np.inf, np.nan])
def test_a_batch_is_a_stage_of_its_own(first):
    a, b = np.ones((4, 3)), np.ones((4, 3))
    a[0, 0] = first

    def scaled(a, b):
        return call(Shape(), 2 * a, b)[0]

    many = jax.jit(jax.vmap(scaled)).lower(a, b).compile()
    np.testing.assert_array_equal(many(a, b), 2 * a + b)
    if jax.default_backend() == "cpu":
        # The compiler has kept the boundary, and needs none for a single call.
        alone = jax.jit(scaled).lower(a[0], b[0]).compile()
        assert "conditional" in many.as_text() and "conditional" not in alone.as_text()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a stage of its own on a CPU alone")
@pytest.mark.parametrize("dtype", [float, int, bool])
@pytest.mark.parametrize("rows", [0, 1])
def test_any_operands_leave_the_stage(rows, dtype):
    """Also where the smallest has no entries, or is a mask, with JAX's strict promotion of dtypes."""
    a, beside = np.ones((4, 3)), np.ones((4, rows, 1), dtype)
    many = jax.jit(jax.vmap(lambda a, b: call(Beside(), 2 * a, b))).lower(a, beside).compile()
    np.testing.assert_array_equal(many(a, beside), 2 * a + rows)
    assert "conditional" in many.as_text()
