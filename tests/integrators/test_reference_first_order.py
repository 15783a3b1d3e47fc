"""Motions of an established simulator, recorded with their schemes: they are reproduced step by step.

The cases are those of the benchmark, which also times them; here each is run once, whole.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _cases_first_order import CASES

# Measured differences, rounded up: far below the stated tolerances.
MEASURED = {
    "circuit_rlcd": 1e-13,
    "diode_bridge": 1e-12,
    "diode_bridge_theta_gamma": 1e-11,
    "friction_oscillator": 5e-12,
    "onestep_lcp_suite": 2e-12,  # measured 1.6e-12, at residuals of 1e-13
    "onestep_relay_suite": 5e-12,
    "relay_oscillator": 5e-13,
    "relay_simple_2d": 2e-11,
    "smc_implicit": 1e-11,
    "step_system_genetic": 1e-10,
}


QUICK = ("circuit_rlcd", "friction_oscillator")
# Repeats in kind what a shorter case proves.
LONG = ("onestep_relay_suite",)


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
