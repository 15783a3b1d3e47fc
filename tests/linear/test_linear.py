"""Operators and solvers of large linear systems, against SciPy."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse

import diffnsd as nsd
from diffnsd import linear
from diffnsd.linear import (
    MINRES,
    Banded,
    BlockJacobi,
    BlockTridiagonalLU,
    ByStructure,
    Chebyshev,
    ConjugateGradients,
    ElementSum,
    Factored,
    Jacobi,
    NoPreconditioner,
    SparseLU,
    linear_solve,
)

E, K, N = 40, 6, 31
RANDOM = np.random.default_rng(0)
# An index N is a prescribed unknown, which is left out.
DOFS = np.stack([RANDOM.permutation(N + 1)[:K] for _ in range(E)])
ANY = RANDOM.normal(size=(E, K, K))
POSITIVE = ANY @ ANY.swapaxes(1, 2)
ADDED = RANDOM.uniform(1.0, 2.0, N)
RIGHT = RANDOM.normal(size=N)


def elements(blocks, added, *tags) -> ElementSum:
    return ElementSum(jnp.asarray(blocks), DOFS, N, jnp.asarray(added), tags)


def assembled(blocks, added) -> np.ndarray:
    """The same matrix by SciPy."""
    i, j = np.repeat(DOFS, K, axis=1).reshape(-1), np.tile(DOFS, K).reshape(-1)
    full = scipy.sparse.coo_matrix((blocks.reshape(-1), (i, j)), shape=(N + 1, N + 1))
    return full.toarray()[:N, :N] + np.diag(added)


BANDS = RANDOM.normal(size=(N, 5)) + 10 * np.eye(5)[2]
BAND = scipy.sparse.spdiags(  # of which column j of A holds entry j
    [np.roll(BANDS[:, j], j - 2) for j in range(5)], [j - 2 for j in range(5)], N, N
).toarray()
TRI = RANDOM.normal(size=(3, N))


TAGS = [lx.positive_semidefinite_tag]


def node_blocks() -> tuple[linear.NodeBlocks, np.ndarray]:
    """Elements of three nodes, two coordinates prescribed, and two contacts that are not symmetric."""
    random = np.random.default_rng(3)
    nodes = np.add.outer(np.arange(12), [0, 1, 5]) % 11
    pattern = linear.NodePattern.of([nodes], 11)
    assert pattern is not None
    any_ = random.normal(size=(12, 9, 9))
    positive = any_ @ any_.swapaxes(1, 2) + 3 * np.eye(9)
    full, blocks = np.zeros((33, 33)), np.zeros((*pattern.columns.shape, 3, 3))
    for block, node, slot in zip(positive, nodes, np.asarray(pattern.slots[0]), strict=True):
        at = (3 * node[:, None] + np.arange(3)).reshape(-1)
        full[np.ix_(at, at)] += block
        parts = block.reshape(3, 3, 3, 3).swapaxes(1, 2)
        np.add.at(blocks, (node[:, None], slot), parts)
    free = np.delete(np.arange(33), [4, 20])
    matrix = full[np.ix_(free, free)]
    dofs, more = np.array([[0, 1, 2], [10, 11, N]]), random.normal(size=(2, 3, 3))
    for dof, block in zip(dofs, more, strict=True):
        known = dof < N
        matrix[np.ix_(dof[known], dof[known])] += block[np.ix_(known, known)]
    stored = jnp.asarray(blocks.swapaxes(1, 2))
    operator = linear.NodeBlocks(
        stored, pattern.columns, jnp.asarray(free), TAGS, colours=pattern.colours
    )
    return operator.plus(jnp.asarray(more), dofs), matrix


SPD = elements(POSITIVE, ADDED, lx.positive_semidefinite_tag)
INDEFINITE = elements(POSITIVE, ADDED - 25, lx.symmetric_tag)
UNSYMMETRIC = elements(ANY, ADDED)
MATRICES = {
    "spd": (SPD, assembled(POSITIVE, ADDED)),
    "indefinite": (INDEFINITE, assembled(POSITIVE, ADDED - 25)),
    "unsymmetric": (UNSYMMETRIC, assembled(ANY, ADDED)),
    "banded": (Banded(jnp.asarray(BANDS)), BAND),
    "tridiagonal": (
        lx.TridiagonalLinearOperator(*map(jnp.asarray, (TRI[0], TRI[1, 1:], TRI[2, 1:]))),
        np.diag(TRI[0]) + np.diag(TRI[1, 1:], -1) + np.diag(TRI[2, 1:], 1),
    ),
    "diagonal": (lx.DiagonalLinearOperator(jnp.asarray(ADDED)), np.diag(ADDED)),
    "nodal": node_blocks(),
}


@pytest.mark.parametrize("name", ["spd", "unsymmetric", "banded", "nodal"])
def test_operators_are_their_matrices(name):
    operator, matrix = MATRICES[name]
    np.testing.assert_allclose(operator.as_matrix(), matrix, atol=2e-15)
    np.testing.assert_allclose(operator.T.as_matrix(), matrix.T, atol=2e-15)
    np.testing.assert_allclose(operator.diagonal(), np.diag(matrix), atol=4e-15)
    np.testing.assert_allclose(operator.mv(jnp.asarray(RIGHT)), matrix @ RIGHT, atol=3e-14)
    if name == "banded":
        np.testing.assert_allclose(operator.blocks().as_matrix()[:N, :N], matrix, atol=2e-15)


def test_block_diagonal_of_nodes():
    """Nodes of three unknowns, element by element: the blocks are those of the assembled matrix."""
    nodes = np.stack([RANDOM.permutation(7)[:2] for _ in range(9)])
    dofs = (3 * nodes[:, :, None] + np.arange(3)).reshape(9, 6)
    blocks = RANDOM.normal(size=(9, 6, 6))
    matrix = np.zeros((21, 21))
    for block, dof in zip(blocks, dofs, strict=True):
        matrix[np.ix_(dof, dof)] += block
    found = ElementSum(jnp.asarray(blocks), dofs, 21).block_diagonal(3)
    expected = [matrix[i : i + 3, i : i + 3] for i in range(0, 21, 3)]
    np.testing.assert_allclose(found, expected, atol=4e-15)


SOLVES = [
    ("spd", ConjugateGradients(NoPreconditioner())),
    ("spd", ConjugateGradients(Jacobi())),
    ("spd", ConjugateGradients(BlockJacobi(3))),
    ("spd", ConjugateGradients(Chebyshev())),
    ("spd", lx.CG(1e-12, 1e-12)),
    ("spd", linear.Cholesky()),
    ("indefinite", MINRES()),
    ("indefinite", SparseLU()),
    ("unsymmetric", SparseLU()),
    ("unsymmetric", ByStructure()),
    ("nodal", linear.BiCGStab()),
    ("nodal", ByStructure()),
    ("nodal", SparseLU()),
    ("banded", BlockTridiagonalLU()),
    *((name, ByStructure()) for name in ("tridiagonal", "diagonal", "spd", "indefinite")),
]


@pytest.mark.parametrize(("name", "solver"), SOLVES)
def test_solvers_solve(name, solver):
    """The matrix, its transpose, and columns that share one factorisation."""
    operator, matrix = MATRICES[name]
    right = jnp.asarray(RIGHT)
    factored = Factored(operator, solver)
    x, result = factored.values(right)
    assert bool(result == lx.RESULTS.successful)
    expected = np.linalg.solve(matrix, RIGHT)
    np.testing.assert_allclose(x, expected, atol=1e-10 * np.max(np.abs(expected)))
    turned, _ = solver.transpose(factored.state, {})
    x, _, _ = solver.compute(turned, right, {})
    expected = np.linalg.solve(matrix.T, RIGHT)
    np.testing.assert_allclose(x, expected, atol=1e-10 * np.max(np.abs(expected)))
    many, done = factored.columns(jnp.stack([right, 2 * right], axis=1))
    assert bool(done)
    np.testing.assert_allclose(many[:, 1], 2 * np.linalg.solve(matrix, RIGHT), rtol=1e-8)


@pytest.mark.parametrize("solver", [ByStructure(), SparseLU()])
def test_a_solve_is_differentiated(solver):
    """Forward and reverse against the closed form `dx = −A^-1 dA x`, and in a batch of matrices."""
    turn = RANDOM.normal(size=POSITIVE.shape)
    turn = turn + turn.swapaxes(1, 2)
    right = jnp.asarray(RIGHT)

    def solution(blocks):
        return linear_solve(elements(blocks, ADDED, lx.positive_semidefinite_tag), right, solver)

    matrix = assembled(POSITIVE, ADDED)
    x = np.linalg.solve(matrix, RIGHT)
    moved = -np.linalg.solve(matrix, assembled(turn, 0 * ADDED) @ x)
    at = jnp.asarray(POSITIVE), jnp.asarray(turn)
    _, forward = jax.jvp(solution, at[:1], at[1:])
    np.testing.assert_allclose(forward, moved, atol=1e-10)
    back = jax.grad(lambda b: jnp.sum(solution(b) * jnp.asarray(RIGHT)))(at[0])
    np.testing.assert_allclose(jnp.sum(back * at[1]), RIGHT @ moved, rtol=1e-9)
    batch = jax.vmap(solution)(jnp.stack([at[0], 2 * at[0]]))
    double = np.linalg.solve(assembled(2 * POSITIVE, ADDED), RIGHT)
    np.testing.assert_allclose(batch, [x, double], atol=1e-10)


def test_symmetric_sweeps():
    """`(D + L)^-T D (D + L)^-1` of the matrix without its further elements, in the order of the colours."""
    operator, _ = MATRICES["nodal"]
    operator = linear.NodeBlocks(
        operator.blocks, operator.columns, operator.free, TAGS, colours=operator.colours
    )
    matrix, node = np.asarray(operator.as_matrix()), np.asarray(operator.free) // 3
    assert sorted(np.concatenate(operator.colours)) == list(range(11))
    place = np.empty(11, int)
    for colour, nodes in enumerate(map(np.asarray, operator.colours)):
        place[nodes] = colour
        inside = np.isin(node, nodes)
        apart = node[inside][:, None] != node[inside][None]
        assert not np.any(matrix[np.ix_(inside, inside)][apart])  # no neighbours
    before = place[node][:, None] > place[node][None]
    same = node[:, None] == node[None]
    lower, diagonal = np.where(before | same, matrix, 0), np.where(same, matrix, 0)
    exact = np.linalg.solve(lower.T, diagonal @ np.linalg.solve(lower, RIGHT))
    found = linear.SSOR().inverse(operator)(jnp.asarray(RIGHT))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-13 * np.abs(exact).max())
    solver = ConjugateGradients(linear.SSOR())
    solved = linear_solve(operator, jnp.asarray(RIGHT), solver)
    np.testing.assert_allclose(solved, np.linalg.solve(matrix, RIGHT), rtol=1e-8)
    with pytest.raises(ValueError, match=r"has none; use BlockJacobi\(\) or Jacobi\(\)"):
        linear.SSOR().inverse(SPD)


def test_a_solve_with_blocks_between_nodes_is_differentiated():
    """With prescribed coordinates and an unsymmetric part: `dx = −A^-1 dA x`, forward and reverse."""
    operator, matrix = MATRICES["nodal"]
    right = jnp.asarray(RIGHT)

    def solution(scale):
        scaled = linear.NodeBlocks(
            scale * operator.blocks, operator.columns, operator.free, (), operator.added
        )
        return jnp.sum(linear_solve(scaled, right) * jnp.sin(right))

    plain = linear.NodeBlocks(operator.blocks, operator.columns, operator.free).as_matrix()
    moved = -np.linalg.solve(matrix, np.asarray(plain) @ np.linalg.solve(matrix, RIGHT))
    for slope in (jax.grad(solution), jax.jacfwd(solution)):
        np.testing.assert_allclose(slope(1.0), moved @ np.sin(RIGHT), rtol=1e-8)


def test_what_does_not_fit_is_said():
    said = elements(POSITIVE, ADDED - 25, lx.positive_semidefinite_tag)
    for solver in (ConjugateGradients(), linear.Cholesky()):
        with pytest.raises(ValueError, match=r"take MINRES\(\) or SparseLU\(\)"):
            Factored(INDEFINITE, solver)
        with pytest.raises(RuntimeError, match="not positive definite"):
            linear_solve(said, jnp.asarray(RIGHT), solver)
    with pytest.raises(ValueError, match="symmetric_tag"):
        Factored(UNSYMMETRIC, MINRES())
    with pytest.raises(ValueError, match=r"must have shape \(40, 6, 6\)"):
        elements(POSITIVE[:, :3], ADDED)
    with pytest.raises(ValueError, match="as many diagonals below as above"):
        Banded(jnp.ones((4, 2)))
    # A chain of springs that nothing holds has no static solution.
    loose = np.array([[1.0, -1.0], [-1.0, 1.0]]) * np.ones((3, 1, 1))
    free = ElementSum(jnp.asarray(loose), np.array([[0, 1], [1, 2], [2, 3]]), 4)
    with pytest.raises(RuntimeError, match="give boundary conditions"):
        linear_solve(free, jnp.arange(4.0))


FREE = np.array([[1.0, -1.0, 0.0], [-1.0, 3.0, -2.0], [0.0, -2.0, 2.0]])
THIRDS = FREE / 3  # whose last pivot is that of rounding
SINGULAR = [
    (lx.TridiagonalLinearOperator(*(jnp.diag(FREE, k) for k in (0, -1, 1))), ByStructure()),
    (lx.MatrixLinearOperator(jnp.asarray(FREE)), ByStructure()),
    (lx.MatrixLinearOperator(jnp.asarray(THIRDS)), lx.LU()),
    (lx.MatrixLinearOperator(jnp.asarray(THIRDS)), SparseLU()),
]


@pytest.mark.parametrize(("operator", "solver"), SINGULAR)
def test_singular_matrices_are_said(operator, solver):
    """By every solver, exactly singular or by rounding: a load that moves the chain as a whole."""
    with pytest.raises(RuntimeError, match="give boundary conditions"):
        linear_solve(operator, jnp.ones(3), solver)
    held = operator + lx.DiagonalLinearOperator(jnp.array([1.0, 0.0, 0.0]))
    x = linear_solve(lx.MatrixLinearOperator(held.as_matrix()), jnp.ones(3), solver)
    np.testing.assert_allclose(held.mv(x), 1.0, rtol=1e-13)


def test_limits_end_in_a_result():
    factored = Factored(SPD, ConjugateGradients(max_steps=3))
    assert bool(factored.values(jnp.asarray(RIGHT))[1] == lx.RESULTS.max_steps_reached)


def test_the_choice_is_printed():
    assert "tridiagonal=Tridiagonal()" in repr(ByStructure())
    assert "positive=ConjugateGradients(preconditioner=BlockJacobi())" in repr(ByStructure())
    told = f"linear_solver={ByStructure()!r}"
    assert repr(nsd.BackwardEuler()) == f"BackwardEuler({told})"
    given = nsd.BackwardEuler(gamma=0.0, linear_solver=SparseLU())
    assert repr(given) == "BackwardEuler(gamma=0.0, linear_solver=SparseLU())"
