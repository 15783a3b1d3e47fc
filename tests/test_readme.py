"""The README's Python blocks run as written, one after the other, in a fresh interpreter."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

CLAIMS = """
assert abs(value - 0.6796) < 1e-4, value
assert abs(first[0] + 2.2647) < 1e-4 and abs(first[1] - 0.6795) < 1e-4, first
assert distances.shape == slopes.shape == (16,)
assert abs(fit.values()["mu"] - 0.3) < 1e-3, fit.values()
assert abs(descent.values()["mu"] - 0.3) < 2e-2, descent.values()
assert abs(found["mu"][0] - 0.3) < 1e-3 and found["mu"][1] < 1e-2, found["mu"]
assert abs(swing.states.q[-1, 0] - 1.0) > 0.5 and swing.result == nsd.RESULTS.successful
assert abs(nsd.solve_complementarity(problem).z - jnp.array([0.5, 0.0])).max() < 1e-8
assert -0.01 < angles.min() and 0.9 < angles.max() < 1.21 and door.result == nsd.RESULTS.successful
assert reach.gaps[0].min() > -0.01 and reach.gaps[1].min() > 0, reach.gaps[0].min()
assert reach.result == nsd.RESULTS.successful and reach.impulses[0][:, 0, 0].max() > 0
assert abs(stacked_bricks.states.q.position[1, 0, 2] - 0.05) < 1e-9 and stacked_bricks.message == ""
assert abs(jax.grad(slid)(params).values()["mu"] + 1.274) < 0.01
assert abs(felt[-1] - jnp.array([-1.962, 0.0, 9.81])).max() < 1e-6, felt[-1]
assert turns.states.v[:, 1].min() < -0.99 and abs(turns.energy.total / turns.energy.total[0] - 1).max() < 1e-7
assert abs(orbit.states.q[0][-1] / jnp.array([1.0, 2.0, 3.0]) - turns.states.v[-1]).max() < 1e-6
assert diode_currents.min() >= 0 and 8e-3 < diode_currents.max() < 1e-2, diode_currents
assert run.result == nsd.RESULTS.successful
assert run.gaps[0].min() > -0.01
"""


@pytest.mark.slow
def test_python_blocks():
    blocks = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 18
    program = blocks[0] + "\nfirst = slopes\n" + "\n".join(blocks[1:]) + CLAIMS
    settings = ("JAX_ENABLE_X64", "JAX_NUMPY_RANK_PROMOTION", "JAX_NUMPY_DTYPE_PROMOTION")
    environment = {key: value for key, value in os.environ.items() if key not in settings}
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr[-3000:]


def test_commands_and_options_exist():
    cli = pytest.importorskip("diffnsd.apps.cli")
    (text,) = re.findall(r"^```text\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    functions = {c.callback.__name__: c.callback for c in cli.app.registered_commands}
    for line in text.splitlines():
        command = line.split()[1]
        known = inspect.signature(functions[command]).parameters
        for option in re.findall(r"--([\w-]+)", line):
            assert option.replace("-", "_") in known, f"{command} has no --{option}"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
    named = re.findall(r"`((?:notebooks|benchmarks|\.github|\.ci)/[\w./]+)`", README)
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
    assert (ROOT / ".github" / "toss.png").stat().st_size < 150_000
