"""Motions of an established simulator, recorded with their schemes: they are reproduced step by step.

The cases are those of the benchmark, which also times them; here each is run once, whole.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _cases_mechanical import CASES

# Measured differences, rounded up: far below the stated tolerances. Where they are not, the
# reference itself was solved no better, or (Schatzman-Paoli) amplifies rounding near chattering.
MEASURED = {
    "ball_on_moving_plane": 1e-12,
    "ball_on_vibrating_table": 1e-12,
    "bouncing_ball_combined_projection": 1e-12,
    "bouncing_ball_d1minus": 2e-12,
    "bouncing_ball_direct_projection": 1e-12,
    "bouncing_ball_schatzman_paoli": 2e-3,
    "bouncing_ball_ts": 1e-12,
    "column_of_beads": 2e-12,
    "double_pendulum_walls": 5e-10,
    "free_rigid_body_tumbling": 2e-11,
    "impacting_bar_fem": 1e-9,
    "impacting_stick": 1e-12,
    "rocking_block": 1e-11,
    "sphere_rolling_friction": 1e-8,
    "sphere_spin_friction_3d": 5e-12,
    "spherical_joint_pendulum": 2e-7,
}


QUICK = ("bouncing_ball_ts",)
# Each repeats in kind what a shorter case proves.
LONG = ("sphere_rolling_friction", "spherical_joint_pendulum")


def marks(case):
    if case.name in QUICK:
        return ()
    return pytest.mark.nightly if case.name in LONG else pytest.mark.slow


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=marks(case)) for case in CASES]
)
def test_reference_case(case, data_dir):
    difference, tolerance = case.difference(data_dir / "reference_trajectories")
    assert MEASURED[case.name] <= tolerance
    assert difference <= MEASURED[case.name]


def test_schatzman_paoli_before_chattering(data_dir):
    """The tighter tolerance that the case states for its first 1300 rows."""
    (case,) = [c for c in CASES if c.name == "bouncing_ball_schatzman_paoli"]
    difference, _ = case.difference(data_dir / "reference_trajectories", steps=1299)
    assert difference < 1e-9  # measured 5e-11
