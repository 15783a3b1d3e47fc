"""The 3D replay: what is recorded, and that the boxes are really seen in a browser."""

import re
import sys
import threading
import time

import numpy as np
import pytest

from diffnsd.apps.pages._page import MEASURED, SIMULATED
from diffnsd.apps.pages._replay import _clips
from diffnsd.apps.pages._shapes import box_edges, box_pips, polyline
from diffnsd.apps.toss import write_replay

viser = pytest.importorskip("viser")


def _slide(frames=40, offset=0.0, turn=1.0):
    """A box of half width 0.05 that moves along (3, 4) / 5 and turns about the vertical."""
    s = np.linspace(0.0, 1.0, frames)
    position = np.column_stack([0.24 * s + offset, 0.32 * s, np.full(frames, 0.05)])
    angle = turn * s
    zero = np.zeros(frames)
    return position, np.column_stack([np.cos(angle / 2), zero, zero, np.sin(angle / 2)])


def _write(path, tosses=2, **options):
    measured = [_slide(40 + 5 * j) for j in range(tosses)]
    simulated = [_slide(40 + 5 * j, offset=0.12) for j in range(tosses)]
    arguments = {"dt": 1 / 148, "half_width": 0.05, "measured": measured, "simulated": simulated}
    return write_replay(path, **(arguments | options))


def _matrix(quaternion):
    w, x, y, z = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


# --- the picture ----------------------------------------------------------------------------


def test_picture_keeps_heights_distances_and_relative_pose():
    rng = np.random.default_rng(0)
    tracks = []
    for _ in range(2):
        quaternion = rng.normal(size=(6, 4))
        quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
        tracks.append((rng.normal(size=(6, 3)), quaternion))
    (clip,) = _clips(1.0, tracks[:1], tracks[1:], None, 6)
    shown = (clip.measured, clip.simulated)
    for (position, _), (placed, _) in zip(tracks, shown, strict=True):
        np.testing.assert_array_equal(placed[:, 2], position[:, 2])
    apart = [p[1][0] - p[0][0] for p in (tracks, shown)]
    np.testing.assert_allclose(*(np.linalg.norm(d, axis=1) for d in apart), rtol=1e-13)
    # The motion goes to the right and is centred.
    way = shown[0][0][-1] - shown[0][0][0]
    assert way[0] > 0 and abs(way[1]) < 1e-14
    np.testing.assert_allclose(shown[0][0][:, :2].max(0), -shown[0][0][:, :2].min(0), atol=1e-14)
    # One turn about z takes both attitudes to the picture.
    turns = [
        _matrix(after) @ _matrix(before).T
        for (_, old), (_, new) in zip(tracks, shown, strict=True)
        for before, after in zip(old, new, strict=True)
    ]
    np.testing.assert_allclose(turns, np.broadcast_to(turns[0], (12, 3, 3)), atol=1e-14)
    np.testing.assert_allclose(
        turns[0] @ tracks[0][0][0] - shown[0][0][0],
        turns[0] @ tracks[1][0][3] - shown[1][0][3],
        atol=1e-14,
    )
    assert turns[0][2, 2] == pytest.approx(1.0)


def test_frames_are_thinned_to_what_a_screen_shows():
    slide = _slide(1001)
    (clip,) = _clips(1e-3, None, [slide], None, 6)
    assert clip.frames[0] == 0 and clip.frames[-1] == 1000
    assert set(np.diff(clip.frames)[:-1].tolist()) == {16}
    (clip,) = _clips(4 / 148, None, [slide], None, 6)
    assert len(clip.frames) == 1001


def test_failed_simulation_is_shown_up_to_its_failure():
    position, quaternion = _slide(20)
    position[7, 1] = np.nan
    (clip,) = _clips(1.0, [_slide(20)], [(position, quaternion)], ["toss 3"], 6)
    assert clip.label == "toss 3 (simulation failed at frame 7)"
    assert len(clip.simulated[0]) == 7 and clip.frames[-1] == 19


def test_shapes():
    half = np.array([0.1, 0.2, 0.3])
    edges = box_edges(half)
    lengths = np.linalg.norm(edges[:, 0] - edges[:, 1], axis=1)
    np.testing.assert_allclose(np.sort(lengths), np.repeat(2 * half, 4))
    vertices, faces = box_pips(half, sides=8)
    assert len(vertices) == 21 * 9 and len(faces) == 21 * 8 and faces.max() == len(vertices) - 1
    on_face = np.isclose(np.abs(vertices), half + 0.0004).sum(axis=1)
    assert (on_face == 1).all() and (np.abs(vertices) < half + 0.001).all()
    line = polyline(np.arange(30.0).reshape(10, 3), at_most=4)
    assert line.shape == (4, 2, 3) and line[0, 0, 0] == 0 and line[-1, 1, 2] == 29
    np.testing.assert_array_equal(line[1:, 0], line[:-1, 1])


# --- the file -------------------------------------------------------------------------------


def test_replay_is_one_small_file_and_leaves_nothing_running(tmp_path, capfd):
    before = set(threading.enumerate())
    path = _write(tmp_path / "replay.html", tosses=3, title="Cubes <on> a board")
    page = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 2_000_000
    assert "<title>Cubes &lt;on&gt; a board</title>" in page
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not set(threading.enumerate()) - before
    assert capfd.readouterr() == ("", "")


def test_many_tosses_stay_small(tmp_path):
    slides = [_slide(442, turn=30.0) for _ in range(8)]
    path = _write(tmp_path / "replay.html", measured=slides, simulated=slides)
    assert path.stat().st_size < 2_000_000


def test_a_box_of_three_widths_without_measurement(tmp_path):
    path = _write(tmp_path / "replay.html", half_width=[0.05, 0.04, 0.03], measured=None)
    page = path.read_text(encoding="utf-8")
    assert ">simulated</span>" in page and ">measured</span>" not in page


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"half_width": [0.05, 0.05]}, "half_width"),
        ({"half_width": -0.05}, "half_width"),
        ({"dt": 0.0}, "dt and speed"),
        ({"simulated": []}, "no toss to show"),
        ({"simulated": [_slide()]}, "2 measured tosses for 1 simulated"),
        ({"labels": ["one"]}, "1 labels for 2"),
        ({"simulated": [_slide(), (np.zeros((4, 3)), np.ones((5, 4)))]}, "simulated toss 1"),
        ({"simulated": [_slide(), (np.full((4, 3), np.nan), np.ones((4, 4)))]}, "first frame"),
        ({"measured": [_slide(), (np.full((4, 3), np.nan), np.ones((4, 4)))]}, "measured toss 1"),
    ],
)
def test_bad_input_is_explained(change, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        _write(tmp_path / "replay.html", **change)
    assert not (tmp_path / "replay.html").exists()


def test_missing_viser_is_explained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(ImportError, match=r'pip install "diffnsd\[viz\]"'):
        _write(tmp_path / "replay.html")


# --- the page -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_both_cubes_are_seen(dark, tmp_path, open_page):
    tab = open_page(_write(tmp_path / "replay.html"), dark=dark)
    tab.wait(
        "document.querySelector('canvas') !== null && document.querySelector('input') !== null"
    )
    deadline = time.monotonic() + 60
    blue = amber = 0.0
    while min(blue, amber) < 0.002 and time.monotonic() < deadline:
        seen = tab.look()
        blue, amber = seen.share(SIMULATED, 60), seen.share(MEASURED, 60)
        time.sleep(0.5)
    assert not seen.errors
    assert not seen.requests
    # The cubes fill about 1.5 % of the picture each, most of the shell being seen through.
    assert blue > 0.002 and amber > 0.002
    assert (seen.image.mean() < 0.4) == dark
    assert tab.value("document.title") == "Measured and simulated motion"
    first = tab.value("document.querySelector('input').value")
    time.sleep(1.0)
    # The player is running: its clock moves on.
    assert tab.value("document.querySelector('input').value") != first
