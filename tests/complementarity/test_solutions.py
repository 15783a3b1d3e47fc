"""Solutions of complementarity problems, judged by enumeration or by the law's own words."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import RESULTS, Auto, ComplementarityProblem, solve_complementarity
from diffnsd.complementarity import (
    Block,
    Lemke,
    MixedProblem,
    solve_mixed,
    solve_nonlinear_complementarity,
)
from diffnsd.laws import AbstractLaw, Complementarity, CoulombFriction, Equality
from diffnsd.sets import Box, Free, HalfLine, Polytope, Product, RollingCone, SecondOrderCone


class Relay(AbstractLaw):
    """`-w` in the normal cone of `[-limit, limit]` at `z`: ideal relays, one per row.

    A law of one's own is a set and a shift; everything else of the package works with it.
    """

    limit: jax.Array | float = 1.0

    @property
    def rows(self):
        return None

    def set(self):
        return Box(-self.limit, self.limit)

    def shift(self, context):
        return jnp.zeros_like(context.u_minus)

    def active(self, context):
        return jnp.ones_like(context.gap, dtype=bool)

    def check(self):
        return None


@eqx.filter_jit
def solve_many(W, q, law, contacts, rows, solver=None, warm_start=None):
    """One compiled solve of a batch of problems with one law."""

    def one(W, q, warm_start):
        problem = ComplementarityProblem(W, q, ((law, (contacts, rows)),))
        return solve_complementarity(problem, solver, warm_start=warm_start, throw=False)

    return jax.vmap(one, in_axes=(0, 0, None if warm_start is None else 0))(W, q, warm_start)


def solved(W, q, law, contacts, rows, **options):
    out = solve_many(jnp.asarray(W), jnp.asarray(q), law, contacts, rows, **options)
    assert np.all(np.asarray(out.result == RESULTS.successful))
    assert np.max(out.residual) <= 1e-9
    np.testing.assert_allclose(
        out.w, np.einsum("bij,bj->bi", W, out.z) + q, rtol=0, atol=1e-12 * np.max(np.abs(out.z))
    )
    return np.asarray(out.z), np.asarray(out.w)


def positive(random, batch, n, unsymmetric=0.5):
    """Positive definite matrices with a skew part: one solution for every q."""
    root, skew = random.normal(size=(2, batch, n, n))
    return (
        root @ np.swapaxes(root, 1, 2) / n
        + 0.05 * np.eye(n)
        + unsymmetric * (skew - np.swapaxes(skew, 1, 2)) / n
    )


def enumerate_modes(W, q, bounds):
    """All solutions, from every choice of free rows and of bounds for the others.

    `bounds`: per row the values that z may be stuck at and the sign that w then has.
    """
    n = len(q)
    for modes in itertools.product(*([None, *choices] for choices in bounds)):
        free = [i for i in range(n) if modes[i] is None]
        z = np.array([0.0 if m is None else m[0] for m in modes])
        if free:
            block = W[np.ix_(free, free)]
            if abs(np.linalg.det(block)) < 1e-12:
                continue
            z[free] = np.linalg.solve(block, -(q + W @ z)[free])
        w = W @ z + q
        inside = all(
            m is not None or all((z[i] - value) * sign >= -1e-11 for value, sign in bounds[i])
            for i, m in enumerate(modes)
        )
        if inside and all(m is None or w[i] * m[1] >= -1e-11 for i, m in enumerate(modes)):
            yield z, w


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3, 6])
def test_unilateral_problems_against_enumeration(n):
    random = np.random.default_rng(n)
    W, q = positive(random, 60, n), random.normal(size=(60, n)) * 3
    q[:10][random.random(size=(10, n)) < 0.5] = 0.0  # contacts on the edge
    q[10] = 0.0
    z, w = solved(W, q, Complementarity(), n, 1)
    for i in range(60):
        solutions = list(enumerate_modes(W[i], q[i], [[(0.0, 1)]] * n))
        assert solutions
        # Measured 2e-10 relative: the solver stops at a residual of 1e-9.
        error = min(np.max(np.abs(z[i] - s)) for s, _ in solutions)
        assert error < 1e-7 * (1 + np.max(np.abs(z[i])))


@pytest.mark.slow
def test_a_law_of_ones_own():
    """Relays with a limit of their own each, against enumeration."""
    n, limit = 4, np.array([1.0, 0.5, 2.0, 1.0])
    random = np.random.default_rng(0)
    W, q = positive(random, 30, n), random.normal(size=(30, n)) * 2
    z, w = solved(W, q, Relay(jnp.asarray(limit)), n, 1)
    modes = np.where(np.abs(np.abs(z) - limit) < 1e-8, np.sign(z), 0)
    assert {-1, 0, 1} == set(np.unique(modes))  # every mode occurs
    for i in range(30):
        ((exact, _),) = enumerate_modes(W[i], q[i], [[(-b, 1), (b, -1)] for b in limit])
        np.testing.assert_allclose(z[i], exact, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_equalities_are_linear_systems():
    random = np.random.default_rng(3)
    W, q = positive(random, 20, 4), random.normal(size=(20, 4))
    z, w = solved(W, q, Equality(), 2, 2)
    np.testing.assert_allclose(z, np.linalg.solve(W, -q[..., None])[..., 0], rtol=0, atol=1e-7)
    np.testing.assert_allclose(w, 0 * w, rtol=0, atol=1e-7)


def check_coulomb(z, w, mu, scale):
    """Signorini and Coulomb, contact by contact, in the words of the law; `z`, `w` `(c, 3)`."""
    slack = 1e-7 * scale
    for p, u, friction in zip(z, w, mu, strict=True):
        force, slip = np.linalg.norm(p[1:]), np.linalg.norm(u[1:])
        assert p[0] >= -slack and u[0] >= -slack
        assert abs(p[0] * u[0]) <= slack * scale
        assert force <= friction * p[0] + slack
        # A slipping contact is on the cone, with its force against the slip.
        np.testing.assert_allclose(
            p[1:] * slip, -friction * p[0] * u[1:], rtol=0, atol=10 * slack * scale
        )


@pytest.mark.slow
@pytest.mark.parametrize("contacts", [1, 3])
def test_friction_obeys_coulombs_law(contacts):
    random = np.random.default_rng(contacts)
    n = 3 * contacts
    W, q = positive(random, 60, n, unsymmetric=0.1), random.normal(size=(60, n)) * 2
    mu = np.linspace(0.0, 0.8, contacts) if contacts > 1 else np.array([0.5])
    z, w = solved(W, q, CoulombFriction(jnp.asarray(mu)), contacts, 3)
    modes = set()
    for i in range(60):
        scale = 1 + np.max(np.abs(z[i])) + np.max(np.abs(w[i]))
        check_coulomb(z[i].reshape(-1, 3), w[i].reshape(-1, 3), mu, scale)
        for p, u in zip(z[i].reshape(-1, 3), w[i].reshape(-1, 3), strict=True):
            open_, sticks = p[0] < 1e-8, np.linalg.norm(u[1:]) < 1e-8
            modes.add("open" if open_ else "stick" if sticks else "slide")
    assert modes == {"open", "stick", "slide"}


@pytest.mark.slow
def test_one_contact_in_closed_form():
    """A point mass on the ground: open, sticking or sliding."""
    random = np.random.default_rng(9)
    mass, mu = 2.5, 0.4
    v = random.normal(size=(60, 3))
    W = np.broadcast_to(np.eye(3) / mass, (60, 3, 3))
    z, w = solved(W, v, CoulombFriction(jnp.array([mu])), 1, 3)
    for i in range(60):
        push = max(-mass * v[i, 0], 0.0)
        slip = np.linalg.norm(v[i, 1:])
        held = min(mass * slip, mu * push)
        exact = np.array([push, *(-held * v[i, 1:] / slip)])
        np.testing.assert_allclose(z[i], exact, rtol=0, atol=1e-8)


def test_laws_side_by_side():
    """An equality, two unilateral rows and a friction contact that couple: each keeps its law."""
    random = np.random.default_rng(11)
    W, q = positive(random, 1, 6)[0], np.array([1.0, -1.0, 0.5, -2.0, 1.0, -0.5])
    laws = ((Equality(), (1, 1)), (Complementarity(), (2, 1)), (CoulombFriction(0.3), (1, 3)))
    problem = ComplementarityProblem(jnp.asarray(W), jnp.asarray(q), laws)
    out = solve_small(problem, jnp.zeros(6))
    assert out.result == RESULTS.successful
    z, w = np.asarray(out.z), np.asarray(out.w)
    np.testing.assert_allclose(w, W @ z + q, rtol=0, atol=1e-12)
    assert abs(w[0]) < 1e-8
    assert np.all(np.abs(np.minimum(z[1:3], w[1:3])) < 1e-8)
    check_coulomb(z[None, 3:], w[None, 3:], [0.3], 10)


CORNERS = np.array([[x, y, -0.5] for x in (-1.0, 1.0) for y in (-0.7, 0.7)])
MASSES = np.array([2.0, 2.0, 2.0, 0.3, 0.5, 0.6])


def corner_rows():
    """Velocities of the corners of a block's lower face, normal first: `H (4, 3, 6)`."""
    axes = np.roll(np.eye(3), 1, axis=0)
    return np.array([[[*e, *np.cross(p, e)] for e in axes] for p in CORNERS])


@eqx.filter_jit
def solve_blocks(v, mu, starts):
    """Blocks of these velocities hit the ground with all four corners: `M v+ = M v + H^T P`."""

    def one(v, start):
        H = jnp.asarray(np.transpose(corner_rows(), (1, 2, 0)))
        law = CoulombFriction(jnp.broadcast_to(mu, (4,)), jnp.zeros(4), jnp.zeros(4))
        block = Block(H, None, jnp.zeros((3, 4)), law, jnp.ones(4, bool))
        problem = MixedProblem(jnp.asarray(np.diag(MASSES)), MASSES * v, (block,))
        v, (z,), stats = solve_mixed(problem, (start,), Auto())
        return v, z.T, stats

    return jax.vmap(one)(v, starts)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_redundant_contacts_have_one_velocity(mu):
    """Four corners of a face: neither velocities nor impulses depend on the warm start.

    Impulses that are not unique are those of least norm: for the corners of a rectangle both
    diagonals carry the same. With spin that share decides about the friction's moment.
    """
    random = np.random.default_rng(5)
    v = random.normal(size=(10, 6)) * 0.3
    v[:, 2] = -1.0
    v[0] = [0.3, 0, -1, 0, 0, 0]
    v[1] = [3.0, 0, -1, 0, 0, 0]
    starts = np.stack([np.zeros((10, 3, 4)), random.normal(size=(10, 3, 4)) + 2])
    both = []
    for start in starts:
        after, z, stats = solve_blocks(jnp.asarray(v), jnp.asarray(mu), jnp.asarray(start))
        assert np.all(stats.converged)
        after, z = np.asarray(after), np.asarray(z)
        H = corner_rows()
        # Nothing but the impulses changes the momentum.
        given = np.einsum("bck,ckn->bn", z, H)
        np.testing.assert_allclose(MASSES * (after - v), given, rtol=0, atol=1e-13)
        for i in range(10):
            check_coulomb(z[i], H @ after[i], [mu] * 4, 10)
        both.append((after, z, given))
    (first, z0, given), (second, z1, _) = both
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-7)
    np.testing.assert_allclose(z0, z1, rtol=0, atol=1e-6)
    # Mass 2 stops at once; its corners hold it back with mu times that, if they have to.
    np.testing.assert_allclose(given[:2, 2], 2.0, rtol=0, atol=1e-7)
    np.testing.assert_allclose(given[:2, 0], [-min(0.6, 2 * mu), -2 * mu], rtol=0, atol=1e-7)


@eqx.filter_jit
def solve_small(problem, warm_start):
    return solve_complementarity(problem, warm_start=warm_start, throw=False)


def test_results_of_a_good_problem():
    """The margin of a loaded contact is its impulse; a warm start at the solution is free."""
    problem = ComplementarityProblem(
        jnp.diag(jnp.array([2.0, 0.5])), jnp.array([-3.0, -1.0]), ((Complementarity(), (2, 1)),)
    )
    out = solve_small(problem, jnp.zeros(2))
    np.testing.assert_allclose(out.z, [1.5, 2.0], rtol=1e-8)
    np.testing.assert_allclose(out.w, [0.0, 0.0], atol=1e-8)
    # Relative to |rho q|, rho = (1/2, 2): the first contact is nearest to opening.
    np.testing.assert_allclose(out.margin, 1.5 / 2.5, rtol=1e-8)
    again = solve_small(problem, out.z)
    assert again.iterations == 0
    np.testing.assert_array_equal(again.z, out.z)


def test_one_unknown_is_solved_in_closed_form():
    """`z = max(-q / a, 0)`, without iterations, to rounding."""
    random = np.random.default_rng(4)
    a, q = random.uniform(0.1, 5, 60), random.normal(size=60)
    out = solve_many(
        jnp.asarray(a[:, None, None]), jnp.asarray(q[:, None]), Complementarity(), 1, 1
    )
    np.testing.assert_allclose(out.z[:, 0], np.maximum(-q / a, 0), rtol=1e-14)
    assert np.all(np.asarray(out.iterations) == 0)
    np.testing.assert_allclose(out.margin, 1.0, rtol=1e-12)  # in units of |rho q|


UNSOLVABLE = ComplementarityProblem(
    jnp.zeros((1, 1)), jnp.array([-1.0]), ((Complementarity(), (1, 1)),)
)


def test_a_problem_without_solution_is_reported():
    out = solve_small(UNSOLVABLE, jnp.zeros(1))
    assert out.result == RESULTS.infeasible
    np.testing.assert_array_equal(out.certificate, [1.0])  # y W = 0 and y q < 0
    assert out.velocity_residual > 1e-4 and np.all(np.isfinite(out.z))


def test_a_problem_without_solution_raises_with_the_remedy():
    with pytest.raises(RuntimeError, match="has no solution: `certificate` is a direction"):
        solve_complementarity(UNSOLVABLE)


@pytest.mark.parametrize("q", [[np.nan, -1.0], [-1.0, np.inf]])
def test_what_is_not_a_number_is_not_a_solution(q):
    problem = ComplementarityProblem(jnp.eye(2), jnp.asarray(q), ((Complementarity(), (2, 1)),))
    assert solve_small(problem, jnp.zeros(2)).result == RESULTS.nonfinite_problem
    with pytest.raises(ValueError, match="q has entries that are not finite"):
        solve_complementarity(problem)


def test_too_few_iterations_are_reported_by_lane():
    """A batch with one hard lane: only that one has failed, and the others are right."""
    random = np.random.default_rng(2)
    W, q = positive(random, 20, 6), random.normal(size=(20, 6))
    q[:19] = np.abs(q[:19])  # solved by z = 0
    q[19] = -np.abs(q[19]) * 1e3
    lazy = Auto(newton_steps=1, rounds=0)
    out = solve_many(jnp.asarray(W), jnp.asarray(q), Complementarity(), 6, 1, lazy)
    fine = np.asarray(out.result == RESULTS.successful)
    assert np.all(fine[:19]) and not fine[19]
    assert np.all(np.asarray(out.z[:19]) == 0)


@pytest.mark.parametrize(
    ("W", "q", "rows", "words"),
    [
        (np.eye(3), np.ones(2), (2, 1), r"W has shape \(3, 3\) and q has shape \(2,\)"),
        (np.eye(2), np.ones((2, 1)), (2, 1), "W must be square"),
        (np.eye(3), np.ones(3), (2, 1), "the laws cover 2 unknowns, but q has 3"),
    ],
)
def test_shapes_that_are_refused(W, q, rows, words):
    with pytest.raises(ValueError, match=words):
        ComplementarityProblem(jnp.asarray(W), jnp.asarray(q), ((Complementarity(), rows),))


@pytest.mark.parametrize(
    ("law", "rows", "words"),
    [
        (CoulombFriction(-0.3), (1, 3), r"mu must lie in \[0, inf\), got -0.3"),
        (CoulombFriction(0.3, 1.5), (1, 3), r"restitution e must lie in \[0, 1\]"),
        (CoulombFriction(0.3), (3, 1), "CoulombFriction needs at least 2 rows per contact"),
        (
            Complementarity(),
            (1, 3),
            r"Complementarity acts on 1 row per contact, got 3; .*\(c, 1\)",
        ),
        (SecondOrderCone(0.3), (3, 1), "SecondOrderCone needs at least 2 rows, got 1"),
        (Product(Free(), HalfLine(), 2), (3, 1), "Product has 2 rows of its first factor, got 1"),
        (Polytope(((1.0, 0.0),), (0.0,)), (1, 3), r"normals of \[2\] entries, got .* 3 rows"),
        (RollingCone(0.3, 0.1), (3, 1), "RollingCone needs 5 rows, or 3 in the plane, got 1"),
    ],
)
def test_laws_that_are_refused(law, rows, words):
    problem = ComplementarityProblem(jnp.eye(3), jnp.ones(3), ((law, rows),))
    with pytest.raises(ValueError, match=words):
        solve_complementarity(problem)
    # What is known is checked beside what is not.
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(
            lambda q: solve_complementarity(eqx.tree_at(lambda p: p.q, problem, q)), jnp.ones(3)
        )


@pytest.mark.parametrize(
    "laws",
    [
        (HalfLine(), (1, 2)),
        ((HalfLine(), 2),),
        ((HalfLine(), (2, 1, 1)),),
        (((2, 1), HalfLine()),),
        ((HalfLine, (2, 1)),),
        CoulombFriction(0.3),
    ],
)
def test_laws_that_are_no_pairs(laws):
    with pytest.raises(ValueError, match=r"laws must be pairs .* such as \(\(HalfLine\(\), \(m, 1"):
        ComplementarityProblem(jnp.eye(2), jnp.ones(2), laws)


def test_arguments_of_another_kind_are_refused():
    W, q = jnp.eye(2), jnp.ones(2)
    problem = ComplementarityProblem(W, q, ((HalfLine(), (2, 1)),))
    with pytest.raises(
        TypeError, match=r"must be a ComplementarityProblem\(W, q, laws=.*got an array"
    ):
        solve_complementarity(W, q)
    with pytest.raises(
        TypeError, match=r"must be a NonlinearComplementarityProblem\(function, laws="
    ):
        solve_nonlinear_complementarity(problem, q)
    with pytest.raises(TypeError, match=r"solver is the class Lemke; pass an instance: Lemke\("):
        solve_complementarity(problem, Lemke)
    with pytest.raises(ValueError, match=r"active must be booleans.* float64"):
        ComplementarityProblem(W, q, problem.laws, jnp.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"parameter mu of a law has shape \(2,\).* contacts is 1"):
        laws = ((CoulombFriction(jnp.array([0.1, 0.2])), (1, 3)),)
        solve_complementarity(ComplementarityProblem(jnp.eye(3), jnp.ones(3), laws))


@pytest.mark.nightly
def test_one_contact_of_two_rows_is_two_of_one_row():
    """`(HalfLine(), (1, 2))` is the quadrant; only `active` counts contacts."""
    W, q = jnp.array([[2.0, 0.5], [0.3, 1.0]]), jnp.array([-1.0, 0.4])
    one, two = (
        solve_complementarity(ComplementarityProblem(W, q, ((HalfLine(), rows),)))
        for rows in ((1, 2), (2, 1))
    )
    np.testing.assert_allclose(one.z, [0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(one.z, two.z, atol=1e-12)
    with pytest.raises(ValueError, match="the laws have 1 contacts"):
        ComplementarityProblem(W, q, ((HalfLine(), (1, 2)),), jnp.array([True, False]))


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_warm_start_of_a_wrong_length(length):
    problem = ComplementarityProblem(jnp.eye(2), jnp.ones(2), ((Complementarity(), (2, 1)),))
    with pytest.raises(ValueError, match=rf"warm_start has shape \({length},\), .* \(2,\)"):
        solve_complementarity(problem, warm_start=jnp.zeros(length))


@pytest.mark.parametrize("laws", [(), ((Complementarity(), (0, 1)),)])
def test_a_problem_without_unknowns_is_solved(laws):
    out = solve_complementarity(ComplementarityProblem(jnp.zeros((0, 0)), jnp.zeros(0), laws))
    assert out.result == RESULTS.successful
    assert out.z.shape == out.w.shape == (0,) and out.residual == 0 and out.margin == np.inf


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_tolerances_that_are_refused(tolerance):
    with pytest.raises(ValueError, match="tolerance must be positive"):
        Auto(tolerance=tolerance)


@pytest.mark.parametrize("name", ["newton_steps", "hard_steps", "splitting_steps", "rounds"])
def test_negative_counts_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        Auto(**{name: -1})


@pytest.mark.nightly
def test_single_precision():
    random = np.random.default_rng(1)
    W, q = positive(random, 60, 3), random.normal(size=(60, 3)) * 3
    W32, q32 = jnp.asarray(W, jnp.float32), jnp.asarray(q, jnp.float32)
    out = solve_many(W32, q32, Complementarity(), 3, 1)
    assert out.z.dtype == jnp.float32
    assert np.all(np.asarray(out.result == RESULTS.successful))
    z, _ = solved(W, q, Complementarity(), 3, 1)
    # Measured 7e-5 of the value in the worst problem: conditions up to 1e2 times the tolerance of 1e-5.
    np.testing.assert_allclose(out.z, z, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_new_values_do_not_compile_again():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def run(W, q, mu):
        problem = ComplementarityProblem(W, q, ((CoulombFriction(mu), (1, 3)),))
        return solve_complementarity(problem).z

    for value in (0.1, 0.5, 2.0):
        run(jnp.eye(3) * value, jnp.array([-1.0, value, 0.0]), jnp.asarray(value))
