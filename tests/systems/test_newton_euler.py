"""Rigid bodies: Newton's and Euler's equations, conserved quantities, and checks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Model, Pose, State
from diffnsd.groups import PoseGroup, rotation_matrix
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

RANDOM = np.random.default_rng(1)


def inertia(seed):
    """An inertia matrix of a cloud of points: symmetric, within the triangle inequalities."""
    x = np.random.default_rng(seed).normal(size=(6, 3))
    return np.sum(x**2) * np.eye(3) - x.T @ x


MATRICES = np.stack([inertia(1), inertia(2)])


def state(bodies, seed=0):
    random = np.random.default_rng(seed)
    q = random.normal(size=(bodies, 4))
    pose = Pose(
        jnp.asarray(random.normal(size=(bodies, 3))),
        jnp.asarray(q / np.linalg.norm(q, axis=1, keepdims=True)),
    )
    return State(pose, jnp.asarray(random.normal(size=6 * bodies)))


def wrench(t, state, args):
    return jnp.stack([jnp.sin(jnp.arange(6.0) + t), args * jnp.arange(6.0)])


SYSTEMS = {
    "matrices": NewtonEulerSystem(np.array([1.5, 0.4]), MATRICES, gravity=(0.3, 0.0, -9.81)),
    "moments": NewtonEulerSystem(np.array([1.5, 0.4]), np.array([[1.0, 2.0, 2.5], [1, 1, 1]])),
    "pushed": NewtonEulerSystem(np.array([1.5, 0.4]), MATRICES, wrench),
}


@eqx.filter_jit
def evaluate(system, t, state, args):
    """Mass, force and, along the exact motion, the rates of momentum, spin and energy."""
    mass = system.mass(t, state.q)
    force = system.force(t, state, args)
    a = jnp.linalg.solve(mass, force)

    def quantities(s):
        q = PoseGroup(2).compose(state.q, PoseGroup(2).exp(s * state.v))
        now = State(q, state.v + s * a)
        m = system.momentum(t, now).reshape(2, 6)
        turned = jax.vmap(rotation_matrix)(q.orientation)
        spin = jnp.einsum("bij,bj->bi", turned, m[:, 3:])
        return m[:, :3], spin, system.kinetic(t, now), system.potential(t, q)

    value, rate = jax.jvp(quantities, (0.0,), (1.0,))
    return mass, force, value, rate, system.momentum(t, state)


@pytest.mark.parametrize("name", SYSTEMS)
def test_equations_of_motion(name):
    """In the world frame: force is the rate of momentum, torque that of spin, power of energy."""
    system, now, args = SYSTEMS[name], state(2), jnp.asarray(0.7)
    t = jnp.asarray(0.2)
    mass, force, value, rate, momentum = jax.tree.map(np.asarray, evaluate(system, t, now, args))
    applied = np.zeros((2, 6)) if name != "pushed" else np.asarray(wrench(t, now, args))
    gravity = np.asarray(system.gravity)
    world = np.stack([np.asarray(rotation_matrix(q)) for q in now.q.orientation])
    v = np.asarray(now.v).reshape(2, 6)

    weight = np.array([1.5, 0.4])[:, None] * gravity
    np.testing.assert_allclose(rate[0], weight + applied[:, :3], rtol=0, atol=1e-13)
    torque = np.einsum("bij,bj->bi", world, applied[:, 3:])
    np.testing.assert_allclose(rate[1], torque, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rate[2] + rate[3], np.sum(applied * v), rtol=0, atol=1e-12)

    np.testing.assert_allclose(mass @ now.v, momentum, rtol=0, atol=1e-13)
    np.testing.assert_allclose(value[2], np.asarray(now.v) @ mass @ now.v / 2, rtol=1e-13)
    np.testing.assert_allclose(value[3], -np.sum(weight * np.asarray(now.q.position)), rtol=1e-13)
    # Euler's equations in the body frame.
    moments = [mass[3:6, 3:6], mass[9:, 9:]]
    for b in range(2):
        euler = -np.cross(v[b, 3:], moments[b] @ v[b, 3:]) + applied[b, 3:]
        np.testing.assert_allclose(force[6 * b + 3 : 6 * b + 6], euler, rtol=0, atol=1e-13)


def test_a_number_a_vector_and_a_matrix_of_inertia_agree():
    now = state(1)
    forms = [2.0, np.full(3, 2.0), np.eye(3) * 2, np.full((1, 3), 2.0), np.eye(3)[None] * 2]
    masses = [1.2, 1.2, 1.2, np.array([1.2]), np.array([1.2])]
    for mass, form in zip(masses, forms, strict=True):
        system = NewtonEulerSystem(mass, form)
        np.testing.assert_allclose(
            system.mass(jnp.asarray(0.0), now.q), np.diag([1.2] * 3 + [2.0] * 3), rtol=1e-15
        )
        assert system.check() is None


def test_a_point_mass_in_both_descriptions():
    """The translation of a rigid body is a Lagrangian system with the same force and energy."""
    body = NewtonEulerSystem(1.2, 2.0)
    point = LagrangianSystem(1.2 * np.eye(3), f_ext=1.2 * np.array([0, 0, -9.81]))
    now, t = state(1), jnp.asarray(0.0)
    moving = State(now.q.position[0], now.v[:3])
    still = State(now.q, now.v.at[3:].set(0))
    np.testing.assert_allclose(body.force(t, still, None)[:3], point.force(t, moving, None))
    np.testing.assert_allclose(body.kinetic(t, still), point.kinetic(t, moving))
    np.testing.assert_allclose(body.potential(t, still.q), point.potential(t, moving.q))


@pytest.mark.parametrize(
    ("mass", "form", "gravity", "words"),
    [
        (np.ones(2), np.ones(3), (0, 0, 1), r"masses has shape \(2,\) and inertia \(3,\)"),
        (1.0, np.ones((2, 3)), (0, 0, 1), r"inertia \(2, 3\)"),
        (np.ones((2, 2)), np.ones((2, 3)), (0, 0, 1), r"masses has shape \(2, 2\)"),
        (np.ones(0), np.ones((0, 3)), (0, 0, 1), "one body at least"),
        (1.0, 1.0, -9.81, r"gravity must have shape \(3,\), got \(\)"),
    ],
)
def test_shapes_that_are_refused(mass, form, gravity, words):
    with pytest.raises(ValueError, match=words):
        NewtonEulerSystem(mass, form, gravity=gravity)


@pytest.mark.parametrize(
    ("mass", "form", "words"),
    [
        (0.0, 1.0, "masses must be positive"),
        (np.array([1.0, -2.0]), np.ones((2, 3)), "masses must be positive"),
        (1.0, (1.0, 1.0, 2.5), "triangle inequality"),
        (1.0, (1.0, 1.0, 0.0), "not positive definite"),
        (1.0, np.diag([1.0, 1.0, -1.0]), "not positive definite"),
        (1.0, np.eye(3) + np.triu(np.ones((3, 3)), 1), "not finite and symmetric"),
        (1.0, (1.0, np.inf, 1.0), "not finite and symmetric"),
    ],
)
def test_what_is_wrong_with_a_body(mass, form, words):
    assert words in NewtonEulerSystem(mass, np.asarray(form)).check()


def test_a_flat_body_is_on_the_edge_and_allowed():
    assert NewtonEulerSystem(1.0, (1.0, 2.0, 3.0)).check() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: State(s.q, s.v[:5]), "v has shape (5,), expected (6,)"),
        (lambda s: State(s.q, s.v.at[0].set(jnp.nan)), "not finite"),
        (lambda s: State(s.q.position, s.v), "Pose(position, orientation)"),
        (lambda s: State(Pose(s.q.position, 2 * s.q.orientation), s.v), "norm 2"),
    ],
)
def test_a_model_checks_its_state(change, words):
    model = Model(NewtonEulerSystem(1.0, 1.0))
    assert model.check(state(1)) is None
    assert words in model.check(change(state(1)))
