"""Long simulations that survive the end of their process."""

import hashlib
import json
import os
import re
import zipfile
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._arguments import AbstractChecked
from .._jax import Direct, evaluated_again, is_traced
from ._run import Grid, block_of, ended, remainder, started, stepper
from ._solution import Solution

FORMAT = 2
LARGEST_FILE = 4 * 1024**3
"""Bytes that a file may unpack to."""


class Checkpointing(AbstractChecked):
    """Writes a simulation to files as it goes, and goes on from them when it is called again.

    The files hold the state of the loop after every `every` steps, and what was saved in them. The
    same call in a new process reads them, makes the remaining steps and returns the whole solution,
    with the same bits as a run that was never interrupted. At most one interval is lost. A file is
    written beside its place and renamed, so that none is ever half a file; it holds the version of the
    format, a checksum and the digest of the run that it belongs to; it holds arrays and no pickles.

    **Arguments:**

    - `folder`: of this run alone; made if it does not exist.
    - `every`: steps between two files, rounded down to a multiple of `SaveAt.steps`, at least one.
    - `skip_damaged`: go on from before a damaged file, which is then written again. By default it is
      refused by name.

    **Raises:** `ValueError` in `simulate` if a file is damaged, of another version or of another run
    (other parameters, times, method, state, versions of JAX or of the model's functions' names), naming it.
    """

    folder: str | os.PathLike
    every: int = 10_000
    skip_damaged: bool = False

    def __check_init__(self):
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(f"folder must be a path, such as 'run1', got {self.folder!r}.")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")


def run_saved(
    save: Checkpointing, model, integrator, grid: Grid, state0, args, saveat, event
) -> Solution:
    """As `run`, with files; the loop over the files is on the host."""
    given = model, integrator, grid, state0, args, saveat, event
    if any(map(is_traced, jax.tree.leaves(given))):
        raise ValueError(
            "save=Checkpointing(...) writes files, so it cannot be used under a transformation."
        )
    if grid.is_open or saveat.steps is None:
        raise ValueError(
            "save=Checkpointing(...) needs SaveAt(steps=...), such as SaveAt(steps=1000), and no max_steps."
        )
    folder = Path(save.folder)
    folder.mkdir(parents=True, exist_ok=True)
    digest = _digest(given)
    start = loop = _start(*given)
    blocks, rest = divmod(grid.capacity, saveat.steps)
    size = max(1, save.every // saveat.steps)
    parts, going = [], True
    for number, first in enumerate(range(0, blocks, size)):
        path = folder / f"part_{number:06d}.npz"
        count = min(size, blocks - first)
        advance = (
            _advance,
            (model, integrator, grid, args, saveat, event, loop, jnp.asarray(first), count),
        )
        found = None
        if going and path.exists():
            like = eqx.filter_eval_shape(advance[0], *advance[1])
            try:
                found = _read(path, like, digest)
            except ValueError:
                if not save.skip_damaged:
                    raise
        if found is None:
            going = False  # what follows belongs to a state that is written anew
            found = advance[0](*advance[1])
            _write(path, found, digest)
        loop, saved = found
        parts.append(saved)
    if rest or not blocks:
        loop, last = _finish(model, integrator, grid, args, saveat, event, loop, rest)
        parts.append(last)
    saved = jax.tree.map(lambda *x: jnp.concatenate(x), *parts) if len(parts) > 1 else parts[0]
    return _end(model, integrator, grid, args, saveat, event, start, loop, saved)


_QUIET = diffrax.NoProgressMeter()


@eqx.filter_jit
def _start(model, integrator, grid, state0, args, saveat, event):
    return started(model, integrator, grid, state0, args, saveat, event, _QUIET)


@eqx.filter_jit
def _advance(model, integrator, grid, args, saveat, event, loop, first, count):
    step = stepper(model, integrator, grid, args, event, _QUIET)
    block = evaluated_again(block_of(model, integrator, step, grid, saveat.steps))
    return jax.lax.scan(block, loop, first + jnp.arange(count))


@eqx.filter_jit
def _finish(model, integrator, grid, args, saveat, event, loop, rest):
    step = stepper(model, integrator, grid, args, event, _QUIET)
    return remainder(model, integrator, step, loop, grid, rest, Direct())


@eqx.filter_jit
def _end(model, integrator, grid, args, saveat, event, start, loop, saved):
    return ended(model, integrator, grid, args, saveat, event, start, loop, saved)


def _digest(given: PyTree) -> str:
    """Of everything that the numbers of a run depend on, except the code of functions."""
    found = hashlib.sha256(f"{FORMAT} {jax.__version__} {jax.default_backend()}".encode())
    arrays, rest = eqx.partition(given, eqx.is_array)
    found.update(
        re.sub(r" at 0x[0-9a-f]+", "", repr(rest) + str(jax.tree.structure(given))).encode()
    )
    for x in jax.tree.leaves(arrays):
        x = np.asarray(x)
        found.update(f"{x.dtype} {x.shape}".encode() + x.tobytes())
    return found.hexdigest()


def _checksum(leaves: list[np.ndarray]) -> str:
    found = hashlib.sha256()
    for x in leaves:
        found.update(f"{x.dtype} {x.shape}".encode() + x.tobytes())
    return found.hexdigest()


def _write(path: Path, tree: PyTree, digest: str) -> None:
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    header = {"format": FORMAT, "run": digest, "checksum": _checksum(leaves)}
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as stream:
            named = {f"leaf_{i}": x for i, x in enumerate(leaves)}
            np.savez(stream, allow_pickle=False, header=np.array(json.dumps(header)), **named)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _read(path: Path, like: PyTree, digest: str) -> PyTree:
    """The tree in a file, which must have the shapes of `like`."""
    try:
        header, leaves = _arrays(path)
    except (
        Exception
    ) as error:  # zipfile, zlib, json and NumPy raise almost anything for a damaged file
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}): remove it and those after it, or pass "
            "Checkpointing(..., skip_damaged=True)."
        ) from None
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} has the format {header.get('format')!r}, and this version of diffnsd reads {FORMAT}: "
            "choose another folder."
        )
    if header.get("run") != digest:
        raise ValueError(
            f"{path} belongs to another run (other parameters, state, times, method or version of JAX): "
            "choose another folder, or remove it."
        )
    wanted, structure = jax.tree.flatten(like)
    shapes = [(x.shape, np.dtype(x.dtype)) for x in wanted]
    if (
        header.get("checksum") != _checksum(leaves)
        or [(x.shape, x.dtype) for x in leaves] != shapes
    ):
        raise ValueError(
            f"{path} is damaged (its checksum differs): remove it and those after it, or pass "
            "Checkpointing(..., skip_damaged=True)."
        )
    return jax.tree.unflatten(structure, map(jnp.asarray, leaves))


def _arrays(path: Path) -> tuple[dict, list[np.ndarray]]:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
            raise ValueError("it unpacks to more than a checkpoint may hold")
    with np.load(path, allow_pickle=False) as archive:
        header = json.loads(str(archive["header"]))
        return header, [archive[f"leaf_{i}"] for i in range(len(archive.files) - 1)]
