"""Wrong arguments meet a sentence of ours; and what reads files loads no pickle."""

import random
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd

ROOT = Path(__file__).resolve().parent.parent


def _pose():
    return nsd.NewtonEulerSystem(1.0, 1.0).group.identity()


CALLS = {
    "a normal of length 2": (lambda: nsd.sphere_on_plane(0.1, (2.0, 0.0, 0.0)), "has length 2"),
    "another normal": (lambda: nsd.BodyPointsPlane(np.eye(3), (2.0, 0.0, 0.0)), "has length 2"),
    "an axis of length 0": (
        lambda: nsd.hinge(_pose(), np.zeros(3), np.zeros(3)),
        "axis of a joint",
    ),
    "a radius below 0": (lambda: nsd.sphere_on_plane(-0.1), "radius must be finite and at least 0"),
    "Newton as a number": (lambda: nsd.MoreauJean(newton=3), "newton must be Newton"),
    "a class for a method": (lambda: nsd.Located(nsd.MoreauJean), "inner is the class MoreauJean"),
    "a pair for an interaction": (
        lambda: nsd.Model(
            nsd.LagrangianSystem(np.eye(1)), (nsd.GapRelation(lambda t, q: q), nsd.Equality())
        ),
        r"interactions must be Interaction\(relation, law\)",
    ),
    "a force of two arguments": (
        lambda: nsd.LagrangianSystem(np.eye(1), forcing=lambda t, state: state.v),
        r"forcing must be a function of \(t, state, args\)",
    ),
    "NaN": (lambda: nsd.NewtonImpact(float("nan")), "e is not finite"),
    "a string": (lambda: nsd.shapes.Sphere("abc"), "radius must be numbers"),
    "an array for a state": (
        lambda: nsd.simulate(
            nsd.models.bouncing_ball(), nsd.MoreauJean(), 0.0, 0.1, 0.1, np.ones(1)
        ),
        "state0 must be a State",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_known_mistakes(name):
    call, words = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_the_shape_that_does_not_fit_is_said_with_the_one_that_it_should_fit():
    words = (
        r"w must have shape \(n, \.\.\.\), n = 3 as of xi, in dexpinv_series\(\.\.\.\); got shape"
    )
    with pytest.raises(ValueError, match=words):
        nsd.groups.dexpinv_series(nsd.SO3(), np.ones(3), np.ones(2), 4)


def test_one_number_of_a_list_may_be_differentiated():
    def energy(mass):
        model = nsd.models.double_pendulum(masses=(mass, 1.0))
        state = model.system.state(jnp.array([0.3, 0.2]), jnp.array([1.0, 0.0]))
        return model.energy(0.0, state).kinetic

    # The first point moves at 1 m/s.
    assert float(jax.jit(jax.grad(energy))(2.0)) == pytest.approx(0.5, rel=1e-12)


def test_operations_on_arrays_take_nan_and_batches():
    missing = np.array([[1.0, np.nan]])
    mean = nsd.identification.masked_mean(jnp.asarray(missing), jnp.array([[True, False]]))
    assert float(mean) == 1.0
    turned = nsd.groups.rotate(jnp.full(4, jnp.nan), jnp.ones(3))
    assert np.isnan(turned).all()
    assert nsd.models.ball_state(np.linspace(0, 1, 5)).v.shape[-1] == 5
    momenta = np.arange(15.0).reshape(3, 5)
    squares = nsd.diagnostics.casimirs(nsd.SO3(), momenta)
    np.testing.assert_allclose(squares[0], np.sum(momenta**2, axis=0))


def test_no_pickle_is_loaded():
    for path in (ROOT / "diffnsd").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"^\s*(import|from) (pickle|dill|cloudpickle|joblib|shelve|marshal)\b", text, re.M
        ), path
        assert text.count("np.load(") == len(
            re.findall(r"np\.load\([^)]*allow_pickle=False", text)
        ), path


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """The benchmark of bad input, in a folder of its own for the files of its calls."""
    for extra in ("mujoco", "meshio", "matplotlib"):
        pytest.importorskip(extra)
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(ROOT / "benchmarks"))
    patch.chdir(tmp_path_factory.mktemp("bad_input"))
    # As where benchmarks run.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        import bad_input

        yield bad_input
    patch.undo()


def test_everything_exported_has_wrong_calls(harness):
    import _exported

    names, called = _exported.exported(), set(map(id, _exported.called_by(_exported.all_calls())))
    uncalled = _exported.uncalled()
    missing = [n for n, x in names.items() if id(x) not in called and n not in uncalled]
    assert not missing, f"in no table of valid calls: {missing}"


def test_names_without_calls_exist_and_have_none(harness):
    import _exported

    names, called = _exported.exported(), set(map(id, _exported.called_by(_exported.all_calls())))
    unknown = _exported.uncalled() - set(names)
    needless = {n for n in _exported.uncalled() & set(names) if id(names[n]) in called}
    assert not unknown and not needless, (unknown, needless)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_value_in_every_place(harness):
    """Values that are never right for every argument of every valid call; the benchmark has the others."""
    choose, problems = random.Random(0), []
    for place in harness.places():
        for name in choose.sample(list(harness.WRONG), 3):
            problem = harness.attempt(place, name, harness.WRONG[name]).problem
            if problem:
                problems.append(f"{place}, {name}: {problem}")
    assert not problems, "\n".join(problems)


def test_a_valid_call_is_no_problem_and_a_silent_one_is(harness):
    def silent(radius):
        return radius

    place = harness.Place("silent", silent, (1.0,), {}, 0, "radius", 1.0)
    assert harness.attempt(place, "zero", 0.0).problem == ""
    assert harness.attempt(place, "a string", "abc").problem == "accepted"
    assert harness.attempt(place, "NaN", float("nan")).problem == "NaN accepted"
