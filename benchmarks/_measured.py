"""Where measured data lie, and the scorers that come with them."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """The folder of a data set: below `DIFFNSD_DATA`, or beside the project.

    **Raises:** `SystemExit` if it is not there.
    """
    base = Path(os.environ.get("DIFFNSD_DATA", ROOT.parent / "shared" / "data"))
    if not (base / name / "evaluate.py").exists():
        raise SystemExit(f"there is no data set {name} in {base}: set DIFFNSD_DATA to its folder.")
    return base / name


def load(name: str) -> tuple[dict[str, np.ndarray], ModuleType]:
    """The open part of a data set, and its scorer."""
    at = folder(name)
    spec = importlib.util.spec_from_file_location(f"evaluate_{name}", at / "evaluate.py")
    assert spec is not None and spec.loader is not None
    scorer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scorer)
    return dict(np.load(at / f"{name}_open.npz")), scorer


def split(indices: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random share of `indices`, and the rest."""
    mixed = np.random.default_rng(seed).permutation(indices)
    count = round(share * len(mixed))
    return np.sort(mixed[:count]), np.sort(mixed[count:])


def means(rows: list[dict], keys: tuple[str, ...]) -> dict[str, float]:
    """The means of some metrics of a scorer over its rows."""
    return {key: float(np.nanmean([row[key] for row in rows])) for key in keys}
