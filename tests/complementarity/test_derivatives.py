"""The implicit derivative: closed forms, both modes, batches, kinks and redundant contacts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Auto, ComplementarityProblem, solve_complementarity
from diffnsd.laws import Complementarity, CoulombFriction

EXACT = Auto(tolerance=1e-13)
SIZE = 6


def friction(parameters):
    """`(z, w)` of a problem with friction contacts, from `(W, q, mu)`."""
    W, q, mu = parameters
    problem = ComplementarityProblem(W, q, ((CoulombFriction(mu), (len(mu), 3)),))
    out = solve_complementarity(problem, EXACT, throw=False)
    return jnp.concatenate([out.z, out.w]), (out.residual, out.margin)


def flat(tree):
    """A Jacobian as one matrix: outputs times all parameters."""
    return np.concatenate([np.asarray(x).reshape(2 * SIZE, -1) for x in tree], axis=1)


@eqx.filter_jit
@jax.vmap
def evaluate(parameters):
    """Values and the Jacobians in both modes."""
    forward = jax.jacfwd(friction, has_aux=True)(parameters)[0]
    return friction(parameters), forward, jax.jacrev(friction, has_aux=True)(parameters)[0]


def regular_problems(count=40):
    random = np.random.default_rng(0)
    root, skew = random.normal(size=(2, count, SIZE, SIZE))
    W = root @ np.swapaxes(root, 1, 2) / SIZE + 0.2 * np.eye(SIZE)
    W = W + 0.05 * (skew - np.swapaxes(skew, 1, 2))
    q = random.normal(size=(count, SIZE))
    q[:, ::3] -= 0.5
    return W, q, random.uniform(0.1, 0.8, size=(count, 2))


def point_mass(v, mu=0.5, coupling=0.0):
    """Two point masses on the ground, with these velocities."""
    W = np.eye(SIZE)
    W[:3, 3:] = W[3:, :3] = coupling * np.eye(3)
    return W, np.array(v, float).ravel(), np.broadcast_to(np.asarray(mu, float), (2,))


SINGULAR = {
    "no friction, no slip": point_mass([[-1, 0, 0], [-1, 0, 0]], 0.0),
    "no friction, slip": point_mass([[-1, 1, 0], [-1, 0, 2]], 0.0),
    "open": point_mass([[1, 0, 0], [1, 0.3, 0]]),
    "at rest at the apex": point_mass([[0, 0, 0], [0, 0, 0]]),
    "grazing slip at the apex": point_mass([[0, 1, 0], [0, 0, 1]]),
    "exact stick": point_mass([[-1, 0, 0], [-1, 0, 0]]),
    "edge of stick and slip": point_mass([[-1, 0.5, 0], [-1, 0.3, 0.4]]),
    "slide": (np.diag([2.0, 3, 3, 1, 1, 1]), *point_mass([[-1.3, 1, 2], [-1, 3, 0]], 0.4)[1:]),
    "redundant, stick": point_mass([[-1, 0.1, 0], [-1, 0.1, 0]], 0.5, 1.0),
    "redundant, slip": point_mass([[-1, 2, 0], [-1, 2, 0]], 0.5, 1.0),
    "redundant, no friction": point_mass([[-1, 2, 0], [-1, 2, 0]], 0.0, 1.0),
}


@pytest.fixture(scope="module")
def computed():
    """Values and Jacobians in both modes of all problems of this file, in one batch."""
    regular = regular_problems()
    singular = [np.stack(x) for x in zip(*SINGULAR.values(), strict=True)]
    batch = tuple(jnp.asarray(np.concatenate(x)) for x in zip(regular, singular, strict=True))
    (values, (residual, margin)), forward, reverse = evaluate(batch)
    assert np.max(residual) < 1e-9
    lanes = range(len(regular[0]) + len(SINGULAR))
    forward, reverse = (
        np.stack([flat([x[i] for x in jacobian]) for i in lanes]) for jacobian in (forward, reverse)
    )
    return batch, np.asarray(values), np.asarray(margin), forward, reverse


@pytest.mark.nightly
def test_forward_mode_is_reverse_mode(computed):
    *_, forward, reverse = computed
    # Measured 1e-13 in regular and in singular problems.
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-10 * np.max(np.abs(reverse)))


@pytest.mark.slow
def test_against_central_differences(computed):
    batch, _, margin, forward, _ = computed
    regular = [i for i in range(40) if margin[i] > 1e-3]
    assert len(regular) > 30
    random = np.random.default_rng(1)
    directions = [random.normal(size=x.shape) for x in batch]
    step = 1e-5
    shifted = [
        evaluate(tuple(x + s * step * d for x, d in zip(batch, directions, strict=True)))[0][0]
        for s in (1, -1)
    ]
    central = np.asarray(shifted[0] - shifted[1]) / (2 * step)
    flat_direction = np.concatenate([d.reshape(len(d), -1) for d in directions], axis=1)
    tangent = np.einsum("bij,bj->bi", forward, flat_direction)
    # Measured 3e-9 relative.
    scale = 1 + np.max(np.abs(tangent), axis=1)
    error = np.max(np.abs(tangent - central), axis=1) / scale
    assert np.max(error[regular]) < 1e-6


def test_singular_problems_have_finite_derivatives(computed):
    *_, forward, reverse = computed
    assert np.all(np.isfinite(forward)) and np.all(np.isfinite(reverse))


def parts(computed, name):
    """Jacobian blocks of a singular problem: `z` and `w` by `W`, `q` and `mu`."""
    _, values, _, forward, _ = computed
    lane = 40 + list(SINGULAR).index(name)
    cuts = [SIZE * SIZE, SIZE * SIZE + SIZE]
    by = np.split(forward[lane], cuts, axis=1)
    return values[lane], {
        (out, name): block[rows]
        for out, rows in (("z", slice(0, SIZE)), ("w", slice(SIZE, None)))
        for name, block in zip(("W", "q", "mu"), by, strict=True)
    }


def test_without_friction_tangential_motion_is_free(computed):
    """Also without slip, where the cone has no interior: nothing holds a frictionless contact."""
    for name in ("no friction, no slip", "no friction, slip"):
        _, by = parts(computed, name)
        free = np.kron(np.eye(2), np.diag([0.0, 1.0, 1.0]))
        np.testing.assert_allclose(by["w", "q"], free, rtol=0, atol=1e-9)
        np.testing.assert_allclose(by["z", "q"], free - np.eye(6), rtol=0, atol=1e-9)
    # The first friction acts against the slip.
    slip = np.zeros((6, 2))
    slip[1, 0], slip[5, 1] = -1, -1
    np.testing.assert_allclose(by["z", "mu"], slip, rtol=0, atol=1e-9)


def test_open_contacts_do_nothing(computed):
    _, by = parts(computed, "open")
    assert all(np.all(by["z", name] == 0) for name in ("W", "q", "mu"))
    np.testing.assert_allclose(by["w", "q"], np.eye(6), rtol=0, atol=1e-12)


def test_sticking_contacts_hold(computed):
    _, by = parts(computed, "exact stick")
    np.testing.assert_allclose(by["z", "q"], -np.eye(6), rtol=0, atol=1e-9)
    np.testing.assert_allclose(by["w", "q"], 0, rtol=0, atol=1e-9)
    np.testing.assert_allclose(by["w", "mu"], 0, rtol=0, atol=1e-9)


def test_sliding_contact_in_closed_form(computed):
    """`z_N = -q_N / a`, `z_T = -mu z_N q_T/|q_T|` for `W = diag(a, b, b)`, a = 2, b = 3."""
    values, by = parts(computed, "slide")
    a, q, mu = 2.0, np.array([-1.3, 1.0, 2.0]), 0.4
    slip = q[1:] / np.linalg.norm(q[1:])
    normal = -q[0] / a
    z = np.array([normal, *(-mu * normal * slip)])
    np.testing.assert_allclose(values[:3], z, rtol=0, atol=1e-12)
    turn = (np.eye(2) - np.outer(slip, slip)) / np.linalg.norm(q[1:])
    by_q = np.zeros((3, 3))
    by_q[:, 0] = [-1 / a, *(mu / a * slip)]
    by_q[1:, 1:] = -mu * normal * turn
    # Measured 2e-16.
    np.testing.assert_allclose(by["z", "q"][:3, :3], by_q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(by["z", "mu"][:3, 0], [0, *(-normal * slip)], rtol=0, atol=1e-12)
    by_w = by["z", "W"].reshape(6, 6, 6)[:3]
    np.testing.assert_allclose(by_w[:, 0, 0], -z / a, rtol=0, atol=1e-12)
    # The slip is parallel to q_T whatever b is: the impulse does not depend on it.
    np.testing.assert_allclose(by_w[:, 1, 1] + by_w[:, 2, 2], 0, rtol=0, atol=1e-12)


def test_redundant_contacts_share_the_tangent_equally(computed):
    """Multipliers of two identical contacts: of all tangents the one of minimum norm."""
    together = np.tile(np.eye(3), (2, 1))  # both contacts are pushed alike
    _, by = parts(computed, "redundant, stick")
    np.testing.assert_allclose(by["z", "q"] @ together, -together / 2, rtol=0, atol=1e-8)
    np.testing.assert_allclose(by["w", "q"] @ together, 0, rtol=0, atol=1e-8)

    _, by = parts(computed, "redundant, slip")
    push = together @ [1.0, 0, 0]
    # Pushed harder by 1 they slide on: z_N by -1/2 each, friction by mu times that. In float64
    # the proximal term of 1e-6 leaves rounding up to 1e-16 / 1e-6^2 in the shares: measured 2e-5.
    shared = np.array([-0.5, 0.25, 0.0] * 2)
    np.testing.assert_allclose(by["z", "q"] @ push, shared, rtol=0, atol=1e-3)
    np.testing.assert_allclose(by["w", "q"] @ push, [0, 0.5, 0] * 2, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_minimum_norm_of_a_stack():
    """Three identical unilateral rows and a single one: the pseudo-inverse of the closed rows."""
    H = np.array([[1.0, 0], [1, 0], [1, 0], [0.5, 1]])
    W = H @ H.T

    def solve(q):
        problem = ComplementarityProblem(jnp.asarray(W), q, ((Complementarity(), (4, 1)),))
        return solve_complementarity(problem, EXACT).z

    v = np.array([-1.0, -0.2])
    z, dz = eqx.filter_jit(lambda q, dq: jax.jvp(solve, (q,), (dq,)))(
        jnp.asarray(H @ v), jnp.asarray(H @ np.array([0.3, 0.1]))
    )
    assert np.all(np.asarray(z) > 1e-3)
    exact = -np.linalg.pinv(W) @ H @ np.array([0.3, 0.1])
    np.testing.assert_allclose(dz, exact, rtol=0, atol=1e-8)


def weighted(parameters):
    values, _ = friction(parameters)
    return jnp.sum(values * jnp.cos(jnp.arange(6.0)))


gradient = jax.grad(weighted)
one_gradient = eqx.filter_jit(gradient)


@pytest.fixture(scope="module")
def batch():
    """Three sliding contacts, each alone."""
    W, q, mu = (x[:3] for x in regular_problems())
    q = np.array([[-1.0, 2.0, 0.3], [-2.0, 1.0, 3.0], [-0.5, -1.0, 0.4]])
    return jnp.asarray(W[:, :3, :3]), jnp.asarray(q), jnp.asarray(mu[:, :1])


@pytest.mark.slow
def test_batches_of_gradients(batch):
    """`vmap` of the gradient is a loop of gradients, and `jvp` and `vmap` commute."""
    direction = jax.tree.map(jnp.cos, batch)

    @eqx.filter_jit
    def together(batch, direction):
        return (
            jax.vmap(gradient)(batch),
            jax.vmap(lambda p, d: jax.jvp(weighted, (p,), (d,))[1])(batch, direction),
            jax.jvp(jax.vmap(weighted), (batch,), (direction,))[1],
        )

    many, mapped, moved = together(batch, direction)
    np.testing.assert_allclose(mapped, moved, rtol=0, atol=1e-12)
    for i in range(3):
        one = one_gradient(jax.tree.map(lambda x, i=i: x[i], batch))
        for a, b in zip(many, one, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=0, atol=1e-12)
    power = sum(
        np.sum(g * d, axis=tuple(range(1, g.ndim))) for g, d in zip(many, direction, strict=True)
    )
    np.testing.assert_allclose(power, mapped, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_second_derivative(batch):
    """Forward over reverse, against central differences of the gradient."""
    point = jax.tree.map(lambda x: x[0], batch)
    direction = jax.tree.map(jnp.cos, point)
    _, second = eqx.filter_jit(lambda p, d: jax.jvp(gradient, (p,), (d,)))(point, direction)
    step = 1e-5
    plus, minus = (
        one_gradient(jax.tree.map(lambda x, d, s=s: x + s * step * d, point, direction))
        for s in (1, -1)
    )
    for a, b, c in zip(second, plus, minus, strict=True):
        # Measured 1e-8.
        central = (b - c) / (2 * step)
        np.testing.assert_allclose(a, central, rtol=0, atol=1e-6 * (1 + np.max(np.abs(central))))


@pytest.mark.slow
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_second_derivative_of_a_sticking_contact(inner, outer):
    """Rounding moves it by 1e-16, where the shift of friction has a curvature of 1e16.

    Without slip and off the edge, `z = −W^-1 q`: the second derivative in the scale of W is `2 z`.
    """
    W = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.7]])
    q, laws = np.array([-2.0, 0.3, 0.1]), ((CoulombFriction(0.9), (1, 3)),)

    def z(scale):
        problem = ComplementarityProblem(scale * W, jnp.asarray(q), laws)
        return solve_complementarity(problem, EXACT, throw=False).z

    known = -np.linalg.solve(W, q)
    found = eqx.filter_jit(outer(inner(z)))(jnp.array(1.0))
    # Measured 1e-14; reverse over reverse was off by 1e-3 to 0.4 of the size.
    np.testing.assert_allclose(found, 2 * known, rtol=0, atol=1e-10)
