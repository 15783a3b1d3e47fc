"""The gallery: what it draws is where the contacts are, its pages are complete, and a browser shows them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from diffnsd.apps.cli import app
from diffnsd.apps.gallery._drawings import DRAWINGS
from diffnsd.groups import rotation_matrix
from diffnsd.models import READY

pytest.importorskip("viser")
PLANES = ("bouncing_ball", "sliding_block", "tossed_cube", "rocking_block", "column_of_beads")


@pytest.mark.parametrize("name", PLANES)
def test_bodies_are_drawn_above_the_ground_as_far_as_they_are(name):
    """The lowest drawn point of a body lies at the smallest gap of the model, to the facets of a ball."""
    ready = READY[name]()
    drawing, q = DRAWINGS[name](ready), ready.state0.q
    many = (
        type(q)(q.position[None], q.orientation[None])
        if name == "tossed_cube"
        else np.asarray(q)[None]
    )
    origins, turns = drawing.poses(np.zeros(1), many)
    lowest = min(
        np.min(
            origins[0, s.body, 2]
            + (s.vertices @ np.asarray(rotation_matrix(turns[0, s.body])).T)[:, 2]
        )
        for s in drawing.solids
        if s.body is not None
    )
    gap = ready.model.interactions[0].relation.gap(jnp.zeros(()), q)
    # Measured: 1e-17; of beads the ground counts, not their distances.
    assert abs(lowest - float(gap[0] if name == "column_of_beads" else jnp.min(gap))) < 1e-12


def test_every_drawing_has_a_pose_for_each_of_its_bodies():
    for name, drawn in DRAWINGS.items():
        ready = READY[name]()
        q, drawing = ready.state0.q, drawn(ready)
        many = (
            type(q)(q.position[None], q.orientation[None])
            if name == "tossed_cube"
            else np.asarray(q)[None]
        )
        origins, turns = drawing.poses(
            np.zeros(1), np.asarray(many) if name != "tossed_cube" else many
        )
        bodies = {s.body for s in drawing.solids if s.body is not None}
        assert bodies == set(range(origins.shape[1])), name
        np.testing.assert_allclose(np.linalg.norm(turns, axis=-1), 1, atol=1e-12)
        assert turns.shape == (*origins.shape[:2], 4)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    notebooks = Path(__file__).parents[3] / "notebooks"
    command = ["gallery", "bouncing_ball", "relay_oscillator", "--out", str(folder)]
    done = CliRunner().invoke(app, [*command, "--notebooks", str(notebooks)])
    assert done.exit_code == 0, done.output
    return folder


def test_the_index_leads_to_complete_pages(gallery):
    index = (gallery / "index.html").read_text()
    for attribute in ("href", "src"):
        found = re.findall(rf'<(?:a|img)[^>]* ?{attribute}="([^"]+)"', index)
        assert len(found) >= 10 and all((gallery / name).is_file() for name in found)
    assert all(re.findall(r'alt="([^"]*)"', index))
    # Nothing is loaded from elsewhere.
    for page in gallery.glob("*.html"):
        assert not re.search(r'(?:src|href)="https?:', page.read_text()), page


def test_the_curves_are_those_of_the_simulation(gallery):
    text = (gallery / "relay_oscillator.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["labels"] == ["x1", "x2", "x3"] and len(data["values"]) == 3
    start = [row[0] for row in data["values"]]
    np.testing.assert_allclose(start, [0.0, 0.675, 0.0])
    assert data["times"][0] == 0 and data["times"][-1] == pytest.approx(50.0)


def test_a_browser_shows_the_curves(gallery, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs chromium")
    options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    page = (gallery / "relay_oscillator.html").as_uri()
    command = [chromium, *options.split(), f"--user-data-dir={tmp_path}", "--dump-dom", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("<polyline") == 3 and "t = 0.000 s; x1 0.000" in done.stdout


def test_names_that_are_not_there_are_refused(tmp_path):
    done = CliRunner().invoke(app, ["gallery", "cube", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "there is no model 'cube'" in " ".join(done.output.split())
