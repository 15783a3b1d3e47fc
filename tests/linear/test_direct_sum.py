"""Several matrices side by side with what couples them, against the dense matrix."""

import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from diffnsd.linear import SSOR, BlockJacobi, ConjugateGradients, DirectSum, ElementSum, NodeBlocks

RANDOM = np.random.default_rng(5)
NODES = np.diag(RANDOM.uniform(2.0, 4.0, 6)) + RANDOM.normal(size=(6, 6), scale=0.1)
NODES = NODES + NODES.T
ARRAY = RANDOM.normal(size=(4, 4)) + 4 * np.eye(4)
# The array with each of the two nodes; 10 is no unknown.
DOFS = np.array([[3, 4, 5, 6, 7], [1, 2, 8, 9, 10]])
BLOCKS = RANDOM.normal(size=(2, 5, 5), scale=0.3)


def coupled(nodes: np.ndarray) -> tuple[DirectSum, np.ndarray]:
    """A matrix of two nodes beside an array, with elements that are not symmetric; the dense one."""
    full = np.zeros((11, 11))
    full[:6, :6], full[6:10, 6:10] = nodes, ARRAY
    for dofs, block in zip(DOFS, BLOCKS, strict=True):
        full[np.ix_(dofs, dofs)] += block
    i = jnp.arange(6, dtype=jnp.int32)
    places, each = jnp.stack([i[:2], i[:2]]), (i[:1], i[1:2])
    stored = jnp.asarray(nodes.reshape(2, 3, 2, 3))
    tags = [lx.positive_semidefinite_tag]
    first = NodeBlocks(stored, places, i, tags, colours=each)
    parts = DirectSum([first, lx.MatrixLinearOperator(jnp.asarray(ARRAY))])
    return parts.plus(jnp.asarray(BLOCKS), DOFS), full[:10, :10]


def test_a_direct_sum_is_its_matrix():
    """Measured 2e-15."""
    operator, matrix = coupled(NODES)
    x = RANDOM.normal(size=10)
    np.testing.assert_allclose(operator.mv(jnp.asarray(x)), matrix @ x, atol=1e-13)
    np.testing.assert_allclose(operator.T.mv(jnp.asarray(x)), matrix.T @ x, atol=1e-13)
    np.testing.assert_allclose(operator.diagonal(), np.diag(matrix), atol=1e-14)
    i, j, values = operator.coordinates()
    found = np.zeros((10, 10))
    np.add.at(found, (i, j), values)
    np.testing.assert_allclose(found, matrix, atol=1e-14)


@pytest.mark.parametrize("preconditioner", [BlockJacobi(3), SSOR()])
def test_an_array_beside_nodes_is_eliminated(preconditioner):
    """Where no two nodes are coupled it is the inverse of the whole matrix. Measured 7e-16."""
    nodes = NODES * np.kron(np.eye(2), np.ones((3, 3)))
    operator, matrix = coupled(nodes)
    x = RANDOM.normal(size=10)
    found = preconditioner.inverse(operator)(jnp.asarray(matrix @ x))
    np.testing.assert_allclose(found, x, atol=1e-12)


def test_only_small_arrays_are_eliminated():
    """Sums with other parts take no elements; their entries are listed without a dense matrix."""
    diagonals = [RANDOM.normal(size=n) for n in (5, 4, 4)]
    chain = lx.TridiagonalLinearOperator(*map(jnp.asarray, diagonals))
    beside = coupled(NODES)[0].parts
    line = DirectSum([*beside, chain], ElementSum(BLOCKS, DOFS, 15))
    crowd = DirectSum([*beside, lx.MatrixLinearOperator(jnp.eye(197))])
    assert coupled(NODES)[0].takes_elements
    assert not line.takes_elements and not crowd.takes_elements
    i, j, values = DirectSum([chain, lx.DiagonalLinearOperator(jnp.ones(3))]).coordinates()
    found = np.zeros((8, 8))
    np.add.at(found, (i, j), values)
    dense = np.eye(8)
    dense[:5, :5] = sum(np.diag(d, k) for d, k in zip(diagonals, (0, -1, 1), strict=True))
    np.testing.assert_array_equal(found, dense)
    with pytest.raises(ValueError, match="200 unknowns"):
        BlockJacobi(3).inverse(line)
    with pytest.raises(ValueError, match="no blocks to invert"):
        BlockJacobi(3).inverse(DirectSum([chain]))
    with pytest.raises(ValueError, match=r"ByStructure\(positive=ConjugateGradients"):
        ConjugateGradients().init(coupled(NODES)[0], {})
