"""The solvers behind one interface, against each other; certificates; operators; bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

from diffnsd import RESULTS, ComplementarityProblem, solve_complementarity
from diffnsd.complementarity import (
    AcceleratedProjectedGradient,
    Auto,
    Delassus,
    Enumeration,
    InteriorPoint,
    Lemke,
    NonlinearComplementarityProblem,
    ProjectedGaussSeidel,
    SemismoothNewton,
    Splitting,
    solve_nonlinear_complementarity,
)
from diffnsd.complementarity.problem._operators import DENSE_LIMIT
from diffnsd.laws import CoulombFriction
from diffnsd.sets import Box, Free, HalfLine, Polytope

GENERAL = (
    Auto(),
    SemismoothNewton(),
    Splitting(),
    ProjectedGaussSeidel(),
    AcceleratedProjectedGradient(),
    InteriorPoint(),
)
N = 6
SQUARE = Polytope(((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)), (-1.0,) * 4)


def positive(seed, n=N):
    random = np.random.default_rng(seed)
    root, skew = random.normal(size=(2, n, n))
    W = root @ root.T / n + 0.3 * np.eye(n) + 0.1 * (skew - skew.T)
    return jnp.asarray(W), jnp.asarray(random.normal(size=n))


@eqx.filter_jit
def solve(problem, solver):
    return solve_complementarity(problem, solver, throw=False)


LAWS = {
    "lcp": ((HalfLine(), (N, 1)),),
    "mlcp": ((Free(), (2, 1)), (HalfLine(), (4, 1))),
    "relay": ((Box(jnp.array(-1.0), jnp.array(0.5)), (N, 1)),),
    "friction": ((CoulombFriction(0.4), (2, 3)),),
}


# `Auto` solves all kinds; of the others the hardest kind is quick.
PAIRS = [(solver, kind) for solver in GENERAL for kind in LAWS]
QUICK = [pair for pair in PAIRS if pair[1] == "friction" or isinstance(pair[0], Auto)]


@pytest.mark.parametrize(
    ("solver", "kind"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_all_find_the_one_solution(solver, kind):
    W, q = positive(0)
    out = solve(ComplementarityProblem(W, q, LAWS[kind]), solver)
    exact = solve(ComplementarityProblem(W, q, LAWS[kind]), Auto())
    assert out.result == RESULTS.successful
    assert out.residual <= 1e-8 and out.velocity_residual <= 1e-6 and out.violation <= 1e-7
    # Measured at most 3e-8: residuals of 1e-9 times a condition of ten.
    np.testing.assert_allclose(out.z, exact.z, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lcp", "mlcp"])
@pytest.mark.parametrize("solver", [Lemke(), Enumeration()], ids=lambda s: type(s).__name__)
def test_pivoting_is_exact(solver, kind):
    W, q = positive(1)
    out = solve(ComplementarityProblem(W, q, LAWS[kind]), solver)
    assert out.result == RESULTS.successful and out.residual < 1e-13


@pytest.mark.parametrize("solver", [Lemke(), Enumeration()], ids=lambda s: type(s).__name__)
def test_solvers_refuse_what_they_are_not_made_for(solver):
    W, q = positive(1)
    with pytest.raises(ValueError, match=r"use Auto\(\) for"):
        solve_complementarity(ComplementarityProblem(W, q, LAWS["friction"]), solver)


def test_contradicting_contacts_are_proven_so():
    """Two contacts that push against each other and must both part: `y = (1, 1)`."""
    W = jnp.array([[1.0, -1.0], [-1.0, 1.0]])
    q = jnp.array([-1.0, -0.5])
    out = solve(ComplementarityProblem(W, q, ((HalfLine(), (2, 1)),)), Auto())
    assert out.result == RESULTS.infeasible
    y = np.asarray(out.certificate)
    np.testing.assert_allclose(y, np.ones(2) / np.sqrt(2), rtol=0, atol=1e-6)
    assert np.all(y @ W <= 1e-6) and y @ q < 0


def test_one_proof_beside_a_residual_that_is_small():
    """Multipliers without bound make every residual relative to them small: the proof decides."""
    W = jnp.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.2, 0.1, 1.0]])
    q = jnp.array([-1.0, -0.5, 0.3])
    out = solve(ComplementarityProblem(W, q, ((HalfLine(), (3, 1)),)), Auto())
    assert out.residual < 1e-8  # measured 5e-10, at |z| = 2e9
    assert out.result == RESULTS.infeasible
    y = np.asarray(out.certificate)
    assert np.all(y >= 0) and np.all(y @ W <= 1e-9) and y @ q < 0


@pytest.mark.parametrize(
    ("W", "q", "laws", "solver"),
    [
        # Solved by z = (1, 1e5), far beyond what the few steps reach.
        (
            np.diag([1.0, 1e-8]),
            [-1.0, -1e-3],
            ((HalfLine(), (2, 1)),),
            AcceleratedProjectedGradient(steps=200),
        ),
        # A bounded set has a solution whatever the velocity.
        (np.zeros((2, 2)), [-1.0, 0.3], ((SQUARE, (1, 2)),), Splitting(steps=0)),
    ],
)
def test_nothing_is_proven_where_there_is_a_solution(W, q, laws, solver):
    out = solve(ComplementarityProblem(W, q, laws), solver)
    assert out.result != RESULTS.infeasible and np.all(np.asarray(out.certificate) == 0)


@pytest.mark.slow
def test_iterates_that_overflow_are_no_success():
    """Random matrices, few of them monotone: solved is what enumeration solves."""
    random = np.random.default_rng(3)
    W, q = random.normal(size=(60, 8, 8)), random.normal(size=(60, 8))
    found = np.zeros(60, bool)
    for modes in np.ndindex(*(2,) * 8):
        held = np.asarray(modes) == 0
        matrix = np.where(held[:, None], np.eye(8), W)
        z = np.linalg.solve(matrix, np.where(held, 0, -q)[..., None])[..., 0]
        w = np.einsum("bij,bj->bi", W, z) + q
        found |= np.max(np.abs(np.minimum(z, w)), axis=1) < 1e-9
    laws = ((HalfLine(), (8, 1)),)
    run = jax.vmap(
        lambda W, q: solve_complementarity(ComplementarityProblem(W, q, laws), throw=False)
    )
    out = eqx.filter_jit(run)(jnp.asarray(W), jnp.asarray(q))
    np.testing.assert_array_equal(np.asarray(out.result == RESULTS.successful), found)


def test_rows_that_take_no_part_may_hold_anything():
    W, q = positive(4)
    mask = jnp.array([True, True, True, False, True, True])
    clean = solve(ComplementarityProblem(W, q, LAWS["lcp"], mask), Auto())
    W, q = W.at[3, 0].set(1e9).at[3, 3].set(-1e9), q.at[3].set(1e12)
    loud = solve(ComplementarityProblem(W, q, LAWS["lcp"], mask), Auto())
    assert loud.result == RESULTS.successful
    np.testing.assert_array_equal(loud.z, clean.z)


@pytest.mark.slow
def test_contacts_that_take_no_part():
    W, q = positive(2)
    mask = jnp.array([True, False, True, True, False, True])

    def z_of(W, q):
        return solve_complementarity(ComplementarityProblem(W, q, LAWS["lcp"], mask), throw=False).z

    z, slope = eqx.filter_jit(lambda W, q: (z_of(W, q), jax.jacrev(z_of, (0, 1))(W, q)))(W, q)
    keep = np.flatnonzero(mask)
    small = solve(
        ComplementarityProblem(W[np.ix_(keep, keep)], q[keep], ((HalfLine(), (4, 1)),)), Auto()
    )
    assert np.all(np.asarray(z)[~np.asarray(mask)] == 0)
    np.testing.assert_allclose(np.asarray(z)[keep], small.z, rtol=0, atol=1e-9)
    gone = np.flatnonzero(~np.asarray(mask))
    assert np.all(np.asarray(slope[1])[:, gone] == 0) and np.all(np.isfinite(slope[0]))


def test_all_contacts_padded():
    """No impulse, and derivatives that are zero and not undefined."""
    W, q = positive(2)

    def run(W, q, mu):
        laws = ((CoulombFriction(mu), (2, 3)),)
        problem = ComplementarityProblem(W, q, laws, jnp.zeros(2, bool))
        out = solve_complementarity(problem, throw=False)
        return out.z, out

    slopes, out = eqx.filter_jit(jax.jacrev(run, (0, 1, 2), has_aux=True))(W, q, jnp.array(0.4))
    assert out.result == RESULTS.successful and np.all(np.asarray(out.z) == 0)
    assert all(np.all(np.asarray(slope) == 0) for slope in slopes)


def test_no_contact_has_no_derivative():
    def run(q, scale):
        problem = ComplementarityProblem(jnp.zeros((0, 0)), scale * q, ((HalfLine(), (0, 1)),))
        return jnp.sum(solve_complementarity(problem).w)

    by_q, by_scale = jax.grad(run, (0, 1))(jnp.zeros(0), jnp.array(2.0))
    assert by_q.shape == (0,) and by_scale == 0


@pytest.mark.slow
def test_the_matrix_as_an_operator():
    """A Delassus operator and a sparse matrix are what their arrays are."""
    random = np.random.default_rng(3)
    H, root = random.normal(size=(N, 8)), random.normal(size=(4, 2, 2))
    mass = root @ np.swapaxes(root, 1, 2) + np.eye(2)
    whole = np.zeros((8, 8))
    for i, block in enumerate(mass):
        whole[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    W, q = H @ np.linalg.solve(whole, H.T), jnp.asarray(random.normal(size=N))
    operator = Delassus(jnp.asarray(H), jnp.asarray(mass))
    np.testing.assert_allclose(operator.as_matrix(), W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(operator.mv(q), W @ q, rtol=0, atol=1e-12)
    exact = solve(ComplementarityProblem(jnp.asarray(W), q, LAWS["lcp"]), Auto()).z
    for given in (operator, BCOO.fromdense(jnp.asarray(W))):
        out = solve(ComplementarityProblem(given, q, LAWS["lcp"]), Auto())
        np.testing.assert_allclose(out.z, exact, rtol=0, atol=1e-9)


def curve(z, args):
    return z**2 + args * z - jnp.array([2.0, -1.0])


def test_a_nonlinear_problem_without_solution_is_not_solved():
    """`1 + z² = 0`: the residual is that of F, and no proof is made up from a linear problem."""
    problem = NonlinearComplementarityProblem(lambda z, args: 1 + z * z, ((Free(), (1, 1)),))
    out = solve_nonlinear_complementarity(
        problem, [0.7], SemismoothNewton(), max_steps=30, throw=False
    )
    assert out.result == RESULTS.not_converged and np.all(np.asarray(out.certificate) == 0)
    np.testing.assert_allclose(out.w, 1 + out.z**2, rtol=1e-12)
    with pytest.raises(ValueError, match=r"function must return shape \(2,\)"):
        solve_nonlinear_complementarity(
            NonlinearComplementarityProblem(lambda z, args: jnp.sum(z), ((HalfLine(), (2, 1)),)),
            jnp.zeros(2),
        )


@pytest.mark.nightly
def test_a_nonlinear_problem_and_its_derivative():
    """`z² + a z = 2` and an open row: `dz/da = −z / (2 z + a)`."""

    def solved(a):
        problem = NonlinearComplementarityProblem(curve, ((HalfLine(), (2, 1)),), a)
        return solve_nonlinear_complementarity(problem, jnp.ones(2), throw=False).z

    a = jnp.array(1.0)
    z, first, second = eqx.filter_jit(
        lambda a: (solved(a), jax.jacfwd(solved)(a), jax.hessian(solved)(a))
    )(a)
    np.testing.assert_allclose(z, [1.0, 0.0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(first, [-1 / 3, 0.0], rtol=0, atol=1e-8)
    # From z = (−a + sqrt(a² + 8)) / 2: z'' = 4 / (a² + 8)^(3/2).
    np.testing.assert_allclose(second, [4 / 27, 0.0], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("laws", "words"),
    [
        (((Box(jnp.array(1.0), jnp.array(-1.0)), (N, 1)),), "lower bound"),
        (((CoulombFriction(-0.1), (2, 3)),), "mu must lie in"),
    ],
)
def test_bad_parameters(laws, words):
    W, q = positive(0)
    with pytest.raises(ValueError, match=words):
        solve_complementarity(ComplementarityProblem(W, q, laws))


def test_bad_shapes_and_entries():
    W, q = positive(0)
    with pytest.raises(ValueError, match=r"active has shape \(3,\), .* expected \(6,\)"):
        ComplementarityProblem(W, q, LAWS["lcp"], jnp.ones(3, bool))
    with pytest.raises(ValueError, match="W has entries that are not finite"):
        solve_complementarity(ComplementarityProblem(W.at[0, 0].set(jnp.nan), q, LAWS["lcp"]))


def large_diagonal(q):
    """More unknowns than an operator is made an array for: `2 z + q`, so `z = max(0, −q) / 2`."""
    m = len(q)
    index = jnp.stack([jnp.arange(m), jnp.arange(m)], axis=1)
    W = BCOO((jnp.full(m, 2.0), index), shape=(m, m))
    return solve_complementarity(ComplementarityProblem(W, q, ((HalfLine(), (m, 1)),)), throw=False)


def test_a_large_operator_is_multiplied_only():
    q = jnp.asarray(np.random.default_rng(0).normal(size=DENSE_LIMIT + 1))
    out = eqx.filter_jit(large_diagonal)(q)
    assert out.result == RESULTS.successful
    # Measured 1e-9: the tolerance.
    np.testing.assert_allclose(out.z, np.maximum(0, -np.asarray(q)) / 2, rtol=0, atol=1e-7)
    # The natural map's argument of a row is z - w/2 = -q/2, and the size |q|/2.
    least = np.min(np.abs(q)) / np.linalg.norm(q)
    np.testing.assert_allclose(out.margin, least, rtol=1e-3)
    with pytest.raises(ValueError, match=r"has no derivative: give W as an array, .*stop_gradient"):
        jax.eval_shape(jax.grad(lambda q: jnp.sum(large_diagonal(q).w)), q)
    fixed = jax.eval_shape(
        jax.grad(lambda q: jnp.sum(large_diagonal(jax.lax.stop_gradient(q)).w) + jnp.sum(q)), q
    )
    assert fixed.shape == q.shape


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("place", ["W", "q"])
def test_entries_that_are_not_finite(place, bad):
    """Said before anything is compiled where they are known, else reported as the result."""
    W, q = positive(0)
    given = {"W": W.at[1, 2].set(bad), "q": q} if place == "W" else {"W": W, "q": q.at[3].set(bad)}
    problem = ComplementarityProblem(**given, laws=LAWS["lcp"])
    with pytest.raises(ValueError, match=f"{place} has entries that are not finite"):
        solve_complementarity(problem)
    assert solve(problem, Auto()).result == RESULTS.nonfinite_problem
