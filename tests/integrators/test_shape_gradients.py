"""Bodies with shapes through impacts: values and sensitivities against closed forms."""

import pytest
from impacts import errors
from oracles._shapes import dropped_into_bowl, edge_then_face

from diffnsd import Corrected, Located, MoreauJean

MOTIONS = {"bowl": dropped_into_bowl(), "edge then face": edge_then_face()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOTIONS)
def test_located(name):
    """The midpoint rule is exact in the flights: so are impacts at shapes of any kind."""
    values, slopes = errors(MOTIONS[name], Located(MoreauJean()), [1e-2])
    # Measured: 1e-15 and 6e-15 in the bowl, 1e-12 and 3e-12 for the box.
    assert values[0] < 1e-9 and slopes[0] < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", MOTIONS)
def test_corrected(name):
    values, slopes = errors(MOTIONS[name], Corrected(MoreauJean()), [1e-3, 1e-4])
    assert slopes[1] < 1e-3 and values[1] < 1e-2
