"""Batches of small problems: component algebra, hard lanes among easy ones, both precisions."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

from diffnsd import RESULTS, ComplementarityProblem, solve_complementarity
from diffnsd.complementarity._public import contacts_of
from diffnsd.complementarity.problem._dense import DenseProblem
from diffnsd.complementarity.problem._elimination import back_substitute, eliminate, linearised
from diffnsd.complementarity.problem._problem import join
from diffnsd.laws import CoulombFriction
from diffnsd.sets import Box, Free, HalfLine

LANES, CONTACTS = 96, 4
SIZE = 3 * CONTACTS
BODY = ((CoulombFriction(0.5), (CONTACTS, 3)),)


def body_on_corners(seed=0):
    """A falling body on random corners: W has rank 6, half of the impulses are redundant."""
    random = np.random.default_rng(seed)
    points = random.uniform(-1, 1, size=(LANES, CONTACTS, 3))
    axes = np.roll(np.eye(3), 1, axis=0)
    arms = np.cross(points[:, :, None], axes[None, None])
    H = np.concatenate([np.broadcast_to(axes, arms.shape), arms], axis=-1).reshape(LANES, SIZE, 6)
    velocity = random.normal(size=(LANES, 6)) - [0, 0, 1, 0, 0, 0]
    return np.einsum("bij,bkj->bik", H, H), np.einsum("bij,bj->bi", H, velocity)


def solve(W, q, laws):
    return solve_complementarity(ComplementarityProblem(W, q, laws), throw=False)


@eqx.filter_jit
@jax.vmap
def solve_bodies(W, q):
    return solve(W, q, BODY)


@pytest.fixture(scope="module")
def bodies():
    W, q = body_on_corners()
    return W, q, jax.tree.map(np.asarray, solve_bodies(jnp.asarray(W), jnp.asarray(q)))


def natural_map(W, q, z, mu=0.5):
    """Of friction contacts at the step that has no units, by the definition alone."""
    w = W @ z + q
    rho = np.sqrt(len(q)) / np.linalg.norm(W)
    u, p = w.reshape(-1, 3), z.reshape(-1, 3)
    slip = np.hypot(u[:, 1], u[:, 2])
    x = p - rho * (u + np.outer(mu * slip, [1, 0, 0]))
    out = np.zeros_like(x)
    for i, (normal, *tangent) in enumerate(x):
        length = np.hypot(*tangent)
        if length <= mu * normal:
            out[i] = x[i]
        elif mu * length > -normal:
            on_cone = (normal + mu * length) / (1 + mu**2)
            out[i] = on_cone * np.array([1, *(mu * np.array(tangent) / length)])
    return np.linalg.norm(p - out) / (rho * max(np.linalg.norm(q), np.linalg.norm(w)))


@pytest.mark.slow
def test_every_lane_of_redundant_contacts_is_solved(bodies):
    W, q, out = bodies
    assert np.all(out.residual <= 1e-8)
    worst = max(natural_map(*lane) for lane in zip(W, q, out.z, strict=True))
    assert worst <= 1e-7, worst


@pytest.mark.slow
def test_a_lane_without_solution_leaves_the_others_alone(bodies):
    """One frictionless pair that must part and cannot, in a batch of solvable problems."""
    W, q, out = bodies
    W, q = W.copy(), q.copy()
    W[5] = 0
    W[5, 0, 0] = W[5, 3, 3] = 1.0
    W[5, 0, 3] = W[5, 3, 0] = -1.0
    q[5] = 0
    q[5, [0, 3]] = -1.0
    mixed = jax.tree.map(np.asarray, solve_bodies(jnp.asarray(W), jnp.asarray(q)))
    others = np.arange(LANES) != 5
    assert mixed.residual[5] > 1e-8 or mixed.velocity_residual[5] > 1e-6
    assert bool(np.any(mixed.certificate[5] != 0))
    assert np.all(mixed.residual[others] <= 1e-8)
    np.testing.assert_allclose(mixed.w[others], out.w[others], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_one_newton_step_of_a_given_matrix():
    """Eliminating the velocity of `A = 1, H = 1` is solving with `1 − D + eps + N W`."""
    random = np.random.default_rng(0)
    laws = ((HalfLine(), (2, 1)), (CoulombFriction(0.7), (2, 3)), (Free(), (1, 1)))
    m, lanes = 9, 4
    root = random.normal(size=(lanes, m, m))
    W, q = root @ np.swapaxes(root, 1, 2) / m, random.normal(size=(m, lanes))
    lay = jax.tree.map(
        lambda x: jnp.broadcast_to(x[..., None], (*x.shape, lanes)), contacts_of(laws, None, float)
    )
    problem = DenseProblem(jnp.asarray(W), jnp.asarray(q), lay)
    mixed, steps = problem.mixed(), problem.split(problem.steps())
    for rho, step in zip(mixed.penalties(), steps, strict=True):
        np.testing.assert_allclose(rho, step[0], rtol=1e-14)
    z = problem.project(jnp.asarray(random.normal(size=(m, lanes))))
    _, d, n = problem.linearise(z, problem.velocity(z), problem.steps())
    eps, right = jnp.linspace(1e-3, 0.3, lanes), jnp.asarray(random.normal(size=(m, lanes)))
    system = linearised(mixed, d, n)
    factors = eliminate(system, eps, jnp.array(True))
    dv, dz = back_substitute(factors, system, None, problem.split(right), jnp.array(True))
    matrix = np.asarray(problem.newton_matrix(d, n)) + np.asarray(eps)[:, None, None] * np.eye(m)
    exact = np.linalg.solve(matrix, np.asarray(right).T[..., None])[..., 0].T
    np.testing.assert_allclose(join(dz), exact, rtol=0, atol=1e-10)
    np.testing.assert_allclose(dv, problem.apply(join(dz)), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "rows"), [(HalfLine(), 4), nightly(Free(), 5), nightly(Box(-0.2, 0.3), 6)]
)
def test_contacts_of_many_rows(law, rows):
    """More rows than have an inverse by cofactors, against one problem at a time."""
    random = np.random.default_rng(rows)
    m, lanes = 2 * rows, 20
    root = random.normal(size=(lanes, m, m))
    W = jnp.asarray(root @ np.swapaxes(root, 1, 2) / m + 0.3 * np.eye(m))
    q = jnp.asarray(random.normal(size=(lanes, m)))
    run = eqx.filter_jit(jax.vmap(lambda W, q: solve(W, q, ((law, (2, rows)),))))
    out, few = run(W, q), run(W[:3], q[:3])
    assert np.all(np.asarray(out.result == RESULTS.successful))
    np.testing.assert_allclose(out.z[:3], few.z, rtol=0, atol=1e-7)


LAWS = (
    (HalfLine(), (2, 1)),
    (Free(), (1, 1)),
    (Box(jnp.float32(-1.0), jnp.float32(0.5)), (2, 1)),
    (CoulombFriction(jnp.float32(0.4)), (1, 3)),
)


@pytest.mark.nightly
def test_single_precision():
    """All kinds in one problem, in a batch: to 1e-5, in velocity to 1e-3."""
    lanes = 20
    random = np.random.default_rng(4)
    root = random.normal(size=(lanes, 8, 8))
    W = root @ np.swapaxes(root, 1, 2) / 8 + 0.3 * np.eye(8)
    q = random.normal(size=(lanes, 8))
    given = jnp.asarray(W, jnp.float32), jnp.asarray(q, jnp.float32)
    out = eqx.filter_jit(jax.vmap(lambda W, q: solve(W, q, LAWS)))(*given)
    assert out.z.dtype == out.residual.dtype == jnp.float32
    assert np.all(np.asarray(out.result == RESULTS.successful))
    # The equality holds in the units of velocity.
    w = np.einsum("bij,bj->bi", W, np.asarray(out.z, float)) + q
    assert np.max(np.abs(w[:, 2])) <= 1e-3
    assert np.max(out.residual) <= 1e-5 and np.max(out.velocity_residual) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("laws", "size"),
    [
        (((HalfLine(), (70, 1)),), 70),
        (((Free(), (2, 1)), (HalfLine(), (6, 1))), 8),
        (((CoulombFriction(0.5), (2, 3)),), 6),
    ],
)
def test_lapack_gets_one_matrix_at_a_time(laws, size):
    """Two batches of LAPACK at once wait for each other for ever where cores are few (jaxlib 0.10)."""

    def z(W, q):
        return solve(W, q, laws).z

    derivatives = jax.vmap(lambda W, q: (jax.jacfwd(z, 1)(W, q), jax.jacrev(z)(W, q)))
    batch = jnp.broadcast_to(jnp.eye(size), (20, size, size)), jnp.ones((20, size))
    program = jax.jit(derivatives).lower(*batch).as_text()
    shapes = re.findall(r"custom_call @lapack_\w+\(.*?: \(tensor<([\dx]+)xf64", program)
    assert len(shapes) >= 5
    assert all(len(shape.split("x")) == 2 for shape in shapes)
