"""Two contacts that brace against each other: a foot that strikes the ground almost level.

The tangential velocities of the contacts are almost the same function of the motion. To stop both, large
opposite impulses are needed, so that one of them slips nearly always; which of them, and which way, is hard
to find where there is much friction. All problems here have a solution: see the enumeration.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd.complementarity import Auto
from diffnsd.complementarity._solve import solve_mixed
from diffnsd.complementarity.problem._problem import Block, MixedProblem
from diffnsd.laws import CoulombFriction

MU, COUNT = 2.0, 512


def strikes(near: float, seed: int = 0):
    """Masses `(b, 6, 6)`, rows `(b, 2, 3, 6)` of normals and tangents, velocities before `(b, 6)`.

    The rows of the second tangents are zero: the mechanism is planar.
    """
    random = np.random.default_rng(seed)
    root = random.normal(size=(COUNT, 6, 6))
    masses = root @ np.swapaxes(root, 1, 2) / 6 + 0.2 * np.eye(6)
    rows = np.zeros((COUNT, 2, 3, 6))
    rows[:, :, 0] = random.normal(size=(COUNT, 2, 6))
    tangent = random.normal(size=(COUNT, 1, 6))
    rows[:, :, 1] = tangent + near * np.array([[[0.0], [1.0]]]) * random.normal(size=(COUNT, 1, 6))
    before = random.normal(size=(COUNT, 6)) - rows[:, :, 0].sum(1) / 3
    return masses, rows, before


@eqx.filter_jit
@jax.vmap
def solve(mass, rows, before):
    dtype = before.dtype
    none = jnp.zeros(2, dtype)
    law = CoulombFriction(jnp.full(2, MU, dtype), none, none)
    block = Block(
        jnp.transpose(rows, (1, 2, 0)), None, jnp.zeros((3, 2), dtype), law, jnp.ones(2, bool)
    )
    problem = MixedProblem(mass, mass @ before, (block,))
    after, (impulses,), stats = solve_mixed(problem, (jnp.zeros((3, 2), dtype),), Auto())
    return after, impulses.T, stats


def has_solution(mass, rows, before) -> bool:
    """Whether open, sticking and slipping either way solve the problem for one of the 16 choices."""
    rows = rows[:, :2].reshape(4, 6)
    delassus, free = rows @ np.linalg.solve(mass, rows.T), rows @ before
    for modes in itertools.product(("open", "stick", -1, 1), repeat=2):
        matrix, right = delassus.copy(), -free
        for n, mode in zip((0, 2), modes, strict=True):
            if mode == "open":
                matrix[n : n + 2], right[n : n + 2] = np.eye(4)[n : n + 2], 0
            elif mode != "stick":  # slips that way: the impulse opposes it
                matrix[n + 1], right[n + 1] = np.eye(4)[n + 1] + mode * MU * np.eye(4)[n], 0
        impulse = np.linalg.solve(matrix, right)
        velocity = delassus @ impulse + free
        slips = [
            mode * velocity[n + 1] for n, mode in zip((0, 2), modes, strict=True) if mode in (-1, 1)
        ]
        inside = MU * impulse[::2] - abs(impulse[1::2])
        if min(*impulse[::2], *velocity[::2], *slips, *inside) > -1e-9:
            return True
    return False


@pytest.mark.parametrize("near", [0.1, 1e-3])
def test_braced_contacts_are_solved(near):
    """Measured: 511 and 512 of 512 solved; before steps were cut where the map bends, 508 and 481."""
    masses, rows, before = strikes(near)
    assert all(map(has_solution, masses, rows, before))
    after, impulses, stats = jax.tree.map(np.asarray, solve(masses, rows, before))
    good = stats.converged
    assert np.sum(~good) <= 2

    moved = np.einsum("bij,bj->bi", masses, after - before)
    given = np.einsum("bck,bckn->bn", impulses, rows)
    np.testing.assert_allclose(moved, given, rtol=0, atol=1e-12 * abs(given).max())
    # Signorini and Coulomb, in the words of the law.
    velocity = np.einsum("bckn,bn->bck", rows, after)[good]
    normal, tangent = np.moveaxis(impulses[good, :, :2], 2, 0)
    slack = 1e-7 * (1 + abs(impulses[good]).max(axis=(1, 2)))[:, None]  # 2e-8
    assert np.all(normal >= -slack) and np.all(velocity[..., 0] >= -slack)
    assert np.all(abs(normal * velocity[..., 0]) <= slack)
    assert np.all(abs(tangent) <= MU * normal + slack)
    power = tangent * velocity[..., 1] + MU * normal * abs(velocity[..., 1])
    assert np.all(abs(power) <= slack)


def test_a_problem_takes_the_same_way_alone_and_in_a_batch():
    """Many problems of this batch are hard and gathered in groups, but all are tried in the same order."""
    masses, rows, before = strikes(1e-3)
    _, _, many = jax.tree.map(np.asarray, solve(masses, rows, before))
    _, _, few = jax.tree.map(np.asarray, solve(masses[:16], rows[:16], before[:16]))
    hard = few.iterations > 17
    assert hard.any()
    np.testing.assert_array_equal(many.solved_by[:16], few.solved_by)
    np.testing.assert_allclose(many.iterations[:16], few.iterations, rtol=0, atol=2)


def test_what_is_not_a_number_ends_at_once():
    """Beside solvable problems, which are solved as before; measured: 5 iterations each."""
    masses, rows, before = strikes(0.1)
    before[::2] = np.nan
    _, _, stats = jax.tree.map(np.asarray, solve(masses, rows, before))
    assert not stats.converged[::2].any() and stats.iterations[::2].max() <= 5
    assert np.sum(~stats.converged[1::2]) <= 2


def test_an_empty_batch():
    after, _, stats = solve(*(x[:0] for x in strikes(0.1)))
    assert after.shape == (0, 6) and stats.converged.shape == (0,)


def test_single_precision():
    """Measured: all solved to 1e-5; 1 of 512 was not before."""
    arrays = (x.astype(np.float32) for x in strikes(1e-2))
    _, impulses, stats = solve(*arrays)
    assert impulses.dtype == np.float32
    assert np.sum(~np.asarray(stats.converged)) <= 2
