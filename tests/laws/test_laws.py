"""Laws of contact: their sets, biases, activity, and what they say about bad parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import MoreauJean, State, simulate
from diffnsd.complementarity import ComplementarityProblem, solve_complementarity
from diffnsd.laws import (
    Cohesive,
    Complementarity,
    Context,
    CoulombFriction,
    DryFriction,
    Equality,
    GapStabilized,
    NewtonImpact,
    RollingFriction,
    fremond_impact,
)
from diffnsd.models import bouncing_ball
from diffnsd.sets import Free, HalfLine, SecondOrderCone

RANDOM = np.random.default_rng(0)
CONTACTS = 5


def context(u, gap, h=0.01, gamma=0.5):
    u, gap = jnp.asarray(u), jnp.asarray(gap)
    return Context(u, gap, jnp.full(gap.shape, h), jnp.full(gap.shape, gamma))


@pytest.fixture
def moving():
    return context(RANDOM.normal(size=(3, CONTACTS)), RANDOM.normal(size=CONTACTS) * 0.01)


def test_predicted_gap():
    at = context([[-2.0, 3.0], [9.0, 9.0]], [0.005, -0.01], h=0.01, gamma=0.5)
    np.testing.assert_allclose(at.predicted_gap, [-0.005, 0.005], rtol=0, atol=1e-17)


def test_sets():
    assert isinstance(Equality().set(), Free)
    assert isinstance(Complementarity().set(), HalfLine)
    assert isinstance(NewtonImpact(0.5).set(), HalfLine)
    cone = CoulombFriction(0.3).set()
    assert isinstance(cone, SecondOrderCone) and cone.mu == 0.3
    assert isinstance(GapStabilized(NewtonImpact(0.5)).set(), HalfLine)


@pytest.mark.parametrize(
    ("law", "rows"),
    [
        (Equality(), None),
        (Complementarity(), 1),
        (NewtonImpact(), 1),
        (CoulombFriction(0.3), None),
        (GapStabilized(NewtonImpact()), 1),
        (GapStabilized(CoulombFriction(0.3)), None),
    ],
)
def test_rows(law, rows):
    """A law without friction acts on the normal row, whatever the relation has."""
    assert law.rows == rows


def test_shift_of_the_laws(moving):
    u = np.asarray(moving.u_minus)
    assert np.all(np.asarray(Equality().shift(moving)) == 0)
    assert np.all(np.asarray(Complementarity().shift(moving)) == 0)
    np.testing.assert_allclose(NewtonImpact(0.7).shift(moving), 0.7 * u)
    shift = CoulombFriction(0.3, 0.7, -0.2).shift(moving)
    np.testing.assert_allclose(shift[0], 0.7 * u[0])
    np.testing.assert_allclose(shift[1:], -0.2 * u[1:])


def test_newtons_law_in_one_contact(moving):
    """With `w = u + e u_minus` the condition `w = 0` is Newton's law `u = -e u_minus`."""
    e = jnp.linspace(0.0, 1.0, CONTACTS)
    shift = NewtonImpact(e).shift(context(moving.u_minus[:1], moving.gap))
    np.testing.assert_allclose(-shift, -e[None] * moving.u_minus[:1])


def test_lift_is_the_term_of_de_saxce(moving):
    law = CoulombFriction(jnp.linspace(0.0, 1.5, CONTACTS))
    w = moving.u_minus
    expected = np.linspace(0, 1.5, CONTACTS) * np.linalg.norm(np.asarray(w)[1:], axis=0)
    np.testing.assert_allclose(law.lift(w), expected, rtol=1e-14)
    gradient = jax.grad(lambda x: jnp.sum(law.lift(x)))(w)
    np.testing.assert_allclose(law.lift_gradient(w), gradient, rtol=1e-13)
    np.testing.assert_array_equal(law.lift_gradient(0 * w), 0 * np.asarray(w))
    for other in (Equality(), NewtonImpact(1.0)):
        assert np.all(np.asarray(other.lift(w)) == 0)
        assert np.all(np.asarray(other.lift_gradient(w)) == 0)


def test_the_cone_with_the_lift_is_coulombs_law():
    """The three cases, from Coulomb's own words: stick, slide against the slip, open."""
    mu = 0.4
    law = CoulombFriction(mu)
    k = law.set()
    for w, p in [
        ([0.0, 0.0, 0.0], [2.0, 0.5, -0.3]),
        ([0.0, 3.0, -4.0], [2.0, -0.48, 0.64]),
        ([1.0, 3.0, -4.0], [0.0, 0.0, 0.0]),
    ]:
        w, p = jnp.asarray(w), jnp.asarray(p)
        lifted = w.at[0].add(law.lift(w))
        for rho in (0.1, 1.0, 10.0):
            np.testing.assert_allclose(k.project(p - rho * lifted), p, rtol=0, atol=1e-14)
        # Maximal dissipation and no work of the normal force: not so without the lift.
    sliding = jnp.asarray([0.0, 3.0, -4.0])
    held = jnp.asarray([2.0, -0.48, 0.64])
    assert np.max(np.abs(k.project(held - sliding) - held)) > 0.1


def test_activity():
    touching = context([[-2.0, -0.5, 0.1]], [0.005, 0.005, -0.001], h=0.01, gamma=0.5)
    for law in (Complementarity(), NewtonImpact(0.5), CoulombFriction(0.2)):
        np.testing.assert_array_equal(law.active(touching), [True, False, True])
    assert np.all(np.asarray(Equality().active(touching)))
    # Always in play: the shift g/h keeps the contacts that are out of reach unloaded.
    assert np.all(np.asarray(GapStabilized(NewtonImpact(0.5)).active(touching)))


def test_stabilised_shift():
    """`u_N + g/h >= 0` for open contacts, at most `rest_speed` for penetrated ones, rebound on impact."""
    h = 0.01
    gap = jnp.asarray([0.02, 0.005, -0.001, 0.005, -0.001])
    normal = jnp.asarray([-1.0, -1.0, -1.0, -0.1, 0.5])  # closes within the step: 2nd and 3rd
    u = jnp.stack([normal, jnp.ones(5), jnp.ones(5)])
    at = context(u, gap, h=h)

    landing = GapStabilized(CoulombFriction(0.3, 0.0, 0.4), rest_speed=0.0).shift(at)
    np.testing.assert_allclose(landing[0], [2.0, 0.5, 0.0, 0.5, 0.0], rtol=1e-14)

    bouncing = GapStabilized(CoulombFriction(0.3, 0.5, 0.4)).shift(at)
    np.testing.assert_allclose(bouncing[0], [2.0, -0.5, -0.5, 0.5, -1e-3], rtol=1e-14)
    np.testing.assert_allclose(bouncing[1], [0.0, 0.4, 0.4, 0.0, 0.0], rtol=1e-14)

    # A rebound slower than the threshold is a landing.
    slow = GapStabilized(CoulombFriction(0.3, 0.5, 0.4), rest_speed=0.6).shift(at)
    np.testing.assert_allclose(slow[0], [2.0, 0.5, -0.1, 0.5, -0.1], rtol=1e-14)
    np.testing.assert_allclose(slow[1:], landing[1:], rtol=1e-14)


def test_distance_from_a_rebound_that_becomes_a_landing():
    """In speed: of closing within the step, for fast contacts, of rebound and depth from `rest_speed`."""
    h = 0.01
    gap = jnp.asarray([0.02, 0.005, 0.005, -0.001, 0.005])
    normal = jnp.asarray([-1.0, -0.6, -0.4, -0.1, 0.5])
    at = context(jnp.stack([normal, jnp.ones(5), jnp.ones(5)]), gap, h=h)

    # Rebounds at half the speed: too far, closes by 0.1 m/s, misses by 0.1, closes with 0.05, leaves;
    # the fourth is also 0.1 m/s deep, of which `rest_speed` is pushed out.
    edge = GapStabilized(CoulombFriction(0.3, 0.5)).edge(at)
    np.testing.assert_allclose(edge, [1.0, 0.1, 0.1, 0.049, np.inf], rtol=1e-14)

    edge = GapStabilized(CoulombFriction(0.3, 0.5), rest_speed=0.2).edge(at)
    np.testing.assert_allclose(edge, [1.0, 0.1, np.inf, 0.1, np.inf], rtol=1e-14)

    assert np.all(np.isinf(CoulombFriction(0.3, 0.5).edge(at)))
    assert not CoulombFriction(0.3, 0.5).switches


def test_the_margin_of_a_step_sees_it():
    def margin(speed):
        ball = bouncing_ball(law=GapStabilized(NewtonImpact(0.5)))
        start = State(jnp.array([0.01]), jnp.array([speed]))
        out = simulate(ball, MoreauJean(theta=1.0), 0.0, 0.01, 0.01, start)
        return out.stats.margin[0]

    assert margin(-1.0 - 1e-9) < 1e-8 and margin(-1.0 + 1e-9) < 1e-8 and margin(-2.0) > 0.1


def test_stabilised_law_keeps_the_inner_one(moving):
    law = CoulombFriction(0.3, 0.2)
    stabilised = GapStabilized(law)
    assert stabilised.needs_implicit_positions and not law.needs_implicit_positions
    np.testing.assert_array_equal(stabilised.lift(moving.u_minus), law.lift(moving.u_minus))
    np.testing.assert_array_equal(
        stabilised.lift_gradient(moving.u_minus), law.lift_gradient(moving.u_minus)
    )


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (CoulombFriction(-0.1), ["friction coefficient mu", "[0, inf)", "-0.1"]),
        (CoulombFriction(jnp.asarray([0.1, -0.2])), ["mu", "-0.2"]),
        (CoulombFriction(float("inf")), ["mu", "[0, inf)", "got inf"]),
        (GapStabilized(NewtonImpact(), rest_speed=-0.1), ["rest_speed", "[0, inf)", "-0.1"]),
        (CoulombFriction(0.1, 1.1), ["restitution e", "[0, 1]", "1.1"]),
        (CoulombFriction(0.1, -0.5), ["restitution e", "-0.5"]),
        (CoulombFriction(0.1, 0.5, -1.5), ["tangential restitution e_t", "[-1, 1]", "-1.5"]),
        (NewtonImpact(2.0), ["restitution e", "[0, 1]", "2."]),
        (GapStabilized(CoulombFriction(-3.0)), ["mu", "-3."]),
    ],
)
def test_what_is_wrong_with_parameters(law, words):
    message = law.check()
    assert message is not None
    for word in words:
        assert word in message


@pytest.mark.parametrize("value", [float("nan"), np.array([0.5, np.nan])])
def test_no_parameter_is_nan(value):
    with pytest.raises(ValueError, match=r"mu is not finite, in CoulombFriction\(...\).*got NaN"):
        CoulombFriction(value)


@pytest.mark.parametrize(
    "law",
    [
        Equality(),
        Complementarity(),
        NewtonImpact(0.0),
        NewtonImpact(jnp.asarray([0.0, 1.0])),
        CoulombFriction(0.0),
        CoulombFriction(5.0, 1.0, -1.0),
        GapStabilized(CoulombFriction(0.2, 0.1)),
    ],
)
def test_nothing_is_wrong_with_parameters(law):
    assert law.check() is None


@pytest.mark.parametrize(
    "law",
    [NewtonImpact(0.5), CoulombFriction(0.5, 1, 0), GapStabilized(NewtonImpact(), rest_speed=1)],
)
def test_parameters_given_as_numbers_are_leaves(law):
    """Numbers become arrays: differentiable, and new values compile nothing again."""
    leaves = jax.tree.leaves(law)
    assert leaves and all(isinstance(x, jax.Array) and x.dtype == float for x in leaves)

    @jax.jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def shift(law, at):
        return law.shift(at)

    at = context(np.ones((3, CONTACTS)), np.zeros(CONTACTS))
    for value in (0.1, 0.2):
        shift(jax.tree.map(lambda x, value=value: x + value, law), at)


@pytest.mark.parametrize("law", [Equality(), GapStabilized(NewtonImpact())])
def test_only_unilateral_laws_can_be_stabilised(law):
    """An equality that sees the gap would glue open contacts."""
    with pytest.raises(ValueError, match=f"needs a unilateral law.*{type(law).__name__}"):
        GapStabilized(law)


def test_rows_that_a_law_needs():
    assert CoulombFriction(0.3).refuses(3) is None and CoulombFriction(0.3).refuses(2) is None
    assert "CoulombFriction needs at least 2 rows" in CoulombFriction(0.3).refuses(1)
    assert "needs at least 2 rows" in GapStabilized(CoulombFriction(0.3)).refuses(1)
    for law in (Equality(), Complementarity(), NewtonImpact()):
        assert law.refuses(1) is None and law.refuses(3) is None


def test_what_is_traced_hides_nothing_else():
    """A parameter that is known to be wrong is refused beside one whose value is not known."""

    def refused(mu):
        assert "restitution e" in CoulombFriction(mu, 2.0).check()
        assert CoulombFriction(mu, 0.5).check() is None
        return mu

    jax.eval_shape(refused, 0.3)


# ----------------------------------------------------------------------------------------
# Laws with limits, cohesion, rolling


def test_rolling_friction_has_its_rows(moving):
    law = RollingFriction(mu=0.3, mu_r=0.01, e=0.5, e_t=0.2)
    assert law.refuses(3) is None and law.refuses(5) is None
    for rows in (1, 2, 4):
        assert "5 rows" in (law.refuses(rows) or "")
    w = jnp.asarray(RANDOM.normal(size=(5, CONTACTS)))
    shift = np.asarray(law.shift(context(w, moving.gap)))
    np.testing.assert_allclose(shift[0], 0.5 * w[0])
    np.testing.assert_allclose(shift[1:3], 0.2 * w[1:3])
    np.testing.assert_array_equal(shift[3:], 0)  # rolling has no restitution
    slip = np.linalg.norm(np.asarray(w)[1:3], axis=0)
    roll = np.linalg.norm(np.asarray(w)[3:], axis=0)
    np.testing.assert_allclose(law.lift(w), 0.3 * slip + 0.01 * roll, rtol=1e-14)
    gradient = jax.grad(lambda x: jnp.sum(law.lift(x)))(w)
    np.testing.assert_allclose(law.lift_gradient(w), gradient, rtol=1e-13)


def test_the_rolling_cone_with_the_lift_is_the_law():
    """Slide and roll against both coefficients; slide without rolling; open."""
    law = RollingFriction(mu=0.4, mu_r=0.1)
    for w, p in [
        ([0.0, 3.0, -4.0, 0.0, 2.0], [2.0, -0.48, 0.64, 0.0, -0.2]),
        ([0.0, 3.0, -4.0, 0.0, 0.0], [2.0, -0.48, 0.64, 0.1, -0.1]),
        ([0.0, 0.0, 0.0, 1.0, 0.0], [2.0, 0.1, 0.2, -0.2, 0.0]),
        ([1.0, 3.0, -4.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]),
    ]:
        w, p = jnp.asarray(w), jnp.asarray(p)
        lifted = w.at[0].add(law.lift(w))
        for rho in (0.1, 1.0, 10.0):
            found = law.set().project(p - rho * lifted)
            np.testing.assert_allclose(found, p, rtol=0, atol=1e-14)


def test_limits_of_forces_become_limits_of_impulses():
    at = context([[0.1, -0.2]], [0.5, -jnp.inf], h=0.01)
    law = DryFriction(jnp.asarray(3.0)).in_step(at)
    np.testing.assert_allclose(law.set().project(jnp.full((1, 2), 9.0)), [[0.03, 0.03]])
    assert np.all(np.asarray(DryFriction(3.0).active(at)))
    pull = Cohesive(strength=2.0, length=0.1).in_step(context([[0.0] * 3], [-0.01, 0.05, 0.2]))
    np.testing.assert_allclose(
        pull.set().project(jnp.full((1, 3), -9.0)), [[-0.02, -0.01, 0.0]], atol=1e-17
    )


def test_fremonds_law_never_makes_energy():
    """Work of the impulse of the law on the mean velocity, for a contact with a full matrix W."""
    law = fremond_impact(mu=0.6, e=0.8)
    random = np.random.default_rng(4)
    for _ in range(20):
        root = random.normal(size=(3, 3))
        matrix, before = root @ root.T + 0.1 * np.eye(3), random.normal(size=3)
        before[0] = -abs(before[0])
        shift = np.asarray(law.shift(context(before[:, None], [-0.01])))[:, 0]
        problem = ComplementarityProblem(matrix, before + shift, ((law, (1, 3)),))
        p = np.asarray(solve_complementarity(problem).z).reshape(-1)
        after = before + matrix @ p
        assert p @ (before + after) / 2 <= 1e-9
    assert fremond_impact(0.6, 0.8, theta=1.0).e_t == 0  # Coulomb's law on the velocity after


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (RollingFriction(-0.1, 0.1), "mu must lie in"),
        (RollingFriction(0.1, -0.1), "mu_r must lie in"),
        (RollingFriction(0.1, 0.1, 1.2), "restitution e must"),
        (DryFriction(-1.0), "limit of friction"),
        (Cohesive(-1.0, 0.1), "strength"),
        (Cohesive(1.0, 0.0), "length"),
        (fremond_impact(0.3, 0.5, theta=0.2), "e_t must lie in"),
    ],
)
def test_bad_parameters_of_these_laws(law, words):
    assert words in (law.check() or "")
