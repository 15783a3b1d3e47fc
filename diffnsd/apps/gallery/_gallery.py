"""Simulating the ready models and writing the gallery."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from ..._arguments import checked_arguments
from ...models import READY, ReadyModel
from ...simulation import simulate
from .._files import check_output_dir
from ..pages import Motion, write_motion
from ._drawings import DRAWINGS
from ._pages import Entry, notebook_results, write_curves, write_index, write_results
from ._pictures import curve_picture, motion_picture

_RATE = 60.0
"""Frames a second of the replays, as shown."""


@checked_arguments
def write_gallery(
    folder: Path,
    names: Sequence[str] = (),
    notebooks: Path | None = None,
    notify: Annotated[Callable[[str], None], "(name)"] = lambda name: None,
) -> Path:
    """Writes `index.html` with a picture of every ready model, each of which leads to its motion.

    Mechanisms have a replay in 3D, circuits and relays their curves with a time to drag. No page needs a
    network; pictures and pages lie in the same folder.

    **Arguments:** `folder`; `names`: of `models.READY`, by default all; `notebooks`: a folder with executed
    notebooks, whose pictures are added; `notify(name)`: called before each.

    **Returns:** the path of the index.

    **Raises:** `ValueError` for a name that is not there; `ImportError` without the extra `viz`.
    """
    unknown = [name for name in names if name not in READY]
    if unknown:
        raise ValueError(
            f"names: there is no model {', '.join(map(repr, unknown))}; there are: {', '.join(READY)}."
        )
    folder, entries = check_output_dir(folder), []
    for name in names if len(names) else READY:
        notify(name)
        entries.append(_model(folder, name, READY[name]()))
    groups: dict[str, Sequence[Entry]] = {"Ready models": entries}
    if notebooks is not None:
        found = [_notebook(folder, path) for path in sorted(notebooks.glob("*.ipynb"))]
        groups["Notebooks"] = [entry for entry in found if entry is not None]
    write_index(folder / "index.html", groups)
    return folder / "index.html"


def _model(folder: Path, name: str, ready: ReadyModel) -> Entry:
    """Simulates a model and writes its picture and page."""
    run = jax.jit(
        lambda state: simulate(ready.model, ready.integrator, 0.0, ready.t1, ready.dt, state)
    )(ready.state0)
    ts, picture, page = np.asarray(run.ts), folder / f"{name}.png", folder / f"{name}.html"
    title, summary = name.replace("_", " "), ready.summary
    if name in DRAWINGS:
        drawing = DRAWINGS[name](ready)
        kept = slice(None, None, max(1, round(1 / (_RATE * ready.dt * drawing.slow))))
        q = jax.tree.map(lambda x: np.asarray(x)[kept], run.states.q)
        track = drawing.poses(ts[kept], q)
        motion_picture(picture, drawing.solids, track)
        write_motion(
            page,
            dt=ready.dt * (kept.step or 1),
            size=drawing.size,
            solids=drawing.solids,
            motions=[Motion(title, track)],
            title=f"{title}: {summary}",
            speed=1 / drawing.slow,
        )
        summary += f". {drawing.note}" if drawing.note else ""
    else:
        x = np.asarray(run.states.v)
        curve_picture(picture, ts, x, ready.coordinates)
        write_curves(page, f"{title}: {summary}", ts, x, ready.coordinates)
    return Entry(title, summary, picture.name, page.name)


def _notebook(folder: Path, path: Path) -> Entry | None:
    """Writes the pictures of a notebook; `None` if it has none."""
    title, pictures = notebook_results(path)
    if not pictures:
        return None
    picture, page = folder / f"{path.stem}.png", folder / f"{path.stem}.html"
    picture.write_bytes(base64.b64decode(pictures[0][1]))
    write_results(page, title, pictures)
    return Entry(path.stem.replace("_", " "), title, picture.name, page.name)
