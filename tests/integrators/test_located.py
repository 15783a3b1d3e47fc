"""Impacts located inside the step: sensitivities in closed form, order, and what happens beside."""

import pytest
from impacts import PROBLEMS, errors

from diffnsd import Located, MoreauJean

MIDPOINT = Located(MoreauJean())


@pytest.mark.parametrize("name", PROBLEMS)
def test_constant_forces_are_exact(name):
    """The midpoint rule is exact between impacts: so are values and sensitivities through them."""
    values, slopes = errors(PROBLEMS[name], MIDPOINT, [1e-2, 1e-3])
    # Measured at most 2e-12 in both, ..
    print(name, values, slopes)
