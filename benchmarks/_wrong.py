"""Values that are wrong in a place, or in every place."""

import dataclasses
import pickle
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd

# Never right, wherever they stand (unless a place takes anything).
WRONG: dict[str, Any] = {
    "a string": "abc",
    "an object": object(),
    "a dictionary": {"a": 1.0},
    "a class": nsd.MoreauJean,
    "a law's class": nsd.NewtonImpact,
    "a module": np,
    "a complex number": 1.0 + 2.0j,
    "bytes": b"\x80\x04",
    "a set": {1.0, 2.0},
    "a generator of strings": ("x", "y"),
    "a ragged list": [[1.0], [1.0, 2.0]],
    "an array of strings": np.array(["a", "b"]),
    "an array of objects": np.array([None, object()], dtype=object),
    "a key": jax.random.key(0),
    "a pair of modules": (nsd.Equality(), nsd.NewtonImpact()),
}
# Wrong for a number or an array.
NOT_NUMBERS: dict[str, Any] = {
    "NaN": float("nan"),
    "an array of NaN": jnp.full(3, jnp.nan),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "None": None,
    "an empty array": np.zeros(0),
    "a negative number": -1.5,
    "zero": 0.0,
    "a vector of zeros": (0.0, 0.0, 0.0),
    "a long vector": (2.0, 0.0, 0.0),
    "a huge vector": np.ones(100_000),
    "a matrix": np.ones((2, 3)),
    "four axes": np.ones((1, 1, 1, 1)),
    "a huge number": 1e300,
    "a function": lambda: None,
    "a boolean": True,
    "an integer": 10**4,
}


def derived(valid: Any) -> dict[str, Any]:
    """Wrong values that are made from the valid one of a place."""
    if isinstance(valid, type):
        return {}
    if isinstance(valid, nsd.State):
        return {
            "its own class": nsd.State,
            "its parts": (valid.q, valid.v),
            "a state of words": nsd.State("q", "v"),
            "a state of nothing": nsd.State(None, None),
            "a state of another model": nsd.State(jnp.ones(7), jnp.ones(7)),
            "a state without an axis": nsd.State(jnp.ones(()), jnp.ones(())),
            "a state of NaN": jax.tree.map(lambda x: x + jnp.nan, valid),
        }
    if isinstance(valid, eqx.Module) or dataclasses.is_dataclass(valid):
        parts = tuple(vars(valid).values())
        return {"its own class": type(valid), **({"its parts": parts} if parts else {})}
    if isinstance(valid, bool) or not _is_numbers(valid):
        return {}
    array = np.asarray(valid, float)
    found = {
        "an axis more": array[None],
        "negated": -array,
        "complex numbers": array + 1j,
        "words": array.astype(str),
    }
    if array.size:
        for name, value in (("one NaN", np.nan), ("one infinity", np.inf)):
            spoilt = array.copy()
            spoilt.reshape(-1)[-1] = value
            found[name] = spoilt if array.ndim else float(spoilt)
    if array.ndim and len(array):
        found |= {
            "an entry more": np.concatenate([array, array[-1:]]),
            "an entry fewer": array[:-1],
            "an axis fewer": array[0],
        }
    return found


def _is_numbers(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_numbers, value)) and len({np.shape(x) for x in value}) == 1
    if isinstance(value, jax.Array | np.ndarray):
        return jnp.issubdtype(value.dtype, np.inexact) or jnp.issubdtype(value.dtype, np.integer)
    return isinstance(value, float | int)


READERS = {
    ("load_tosses", "path"): "known.npz",
    ("load_runs", "path"): "runs.npz",
    ("read_mesh", "path"): "mesh.vtk",
    ("load_mjcf", "source"): "model.xml",
}
"""Places of files that are read, and a file that is right there."""
WRITERS = {
    ("save_tosses", "path"),
    ("save_predictions", "path"),
    ("check_output_dir", "path"),
    ("save_mjcf", "path"),
    ("write_gallery", "folder"),
    ("write_motion", "path"),
    ("write_replay", "path"),
    ("write_posterior", "path"),
    ("write_report", "path"),
}


def kinds_of(name: str, key: str) -> dict[str, Any]:
    """Wrong values for the places of files: damaged ones to read, and places that cannot be written."""
    if (name, key) in READERS:
        return damaged(READERS[name, key])
    if (name, key) in WRITERS:
        Path("a file").write_text("text")
        return {
            "a path in a folder that is not there": Path("nowhere", "at all", "x.npz"),
            "a path below a file": Path("a file", "x.npz"),
        }
    return {}


@cache
def damaged(right: str) -> dict[str, Path]:
    """Files made from one that is right: cut, with bits flipped, of another kind, huge when unpacked."""
    content, ending = Path(right).read_bytes(), Path(right).suffix
    rng, folder = np.random.default_rng(0), Path("damaged")
    folder.mkdir(exist_ok=True)
    found: dict[str, Path] = {"a file that is not there": folder / f"none{ending}"}

    def add(name: str, write: Callable[[Path], Any]) -> None:
        found[name] = folder / (name.replace(" ", "_") + "_" + right)
        write(found[name])

    for share in (0.05, 0.3, 0.6, 0.9, 0.99):
        cut = content[: int(share * len(content))]
        add(f"the first {share:.0%} of a file", lambda path, cut=cut: path.write_bytes(cut))
    for k in range(5):
        bits = np.frombuffer(content, np.uint8).copy()
        bits[rng.integers(len(bits), size=8)] ^= np.uint8(1 << rng.integers(8))
        add(
            f"a file with flipped bits {k}",
            lambda path, bits=bits: path.write_bytes(bits.tobytes()),
        )
    add("an empty file", lambda path: path.write_bytes(b""))
    add("a folder", lambda path: path.mkdir(exist_ok=True))
    add("a link that leads nowhere", lambda path: path.is_symlink() or path.symlink_to("gone"))
    add("a link to itself", lambda path: path.is_symlink() or path.symlink_to(path.name))
    add("a pickle", lambda path: path.write_bytes(pickle.dumps({"a": 1})))
    add("a huge archive", _write_bomb)
    add("other bytes", lambda path: path.write_bytes(rng.bytes(5000)))
    return found


def _write_bomb(path: Path) -> None:
    """An archive of 2 MB that unpacks to 2 GB: an array of zeros, which a reader must not load."""
    head = b"\x93NUMPY\x01\x00"
    about = b"{'descr': '<f8', 'fortran_order': False, 'shape': (268435456,), }"
    about = about.ljust(128 - len(head) - 2 - 1) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key in ("position",):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as stream:
                stream.write(head + len(about).to_bytes(2, "little") + about)
                for _ in range(128):
                    stream.write(bytes(2**24))
