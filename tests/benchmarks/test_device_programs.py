"""The benchmarked programs lower for a GPU on a machine without one, and never call the host."""

import sys
from pathlib import Path

import jax
import pytest
from marks import nightly, slow

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
device_programs = pytest.importorskip("_device_programs")

QUICK = [
    ("ball", "plain", "gradient", "float32"),
    ("solver", "plain", "gradient", "float64"),
    ("circuit", "Corrected", "forward", "float64"),
    ("circuit", "plain", "forward", "float32"),
    ("cube", "plain", "forward", "float32"),
]
# A gradient contains the forward program, and the precision changes no operation.
SLOW = [
    (*name, "gradient", "float64")
    for name in device_programs.names()
    if (*name, "gradient", "float64") not in QUICK
]


def is_long(program) -> bool:
    """Whether its method multiplies the program, or its model is that of another one with more joints."""
    return program[1] != "plain" or program[0] == "ant"


@pytest.mark.parametrize(
    "program",
    [*QUICK, *(nightly(p) if is_long(p) else slow(p) for p in SLOW)],
    ids="-".join,
)
def test_lowers_for_cuda_without_the_host(program):
    with jax.enable_x64(program[-1] == "float64"):
        found = device_programs.lower_for_cuda(*program)
    assert found.host == ()
    assert found.operations > 100


def test_kernels_are_counted_in_the_loop_over_steps():
    """Three kernels of a loop that is written by hand: two fusions, and one in an inner loop."""
    text = """
%inner (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%c1
}
%goes_on (p: f32[4]) -> pred[] {
  ROOT %k = pred[] constant(true)
}
%body (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %f1 = f32[4]{0} fusion(%p), kind=kLoop, calls=%c1
  %w = f32[4]{0} while(%f1), condition=%goes_on, body=%inner
  ROOT %f2 = f32[4]{0} fusion(%w), kind=kLoop, calls=%c1
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %before = f32[4]{0} fusion(%p), kind=kLoop, calls=%c1
  ROOT %w = f32[4]{0} while(%before), condition=%goes_on, body=%body
}
"""
    assert device_programs.kernels_of_a_step(text) == (2, 1)
