"""Joints beside impacts: a slider with an end stop, and a four-bar linkage that strikes a wall, twice each.

Joints are constraints between bodies in the plane, or coordinates of a tree, whose loop is closed by one.
"""

import numpy as np
import pytest
from impacts import PROBLEMS, errors
from quick import nightly, slow

from diffnsd import Located, MoreauJean, Projected

LENGTHS = 1e-2, 1e-3, 1e-4
# Derivatives of `Located(Projected(...))`, measured over four lengths near 1e-4, medians, of second order in h.
# Values 8e-8 (slider), 8e-8 (its tree), ...
MEASURED = {
    "slider with a stop": 5.4e-8,
    "slider with a stop, tree": 9.3e-8,
    "four-bar at a wall": 1e-5,
    "four-bar at a wall, tree": 1e-5,
}
TREES = [name for name in MEASURED if name.endswith("tree")]


@pytest.mark.parametrize(
    "name",
    [slow("slider with a stop"), *(nightly(n) for n in MEASURED if n != "slider with a stop")],
)
def test_located_is_of_second_order(name):
    values, slopes = errors(PROBLEMS[name], Located(Projected(MoreauJean())), LENGTHS)
    assert slopes[-1] < 3 * MEASURED[name] and values[-1] < 3 * MEASURED[name]
    assert np.all(slopes[1:] < 0.03 * slopes[:-1]) and np.all(values[1:] < 0.03 * values[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slider with a stop", "four-bar at a wall"])
def test_plain_values_are_of_first_order(name):
    """And the derivatives are not those of the motion, at any length."""
    near = [[k * h for k in (0.93, 0.97, 1.0, 1.03, 1.07)] for h in LENGTHS]
    values, slopes = np.median([errors(PROBLEMS[name], MoreauJean(), h) for h in near], axis=2).T
    assert values[-1] < 0.03 * values[0] and values[-1] < 3e-3
    assert np.min(slopes) > 0.5
