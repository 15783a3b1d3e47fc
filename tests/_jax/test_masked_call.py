"""Calls for few lanes of a batch: values and every composition of derivatives, against `where`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd._jax import call_where

RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(3, 3))
X, Y, W = RNG.normal(size=(40, 3)), RNG.normal(size=40), np.array(1.7)
AXES = 0, 0, None


def inner(x, y):
    return jnp.sin(MATRIX @ x) * y, jnp.sum(x * x) * y, jnp.array(1)


def sparse(x, y, w):
    """Closes over `w`, which all lanes share."""
    a, b, one = call_where(y > 0, lambda x, y: inner(x, y * w), x, y)
    return jnp.sum(a) * b * one.astype(b.dtype)


def dense(x, y, w):
    a, b, one = inner(x, y * w)
    return jnp.where(y > 0, jnp.sum(a) * b * one.astype(b.dtype), 0.0)


def loss(f):
    return lambda x, y, w: jnp.sum(jax.vmap(f, AXES)(x, y, w) ** 2)


def looped(f):
    """Reads the whole batch again and again, in a loop that reverse mode evaluates once more."""

    def step(w, i):
        values = jax.vmap(f, AXES)(X, Y * jnp.cos(i), w)
        return w + 1e-3 * jnp.sin(jnp.sum(values)), None

    return lambda w: jax.lax.scan(jax.checkpoint(step), w, jnp.arange(3.0))[0]


def repeated(f):
    """One element, in a loop that keeps what reverse mode needs."""
    return lambda w: jax.lax.fori_loop(0, 3, lambda i, w: w + 1e-2 * f(X[0], Y[0], w), w)


def along(f, x, v):
    """A value and its derivative by `x`, of one element that needs the function."""
    return jax.jvp(lambda x: jnp.sin(f(x, Y[Y > 0][0], W)), (x,), (v,))


POINT = X[1], Y[1], W
COMPOSITIONS = {
    "values": lambda f: jax.vmap(f, AXES)(X, Y, W),
    "one lane": lambda f: jax.grad(f, (0, 1, 2))(X[0], Y[0], W),
    "reverse over a batch": lambda f: jax.grad(loss(f), (0, 1, 2))(X, Y, W),
    "a batch of reverse": lambda f: jax.vmap(jax.grad(f, (0, 1, 2)), AXES)(X, Y, W),
    "a batch of forward": lambda f: jax.vmap(jax.jacfwd(f, (0, 1, 2)), AXES)(X, Y, W),
    "forward over a batch": lambda f: jax.jacfwd(lambda w: jax.vmap(f, AXES)(X, Y, w))(W),
    "hessian of a batch": lambda f: jax.hessian(loss(f), 2)(X, Y, W),
    "batches of hessians": lambda f: jax.vmap(jax.hessian(f, (0, 2)), AXES)(X, Y, W),
    "reverse over reverse": lambda f: jax.grad(lambda w: jnp.sum(jax.grad(loss(f))(X, Y, w) ** 2))(
        W
    ),
    "a batch of batches": lambda f: jax.vmap(lambda s: jax.grad(loss(f))(X, Y * s, W))(
        jnp.array([1.0, -2.0])
    ),
    "checkpointed": lambda f: jax.grad(loss(jax.checkpoint(f)))(X, Y, W),
    "checkpointed, all saved": lambda f: jax.grad(
        loss(jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable))
    )(X, Y, W),
    "checkpointed, forward": lambda f: jax.jacfwd(loss(jax.checkpoint(f)), 2)(X, Y, W),
    "a loop, reverse": lambda f: jax.grad(looped(f))(W),
    "a loop, forward": lambda f: jax.jacfwd(looped(f))(W),
    "a loop, hessian": lambda f: jax.hessian(looped(f))(W),
    "a loop, forward over forward": lambda f: jax.jacfwd(jax.jacfwd(looped(f)))(W),
    "a loop, reverse over reverse": lambda f: jax.grad(jax.grad(looped(f)))(W),
    "repeated, hessian": lambda f: jax.hessian(repeated(f))(W),
    "linear function": lambda f: jax.linearize(f, *POINT)[1](*POINT),
    "pull-back": lambda f: jax.vjp(f, *POINT)[1](jnp.ones(())),
    # Linear in the direction of an inner derivative.
    "a hessian, transposed": lambda f: jax.linear_transpose(
        lambda v: jax.grad(lambda x: along(f, x, v)[1])(X[1]), X[1]
    )(X[2])[0],
    "second derivatives, transposed": lambda f: jax.linear_transpose(
        lambda v: jax.jvp(lambda x: along(f, x, v)[1], (X[1],), (X[2],))[1], X[1]
    )(1.0)[0],
    "directions of second derivatives": lambda f: jax.vmap(
        lambda v: jax.jvp(lambda x: along(f, x, v), (X[1],), (X[2],)),
        out_axes=((None, 0), (None, 0)),
    )(X[:5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_composition(name):
    found, known = (jax.jit(lambda f=f: COMPOSITIONS[name](f))() for f in (sparse, dense))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13 * np.max(np.abs(b)))


def test_what_is_not_needed_is_not_touched():
    """Lanes that do not need the function may be where it has no value."""
    x = jnp.linspace(-1, 1, 40)

    def root(x):
        return call_where(x > 0, jnp.sqrt, x)

    found = jax.vmap(jax.grad(root))(x)
    known = np.where(x > 0, 0.5 / np.sqrt(np.abs(x)), 0)
    np.testing.assert_allclose(found, known, rtol=1e-12)
