"""Derivatives of many tosses against central differences, where these have a meaning.

Within one pattern of contacts (which corner carries at which step, and whether it sticks) a toss is
a smooth function of everything; across a change of pattern a difference measures something else.
"""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

from diffnsd import RESULTS, Auto, Interaction, Model, MoreauJean, simulate
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.models import cube_state, tossed_cube
from diffnsd.relations import BodyPointsPlane
from diffnsd.systems import NewtonEulerSystem

LANES, STEPS, H = 200, 40, 1 / 296
WIDTHS = 1e-6, 1e-7, 1e-8
# Tight, but slips of 1e-11 m/s that the corners of a face would need are not resolved.
SOLVER = Auto(tolerance=1e-13, accept_tolerance=1e-9)


def toss(parameters):
    """A number made of the last state, and the pattern of the contacts."""
    mu, e, mass, inertia, start = parameters
    law = GapStabilized(CoulombFriction(mu, e))
    model = tossed_cube(mass=mass, inertia=inertia, law=law)
    integrator = MoreauJean(theta=1.0, solver=SOLVER)
    out = simulate(model, integrator, 0.0, STEPS * H, H, start, throw=False)
    last = jax.tree.map(lambda x: x[-1], out.states)
    weights = jnp.cos(jnp.arange(6.0))
    value = (
        jnp.sum(last.q.position[0] * weights[:3])
        + jnp.sum(last.q.orientation[0] * weights[:4])
        + 0.05 * jnp.sum(last.v * weights)
    )
    impulse = out.impulses[0]
    size = jnp.sqrt(jnp.sum(impulse[..., 1:] ** 2, axis=-1))
    # A contact that closes within the step rebounds, any other one lands.
    relation, group = model.interactions[0].relation, model.system.group
    u = jax.vmap(lambda state: relation.output(group, 0.0, state, None))(out.states)
    closing = out.gaps[0] + H * u[..., 0] <= 0
    pattern = jnp.stack([impulse[..., 0] > 1e-8, size < mu * impulse[..., 0] - 1e-8, closing])
    stats = out.stats
    ok = out.result == RESULTS.successful
    return value, (pattern, jnp.min(stats.margin), jnp.max(stats.residual), ok)


@pytest.fixture(scope="module")
def evaluate():
    return eqx.filter_jit(jax.vmap(jax.value_and_grad(toss, has_aux=True)))


@pytest.fixture(scope="module")
def parameters():
    random = np.random.default_rng(2)
    q = random.normal(size=(LANES, 4))
    start = jax.vmap(cube_state)(
        *map(
            jnp.asarray,
            (
                np.array([0, 0, 0.08]) + np.zeros((LANES, 3)),
                q / np.linalg.norm(q, axis=1, keepdims=True),
                random.normal(size=(LANES, 3)) * 0.7 + [0, 0, -1.0],
                random.normal(size=(LANES, 3)) * 5,
            ),
        )
    )
    # Friction and restitution at their bounds in two lanes: the derivatives stay finite.
    mu, e = np.linspace(0.05, 0.6, LANES), np.linspace(0.0, 0.4, LANES)
    mu[1], e[2] = 0.0, 1.0
    mass, inertia = np.full(LANES, 0.37), np.full(LANES, 8.1e-4)
    return *map(jnp.asarray, (mu, e, mass, inertia)), start


def flat(tree):
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(LANES, -1) for x in leaves], axis=1)


@pytest.mark.slow
def test_gradients_equal_central_differences(evaluate, parameters):
    (_, (pattern, margin, residual, successful)), gradient = evaluate(parameters)
    assert np.all(successful) and np.max(residual) <= 1e-9
    assert np.all(np.isfinite(flat(gradient)))
    loaded = np.asarray(pattern)[:, 0]
    assert np.sum(np.any(loaded, axis=(1, 2))) >= 190  # nearly every toss lands

    sizes = (0.3, 0.3, 0.3, 8e-4, jax.tree.map(lambda x: 1.0, parameters[4]))
    # Four corners of a face that slides: how they share the load, and where the face spins, the motion, is
    # the choice of least norm, and its derivative.
    redundant = np.any(np.sum(loaded, axis=2) >= 4, axis=1)
    margin = np.asarray(margin)
    for seed in range(2):
        random = np.random.default_rng(seed)
        direction = jax.tree.map(
            lambda x, size, r=random: jnp.asarray(size * r.normal(size=x.shape)), parameters, sizes
        )
        tangent = np.sum(flat(gradient) * flat(direction), axis=1)
        scale = np.linalg.norm(flat(gradient) * flat(direction), axis=1)
        best = np.full(LANES, np.inf)
        for width in WIDTHS:
            (plus, (above, *_)), (minus, (below, *_)) = (
                evaluate(jax.tree.map(lambda x, d, s=s: x + s * d, parameters, direction))[0]
                for s in (width, -width)
            )
            same = np.all(np.asarray(above == below) & np.asarray(above == pattern), axis=(1, 2, 3))
            same[0:3] = False  # a difference across the bounds of mu and e
            error = np.abs(tangent - np.asarray(plus - minus) / (2 * width)) / scale
            best = np.where(same, np.minimum(best, error), best)
        compared = (margin > 1e-6) & (best < np.inf)
        # Measured: 178 tosses, 23 of them redundant. At most two of a direction are beyond 1e-5, up to 1e-3,
        # and which ones depends on the compiler: rounding changes the share of a load by 1e-9 of it.
        assert np.sum(compared) >= 165 and np.sum(compared & redundant) >= 15
        assert np.sum(best[compared] > 1e-5) <= 2 and np.max(best[compared]) < 1e-2
        assert np.median(best[compared]) < 1e-7


@pytest.mark.nightly
def test_forward_equals_reverse(evaluate, parameters):
    (_, (_, margin, *_)), gradient = evaluate(parameters)
    random = np.random.default_rng(0)
    direction = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape)), parameters)
    push = eqx.filter_jit(jax.vmap(lambda p, d: jax.jvp(lambda p: toss(p)[0], (p,), (d,))[1]))
    forward, terms = push(parameters, direction), flat(gradient) * flat(direction)
    error = np.abs(forward - np.sum(terms, axis=1)) / np.linalg.norm(terms, axis=1)
    # Two programs differ by rounding, which decides the side within a margin of 1e-8.
    clear = np.asarray(margin) > 1e-6
    # Measured: 4e-9 to 3e-8 at worst, as the compiler rounds, where contacts are redundant.
    assert np.sum(clear) >= 168 and np.max(error[clear]) < 6e-8


@pytest.mark.nightly
def test_a_second_of_clear_steps(parameters):
    """150 steps, until most cubes rest on a face: the same motion for 4 and 8 candidates, and derivatives."""
    h = 1 / 148

    def states(parameters, max_active: int | None = 4):
        mu, e, mass, inertia, start = parameters
        law = GapStabilized(CoulombFriction(mu, e))
        system = tossed_cube(mass=mass, inertia=inertia, law=law, max_active=max_active)
        integrator = MoreauJean(theta=1.0, solver=SOLVER)
        out = simulate(system, integrator, 0.0, 150 * h, h, start, throw=False)
        q, v = out.states.q, out.states.v
        return jnp.concatenate([q.position[:, 0], q.orientation[:, 0], 0.05 * v], axis=1), out.stats

    random = np.random.default_rng(0)
    sizes = (0.3, 0.3, 0.3, 8e-4, jax.tree.map(lambda x: 1.0, parameters[4]))
    direction = jax.tree.map(
        lambda x, size: jnp.asarray(size * random.normal(size=x.shape)), parameters, sizes
    )
    push = jax.vmap(lambda p, d: jax.jvp(states, (p,), (d,), has_aux=True))
    value, tangent, stats = eqx.filter_jit(push)(parameters, direction)
    tangent, margin = np.asarray(tangent), np.asarray(stats.margin)
    flagged = margin < 1e-6
    edge = np.where(np.any(flagged, axis=1), np.argmax(flagged, axis=1), 150)
    # Measured: 99 tosses without a step at an edge, 474 of 30,000 steps at one.
    clear = edge == 150
    assert np.sum(clear) >= 95 and np.sum(flagged) < 500
    assert "within 1e-06 of a change of mode" in "".join(stats.warnings)

    every = eqx.filter_jit(jax.vmap(lambda p: states(p, None)[0]))
    # Measured: the largest difference of clear tosses is below 1e-8, of all 5e-6.
    apart = np.max(np.abs(np.asarray(every(parameters)) - np.asarray(value)), axis=(1, 2))
    assert np.max(apart[clear]) < 1e-8 and np.sum(apart < 1e-8) >= 185

    before = np.arange(151)[None] <= edge[:, None]
    best, run = np.full(before.shape, np.inf), eqx.filter_jit(jax.vmap(lambda p: states(p)[0]))
    for width in (1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        ends = (
            np.asarray(run(jax.tree.map(lambda x, d, s=s: x + s * d, parameters, direction)))
            for s in (width, -width)
        )
        difference = np.subtract(*ends) / (2 * width)
        size = np.maximum(np.linalg.norm(tangent, axis=2), 1e-3)
        best = np.minimum(best, np.linalg.norm(difference - tangent, axis=2) / size)
    worst = np.max(np.where(before, best, 0), axis=1)[3:]  # the first ones have bounds of mu and e
    # Measured: 191 of 197 to 1e-5, the worst to 9e-5, where the last digits of the values end. Steps in which
    # one edge lands as the other one rebounds are flagged: the share of the load jumps there.
    assert np.sum(worst <= 1e-5) >= 178 and np.all(worst <= 1e-3)


FACE_STEPS = 40
TILT = np.array([0.92338052, 0.30779351, -0.20519567, 0.10259784])
THROWN = np.array([1.0, 0.5, -1.0, 3.0, -2.0, 4.0, 0.18])  # velocity, angular velocity, friction


@pytest.fixture(scope="module")
def onto_a_face():
    """All states of a toss that lands on one corner and then on a face, by its number of candidates.

    With their derivatives by `THROWN`, those by reverse mode of a random sum of them, and what the run says.
    """
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(FACE_STEPS + 1, 13)))

    def states(x, max_active):
        model = tossed_cube(x[6], 0.0, 0.37, 0.00081, 0.0524, max_active=max_active)
        start = cube_state(np.array([0, 0, 0.25]), TILT / np.linalg.norm(TILT), x[:3], x[3:6])
        method, h = MoreauJean(theta=1.0), 1 / 148
        out = simulate(model, method, 0.0, FACE_STEPS * h, h, start, throw=False)
        pose = out.states.q
        found = jnp.concatenate([pose.position[:, 0], pose.orientation[:, 0], out.states.v], axis=1)
        return found, (found, out)

    @functools.cache
    def programs(max_active):
        forward = eqx.filter_jit(jax.jacfwd(lambda x: states(x, max_active), has_aux=True))
        reverse = eqx.filter_jit(jax.grad(lambda x: jnp.sum(weights * states(x, max_active)[0])))
        return forward, reverse

    return weights, programs


@pytest.mark.slow
@pytest.mark.parametrize("max_active", [4, nightly(6), nightly(None)])
def test_a_toss_onto_a_face(onto_a_face, max_active):
    """Four corners close from step 26 on: the motion, its derivatives and their transposes go on past it.

    The derivative is that of the steps, so differences of them are its truth: of fourth order, since their
    widths are bounded below by the tolerance of the solver.
    """
    weights, programs = onto_a_face
    forward, reverse = programs(max_active)
    x = jnp.asarray(THROWN)
    slopes, (value, out) = forward(x)
    corners = np.sum(np.asarray(out.impulses[0])[..., 0] > 1e-9, axis=1)
    assert out.result == RESULTS.successful and out.message == ""
    assert np.max(corners[:24]) == 1 and np.all(corners[26:] == 4)

    near, far = (
        np.stack(
            [
                (forward(x + d)[1][0] - forward(x - d)[1][0]) / (2 * width)
                for d in width * np.eye(7)
            ],
            axis=-1,
        )
        for width in (1e-4, 2e-4)
    )
    apart = np.max(np.abs((4 * near - far) / 3 - slopes), axis=(1, 2))
    apart = apart / np.max(np.abs(slopes), axis=(1, 2))
    # Measured: 1.4e-10 before, 2.6e-7 after, of which most is the tolerance of the solver over the widths.
    assert np.max(apart[:26]) < 1e-8 and np.max(apart) < 1e-5
    backward = np.einsum("ti,tip->p", weights, slopes)
    # Measured: 5e-11 of the largest entry.
    np.testing.assert_allclose(reverse(x), backward, atol=1e-9 * np.max(np.abs(backward)))

    # Measured: 0 between 4 and 6 candidates, 4e-11 and 2e-12 of all.
    others, (motion, _) = programs(4)[0](x)
    np.testing.assert_allclose(value, motion, rtol=0, atol=1e-8)
    np.testing.assert_allclose(slopes, others, rtol=0, atol=1e-8 * np.max(np.abs(others)))


@pytest.mark.nightly
def test_a_toss_in_single_precision():
    """Single precision throughout, to its own tolerance, with finite derivatives."""
    single = functools.partial(jnp.asarray, dtype=jnp.float32)
    corners = 0.0524 * np.array(list(itertools.product((-1.0, 1.0), repeat=3)))

    def reached(mu, mass, spin):
        system = NewtonEulerSystem(mass, 2e-3 * mass)
        law = GapStabilized(CoulombFriction(mu, 0.2))
        model = Model(system, Interaction(BodyPointsPlane(single(corners)), law, max_active=4))
        start = cube_state(
            single([0.0, 0.0, 0.08]),
            single([0.5, 0.5, -0.5, 0.5]),
            single([0.4, 0.1, -0.8]),
            spin,
        )
        out = simulate(model, MoreauJean(theta=1.0), 0.0, STEPS * H, H, start, throw=False)
        return jnp.sum(out.states.q.position[-1, 0]), out

    run = eqx.filter_jit(jax.value_and_grad(reached, argnums=(0, 1, 2), has_aux=True))
    (_, out), gradient = run(single(0.3), single(0.37), single([1.0, -2.0, 0.5]))
    leaves = jax.tree.leaves((out.states, out.impulses, out.gaps, out.energy, gradient))
    assert {x.dtype for x in leaves} == {jnp.dtype("float32")}
    assert all(np.all(np.isfinite(x)) for x in leaves)
    assert out.result == RESULTS.successful
    assert np.max(out.stats.residual) <= 1e-5
    assert np.any(np.asarray(out.impulses[0]) > 0.01)
    assert np.min(out.gaps[0]) > -1e-3
