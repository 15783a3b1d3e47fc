"""Joints beside impacts: a slider with an end stop, and a four-bar linkage that strikes a wall, twice each.

Joints are constraints between bodies in the plane, or coordinates of a tree, whose loop is closed by one.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from impacts import PROBLEMS, errors
from marks import nightly
from oracles import four_bar, four_bar_tree, read, unchanged
from oracles._event_by_event import motion
from oracles._joints import FOUR_BAR, FourBar, bars_apart, bars_in_the_tree

from diffnsd import Located, MoreauJean, Projected, SaveAt, simulate

LENGTHS = 1e-2, 1e-3, 1e-4
# Values and derivatives under `Located(Projected(...))`, measured over four lengths near 1e-4, medians.
MEASURED = {
    "slider with a stop": (8.1e-8, 5.4e-8),
    "slider with a stop, tree": (8.0e-8, 9.3e-8),
    "four-bar at a wall": (3.4e-6, 1.0e-5),
    "four-bar at a wall, tree": (3.7e-6, 1.2e-5),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", MEASURED)
def test_located_is_of_second_order(name):
    values, slopes = errors(PROBLEMS[name], Located(Projected(MoreauJean())), LENGTHS)
    value, slope = MEASURED[name]
    assert values[-1] < 3 * value and slopes[-1] < 3 * slope
    assert np.all(slopes[1:] < 0.03 * slopes[:-1]) and np.all(values[1:] < 0.03 * values[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "see"), [(four_bar_tree, bars_in_the_tree), (four_bar, bars_apart)]
)
def test_values_before_the_first_impact(build, see):
    """Of second order, by one linearisation a step, also where the mass matrix of a tree varies."""
    x, end = np.array(FOUR_BAR), 0.15
    known, _, events = motion(FourBar(), x, end, see)
    model, start = build(jnp.asarray(x), unchanged)
    errors = []
    for steps in (25, 100, 400):
        options = dict(saveat=SaveAt.end(), max_steps=400)
        out = simulate(model, MoreauJean(), 0.0, end, end / steps, start, **options)
        errors.append(np.max(np.abs(read(out.states) - known)))
    # Measured: 1.1e-3, 7e-5, 4.6e-6. With a matrix that is off by the order of h it was of first order for
    # the tree: 3.7e-2, 9e-3, 2e-3.
    assert not events and errors[0] < 2e-3 and errors[-1] < 1e-5
    assert errors[1] < 0.08 * errors[0] and errors[2] < 0.08 * errors[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slider with a stop", nightly("four-bar at a wall")])
def test_plain_values_are_of_first_order(name):
    """And the derivatives are not those of the motion, at any length.

    Measured over four lengths near each, medians: 3e-2, 3e-3, 3e-4 (slider), 8e-2, 2e-2, 9e-4; derivatives
    are off by 1.0 and 0.85.
    """
    near = [[k * h for k in (0.93, 0.97, 1.0, 1.03, 1.07)] for h in LENGTHS]
    values, slopes = np.median([errors(PROBLEMS[name], MoreauJean(), h) for h in near], axis=2).T
    assert values[-1] < 0.03 * values[0] and values[-1] < 3e-3
    assert np.min(slopes) > 0.5
