"""The picture of what a motion keeps."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from diffnsd.viz import invariants_figure

TS = np.array([0.0, 1.0, 2.0])


def test_the_largest_change_so_far_is_drawn():
    values = {
        "energy": np.array([4.0, 4.4, 4.2]),  # relative to 4
        "momentum": np.array([[0.5, 0.0], [0.5, 0.2], [0.1, 0.2]]),  # relative to 1
        "kept": np.ones(3),
    }
    axes = invariants_figure(TS, values).axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    floor = np.finfo(float).eps / 2
    np.testing.assert_allclose(drawn["energy"], [floor, 0.1, 0.1])
    np.testing.assert_allclose(drawn["momentum"], [floor, 0.2, 0.4])
    np.testing.assert_allclose(drawn["kept"], floor)
    assert axes.get_yscale() == "log"


def test_values_of_other_times():
    with pytest.raises(ValueError, match="energy has 2 values for 3 times"):
        invariants_figure(TS, {"energy": np.ones(2)})
