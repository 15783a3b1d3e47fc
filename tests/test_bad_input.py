"""Wrong arguments meet a sentence of ours; and what reads files loads no pickle."""

import re
from pathlib import Path

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


def test_no_pickle_is_loaded():
    for path in (ROOT / "diffnsd").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"^\s*(import|from) (pickle|dill|cloudpickle|joblib|shelve|marshal)\b", text, re.M
        ), path
        assert text.count("np.load(") == len(
            re.findall(r"np\.load\([^)]*allow_pickle=False", text)
        ), path
