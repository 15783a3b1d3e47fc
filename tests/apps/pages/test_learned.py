"""The page of learned parts: what is drawn, what is said of it, and the file beside it."""

import json
import re

import numpy as np
import pytest

from diffnsd.apps.pages import LearnedCurve, LearnedMap, Scores, write_learned

pytest.importorskip("matplotlib")

SPEED = np.linspace(0.0, 2.0, 41)
SEEN = np.linspace(0.5, 1.5, 101)


def _friction(**changes):
    given = {
        "name": "Friction <mu>",
        "x": SPEED,
        "y": 0.2 + 0.1 * SPEED,
        "across": "slip speed [m/s]",
        "up": "friction",
        "seen": SEEN,
        "prior": 0.25,
    }
    return LearnedCurve(**(given | changes))


def _heights(**changes):
    x, y = np.linspace(-1, 1, 9), np.linspace(0, 1, 5)
    seen = np.random.default_rng(0).uniform(0, 1, (30, 2))
    values = 0.05 * x[:, None] * y[None]
    given = ("Heights", x, y, values, "x [m]", "y [m]", "m")
    return LearnedMap(*given, **({"seen": seen, "truth": 2 * values} | changes))


def test_a_page_and_a_file_say_the_same(tmp_path):
    scores = Scores(
        {"constant": {"angle [deg]": 25.0}, "learned": {"angle [deg]": 21.5}}, "206 drops."
    )
    path = tmp_path / "learned.html"
    parts = [_friction(), _heights()]
    history, note = [3.0, np.nan, 1.0], ["Few data <below> 0.5 m/s."]
    assert write_learned(path, parts, scores=scores, loss_history=history, warnings=note) == path
    page, written = path.read_text(), json.loads(path.with_suffix(".json").read_text())
    described = [
        re.search(r'role="img" aria-label="([^"]{20,})"', x)
        for x in re.findall("<svg [^>]*>", page)
    ]
    # The curve, the map and its truth, and the training; each with a text.
    assert len(described) == 4 and all(described)
    # 98 % of the data lie between 0.51 and 1.49, where the line is 0.251 and 0.349.
    assert "friction from 0.251 at 0.51 to 0.349 at 1.49 (slip speed [m/s])" in page
    assert "from −0.05 m at (−1, 1) to 0.05 m at (1, 1); 30 data." in page
    assert "Friction &lt;mu&gt;" in page and "Few data &lt;below&gt; 0.5 m/s." in page
    assert ">21.5<" in page and "206 drops." in page
    assert not re.search(r"https?:|//[a-z]", page)
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))

    assert written["schema"] == "diffnsd.learned/1" and written["loss_history"] == [3.0, None, 1.0]
    curve, heights = written["parts"]
    assert curve["y"] == (0.2 + 0.1 * SPEED).tolist() and curve["prior"] == [0.25] * 41
    np.testing.assert_allclose(curve["known_between"], [0.51, 1.49])
    assert (curve["seen"], curve["truth"], heights["seen"]) == (101, None, 30)
    assert np.shape(heights["values"]) == (9, 5)
    assert written["scores"] == dict(scores.rows) and written["warnings"] == note


def test_constants_are_drawn(tmp_path):
    """What stayed at its start, from one point of data on the curve: no range to divide by."""
    flat = _heights(truth=None)
    parts = [
        _friction(y=np.full(41, 0.2), seen=[1.0, 7.0]),
        LearnedMap("flat", flat.x, flat.y, 0 * flat.values, "x", "y", "m", flat.seen),
    ]
    page = write_learned(tmp_path / "flat.html", parts).read_text()
    assert (
        "friction from 0.2 at 1 to 0.2 at 1" in page
        and "98 % of 1 data lie; 1 more" in page
        and page.count("<svg ") == 2
    )


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (_friction(x=SPEED[::-1]), "Friction <mu>: x must hold two or more increasing numbers"),
        (_friction(y=np.ones(3)), r"y must have shape \(41,\) as x has"),
        (_friction(truth=np.ones(3)), r"truth must have shape \(41,\)"),
        (_friction(prior=np.ones(3)), r"prior must have shape \(41,\) as x has"),
        (_friction(prior="low"), "prior must be numbers"),
        (_friction(seen=[]), r"seen must have shape \(s,\) with s at least 1"),
        (_friction(seen=0.5), r"seen must have shape \(s,\) with s at least 1, got \(\)"),
        (_friction(seen=np.ones((4, 2))), r"seen must have shape \(s,\)"),
        (_friction(seen=[5.0, 6.0]), "only 0 of 2 data in seen lie .* x from 0 to 2:"),
        (_friction(seen=[0.1, np.nan]), "1 of 2 numbers of seen are not finite"),
        (_friction(y=np.where(SPEED > 1, np.nan, SPEED)), "20 of 41 numbers of y are not finite"),
        (_heights(truth=np.full((9, 5), np.nan)), "45 of 45 numbers of truth are not finite"),
        (_heights(seen=np.ones(4)), r"seen must have shape \(s, 2\)"),
        (_heights(seen=np.ones((4, 2)) * [1, 7]), "only 0 of 4 .* and y from 0 to 1:"),
        (_heights(truth=np.ones((5, 9))), r"truth must have shape \(9, 5\), one row for each x"),
    ],
)
def test_shapes_that_do_not_match_are_explained(part, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        write_learned(tmp_path / "learned.html", [part])
    assert not (tmp_path / "learned.html").exists()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"learned": 1.0}, r"rows\['learned'\] must be a mapping such as .*; got"),
        ({"learned": {"angle": "small"}}, r"rows\['learned'\]\['angle'\] must be a number"),
        ([1.0], "rows must be a mapping"),
    ],
)
def test_scores_that_are_no_table_are_explained(rows, sentence, tmp_path):
    with pytest.raises(TypeError, match=sentence):
        write_learned(tmp_path / "learned.html", [_friction()], scores=Scores(rows))


def test_a_page_needs_parts_and_an_ending(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        write_learned(tmp_path / "learned.html", [])
    with pytest.raises(ValueError, match="another ending"):
        write_learned(tmp_path / "learned.json", [_friction()])


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path, open_page):
    path = write_learned(tmp_path / "learned.html", [_friction(), _heights()])
    tab = open_page(path, size=(390, 844), dark=True)
    assert tab.value("document.documentElement.scrollWidth") <= 390
    tab.value("document.querySelector('figure').scrollIntoView()")
    seen = tab.look()
    assert not seen.errors and not seen.requests
    assert seen.share((108, 155, 255), 40) > 3e-4  # measured 7.6e-4
