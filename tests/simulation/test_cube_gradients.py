"""Gradients through contact: closed forms where there are some, forward against reverse, the trap."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

from diffnsd import models
from diffnsd.integrators import MoreauJean
from diffnsd.simulation import Checkpointed, SaveAt, simulate

DT = 1 / 148
FRICTION, SPEED, STEPS = 0.18, 1.0, 150


def tossed(parameters, state, steps, adjoint=None):
    mu, e, mass, inertia = parameters
    model = models.tossed_cube(mu, e, mass, inertia)
    return simulate(
        model, MoreauJean(theta=1.0), 0.0, steps * DT, DT, state, adjoint=adjoint, throw=False
    )


@pytest.fixture(scope="module")
def start():
    tilt = np.array([0.9, 0.2, -0.3, 0.1])
    return models.cube_state(
        np.array([0.0, 0.0, 0.09]),
        tilt / np.linalg.norm(tilt),
        np.array([1.1, 0.2, -0.4]),
        np.array([1.0, -3.0, 2.0]),
    )


PARAMETERS = tuple(jnp.array(x) for x in (0.18, 0.1, 0.37, 8.1e-4))


def final(inputs, steps=25, adjoint=None):
    solution = tossed(*inputs, steps, adjoint)
    pose = solution.states.q
    return jnp.sum(pose.position[-1] ** 2) + jnp.sum(pose.orientation[-1, 0] * jnp.arange(1.0, 5.0))


@pytest.fixture(scope="module")
def reverse_mode(start):
    return eqx.filter_jit(jax.value_and_grad(final))((PARAMETERS, start))


@pytest.mark.slow
def test_forward_equals_reverse_through_impacts(start, reverse_mode):
    inputs = (PARAMETERS, start)
    _, backward = reverse_mode
    leaves, tree = jax.tree.flatten(inputs)
    sizes = [x.size for x in leaves]
    flat = jnp.concatenate([x.reshape(-1) for x in leaves])

    def of_flat(x):
        parts = jnp.split(x, np.cumsum(sizes)[:-1])
        shaped = [p.reshape(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)]
        return final(jax.tree.unflatten(tree, shaped))

    forward = eqx.filter_jit(jax.jacfwd(of_flat))(flat)
    reverse = np.concatenate([np.ravel(x) for x in jax.tree.leaves(backward)])
    assert np.all(np.isfinite(reverse)) and np.abs(reverse).max() > 0.1
    scale = np.abs(reverse).max()
    # Measured: 1.2e-11 at a largest entry of 1281.
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.nightly
def test_checkpointing_changes_nothing(start, reverse_mode):
    segments = Checkpointed(segment_steps=6)
    parts = eqx.filter_jit(jax.value_and_grad(lambda x: final(x, adjoint=segments)))(
        (PARAMETERS, start)
    )
    assert float(reverse_mode[0]) == pytest.approx(float(parts[0]), abs=1e-14)
    for a, b in zip(jax.tree.leaves(reverse_mode[1]), jax.tree.leaves(parts[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_sliding_cube_distance_and_gradient_equal_the_rigid_slide():
    """Distance v²/(2 mu g) of a cube that slides on its face until it stops."""

    def distance(speed, mu):
        model = models.tossed_cube(mu, 0.0)
        velocity = speed * jnp.array([1.0, 0.0, 0.0])
        state = models.cube_state(
            jnp.array([0.0, 0.0, 0.0524]), jnp.array([1.0, 0, 0, 0]), velocity, jnp.zeros(3)
        )
        run = simulate(
            model, MoreauJean(theta=1.0), 0.0, STEPS * DT, DT, state, saveat=SaveAt.end()
        )
        return run.states.q.position[0, 0]

    value, (by_speed, by_mu) = eqx.filter_jit(jax.value_and_grad(distance, argnums=(0, 1)))(
        jnp.asarray(SPEED), jnp.asarray(FRICTION)
    )
    weight = 9.81 * FRICTION
    # Semi-implicit steps shorten the slide by v h / 2: 1.2 % of the distance here.
    assert float(value) == pytest.approx(SPEED**2 / (2 * weight) - SPEED * DT / 2, rel=1e-3)
    # Measured: 0.97 % and 0.75 %: first order in the step, one step a frame.
    assert float(by_speed) == pytest.approx(SPEED / weight, rel=1e-2)
    assert float(by_mu) == pytest.approx(-(SPEED**2) / (2 * weight * FRICTION), rel=1e-2)


def test_a_toss_keeps_the_laws(start):
    solution = eqx.filter_jit(lambda s: tossed(PARAMETERS, s, 120))(start)
    (impulse,), (gap,) = map(np.asarray, solution.impulses), map(np.asarray, solution.gaps)
    assert int(solution.stats.failed_step) == -1
    assert float(np.max(solution.stats.residual)) <= 1e-8
    friction = np.linalg.norm(impulse[..., 1:], axis=-1)
    assert np.all(friction <= 0.18 * impulse[..., 0] + 1e-9)
    # Measured 5e-8 m at one step per frame.
    assert gap.min() > -5e-4
    energy = np.asarray(solution.energy.total)
    assert np.all(np.diff(energy) <= 1e-6)
    assert energy[-1] < 0.7 * energy[0]


@eqx.debug.assert_max_traces(max_traces=1)
def _traced(mu):
    return simulate(
        models.sliding_block(mu=mu),
        MoreauJean(),
        0.0,
        0.1,
        1e-2,
        models.block_state(0.0, speed=1.0),
    ).states.v[-1]


def test_new_values_do_not_retrace():
    run = jax.jit(_traced)
    assert not np.allclose(run(0.2), run(0.3))


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="plain time stepping loses the derivative of the impact time at every step size "
    "(exact (0.5664, 4.2080), Moreau-Jean (1, 0))",
)
@pytest.mark.parametrize("dt", [1e-2, slow(1e-3)])
def test_plain_moreau_jean_derivative_through_an_impact(dt):
    def end(height):
        run = simulate(
            models.bouncing_ball(e=0.9),
            MoreauJean(),
            0.0,
            0.8,
            dt,
            models.ball_state(0.0, height=height),
        )
        return jnp.stack([run.states.q[-1, 0], run.states.v[-1, 0]])

    np.testing.assert_allclose(
        eqx.filter_jit(jax.jacfwd(end))(jnp.asarray(1.0)), [0.5664, 4.2080], rtol=0.05
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(dt=0.03), "not a whole number"),
        (dict(t1=float("nan")), "finite"),
        (dict(integrator=MoreauJean(theta=0.5)), "gap-stabilised"),
        (dict(quaternion=[2.0, 0.0, 0.0, 0.0]), "norm"),
        (dict(e=1.5), "restitution e must lie in"),
        (dict(mu=-0.1), "friction coefficient mu must lie in"),
        (dict(mass=-1.0), "masses must be positive"),
    ],
)
def test_bad_input_is_explained_before_compiling(change, sentence):
    known = {k: change[k] for k in ("mu", "e", "mass") if k in change}
    state = models.cube_state(
        np.array([0.0, 0.0, 0.2]),
        np.array(change.get("quaternion", [1.0, 0, 0, 0])),
        np.zeros(3),
        np.zeros(3),
    )
    with pytest.raises(ValueError, match=sentence):
        simulate(
            models.tossed_cube(**known),
            change.get("integrator", MoreauJean(theta=1.0)),
            0.0,
            change.get("t1", 0.1),
            change.get("dt", 0.01),
            state,
        )
