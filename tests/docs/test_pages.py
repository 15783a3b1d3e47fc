"""README and pages: Python blocks run as written, links lead somewhere, every public name has an entry.

The blocks of a page run one after the other in a fresh interpreter; what they print or say is claimed here.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from marks import nightly

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {"README": ROOT / "README.md"} | {
    path.stem: path for path in sorted((ROOT / "docs" / "pages").glob("*.md"))
}

# Measured: what the comments of the blocks say, and errors of 1e-5 or less where a closed form is compared.
CLAIMS = {
    "README": """
assert abs(value - 0.6796) < 1e-4, value
assert abs(slopes[0] + 2.2647) < 1e-4 and abs(slopes[1] - 0.6795) < 1e-4, slopes
assert abs(run.states.q[-1, 0] - 0.255) < 2e-3, run.states.q[-1, 0]
assert abs(fit.values()["mu"] - 0.3) < 1e-3, fit.values()
""",
    "tour": """
assert abs(value - 0.6796) < 1e-4, value
assert distances.shape == slopes.shape == (16,)
assert abs(swing.states.q[-1, 0] - 1.0) > 0.5 and swing.result == nsd.RESULTS.successful
assert wrong == 1.0 and abs(right - 0.5664) < 1e-3, (wrong, right)
assert len(nsd.models.READY) > 10
""",
    "how_a_step_is_solved": """
assert abs(solution.z - jnp.array([0.5, 0.0])).max() < 1e-8
""",
    "mechanisms": """
assert -0.01 < angles.min() and 0.9 < angles.max() < 1.21 and door.result == nsd.RESULTS.successful
assert reach.gaps[0].min() > -0.01 and reach.gaps[1].min() > 0, reach.gaps[0].min()
assert reach.result == nsd.RESULTS.successful and reach.impulses[0][:, 0, 0].max() > 0
assert abs(stacked_bricks.states.q.position[1, 0, 2] - 0.05) < 1e-9 and stacked_bricks.message == ""
assert abs(jax.grad(slid)(params).values()["mu"] + 1.274) < 0.01
assert abs(felt[-1] - jnp.array([-1.962, 0.0, 9.81])).max() < 1e-6, felt[-1]
assert abs(forces / (9.81 * np.arange(4, 0, -1)) - 1).max() < 1e-6, forces
""",
    "rotations": """
assert turns.states.v[:, 1].min() < -0.99 and abs(turns.energy.total / turns.energy.total[0] - 1).max() < 1e-7
assert abs(orbit.states.q[0][-1] / jnp.array([1.0, 2.0, 3.0]) - turns.states.v[-1]).max() < 1e-6
""",
    "elastic": """
corner = body.positions(0.1, run.states.q[-1])[-1]
assert run.result == nsd.RESULTS.successful and -0.05 < corner[2] - 0.05 < -0.02
assert abs(rest.reactions.sum(axis=0)[2] - 9.81 * 0.5) < 1e-6
assert on_hill.result == nsd.RESULTS.successful and -5e-4 < on_hill.gaps[0].min() < 0
assert on_hill.impulses[0].sum() > 0.05
assert fall.result == nsd.RESULTS.successful and abs(fall.states.v[:, -4].min() + 0.608) < 1e-3
assert abs(fall.states.v[-1, -4] + 0.156) < 1e-3
assert abs(el.equilibrium(rod).q[-4] + 1.5**3 / (3 * 2e11 * 1e-9)) < 1e-5
""",
    "circuits": """
assert diode_currents.min() >= 0 and 8e-3 < diode_currents.max() < 1e-2, diode_currents
assert run.result == nsd.RESULTS.successful
""",
    "gradients": """
assert plain == 0 and abs(located - 4.208) < 1e-3, (plain, located)
assert abs(slopes[1] - 0.22576) < 1e-4, slopes
assert any("impact times" in warning for warning in told.warnings), told.warnings
""",
    "troubleshooting": """
assert run.message.startswith("2 impacts were stepped over"), run.message
""",
    "extend": """
assert run.result == nsd.RESULTS.successful and run.gaps[0].min() > -0.01
energy = oscillation.energy.total
assert abs(energy / energy[0] - 1).max() < 0.01, energy  # a band of h/2; measured 0.005
assert "contacts" in SymplecticEuler().supports(nsd.Model(ball, table))
assert abs(coarse.states.q[-1] - fine.states.q[-1]).max() < 1e-9
assert "splits steps" in Substeps(nsd.SchatzmanPaoli()).supports(nsd.Model(ball, table))
""",
    "identification": """
assert abs(0.1 * learned.network(jnp.asarray(1.5)) + 0.9) < 0.1, 0.1 * learned.network(jnp.asarray(1.5))
assert "diffnsd.posterior/1" in open("posterior.json").read()
assert "diffnsd.learned/1" in open("learned.json").read()
assert abs(fit.values()["mu"] - 0.3) < 1e-3, fit.values()
assert abs(descent.values()["mu"] - 0.3) < 2e-2, descent.values()
assert abs(found["mu"][0] - 0.3) < 1e-3 and found["mu"][1] < 1e-2, found["mu"]
low, high = drawn.interval(0.9)["mu"]
assert 0.29 < low < 0.3 < high < 0.31 and drawn.warnings == (), drawn.interval(0.9)
""",
    "batches": """
assert distances.shape == slopes.shape == (16,)
assert abs(ends[-1] - 0.68) < 0.01 and ends[0] < ends[1] < ends[2], ends
assert abs(spread - distances[: len(spread)]).max() < 1e-12, spread - distances[: len(spread)]
assert abs(jax.grad(far)(0.3) + 2.265) < 2e-3, jax.grad(far)(0.3)
""",
    "large_systems": """
assert run.result == nsd.RESULTS.successful and run.impulses[0].max() > 0
assert (jnp.diff(run.energy.total) <= 1e-12).all(), run.energy.total
assert slopes.shape == (499,) and abs(slopes).max() > 0
""",
    "command_line": """
with np.load("runs.npz") as runs:
    assert runs["qpos"].shape == (200, 7) and runs["offsets"][-1] == 200
""",
    "from_mujoco": """
assert abs(run.states.q[-1, 2] - 0.1) < 1e-9 and len(elements.report) == 2, elements.report
""",
    "from_dojo": """
assert abs(exact) < 1e-12 and smooth > 1e-5, (exact, smooth)  # measured 1e-27 and 1.2e-4
""",
    "from_diffrax": """
assert abs(here - there).max() < 1e-10
assert bouncing.stats.located.sum() >= 4 and bouncing.result == nsd.RESULTS.successful
""",
}


def blocks(page: str) -> list[str]:
    text = PAGES[page].read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def test_pages_with_code_are_the_claimed_ones():
    assert {page for page in PAGES if blocks(page)} == set(CLAIMS)
    assert len(blocks("README")) == 3


LONG = "identification mechanisms batches elastic from_dojo from_mujoco rotations gradients".split()


@pytest.mark.slow
@pytest.mark.parametrize("page", [nightly(p) if p in LONG else p for p in CLAIMS])
def test_python_blocks(page, tmp_path):
    program = "\n".join(blocks(page)) + CLAIMS[page]
    settings = ("JAX_ENABLE_X64", "JAX_NUMPY_RANK_PROMOTION", "JAX_NUMPY_DTYPE_PROMOTION")
    environment = {key: value for key, value in os.environ.items() if key not in settings}
    if page == "batches":  # its mesh is to have more than one device
        environment["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr[-3000:]


def test_commands_and_options_exist():
    cli, typer = (pytest.importorskip(name) for name in ("diffnsd.apps.cli", "typer"))
    commands = typer.main.get_command(cli.app).commands
    texts = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.values())
    lines = [
        line
        for text in re.findall(r"^```text\n(.*?)^```$", texts, flags=re.DOTALL | re.MULTILINE)
        for line in text.splitlines()
    ]
    assert {line.split()[1] for line in lines} == set(commands)
    for line in [*lines, *re.findall(r"`(diffnsd (?:demo|identify|simulate|view)[^`]*)`", texts)]:
        command = line.split()[1]
        known = {o for p in commands[command].params for o in (*p.opts, *p.secondary_opts)}
        for option in re.findall(r"--[\w-]+", line):
            assert option in known, f"{command} has no {option}"


def anchors(path: Path) -> set[str]:
    """The places of a page that a link can name: its headings, as the site names them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h.lower())).strip("-") for h in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    here, text = PAGES[page], PAGES[page].read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, place = target.partition("#")
        path = (here.parent / name).resolve() if name else here
        assert path.exists(), target
        if place:
            assert place in anchors(path), target
    for name in re.findall(r"`((?:notebooks|benchmarks|\.github|\.ci)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"python (benchmarks/\w+\.py)", text):
        assert (ROOT / name).exists(), name


def test_the_readme_is_short_and_its_picture_small():
    assert len(PAGES["README"].read_text(encoding="utf-8").splitlines()) < 200
    assert (ROOT / ".github" / "toss.png").stat().st_size < 150_000


def test_the_navigation_lists_every_page():
    text = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": (\w+\.md)$", text[text.index("\nnav:") :], flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for name, path in PAGES.items() if name != "README")


def reference():
    """The module that writes the pages of the reference; it needs nothing of mkdocs."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_one_entry():
    for extra in ("matplotlib", "viser", "mujoco", "typer"):
        pytest.importorskip(extra)
    module = reference()
    pages, entries = module.pages(), module.homes()
    written = [name for text in pages.values() for name in re.findall(r"^::: (\S+)$", text, re.M)]
    assert len(written) == len(set(written)) == len(set(entries.values()))
    for family in ("diffnsd", *(f"diffnsd.{name}" for name in module.FAMILIES)):
        home = importlib.import_module(family)
        for name in module.public(home):
            assert entries[id(getattr(home, name))] in written, f"{family}.{name}"


def test_every_folder_has_a_page():
    """Folders with public names, but for those whose names all are in the folder above."""
    module = reference()
    folders = {
        ".".join(path.parent.relative_to(ROOT / "diffnsd").parts)
        for path in (ROOT / "diffnsd").rglob("__init__.py")
        if not any(part.startswith("_") for part in path.parent.relative_to(ROOT / "diffnsd").parts)
    } - {"", "apps"}
    for folder in folders - set(module.FAMILIES):
        above = importlib.import_module(f"diffnsd.{folder.rpartition('.')[0]}")
        inside = importlib.import_module(f"diffnsd.{folder}")
        missing = [x for x in module.public(inside) if not hasattr(above, x)]
        assert not missing, f"{folder}: {missing} have no page"
