"""Only the nearest pairs of shapes get contacts: the same motion, and a report where they are too many."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

import diffnsd as nsd
from diffnsd import shapes
from diffnsd.relations import Geom, shape_contacts
from diffnsd.relations.contacts._shape_contacts import _bounding
from diffnsd.shapes import Frame, closest

GROUND = Geom(shapes.HalfSpace())
COUNT = 10


def balls(near, radius=0.1, count=COUNT):
    """Two rows of balls that roll towards each other."""
    geoms = [Geom(shapes.Sphere(radius), body=i) for i in range(count)]
    pairs = [(geom, GROUND) for geom in geoms]
    pairs += [(geoms[i], geoms[j]) for i in range(count) for j in range(i)]
    return shape_contacts(pairs, near=near)


def system(count=COUNT):
    return nsd.NewtonEulerSystem(np.ones(count), np.full((count, 3), 4e-3))


def start(count=COUNT):
    place, row = np.divmod(np.arange(count), 2)
    x = np.stack([np.where(row, 0.35, -0.35), 0.22 * place + 0.03 * row, np.full(count, 0.1)], 1)
    return system(count).state(
        x, velocity=np.stack([np.where(row, -1.5, 1.0), 0 * x[:, 0], 0 * x[:, 0]], 1)
    )


def rolled(near, max_active=None):
    law = nsd.CoulombFriction(0.3, 0.4)
    model = nsd.Model(system(), nsd.Interaction(balls(near), law, max_active))
    return nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.4, 4e-3, start(), throw=False)


@pytest.mark.nightly
def test_the_motion_is_that_of_all_pairs():
    every, nearest = rolled(None), rolled(12, max_active=22)
    assert every.result == nearest.result == nsd.RESULTS.successful
    positions = (run.states.q.position for run in (nearest, every))
    np.testing.assert_allclose(*positions, rtol=0, atol=1e-9)
    touched = np.any(np.asarray(every.impulses[0][..., 0]) > 0, axis=0)
    assert np.sum(touched[COUNT:]) >= 4  # balls have struck each other


def test_gaps_have_their_derivatives():
    q = start().q

    def gap(near, radius):
        return balls(near, radius).gap(jnp.zeros(()), q)

    one = jnp.array(0.1), jnp.array(1.0)
    rates = [jax.jvp(lambda r, n=n: gap(n, r), *((x,) for x in one))[1] for n in (None, 7)]
    np.testing.assert_allclose(*rates, atol=1e-14)


@pytest.mark.nightly
def test_pairs_that_do_not_fit_are_reported():
    """All ten balls lie on the ground, and five pairs get contacts."""
    run = rolled(5)
    assert "more pairs near each other than `near`" in run.message
    words = r"first without room is the contact of Sphere of body \d with HalfSpace of the world of inter"
    assert re.search(words, run.message)
    relation = balls(5)
    left = relation.function.crowded(start().q)
    assert left == []  # the ground is touched, not yet overlapped
    q = start().q
    sunk = type(q)(q.position.at[:, 2].add(-1e-3), q.orientation)
    left = relation.function.crowded(sunk)
    assert len(left) == 5 and all(pair < COUNT for pair, _ in left)
    np.testing.assert_allclose([gap for _, gap in left], -1e-3, rtol=1e-9)


@pytest.mark.nightly
def test_located_impacts_of_one_pair_after_another():
    """Three balls in a row, of which one pair has contacts at a time: two impacts, in closed form."""
    e, places, h = 0.8, np.array([0.0, 0.5, 1.1]), 0.05
    geoms = [Geom(shapes.Sphere(0.1), body=i) for i in range(3)]
    pairs = [(geoms[0], geoms[1]), (geoms[0], geoms[2]), (geoms[1], geoms[2])]
    model = nsd.Model(
        system(3), nsd.Interaction(shape_contacts(pairs, near=1), nsd.NewtonImpact(e))
    )
    row = np.stack([places, np.zeros(3), np.zeros(3)], axis=1)

    def simulated(speed):
        rest = model.system.state(row)
        begin = nsd.State(rest.q, rest.v.at[0].set(speed))
        integrator = nsd.Located(nsd.MoreauJean())
        run = nsd.simulate(model, integrator, 0.0, 1.0, h, begin, throw=False)
        return run.states.q.position[-1, :, 0], run

    def exact(speed):
        first = (places[1] - places[0] - 0.2) / speed
        slow, fast = (1 - e) / 2 * speed, (1 + e) / 2 * speed
        second = first + (places[2] - places[1] - 0.2) / fast
        left, end = 1 - first, 1 - second
        ahead = places[2] + (1 + e) / 2 * fast * end
        middle = places[2] - 0.2 + (1 - e) / 2 * fast * end
        return jnp.stack([places[1] - 0.2 + slow * left, middle, ahead])

    one = jnp.array(1.0), jnp.array(1.0)
    found, rates, run = eqx.filter_jit(lambda x, dx: jax.jvp(simulated, (x,), (dx,), has_aux=True))(
        *one
    )
    assert run.message == "" and run.stats.located.sum() == 2
    value, rate = jax.jvp(exact, one[:1], one[1:])
    np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rates, rate, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gaps_of_the_others_are_lower_bounds():
    q = start().q
    every, nearest = balls(None), balls(7)
    gap, bound = (x.gap(jnp.zeros(()), q) for x in (every, nearest))
    known = np.asarray(nearest.function.known(q))
    assert known.sum() == 14 == nearest.most_known and every.most_known is None
    np.testing.assert_allclose(bound[known], gap[known], rtol=0, atol=1e-15)
    assert np.all(np.asarray(bound) <= np.asarray(gap) + 1e-12)
    assert np.max(gap[COUNT:][known[COUNT:]]) <= np.min(gap[COUNT:][~known[COUNT:]]) + 1e-12


FIELD = shapes.HeightField(np.random.default_rng(1).uniform(0, 1, (6, 7)), [1.0, 1.0, 0.2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "second",
    [shapes.HalfSpace(), nightly(FIELD), shapes.Box([0.1, 0.2, 0.3])],
    ids="plane field box".split(),
)
def test_bounding_spheres_are_never_further_apart_than_the_shapes(second):
    rng = np.random.default_rng(0)
    centres, turns = rng.normal(size=(300, 3)), rng.normal(size=(300, 3, 3))
    turns = np.linalg.qr(turns)[0]
    first, here = shapes.Capsule(0.05, 0.1), Frame(jnp.zeros(3), jnp.eye(3))

    def gaps(centre, turn):
        frame = Frame(centre, turn)
        one, other = _bounding(first, frame, second, here), _bounding(second, here, first, frame)
        found = jnp.min(closest(first, frame, second, here).gap)
        return one.gap, other.gap, found, one.normal, other.normal

    one, other, found, normal, opposite = jax.jit(jax.vmap(gaps))(centres, turns)
    assert np.all(np.asarray(one) <= np.asarray(found) + 1e-12)
    np.testing.assert_allclose(one, other, atol=1e-14)
    np.testing.assert_allclose(normal, -opposite, atol=1e-14)


def test_near_is_checked():
    with pytest.raises(ValueError, match="near must be an integer, 1 or more"):
        balls(0)


def test_how_far_away_a_surface_is_must_be_known():
    bowl = Geom(shapes.Implicit(lambda x: 1 - jnp.sum(x**2)))
    pairs = [(Geom(shapes.Sphere(0.1), body=i), bowl) for i in range(3)]
    assert shape_contacts(pairs, near=3).function.pair == (0, 1, 2)
    with pytest.raises(ValueError, match="give near=3 or more, or a HeightField"):
        shape_contacts(pairs, near=2)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ((GROUND, GROUND), "each entry a tuple of 2: a Geom"),
        ([(GROUND, shapes.HalfSpace())], "each entry a tuple of 2: a Geom"),
    ],
)
def test_pairs_are_of_geoms(pairs, words):
    with pytest.raises(TypeError, match=words):
        shape_contacts(pairs)
