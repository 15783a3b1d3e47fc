"""The view of a file: what it shows, that only this machine sees it, and that it stops."""

import base64
import re
import socket
import urllib.request

import numpy as np
import pytest
import zstandard
from typer.testing import CliRunner

from diffnsd.apps.cli import app
from diffnsd.apps.mechanism._simulate import simulated
from diffnsd.apps.mechanism._solids import hull_mesh, solids
from diffnsd.apps.mechanism._view import Scene, check_host, open_view
from diffnsd.apps.pages import quiet_viser
from diffnsd.io import load_mjcf

runner = CliRunner()
RESTING = """<mujoco><option timestep=".01"/><worldbody><geom type="plane" size="1 1 1"/>
 <body pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1" mass="2"/></body></worldbody></mujoco>"""
KINDS = """<mujoco><asset><mesh name="tip" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset><worldbody>
 <geom type="plane" size="1 1 1"/><body pos="0 0 2"><freejoint/>
 <geom type="sphere" size=".2" pos="1 0 0"/><geom type="capsule" size=".2 .5"/>
 <geom type="ellipsoid" size=".1 .2 .3"/><geom type="cylinder" size=".2 .5"/>
 <geom type="box" size=".1 .2 .3" euler="90 0 0"/>
 <geom type="mesh" mesh="tip"/></body></worldbody></mujoco>"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "resting.xml"
    path.write_text(RESTING)
    return path


@pytest.fixture(scope="module")
def scene(file):
    return Scene(simulated(str(file), 0.1))


def test_geoms_are_meshes_with_their_volume():
    _, elements, _ = load_mjcf(KINDS)
    found = solids(elements, 5.0)
    assert [s.body for s in found] == [None, 0, 0, 0, 0, 0, 0]
    volumes = []
    for solid in found:
        a, b, c = (solid.vertices[solid.faces[:, i]] for i in range(3))
        volumes.append(np.sum(np.cross(a, b) * c) / 6)  # positive: triangles face outwards
    ball, tube = 4 / 3 * np.pi * 0.2**3, np.pi * 0.2**2 * 1.0
    expected = [ball, ball + tube, 4 / 3 * np.pi * 0.006, tube, 8 * 0.006, 1 / 6]
    # Measured: 3.5 % less of a ball of 24 sides; flat faces are exact.
    np.testing.assert_allclose(volumes[1:], expected, rtol=0.05)
    np.testing.assert_allclose(volumes[5:], expected[4:], rtol=1e-8)  # 1e-9
    box = found[5].vertices
    np.testing.assert_allclose(np.ptp(box, axis=0), [0.2, 0.6, 0.4], atol=1e-12)  # turned about x


def test_a_hull_drops_points_inside():
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    vertices, faces = hull_mesh(np.concatenate([corners, [[0.5, 0.5, 0.5]]]))
    assert len(vertices) == 8 and len(faces) == 12


@pytest.mark.slow
def test_forces_carry_the_weight(scene):
    """A box at rest: its contacts lie in its lower face, and their forces point up."""
    arrows = scene.arrows[-1]
    assert len(arrows) >= 3
    np.testing.assert_allclose(arrows[:, 0, 2], 0, atol=1e-6)
    # The sum of the arrows is the weight, in the scale in which the longest is the size of the box.
    along = (arrows[:, 1] - arrows[:, 0]).sum(axis=0)
    assert along[2] > 0.2 * scene.size and np.abs(along[:2]).max() < 1e-6 * along[2]
    assert len(scene.arrows) == len(scene.times) == 11


@pytest.mark.slow
def test_it_serves_on_this_machine_alone_and_stops(scene):
    with quiet_viser():
        server, advance = open_view(scene, "127.0.0.1", 0)
    try:
        port = server.get_port()
        assert server.get_host() == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=10) as page:
            assert page.status == 200 and b"<html" in page.read().lower()
        advance()
    finally:
        with quiet_viser():
            server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()


def test_a_ready_model_is_no_file():
    done = runner.invoke(app, ["view", "bouncing_ball"])
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "view takes MJCF and URDF files" in said
    assert "diffnsd simulate bouncing_ball and diffnsd gallery bouncing_ball" in said


def test_a_host_that_others_reach_is_refused(file):
    done = runner.invoke(app, ["view", str(file), "--host", "0.0.0.0"])
    assert done.exit_code == 2 and "Give --public" in " ".join(done.output.split())
    check_host("localhost", False)
    check_host("0.0.0.0", True)
    with pytest.raises(ValueError, match="no address"):
        check_host("no.such.host.invalid", False)


@pytest.mark.slow
def test_a_page_that_needs_no_server(file, tmp_path):
    out = tmp_path / "pages" / "resting.html"
    done = runner.invoke(app, ["view", str(file), "--seconds", "0.1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = out.read_text()
    assert "<title>resting</title>" in page and len(page) > 100_000
    # The recording holds the forces of each of its 11 frames, for the player to show in turn.
    packed = re.search(r'__VISER_EMBED_DATA__="([^"]+)"', page)
    assert packed is not None
    unpack = zstandard.ZstdDecompressor().decompress
    recording = unpack(base64.b64decode(packed[1])[8:], max_output_size=10**7)
    assert recording.count(b"ArrowMessage") == recording.count(b"PointCloudMessage") == 11


@pytest.mark.slow
def test_a_file_whose_actuators_have_states(tmp_path):
    """Contacts are then those of a part of the model; the ground carries the weight."""
    path = tmp_path / "filtered.xml"
    path.write_text(
        """<mujoco><option timestep=".01"/><worldbody><geom type="plane" size="1 1 1"/>
        <body pos="0 0 .1"><joint name="up" type="slide" axis="0 0 1"/><geom size=".1" mass="2"/></body>
        </worldbody><actuator><general joint="up" dyntype="filter" dynprm=".1"/></actuator></mujoco>"""
    )
    scene = Scene(simulated(str(path), 0.1))
    assert scene.poses[0].shape == (len(scene.times), 1, 3)
    assert len(scene.arrows[-1]) == 1 and scene.arrows[-1][0, 1, 2] > scene.arrows[-1][0, 0, 2]
