"""Friction in the smooth phases of the reference: slips that end, turn or begin, and joints that stay."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow
from oracles._mechanisms import FAMILIES, draws

from diffnsd import RESULTS, EventDriven, Interaction, Model, SaveAt, State, simulate
from diffnsd.laws import CoulombFriction, DryFriction, Equality, NewtonImpact
from diffnsd.relations import GapRelation, PlanarContact, RateRelation
from diffnsd.systems import LagrangianSystem

REFERENCE = EventDriven()
G = 9.81


def read(out):
    return jnp.concatenate([out.states.q, out.states.v])


def end(model, start, until):
    """The last state, in one step."""
    out = simulate(model, REFERENCE, 0.0, until, until, start, saveat=SaveAt.end(), throw=False)
    return read(out), out.result == RESULTS.successful


def with_slopes(run):
    """`x -> (derivative, run(x))` of `run(x) -> (value, ok)`, in one program."""

    def twice(x):
        value, ok = run(x)
        return value, (value, ok)

    return eqx.filter_jit(jax.jacfwd(twice, has_aux=True))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["line"])
def test_random_mechanisms(name):
    """Against an oracle in other code: impacts, and slips that stop, turn and begin again."""
    family = FAMILIES[name]
    p, values, slopes, _ = zip(*draws(family, 4, seed=1), strict=True)

    run = with_slopes(lambda p: end(*family.build(p), 1.0))
    for given, value, slope in zip(p, values, slopes, strict=True):
        found, (reached, ok) = run(jnp.asarray(given))
        assert ok
        # Measured: values at most 4e-12 and slopes 8e-12, of the largest entry.
        # On six of the other family 6e-12 and 1.3e-11.
        np.testing.assert_allclose(reached, value, rtol=0, atol=1e-10 * np.abs(value).max())
        np.testing.assert_allclose(found, slope, rtol=0, atol=1e-9 * np.abs(slope).max())


def _below(t, q, radius):
    """The lowest point of a disc, and the one of the ground below it."""
    del t
    x, y = q[0], q[1]
    return jnp.stack([x, y - radius])[None], jnp.stack([x, 0 * x])[None], jnp.array([[0.0, 1.0]])


def disc(mu, e, inertia, radius, slope):
    """A disc of 1 kg above a plane, in coordinates along it and normal to it."""
    weight = -G * jnp.stack([jnp.sin(slope), jnp.cos(slope), 0.0 * slope])
    system = LagrangianSystem(
        jnp.diag(jnp.stack([jnp.ones(()), jnp.ones(()), inertia])),
        f_ext=jax.tree_util.Partial(lambda t, f: f, f=weight),
    )
    relation = PlanarContact(jax.tree_util.Partial(_below, radius=radius))
    return Model(system, Interaction(relation, CoulombFriction(mu, e)))


def rolls(x, until=0.6):
    """A disc slides on the plane until it rolls."""
    mu, inertia, radius, speed, spin = x
    model = disc(mu, 0.0, inertia, radius, jnp.zeros(()))
    start = State(jnp.stack([0 * mu, radius, 0 * mu]), jnp.stack([speed, 0 * mu, spin]))
    return end(model, start, until)


def rolls_exactly(x, until=0.6):
    mu, inertia, radius, speed, spin = x
    ends = (speed + radius * spin) / (mu * G * (1 + radius**2 / inertia))
    v, w = speed - mu * G * ends, spin - mu * G * radius / inertia * ends
    place = speed * ends - mu * G * ends**2 / 2 + v * (until - ends)
    angle = spin * ends - mu * G * radius / inertia * ends**2 / 2 + w * (until - ends)
    return jnp.stack([place, radius, angle, v, 0 * v, w])


def turns(x, until=0.9):
    """A block falls on a slope, is thrown up along it, stops, and slides back."""
    mu, slope, height, speed = x
    model = disc(mu, 0.0, jnp.ones(()), jnp.zeros(()), slope)
    zero = jnp.zeros(())
    start = State(jnp.stack([zero, height, zero]), jnp.stack([speed, zero, zero]))
    return end(model, start, until)


def turns_exactly(x, until=0.9):
    mu, slope, height, speed = x
    down, press = G * jnp.sin(slope), G * jnp.cos(slope)
    lands = jnp.sqrt(2 * height / press)
    place = speed * lands - down * lands**2 / 2
    up = speed - down * lands - mu * press * lands
    stops = up / (down + mu * press)
    back = down - mu * press
    rest = until - lands - stops
    place = place + up * stops / 2 - back * rest**2 / 2
    zero = jnp.zeros(())
    return jnp.stack([place, zero, zero, -back * rest, zero, zero])


@pytest.mark.parametrize(
    ("run", "exact", "x"),
    [
        slow(rolls, rolls_exactly, [0.3, 0.4, 0.5, 2.0, 1.0]),
        nightly(turns, turns_exactly, [0.2, 0.5, 0.05, 3.0]),
    ],
    ids=["slides, then rolls", "falls, slides up and back"],
)
def test_coulomb_friction_in_the_plane(run, exact, x):
    x = jnp.array(x)
    found, (value, ok) = with_slopes(run)(x)
    assert ok
    # Measured: 2e-16 and 9e-16 for the first, 6e-11 for the second.
    np.testing.assert_allclose(value, exact(x), rtol=0, atol=1e-10)
    np.testing.assert_allclose(found, eqx.filter_jit(jax.jacfwd(exact))(x), rtol=0, atol=1e-8)


def _apart(t, q):
    del t
    return q[:1] - q[1:]


@pytest.mark.nightly
def test_a_joint_and_a_brake_that_lets_go():
    """Two masses on a joint, pulled by `k t`, stick until `k t` is the limit of the brake, at `t1`."""

    def run(x):
        pull, limit = x
        force = jax.tree_util.Partial(lambda t, k: jnp.stack([k * t, 0 * k]), k=pull)
        system = LagrangianSystem(jnp.diag(jnp.array([1.0, 3.0])), f_ext=force)
        joint = Interaction(GapRelation(_apart), Equality())
        brake = Interaction(RateRelation(lambda t, q: q[1:]), DryFriction(limit))
        rest = State(jnp.zeros(2), jnp.zeros(2))
        return end(Model(system, (joint, brake)), rest, 2.0)

    def exact(x):
        pull, limit = x
        since = 2.0 - limit / pull
        place, speed = pull * since**3 / 24, pull * since**2 / 8
        return jnp.stack([place, place, speed, speed])

    x = jnp.array([3.0, 2.0])
    found, (value, ok) = with_slopes(run)(x)
    assert ok
    np.testing.assert_allclose(value, exact(x), rtol=0, atol=1e-10)
    np.testing.assert_allclose(found, eqx.filter_jit(jax.jacfwd(exact))(x), rtol=0, atol=1e-8)


def test_a_law_of_fewer_rows_than_its_relation():
    model = disc(0.3, 0.0, jnp.ones(()), jnp.ones(()), jnp.zeros(()))
    assert REFERENCE.supports(model) is None
    relation = PlanarContact(jax.tree_util.Partial(_below, radius=1.0), rolling=True)
    model = Model(model.system, Interaction(relation, NewtonImpact(0.5)))
    assert REFERENCE.supports(model) is None
