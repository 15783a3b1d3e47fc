"""The reference: sensitivities to rounding, contacts that persist and are released, and its limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from impacts import PROBLEMS, final, program
from marks import nightly
from oracles import ball

from diffnsd import EventDriven, Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd.laws import NewtonImpact
from diffnsd.models import ball_state, bouncing_ball, sliding_block
from diffnsd.relations import GapRelation
from diffnsd.systems import LagrangianSystem

REFERENCE = EventDriven()
SMOOTH = [
    name
    for name, motion in PROBLEMS.items()
    if REFERENCE.supports(motion.build(np.asarray(motion.x), lambda law: law)[0]) is None
    and name not in ("ball, thirty impacts", "bounces to rest")  # too many for a step, see below
]


@pytest.mark.slow
# The others repeat in kind what the ball proves.
@pytest.mark.parametrize("name", [n if n.startswith("ball") else nightly(n) for n in SMOOTH])
def test_sensitivities_are_exact(name):
    """In one step from the start to the end."""
    problem = PROBLEMS[name]
    value, slopes, ok = program(problem.build, REFERENCE)(
        jnp.asarray(problem.x), jnp.asarray(problem.end), jnp.asarray(1)
    )
    errors = problem.compare((value, slopes))
    # Measured at most 9e-15 and 3e-15; 4e-13 and 1.4e-12 on the pendulum, 7e-13 of sliders. Joints drift by
    # the error of the solver: 1e-10 and 5e-11 of the four-bar linkage, 2e-11 and 7e-12 of its tree.
    limit = 1e-9 if name.startswith("four-bar") else 1e-11
    assert ok and errors[0] < limit and errors[1] < 10 * limit


@pytest.fixture(scope="module")
def bouncing():
    return program(ball, REFERENCE)


@pytest.mark.slow
def test_steps_do_not_matter(bouncing):
    problem = PROBLEMS["ball, four impacts"]
    value, slopes, ok = bouncing(jnp.asarray(problem.x), jnp.asarray(problem.end), jnp.asarray(19))
    errors = problem.compare((value, slopes))
    assert ok and errors[0] < 1e-11 and errors[1] < 1e-10


@pytest.mark.nightly
def test_thirty_impacts(bouncing):
    """In steps with room for the 16 of each, and in one that has too little, which says so."""
    problem = PROBLEMS["ball, thirty impacts"]
    value, slopes, ok = bouncing(jnp.asarray(problem.x), jnp.asarray(problem.end), jnp.asarray(14))
    errors = problem.compare((value, slopes))
    # Measured: 5e-12 and 4e-14.
    assert ok and errors[0] < 1e-11 and errors[1] < 1e-10
    model, state = problem.build(jnp.asarray(problem.x), lambda law: law)
    run = simulate(model, REFERENCE, 0.0, problem.end, problem.end / 2, state)
    assert int(run.stats.located.sum()) == 10 + 16
    assert run.message.startswith("the times of 1 impacts or turns of friction were not located")


@pytest.mark.slow
def test_a_sequence_that_is_all_but_over_is_cut_off_in_silence():
    """Of e = 0.5, after impacts at 2e-5 of the first speed."""
    run = simulate(bouncing_ball(e=0.5), REFERENCE, 0.0, 2.0, 2.0, State(jnp.ones(1), jnp.zeros(1)))
    assert run.message == "" and int(run.stats.located.sum()) == 16


@pytest.mark.slow
def test_the_end_of_a_bounce_sequence(bouncing):
    """With e = 0.5 all bounces are over after 1.36 s; the ball is then held on the ground."""
    value, slopes, ok = bouncing(jnp.array([1.0, 0.0, 0.5, 9.81]), jnp.asarray(2.0), jnp.asarray(1))
    assert ok
    np.testing.assert_allclose(value, 0, atol=1e-9)
    assert np.all(np.isfinite(slopes))


@pytest.mark.nightly
def test_reverse_mode_second_derivatives_and_batches():
    problem = PROBLEMS["ball, two impacts"]
    run = final(problem, REFERENCE, 1.2)
    x, d = jnp.asarray(problem.x), jnp.array([0.3, -0.2, 0.1, 0.5])
    known = jax.jacfwd(problem.exact)(x)
    np.testing.assert_allclose(eqx.filter_jit(jax.jacrev(run))(x), known, rtol=1e-9, atol=1e-12)

    def product(run):
        return jax.jvp(lambda x: jax.jvp(run, (x,), (d,))[1], (x,), (d,))[1]

    found = eqx.filter_jit(lambda: product(run))()
    np.testing.assert_allclose(found, product(problem.exact), rtol=1e-8)

    heights = jnp.linspace(0.3, 2.0, 5)
    lanes = jnp.stack([x.at[0].set(height) for height in heights])
    values = jax.vmap(lambda x: jnp.concatenate([(s := ball_state(1.2, *x)).q, s.v]))(lanes)
    np.testing.assert_allclose(eqx.filter_jit(jax.vmap(run))(lanes), values, atol=1e-11)


def _orbit(x, until):
    """From the farthest point of an orbit, beside a plane that is out of reach, in one step."""
    system = LagrangianSystem(jnp.eye(2), f_int=_gravity)
    model = Model(system, Interaction(GapRelation(_beside), NewtonImpact(0.5)))
    start = State(jnp.stack([x[0], 0 * x[0]]), jnp.stack([0 * x[1], x[1]]))
    state = simulate(model, REFERENCE, 0.0, until, until, start, saveat=SaveAt.end()).states
    return jnp.concatenate([state.q, state.v])


def _gravity(t, q, v):
    del t, v
    return q / (q @ q) ** 1.5


def _beside(t, q):
    del t
    return q[1:] + 5.0


def _orbit_exactly(x, until):
    """Kepler's equation `E − e sin E = n t + π`."""
    far, fast = x
    a = 1 / (2 / far - fast**2)
    e, n = far / a - 1, a**-1.5
    angle = n * until + jnp.pi
    for _ in range(30):
        angle = angle - (angle - e * jnp.sin(angle) - n * until - jnp.pi) / (1 - e * jnp.cos(angle))
    aside, rate = jnp.sqrt(1 - e * e), n / (1 - e * jnp.cos(angle))
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return a * jnp.stack([e - cos, -aside * sin, rate * sin, -rate * aside * cos])


@pytest.mark.nightly
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_many_steps_of_the_solver(mode):
    """Twice past the centre in many steps, which reverse mode makes again in groups of 16."""
    x, until = jnp.array([1.0, 0.6]), 6.0
    found = eqx.filter_jit(mode(lambda x: _orbit(x, until)))(x)
    # Measured: 3e-9 of 11, and 6e-13 between the two. Were each group to choose its steps anew, reverse
    # mode would be off by 3e-2.
    np.testing.assert_allclose(found, jax.jacfwd(_orbit_exactly)(x, until), rtol=0, atol=1e-8)


def _gap(t, q):
    del t
    return q


def _pull(t, rate):
    return (rate * t - 1)[None]


@pytest.mark.slow
def test_a_contact_is_held_and_released():
    """A mass of 1 kg is pressed down with 1 N and pulled up with `k t`: it leaves at `t1 = 1/k`.

    Then `v = k (t − t1)²/2`; the ground has given it the impulse `1/(2 k)`.
    """

    def run(rate):
        system = LagrangianSystem(np.eye(1), f_ext=jax.tree_util.Partial(_pull, rate=rate))
        model = Model(system, Interaction(GapRelation(_gap), NewtonImpact(0.5)))
        start = State(jnp.zeros(1), jnp.zeros(1))
        out = simulate(model, REFERENCE, 0.0, 1.0, 1.0, start, saveat=SaveAt.end(), throw=False)
        return jnp.stack([out.states.q[0], out.states.v[0], out.impulses[0][0, 0]])

    def exact(rate):
        rest = 1 - 1 / rate
        return jnp.stack([rate * rest**3 / 6, rate * rest**2 / 2, 1 / (2 * rate)])

    rate = jnp.asarray(2.5)
    found = eqx.filter_jit(lambda r: jax.jvp(run, (r,), (jnp.ones_like(r),)))(rate)
    known = jax.jvp(exact, (rate,), (jnp.ones_like(rate),))
    np.testing.assert_allclose(found, known, rtol=1e-8)


def test_what_is_refused():
    state = State(jnp.zeros(3), jnp.zeros(3))
    assert REFERENCE.supports(sliding_block()) is None
    free = Model(sliding_block().system)
    with pytest.raises(ValueError, match="has none; use RKMK"):
        simulate(free, REFERENCE, 0.0, 1.0, 0.1, state)
    with pytest.raises(ValueError, match="max_impacts must be at least 1"):
        EventDriven(max_impacts=0)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        EventDriven(tolerance=0.0)


@pytest.mark.slow
def test_who_keeps_impact_times():
    assert REFERENCE.keeps_impact_times and not MoreauJean().keeps_impact_times
    assert REFERENCE.supports(bouncing_ball()) is None
