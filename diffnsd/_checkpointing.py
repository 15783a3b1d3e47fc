"""Files in which a long computation keeps what it has done, interval by interval."""

import functools
import hashlib
import json
import os
import re
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._arguments import AbstractChecked
from ._jax import is_traced
from ._outline import global_names, in_library, module_of

FORMAT = 7
LARGEST_HEADER = 2**16
"""Bytes of a file's header, and what an array's own header may take."""


class Checkpointing(AbstractChecked):
    """Writes a simulation, a fit or chains of a posterior to files, and goes on from them when called again.

    The files hold the state of the loop after every `every` steps, and what was found in them. The
    same call in a new process reads them, makes the remaining steps and returns the whole result,
    with the same bits as a run that was never interrupted. At most one interval is lost. A file is
    written beside its place and renamed, so that none is ever half a file; it holds the version of the
    format, a checksum, its place in the run and the digest of the run that it belongs to; it holds
    arrays and no pickles.

    The digest is that of all arguments: of arrays their bits, of functions their code and the numbers and
    arrays that they close over or reach by a global name.

    **Arguments:**

    - `folder`: of this run alone; made if it does not exist.
    - `every`: steps between two files: time steps, rounded down to a multiple of `SaveAt.steps`, at least
      one; evaluated iterates of a fit; steps or sweeps of a sampler.
    - `skip_damaged`: go on from before a damaged file, which is then written again. By default it is
      refused by name.

    **Raises:** `ValueError` where it is used, if a file is damaged, of another version or of another run
    (other parameters, functions, data, times, method, state or version of JAX), or of another place in
    this run, naming it.
    """

    folder: str | os.PathLike
    every: int = 10_000
    skip_damaged: bool = False

    def __check_init__(self):
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(f"folder must be a path, such as 'run1', got {self.folder!r}.")
        name = os.fspath(self.folder)
        if not name or "\0" in name:
            raise ValueError(f"folder must be the path of a folder, such as 'run1', got {name!r}.")
        if os.path.exists(name) and not os.path.isdir(name):
            raise ValueError(f"folder {name!r} is a file: choose another path.")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")

    def within(self, name: str) -> "Checkpointing":
        """The same in a folder of this name inside of `folder`, for one of several runs."""
        return Checkpointing(Path(self.folder, name), self.every, self.skip_damaged)


class Parts:
    """The files of one computation, one after the other."""

    def __init__(self, save: Checkpointing, given: PyTree):
        """**Arguments:** `given`: everything that the numbers of the computation depend on.

        **Raises:** `ValueError` under a transformation, and where several processes compute together.
        """
        if any(map(is_traced, jax.tree.leaves(given))):
            raise ValueError(
                "save=Checkpointing(...) writes files, so it cannot be used under a transformation."
            )
        if jax.process_count() > 1:
            raise ValueError(
                "save=Checkpointing(...) is for one process; leave it out under jax.distributed."
            )
        self._save, self._folder, self._number = save, Path(save.folder), 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"folder {str(self._folder)!r} cannot be made: {error}.") from None
        self._digest = _digest((save.every, given))
        self._going = True

    @property
    def every(self) -> int:
        """Steps between two files."""
        return self._save.every

    def found(self, like: Callable[[], PyTree]) -> PyTree | None:
        """The next part, if its file is there; what follows a part that is not is made anew.

        **Arguments:** `like`: makes a tree with the shapes of the part; NumPy arrays in it stay such.
        """
        path = self._folder / f"part_{self._number:06d}.npz"
        if self._going and path.exists():
            try:
                part = _read(path, like(), self._digest, self._number)
            except ValueError:
                if not self._save.skip_damaged:
                    raise
            else:
                self._number += 1
                return part
        self._going = False
        return None

    def write(self, part: PyTree) -> None:
        """Writes the next part."""
        _write(self._folder / f"part_{self._number:06d}.npz", part, self._digest, self._number)
        self._number += 1

    def next(self, compute: Callable[[], PyTree], like: Callable[[], PyTree]) -> PyTree:
        """The next part, from its file, or computed and written."""
        part = self.found(like)
        if part is None:
            part = compute()
            self.write(part)
        return part


def _digest(given: PyTree) -> str:
    """Of everything that the numbers of a run depend on, as far as it can be seen."""
    found = hashlib.sha256(f"{FORMAT} {jax.__version__} {jax.default_backend()}".encode())
    _Digest(found).tree(given)
    return found.hexdigest()


class _Digest:
    """Walks through trees, functions and what these close over; equal in every process."""

    def __init__(self, found):
        self.found, self.seen = found, set()

    def words(self, text: str) -> None:
        self.found.update(re.sub(r" at 0x[0-9a-f]+", "", text).encode())

    def tree(self, x: Any) -> None:
        leaves, structure = jax.tree.flatten(x)
        self.words(str(structure))
        for leaf in leaves:
            self.leaf(leaf)

    def leaf(self, x: Any) -> None:
        if eqx.is_array(x):
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                x = jax.random.key_data(x)
            x = np.asarray(x)
            self.words(f"{x.dtype} {x.shape}")
            self.found.update(x.tobytes())
        elif callable(x) and not isinstance(x, type):
            if id(x) not in self.seen:  # a function may close over itself
                self.seen.add(id(x))
                self.function(x)
        else:
            self.words(f"{type(x).__qualname__} {x!r}")

    def function(self, f: Any) -> None:
        self.words(f"{type(f).__qualname__} {getattr(f, '__qualname__', '')}")
        if isinstance(f, types.FunctionType):
            self.code(f.__code__)
            self.tree((f.__defaults__, f.__kwdefaults__))
            for cell in f.__closure__ or ():
                try:
                    self.tree(cell.cell_contents)
                except ValueError:  # the cell is still empty
                    self.words("empty")
            if not in_library(module_of(f)):
                for name in global_names(f.__code__)[0]:
                    value = f.__globals__.get(name)
                    if all(map(_is_data, jax.tree.leaves(value))):
                        self.words(name)
                        self.tree(value)
        elif isinstance(f, functools.partial):
            self.tree((f.func, f.args, f.keywords))
        elif isinstance(f, types.MethodType):
            self.tree((f.__func__, f.__self__))
        elif hasattr(f, "__wrapped__"):
            self.leaf(f.__wrapped__)

    def code(self, code: types.CodeType) -> None:
        self.found.update(code.co_code)
        self.words(f"{code.co_names} {code.co_varnames}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant)
            elif isinstance(constant, frozenset):  # its order differs between processes
                self.words(str(sorted(map(repr, constant))))
            else:
                self.words(repr(constant))


def _is_data(x: Any) -> bool:
    """Numbers, arrays and functions; not modules, classes and other objects, which may hold anything."""
    plain = eqx.is_array_like(x) or isinstance(x, str | bytes)
    return plain or callable(x) and not isinstance(x, type)


def _checksum(leaves: list[np.ndarray], number: int) -> str:
    found = hashlib.sha256(f"{number} ".encode())
    for x in leaves:
        found.update(f"{x.dtype} {x.shape}".encode() + x.tobytes())
    return found.hexdigest()


def _write(path: Path, tree: PyTree, digest: str, number: int) -> None:
    leaves = [np.asarray(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]
    checksum = _checksum(leaves, number)
    header = {"format": FORMAT, "run": digest, "part": number, "checksum": checksum}
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


def _read(path: Path, like: PyTree, digest: str, number: int) -> PyTree:
    """The tree in a file, which must have the shapes of `like` and be the part of this number."""
    header = _checked(path, _header)
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} has the format {header.get('format')!r}, and this version of diffnsd reads {FORMAT}: "
            "choose another folder."
        )
    if header.get("run") != digest:
        raise ValueError(
            f"{path} belongs to another run (other parameters, functions, data, state, times, interval, "
            "method or version of JAX): choose another folder, or remove it."
        )
    if header.get("part") != number:
        raise ValueError(
            f"{path} holds part {header.get('part')!r} of this run, not part {number}: files were exchanged "
            "or copied. Put them back, or remove it and those after it, or pass "
            "Checkpointing(..., skip_damaged=True)."
        )
    arrays, rest = eqx.partition(like, _has_shape)
    wanted, structure = jax.tree.flatten(arrays)
    leaves = _checked(path, lambda path: _arrays(path, wanted, header))
    kept = [
        x if isinstance(y, np.ndarray | np.generic) else jnp.asarray(x)
        for x, y in zip(leaves, wanted, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, kept), rest)


def _checked(path: Path, read: Callable[[Path], Any]) -> Any:
    """What `read` finds in a file. zipfile, zlib, json and NumPy raise almost anything for a damaged one."""
    try:
        return read(path)
    except Exception as error:
        why = str(error) if isinstance(error, _Damaged) else type(error).__name__
        raise ValueError(
            f"{path} is damaged ({why}): remove it and those after it, or pass "
            "Checkpointing(..., skip_damaged=True)."
        ) from None


class _Damaged(ValueError):
    """A file that can be opened and does not hold what it should."""


def _has_shape(x: Any) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _header(path: Path) -> dict:
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo("header.npy").file_size > LARGEST_HEADER:
            raise _Damaged("its header is too long")
    with np.load(path, allow_pickle=False) as archive:
        header = json.loads(str(archive["header"]))
    if not isinstance(header, dict):
        raise _Damaged("its header is no object")
    return header


def _arrays(path: Path, wanted: list, header: dict) -> list[np.ndarray]:
    """The arrays, unpacked only if the file is as long as they are."""
    needed = sum(x.size * np.dtype(x.dtype).itemsize for x in wanted)
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > needed + (len(wanted) + 2) * LARGEST_HEADER:
            raise _Damaged(f"it unpacks to {size} bytes, and {needed} are expected")
    with np.load(path, allow_pickle=False) as archive:
        leaves = [archive[f"leaf_{i}"] for i in range(len(archive.files) - 1)]
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, np.dtype(x.dtype)) for x in wanted]:
        raise _Damaged("its arrays have other shapes")
    if header.get("checksum") != _checksum(leaves, header["part"]):
        raise _Damaged("its checksum differs")
    return leaves
