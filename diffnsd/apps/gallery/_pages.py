"""The pages of a gallery: its index, curves with a time to drag, and the pictures of a notebook."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..pages import filled_page

_POINTS = 1500


@dataclass(frozen=True)
class Entry:
    """One picture of the gallery: a name, a sentence, the picture's file and the page it leads to."""

    name: str
    summary: str
    picture: str
    page: str


_GRID = """<style>
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr));
  gap: 1rem; }
.gallery a { display: block; height: 100%; color: inherit; text-decoration: none; overflow: hidden;
  background: var(--card); border: 1px solid var(--line); border-radius: .8rem; }
.gallery a:hover, .gallery a:focus { border-color: var(--simulated); }
.gallery img { display: block; width: 100%; height: auto; background: #fff; }
.gallery figcaption { padding: .6rem .9rem .8rem; }
.gallery figcaption span { display: block; color: var(--soft); font-size: .9rem; }
</style>"""


def write_index(path: Path, groups: dict[str, Sequence[Entry]]) -> None:
    """Writes the page with all pictures, in groups with a heading."""
    parts = [_GRID]
    for heading, entries in groups.items():
        figures = "".join(
            f'<figure><a href="{html.escape(e.page)}"><img src="{html.escape(e.picture)}" '
            f'alt="{html.escape(e.summary)}"><figcaption><b>{html.escape(e.name)}</b>'
            f"<span>{html.escape(e.summary)}</span></figcaption></a></figure>"
            for e in entries
        )
        parts.append(f'<h2>{html.escape(heading)}</h2><div class="gallery">{figures}</div>')
    path.write_text(filled_page("diffnsd: gallery", "\n".join(parts)), encoding="utf-8")


_CURVES = """<section><svg id="curves" viewBox="0 0 900 420" role="img" aria-label="TITLE"
 style="width:100%;height:auto"></svg>
<p><label>time <input id="time" type="range" min="0" max="1" step="any" value="0" style="width:70%"></label>
<button id="play" type="button">play</button></p><p id="values" aria-live="off"></p></section>
<script type="application/json" id="data">DATA</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
const svg = document.getElementById("curves"), slider = document.getElementById("time");
const colours = ["#2f66d8", "#e08a1e", "#1d7f4e", "#9333ea", "#0891b2", "#b3541e"];
const t = data.times, last = t.length - 1, x = s => 30 + 840 * s / t[last];
function add(name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  return svg.appendChild(e);
}
add("line", {x1: 30, x2: 870, y1: 210, y2: 210, stroke: "var(--line)"});
const sizes = data.values.map(v => Math.max(...v.map(Math.abs), 1e-300));
const y = (i, k) => 210 - 180 * data.values[i][k] / sizes[i];
const dots = data.values.map((v, i) => {
  const colour = colours[i % colours.length];
  add("polyline", {points: t.map((s, k) => x(s) + "," + y(i, k)).join(" "), fill: "none", stroke: colour,
    "stroke-width": 1.6});
  return add("circle", {r: 5, fill: colour});
});
const cursor = add("line", {y1: 20, y2: 400, stroke: "var(--soft)", "stroke-dasharray": "3 3"});
function show(part) {
  const k = Math.round(part * last);
  cursor.setAttribute("x1", x(t[k])); cursor.setAttribute("x2", x(t[k]));
  dots.forEach((dot, i) => { dot.setAttribute("cx", x(t[k])); dot.setAttribute("cy", y(i, k)); });
  document.getElementById("values").textContent = "t = " + t[k].toPrecision(4) + " s; " +
    data.labels.map((name, i) => name + " " + data.values[i][k].toPrecision(4)).join("; ");
}
slider.addEventListener("input", () => show(Number(slider.value)));
let playing = false, began = 0;
function step(now) {
  if (!playing) return;
  const part = ((now - began) / 8000) % 1;
  slider.value = part; show(part); requestAnimationFrame(step);
}
document.getElementById("play").addEventListener("click", event => {
  playing = !playing; event.target.textContent = playing ? "pause" : "play";
  began = performance.now() - 8000 * Number(slider.value); requestAnimationFrame(step);
});
show(0);
</script>"""


def write_curves(
    path: Path, title: str, ts: np.ndarray, values: np.ndarray, labels: Sequence[str]
) -> None:
    """Writes a page with the curves of a state `(T, k)`, relative to their sizes, and a time to drag."""
    kept = np.unique(np.linspace(0, len(ts) - 1, _POINTS).round().astype(int))
    data = {
        "labels": list(labels),
        "times": np.asarray(ts)[kept].tolist(),
        "values": [[float(f"{x:.6g}") for x in row] for row in np.asarray(values)[kept].T],
    }
    # A closing tag inside a string would end the element.
    text = json.dumps(data, allow_nan=False).replace("</", "<\\/")
    body = _CURVES.replace("TITLE", html.escape(title)).replace("DATA", text)
    path.write_text(filled_page(title, body), encoding="utf-8")


def notebook_results(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """The title of an executed notebook, and its pictures as base64 PNG with the heading they stand under."""
    content = json.loads(path.read_text(encoding="utf-8"))
    title, heading, found = path.stem, path.stem, []
    for number, cell in enumerate(content["cells"]):
        if cell["cell_type"] == "markdown":
            for line in "".join(cell["source"]).splitlines():
                if line.startswith("#"):
                    heading = line.lstrip("# ").strip()
                    title = heading if number == 0 and title == path.stem else title
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get("image/png")
            if picture is not None:
                found.append((heading, "".join(picture).replace("\n", "")))
    return title, found


def write_results(path: Path, title: str, pictures: Sequence[tuple[str, str]]) -> None:
    """Writes a page with the pictures of a notebook."""
    sections = [
        f"<section><h2>{html.escape(heading)}</h2><img style='max-width:100%;background:#fff' "
        f"alt='{html.escape(heading, quote=True)}' src='data:image/png;base64,{picture}'></section>"
        for heading, picture in pictures
    ]
    path.write_text(filled_page(title, "\n".join(sections)), encoding="utf-8")
