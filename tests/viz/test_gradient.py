"""The picture of a gradient."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from diffnsd.viz import gradient_figure


def test_what_contributes_is_drawn():
    through = np.zeros((10, 2, 3))
    through[4, 1, 0], through[6, 0, 2] = 1.5, -0.5
    figure = gradient_figure(
        np.linspace(0, 0.9, 10), through, np.linspace(3, 1, 10), ("e", "mu", "height")
    )
    assert [a.get_ylabel() for a in figure.axes] == ["e", "mu", "height", "growth"]
    assert figure.axes[-1].get_yscale() == "log"
    drawn = [
        sorted(float(y) for line in a.lines[1:] for y in line.get_ydata()) for a in figure.axes
    ]
    assert drawn[:3] == [[1.5], [], [-0.5]]


def test_nothing_to_draw():
    figure = gradient_figure(np.arange(3.0), np.zeros((3, 0, 1)), np.zeros(3), ("x",))
    assert len(figure.axes) == 2
