"""Systems in generalised coordinates against equations derived by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import State
from diffnsd.systems import LagrangianSystem

M1, M2, L1, L2, G = 1.3, 0.7, 0.9, 1.4, 9.81


def lagrangian(q, v):
    """Double pendulum, absolute angles from the downward vertical."""
    kinetic = (
        (M1 + M2) * L1**2 * v[0] ** 2 / 2
        + M2 * L2**2 * v[1] ** 2 / 2
        + M2 * L1 * L2 * v[0] * v[1] * jnp.cos(q[0] - q[1])
    )
    potential = -(M1 + M2) * G * L1 * jnp.cos(q[0]) - M2 * G * L2 * jnp.cos(q[1])
    return kinetic - potential


def by_hand(q, v):
    """Mass matrix and force of the double pendulum (textbook)."""
    c, s = np.cos(q[0] - q[1]), np.sin(q[0] - q[1])
    mass = np.array([[(M1 + M2) * L1**2, M2 * L1 * L2 * c], [M2 * L1 * L2 * c, M2 * L2**2]])
    force = -M2 * L1 * L2 * s * np.array([v[1] ** 2, -(v[0] ** 2)]) - np.array(
        [(M1 + M2) * G * L1 * np.sin(q[0]), M2 * G * L2 * np.sin(q[1])]
    )
    return mass, force


def forcing(t, state, args):
    q, v = state.q, state.v
    return args * jnp.stack([-0.3 * v[0] + jnp.sin(t), 0.2 * q[0] * q[1]])


ARGS = jnp.asarray(1.5)


@pytest.fixture(scope="module")
def evaluate():
    """Mass, force and the rate of the energy along the exact acceleration."""

    @eqx.filter_jit
    def run(system, t, q, v):
        mass = system.mass(t, q)
        force = system.force(t, State(q, v), ARGS)
        a = jnp.linalg.solve(mass, force)

        def energy(q, v):
            return system.kinetic(t, State(q, v)) + system.potential(t, q)

        total, rate = jax.jvp(energy, (q, v), (v, a))
        return mass, force, total, rate, system.momentum(t, State(q, v))

    return lambda *args: jax.tree.map(np.asarray, run(*args))


STATES = np.random.default_rng(0).normal(size=(5, 2, 2)) * 2


def test_double_pendulum_against_the_hand_equations(evaluate):
    system = LagrangianSystem.from_lagrangian(lagrangian, n=2)
    for q, v in STATES:
        mass, force, total, rate, momentum = evaluate(
            system, jnp.asarray(0.0), jnp.asarray(q), jnp.asarray(v)
        )
        hand_mass, hand_force = by_hand(q, v)
        np.testing.assert_allclose(mass, hand_mass, rtol=0, atol=1e-14)
        np.testing.assert_allclose(force, hand_force, rtol=0, atol=1e-13)
        kinetic = v @ hand_mass @ v / 2
        potential = -(M1 + M2) * G * L1 * np.cos(q[0]) - M2 * G * L2 * np.cos(q[1])
        np.testing.assert_allclose(total, kinetic + potential, rtol=1e-13)
        np.testing.assert_allclose(momentum, hand_mass @ v, rtol=1e-12)
        assert abs(rate) < 1e-12  # energy is conserved; measured 7e-15


def test_power_balance_of_a_forced_system(evaluate):
    system = LagrangianSystem.from_lagrangian(lagrangian, forcing, n=2)
    t = jnp.asarray(0.4)
    for q, v in STATES:
        q, v = jnp.asarray(q), jnp.asarray(v)
        _, force, _, rate, _ = evaluate(system, t, q, v)
        applied = np.asarray(forcing(t, State(q, v), ARGS))
        np.testing.assert_allclose(force, by_hand(q, v)[1] + applied, rtol=0, atol=1e-13)
        np.testing.assert_allclose(rate, v @ applied, rtol=0, atol=1e-12)


def test_signs_of_the_forces():
    """`M v' + F_gyr + F_int = F_ext - dV/dq`."""
    system = LagrangianSystem(
        np.diag([2.0, 3.0]),
        f_int=lambda t, q, v: 4.0 * q + 5.0 * v + t,
        f_ext=lambda t: jnp.stack([7.0 * t, 1.0 + 0 * t]),
        f_gyr=lambda q, v: v[0] * q,
        potential_energy=lambda q: jnp.sum(q**3),
    )
    q, v, t = np.array([0.3, -0.5]), np.array([2.0, 1.0]), 0.1
    force = system.force(jnp.asarray(t), State(jnp.asarray(q), jnp.asarray(v)), None)
    expected = np.array([0.7, 1.0]) - (4 * q + 5 * v + t) - 2 * q - 3 * q**2
    np.testing.assert_allclose(force, expected, rtol=1e-14)


def test_potential_energy_of_a_constant_force_and_of_a_function():
    weight = np.array([0.0, -9.81])
    system = LagrangianSystem(np.eye(2), f_ext=weight, potential_energy=lambda q: q[0] ** 2)
    q = jnp.array([2.0, 3.0])
    np.testing.assert_allclose(system.potential(jnp.asarray(0.0), q), 4 + 9.81 * 3)
    # The work of a force that changes with time is not a potential.
    driven = LagrangianSystem(np.eye(2), f_ext=lambda t: jnp.ones(2) * t)
    assert driven.potential(jnp.asarray(0.0), q) == 0


def test_parameters_are_leaves():
    class Spring(eqx.Module):
        stiffness: jax.Array

        def __call__(self, t, q, v):
            return self.stiffness * q

    def force(stiffness):
        system = LagrangianSystem(np.eye(1), f_int=Spring(stiffness))
        return system.force(jnp.asarray(0.0), State(jnp.array([3.0]), jnp.zeros(1)), None)[0]

    assert jax.grad(force)(jnp.asarray(2.0)) == -3


@pytest.mark.parametrize(
    ("mass", "n", "words"),
    [
        (np.ones((2, 3)), None, r"shape \(n, n\), got \(2, 3\)"),
        (np.ones(2), None, r"shape \(n, n\), got \(2,\)"),
        (lambda q: q, None, "give the dimension"),
        (lambda q: q, 0, "a coordinate at least"),
        (np.zeros((0, 0)), None, "a coordinate at least"),
        (np.eye(2), 3, r"n=3, but mass_matrix has shape \(2, 2\)"),
        (np.diag([1.0, 0.0]), None, r"not positive definite \(smallest eigenvalue 0\)"),
        (np.diag([1.0, -2.0]), None, r"not positive definite \(smallest eigenvalue -2\)"),
        ([[-1.0]], None, "not positive definite"),
        (np.array([[1.0, 0.5], [0.4, 1.0]]), None, "not symmetric"),
        (np.diag([1.0, np.nan]), None, "not finite"),
    ],
)
def test_masses_that_are_refused(mass, n, words):
    with pytest.raises(ValueError, match=words):
        LagrangianSystem(mass, n=n)


def test_what_is_wrong_with_a_mass_matrix():
    """Also where a leaf was replaced after the system was made, and of a function at a state."""
    good = LagrangianSystem(np.eye(2))
    bad = eqx.tree_at(lambda s: s.mass_matrix, good, jnp.diag(jnp.array([1.0, -2.0])))
    assert "not positive definite (smallest eigenvalue -2)" in bad.check()
    falling = LagrangianSystem(lambda q: [[q[0]]], n=1)
    assert falling.check() is None and falling.check(jnp.array([0.5])) is None
    words = "the mass matrix at the initial configuration is not positive definite"
    assert words in falling.check(jnp.array([-1.0]))
    kinetic = LagrangianSystem.from_lagrangian(lambda q, v: -(v[0] ** 2) / 2, n=1)
    assert "d²L/dv² at the initial configuration" in kinetic.check(jnp.ones(1))
    # Under `jit` the state is not known, and nothing is said.
    jax.eval_shape(lambda q: (_ for _ in ()).throw(AssertionError) if falling.check(q) else q, 1.0)


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (lambda: LagrangianSystem(np.eye(3), f_ext=[-9.81]), r"f_ext must have shape \(3,\)"),
        (lambda: LagrangianSystem(np.eye(3), f_ext=-9.81), r"f_ext must have shape \(3,\), got"),
    ],
)
def test_forces_that_would_be_broadcast(system, words):
    with pytest.raises(ValueError, match=words):
        system()


@pytest.mark.parametrize(
    "forces",
    [
        dict(f_ext=lambda t: jnp.ones(1)),
        dict(f_int=lambda t, q, v: jnp.ones(1)),
        dict(f_gyr=lambda q, v: 1.0),
        dict(forcing=lambda t, state, args: jnp.ones(1)),
    ],
)
def test_functions_whose_value_would_be_broadcast(forces):
    system, start = LagrangianSystem(np.eye(2), **forces), State(jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(ValueError, match=rf"{next(iter(forces))}.* must have shape \(2,\), got"):
        system.force(jnp.asarray(0.0), start, None)


def test_exogenous_inputs_reach_the_force():
    def push(t, state, args):
        return args["push"] * state.v + t

    start = State(jnp.zeros(2), jnp.array([1.0, 2.0]))
    system = LagrangianSystem(np.eye(2), forcing=push)
    force = system.force(jnp.asarray(0.5), start, dict(push=3.0))
    np.testing.assert_allclose(force, [3.5, 6.5], rtol=1e-15)


def test_a_lagrangian_is_stored_once():
    """A parameter of the Lagrangian is one leaf: a derivative with respect to it is complete."""

    class Spring(eqx.Module):
        stiffness: jax.Array

        def __call__(self, q, v):
            return v[0] ** 2 / 2 - self.stiffness * q[0] ** 2 / 2

    system = LagrangianSystem.from_lagrangian(Spring(jnp.asarray(2.0)), n=1)
    assert len(jax.tree.leaves(eqx.filter(system, eqx.is_array))) == 1
    slope = eqx.filter_grad(
        lambda s: (
            s.force(0.0, State(jnp.array([3.0]), jnp.zeros(1)), None)[0]
            + 10 * s.potential(0.0, jnp.array([1.0]))
        )
    )(system)
    assert slope.lagrangian.stiffness == -3 + 5


def test_nothing_is_wrong_with_a_mass_matrix():
    assert LagrangianSystem(np.array([[2.0, 1.0], [1.0, 1.0]])).check() is None
    assert LagrangianSystem(np.diag([1e-12, 1.0])).check() is None
    assert LagrangianSystem(lambda q: jnp.eye(2), n=2).check() is None
