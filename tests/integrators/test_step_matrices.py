"""The matrices of a step, and large systems that are solved for their few multipliers alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import BackwardEuler, Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd.complementarity import Block, MixedProblem, Statistics, solve_mixed
from diffnsd.integrators import step_matrices
from diffnsd.laws import Complementarity, Equality, NewtonImpact
from diffnsd.relations import CompliantRelation, GapRelation
from diffnsd.systems import LagrangianSystem

RANDOM = np.random.default_rng(4)


def spd(n):
    root = RANDOM.normal(size=(n, n))
    return root @ root.T + n * np.eye(n)


M, C, K = spd(3), spd(3), spd(3)
SLOPES = RANDOM.normal(size=(2, 3))


def gaps(t, q):
    del t
    return jnp.dot(SLOPES, q)


LINEAR = LagrangianSystem.linear(M, C, K)
MODEL = Model(LINEAR, Interaction(GapRelation(gaps), NewtonImpact(0.5)))


@pytest.mark.parametrize("method", [BackwardEuler(), MoreauJean(0.5)])
def test_matrices_of_a_linear_system(method):
    """`S = M + h theta C + h² theta² K` and `H S^-1 H^T`."""
    h, state = 0.02, State(jnp.ones(3), jnp.zeros(3))
    found = eqx.filter_jit(step_matrices)(method, MODEL, jnp.array(0.0), jnp.array(h), state)
    system = M + h * method.theta * C + (h * method.theta) ** 2 * K
    np.testing.assert_allclose(found.system, system, rtol=1e-13)
    np.testing.assert_allclose(found.outputs, SLOPES, rtol=1e-14)
    compliance = SLOPES @ np.linalg.inv(system) @ SLOPES.T
    np.testing.assert_allclose(found.compliance, compliance, rtol=1e-11)


def test_matrices_that_do_not_exist():
    soft = Model(
        LINEAR, Interaction(CompliantRelation.linear(SLOPES, np.eye(2)), Complementarity())
    )
    state = State(jnp.ones(3), jnp.zeros(3))
    with pytest.raises(ValueError, match="no step matrices: CompliantRelation ties positions"):
        step_matrices(BackwardEuler(), soft, jnp.array(0.0), jnp.array(0.1), state)


def by_hand(problem, z0):
    """Equality rows: one linear system for the multipliers, `w(z) = 0`, which has no kinks to tilt."""
    shapes = [z.shape for z in z0]

    def parts(z):
        cuts = np.cumsum([k * c for k, c in shapes])[:-1]
        pieces = jnp.split(z, cuts)
        return tuple(p.reshape(shape) for p, shape in zip(pieces, shapes, strict=True))

    def velocity(z):
        load = problem.load(parts(z))
        return load if problem.matrix is None else jnp.linalg.solve(problem.matrix, load)

    def gap(z):
        return jnp.concatenate([w.reshape(-1) for w in problem.local(velocity(z))])

    start = jnp.zeros(sum(k * c for k, c in shapes))
    z = -jnp.linalg.solve(jax.jacfwd(gap)(start), gap(start))
    lane = jnp.zeros(())
    none = jnp.zeros((), jnp.int32)
    v, z = velocity(z), parts(z)
    return v, z, Statistics(lane, lane, none, lane, none, lane == 0), (v, z)


def test_few_contacts_of_a_large_system_keep_their_order():
    """Two laws of several rows and contacts each, condensed to ten unknowns and put together again."""
    n, rows = 14, [(3, 2), (2, 2)]
    matrix, rhs = spd(n) + 0.3 * RANDOM.normal(size=(n, n)), RANDOM.normal(size=n)
    blocks = []
    for i, (k, c) in enumerate(rows):
        output, own = RANDOM.normal(size=(2, k, n, c))
        own, offset = (None, own)[i], RANDOM.normal(size=(k, c))
        arrays = [None if x is None else jnp.asarray(x) for x in (output, own, offset)]
        blocks.append(Block(*arrays, Equality(), jnp.ones(c, bool)))
    problem = MixedProblem(jnp.asarray(matrix), jnp.asarray(rhs), tuple(blocks))
    start = tuple(jnp.zeros_like(b.offset) for b in blocks)
    v, z, _ = eqx.filter_jit(lambda p, z: solve_mixed(p, z, by_hand))(problem, start)
    np.testing.assert_allclose(matrix @ v, problem.load(z), atol=1e-12)
    for w in problem.local(v):
        np.testing.assert_allclose(w, 0, atol=1e-12)


@pytest.mark.slow
def test_modes_of_a_large_system_are_differentiable():
    """A chain of 16 masses against a wall: forward equals reverse equals differences."""
    n = 16
    stiffness = 1e3 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    stiffness[0, 0] = stiffness[-1, -1] = 1e3

    def end(scale):
        chain = LagrangianSystem.linear(np.eye(n), np.zeros((n, n)), scale * stiffness)
        wall = Interaction(GapRelation(lambda t, q: q[:1]), NewtonImpact(0.0))
        start = State(jnp.zeros(n), -jnp.ones(n))
        model = Model(chain, wall)
        s = simulate(model, MoreauJean(), 0.0, 0.05, 1e-3, start, saveat=SaveAt.end())
        return s.states.v[3]

    at = jnp.array(1.0)
    forward, reverse = eqx.filter_jit(lambda x: (jax.jacfwd(end)(x), jax.grad(end)(x)))(at)
    near = eqx.filter_jit(jax.vmap(end))(jnp.array([1 + 1e-5, 1 - 1e-5]))
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    np.testing.assert_allclose(forward, (near[0] - near[1]) / 2e-5, rtol=1e-6)
