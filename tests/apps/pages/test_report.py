"""The report: what stands in it, that it needs no network, and that a browser shows it."""

import dataclasses
import html.parser
import json
import re
import sys

import numpy as np
import pytest

from diffnsd import identification
from diffnsd.apps.pages import PosteriorDraws, write_posterior
from diffnsd.apps.pages._page import number, with_error
from diffnsd.apps.pages._plots import rotation_angle
from diffnsd.apps.toss import (
    ParameterRow,
    PoseErrors,
    RunFigures,
    TossComparison,
    write_report,
)

pytest.importorskip("matplotlib")


def _toss(j):
    """A falling and sliding box, and a simulation a little beside it."""
    time = np.arange(100) / 148
    height = np.maximum(0.15 + 0.3 * time - 4.9 * time**2, 0.052)
    measured = np.column_stack([0.6 * time * (1 - 0.5 * time), 0.1 * time, height])
    angle = 4 * time
    zero = 0 * time
    quaternion = np.column_stack([np.cos(angle / 2), np.sin(angle / 2), zero, zero])
    turned = np.column_stack([np.cos(0.53 * angle), np.sin(0.53 * angle), zero, zero])
    beside = measured + np.column_stack([0.02 * time, -0.03 * time, 0.01 * np.sin(9 * time)])
    return TossComparison(f"Toss {j}", time, measured, quaternion, beside, -turned)


PARAMETERS = (
    ParameterRow("mu", 0.3, 0.18034, 0.0021, "", 0.0, None, interval=(0.176, 0.185), truth=0.2),
    ParameterRow("e", 0.1, 0.02, 0.31, "", 0.0, 1.0, False, note="The data say little about it."),
    ParameterRow(
        "half_width",
        0.0524,
        0.051234,
        0.000041,
        "m",
        0.03,
        0.08,
        True,
        True,
        "",
        (0.05115, 0.05132),
        0.0512,
    ),
    ParameterRow("gravity", 9.81, 9.81, None, "m/s²", free=False),
)
CORRELATIONS = np.array([[1.0, 0.42, -0.83], [0.42, 1.0, 0.05], [-0.83, 0.05, 1.0]])


def _write(path, **changes):
    rng = np.random.default_rng(0)
    arguments = {
        "title": "Friction of a tossed cube",
        "parameters": PARAMETERS,
        "loss_history": 0.3 * np.exp(-np.arange(30) / 4) + 0.006,
        "tosses_compared": [_toss(j) for j in (3, 17)],
        "errors": PoseErrors(rng.gamma(3, 4, 200), rng.gamma(2, 8, 200), 83.0),
        "meta": RunFigures(
            1234,
            900,
            12.3,
            45.6,
            ("e is not determined by these data.",),
            {"data": "cube.npz, 30 of 399 tosses", "seed": "0", "jax": "0.10.2, cpu"},
        ),
        "correlations": CORRELATIONS,
    }
    return write_report(path, **(arguments | changes))


class _Reader(html.parser.HTMLParser):
    """Collects the text, the identifiers, and checks that every element is closed."""

    VOID = ("meta", "link", "br", "path", "use", "rect", "line", "circle")

    def __init__(self, page):
        super().__init__()
        self.open, self.text, self.ids, self.links, self.faults = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.links.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.faults.append(tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "defs"):
            self.text.append(data)


def _read(path):
    page = path.read_text(encoding="utf-8")
    reader = _Reader(page)
    return page, reader, " ".join(" ".join(reader.text).split())


# --- the file -------------------------------------------------------------------------------


def test_everything_stands_in_the_report(tmp_path):
    _, reader, text = _read(_write(tmp_path / "report.html"))
    assert not reader.faults and not reader.open
    for words in (
        "Friction of a tossed cube",
        "mu 0.3 0.1803 0.0021 0.176 to 0.185 0.2 (outside) — at least 0 yes",
        "e The data say little about it. 0.1 0.02 0.31 — — — 0 to 1 no",
        "half_width 0.0524 0.051234 0.000041 0.05115 to 0.05132 0.0512 (inside) m 0.03 to 0.08 yes",
        "gravity 9.81 9.81 — — — m/s² none held",
        "mu +1.00 +0.42 −0.83",
        "83 % end on the measured face",
        "1 234 rollouts",
        "900 of them with gradient",
        "12.3 s compiling",
        "45.6 s running",
        "e is not determined by these data.",
        "position error of 200 runs",
        "rotation error of 200 runs",
        "Toss 17",
        "height of the centre",
        "horizontal path",
        "cube.npz, 30 of 399 tosses",
    ):
        assert words in text, words


def test_figures_are_described_and_the_page_can_be_printed(tmp_path):
    page = _write(tmp_path / "report.html").read_text()
    figures = re.findall(r"<svg [^>]*>", page)
    described = [re.search(r'aria-label="([^"]{20,})"', figure) for figure in figures]
    assert len(figures) == 9 and all(described)
    assert "Histogram of the position error of 200 runs [percent of the size]: mean 11.6" in page
    assert "@media print" in page


def test_posterior_bands_and_errors_over_time(tmp_path):
    rng = np.random.default_rng(2)
    samples = {"mu": rng.normal(0.2, 0.01, 200), "e": rng.normal(0.1, 0.02, 200)}
    toss, places = _toss(3), rng.gamma(3, 4, (20, 100))
    places[3:, 90:] = np.nan
    band = toss.measured_position - 0.01, toss.measured_position + 0.01
    path = _write(
        tmp_path / "report.html",
        posterior=PosteriorDraws(samples, {"mu": 0.2}, "The bands hold 91% of what was measured."),
        tosses_compared=[dataclasses.replace(toss, band=band)],
        errors=PoseErrors(
            rng.gamma(3, 4, 20), rng.gamma(2, 8, 20), None, (toss.time, places, places / 2)
        ),
    )
    page, reader, text = _read(path)
    assert not reader.faults and "The bands hold 91% of what was measured." in text
    lo, hi = np.quantile(samples["mu"], [0.05, 0.95])
    assert f"nine in ten have mu from {lo:.4g} to {hi:.4g}, e from" in page
    assert "position error [percent of the size] over time: median" in page
    # The corner, three of the fit, two over time, three of the toss; each with a text.
    assert len(re.findall(r'<svg [^>]*aria-label="[^"]{20,}"', page)) == 9
    assert len(reader.ids) == len(set(reader.ids))
    bare = _write(tmp_path / "bare.html", posterior=PosteriorDraws({}))
    assert "Distribution of the estimate" in page
    assert "Distribution of the estimate" not in bare.read_text()


def test_report_asks_for_nothing_from_outside(tmp_path):
    path = _write(tmp_path / "report.html")
    page, reader, _ = _read(path)
    assert not re.search(r"https?:|//[a-z]", page) and "@import" not in page
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert path.stat().st_size < 400_000
    # The figures do not take each other's marks.
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(reader.ids)
    assert not re.search(r"#0[1-4]0[1-4]0[1-4]", page)


def test_text_from_outside_stays_text(tmp_path):
    evil = "<script>alert(1)</script> BODY TITLE"
    path = _write(
        tmp_path / "report.html",
        title=evil,
        parameters=[ParameterRow(evil, 1.0, 2.0, 0.1, evil, note=evil)],
        correlations=None,
        tosses_compared=[_toss(0).__class__(evil, *list(_toss(0).__dict__.values())[1:])],
        meta=RunFigures(1, 1, 0.0, 0.0, [evil], {evil: evil}),
    )
    page, reader, text = _read(path)
    assert "<script" not in page and not reader.faults
    assert text.count(evil) == 9


def test_failures_and_missing_parts(tmp_path):
    toss = _toss(0)
    toss.simulated_position[50:] = np.nan
    toss.simulated_quaternion[50:] = np.nan
    errors = PoseErrors(np.array([3.0, np.nan, 4.0]), np.array([1.0, np.nan, 2.0]))
    _, _, text = _read(_write(tmp_path / "a.html", errors=errors, tosses_compared=[toss]))
    assert "1 failed simulations are left out" in text and "of 2 runs" in text
    bare = _write(
        tmp_path / "b.html",
        parameters=[],
        loss_history=[],
        tosses_compared=[],
        errors=None,
        correlations=None,
        meta=RunFigures(0, 0, 0.0, 0.0),
    )
    _, reader, text = _read(bare)
    assert not reader.faults and "Please note" not in text and "Correlations" not in text


def test_what_is_not_finite_is_shown_as_unknown(tmp_path):
    """A fit of data that determine nothing, whose trials failed; and one that was interrupted at once."""
    nothing = np.where(np.eye(3) > 0, 1.0, np.nan)
    path = _write(tmp_path / "nan.html", correlations=nothing, loss_history=[2.0, np.nan, np.inf])
    page, reader, _ = _read(path)
    assert page.count("<td>—</td>") == 6 and not reader.faults
    assert "Loss over 3 iterations" in page
    empty, _, _ = _read(_write(tmp_path / "empty.html", loss_history=[]))
    assert "final loss" not in empty and "Loss over" not in empty


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"loss_history": np.ones((3, 2))}, "loss_history"),
        ({"correlations": np.eye(4)}, r"correlations must have shape \(3, 3\)"),
        ({"tosses_compared": [TossComparison("Toss 5", *5 * [np.ones((3, 3))])]}, "Toss 5"),
    ],
)
def test_bad_input_is_explained(change, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        _write(tmp_path / "report.html", **change)
    assert not (tmp_path / "report.html").exists()


def test_a_posterior_has_a_page_and_a_file(tmp_path):
    """Two numbers, one of them at a bound: draws, diagnostics and warnings, the same in both."""
    params, _ = identification.parameters(
        {"mu": 0.3, "e": 0.02}, lambda m: m, {"e": (0.0, 1.0)}, units={"mu": "<m>"}
    )
    found = identification.posterior(
        lambda p: -(((p["mu"] - 0.3) / 0.01) ** 2) / 2 - ((p["e"] / 0.1) ** 2) / 2,
        params,
        sampler=identification.Laplace(draws=3000),
    )
    path = tmp_path / "posterior.html"
    assert (
        write_posterior(path, found, title="Draws", truth={"mu": 0.31}, details={"seed": "7"})
        == path
    )
    page, reader, text = _read(path)
    assert not reader.faults and not reader.open and "&lt;m&gt;" in page
    assert found.warnings and all(" ".join(said.split()) in text for said in found.warnings)
    assert f"1 × 3000 chains and draws of each 0 divergences {found.acceptance:.0%}" in text
    assert "1500 of 3000 draws are shown." in text and "Broad lines: true values." in text
    assert all(link.startswith(("#", "data:")) for link in reader.links)

    written = json.loads(path.with_suffix(".json").read_text())
    assert written["schema"] == "diffnsd.posterior/1" and written["warnings"] == list(
        found.warnings
    )
    mu = written["parameters"]["mu"]
    assert (mu["mean"], mu["deviation"]) == found["mu"] and mu["truth"] == 0.31
    assert tuple(mu["interval"]) == found.interval(0.9)["mu"]
    assert (mu["split_rhat"], mu["effective_draws"]) == (found.rhat[1], found.effective_sizes[1])
    assert written["log_evidence"] == found.log_evidence and written["divergences"] == 0
    assert f'data-name="split R-hat">{found.rhat[1]:.3f}<' in page
    with pytest.raises(ValueError, match="another ending"):
        write_posterior(tmp_path / "posterior.json", found)


def test_missing_matplotlib_is_explained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "diffnsd\[viz\]"'):
        _write(tmp_path / "report.html")


def test_plots_leave_matplotlib_as_it_was(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    _write(tmp_path / "report.html")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (0.18034, 0.0021, ("0.1803", "0.0021")),
        (9.6034, 0.0951, ("9.603", "0.095")),
        (-0.5, 0.31, ("−0.50", "0.31")),
        (1.5, None, ("1.5", "—")),
        (1.5, np.inf, ("1.5", "∞")),
        (0.37, 1e-9, ("0.37", "1e−09")),
    ],
)
def test_values_are_rounded_by_their_error(value, error, expected):
    assert with_error(value, error) == expected
    assert number(float("nan")) == "not finite"


def test_rotation_angle():
    half = np.array([0.0, 1e-9, 0.3, 1.5, np.pi / 2]) / 1.0
    zero = 0 * half
    turned = np.column_stack([np.cos(half), zero, np.sin(half), zero])
    plain = np.tile([1.0, 0, 0, 0], (5, 1))
    np.testing.assert_allclose(rotation_angle(plain, -3 * turned), 2 * half, rtol=1e-12)


# --- the page -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(1200, 900), (390, 844)], ids=["desk", "phone"])
def test_report_in_a_browser(dark, size, tmp_path, open_page):
    tab = open_page(_write(tmp_path / "report.html"), size=size, dark=dark)
    assert tab.value("document.title") == "Friction of a tossed cube"
    # Nothing is wider than the screen, and every plot is drawn.
    assert tab.value("document.documentElement.scrollWidth") <= size[0]
    assert tab.value("document.querySelectorAll('figure svg').length") == 9
    widths = (
        "[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert tab.value(f"Math.min(...{widths})") > 250
    tab.value("document.querySelector('figure').scrollIntoView()")
    seen = tab.look()
    assert not seen.errors and not seen.requests
    # The ground follows the reader's choice; the curves are drawn on it.
    assert (np.median(seen.image) < 0.3) == dark
    assert seen.share((108, 155, 255) if dark else (47, 102, 216), 40) > 0.002
