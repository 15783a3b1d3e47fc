"""What `benchmarks/gradients.py` counts as a wrong derivative that no run speaks of."""

from pathlib import Path

import numpy as np
import pytest
from oracles import KNOWN_MOTIONS

MOTION = KNOWN_MOTIONS["block that stops"]


@pytest.fixture
def gradients(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import gradients

    return gradients


@pytest.mark.parametrize(
    ("mode", "off", "said", "count"),
    [
        ("plain", 1.1, "", 1),
        ("event-driven", np.nan, "", 1),
        ("located", 1.1, "2 impacts were stepped over", 0),
        ("corrected", 1.01, "", 0),
        ("smoothed", 1.1, "", 0),
        ("differences 1e-6", 1.1, "", 0),
    ],
)
def test_wrong_and_nothing_said(gradients, mode, off, said, count):
    """Three runs near one length, of which one has a derivative that is off by a factor."""
    _, known = MOTION.known()
    runs = {1e-2: [(known, ""), (off * known, said), (known, "")]}
    found = list(gradients.rows("a block", MOTION, "diffnsd", mode, runs))
    assert [row.silent for row in found] == [count] * len(MOTION.names)
    assert gradients.silent(found) == count * len(MOTION.names)
