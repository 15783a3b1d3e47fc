"""Reading and writing archives of arrays; error messages say what to do."""

import contextlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._arguments import checked_arguments
from .._expects import expects

LARGEST_ARCHIVE = 1024**3
"""Bytes that the arrays of a file may unpack to."""
MOST_ENTRIES = 1000
"""Arrays that a file may hold."""


class DataFileError(ValueError):
    """Raised if measured data, or their file, cannot be used. The message says why and what to do."""


class OutputDirError(OSError):
    """Raised if an output folder cannot be used. The message says why and what to do."""


def read_archive(
    path: str | Path, needed: Sequence[str], known: Sequence[str], what: str
) -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file; pickles are never loaded, and sizes are looked at before anything is.

    **Arguments:** `needed`: keys that must be there; `known`: keys that are read, others are ignored; `what`:
    what the file is, for messages.

    **Raises:** `DataFileError` naming the file, the key and the remedy.
    """
    path = Path(path)
    with _open(path) as stream:
        _check_sizes(stream, path)
        # For a damaged archive zipfile, zlib and NumPy's header parser can raise almost any
        # exception; for the user they all mean the same.
        try:
            archive = np.load(stream, allow_pickle=False)
        except Exception as error:
            raise DataFileError(
                f"{path}: this file is damaged ({_reason(error)}); copy it again."
            ) from error
        with archive:
            missing = [key for key in needed if key not in archive.files]
            if missing:
                raise DataFileError(
                    f"{path}: the keys {', '.join(missing)} are missing (it has: "
                    f"{', '.join(archive.files) or 'none'}); {what} holds {', '.join(needed)}."
                )
            return {key: _read(archive, key, path) for key in known if key in archive.files}


def archive_keys(path: str | Path) -> list[str]:
    """All keys of a `.npz` file that `read_archive` could read."""
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


def _open(path: Path) -> BinaryIO:
    """Opens an archive; errors distinguish missing, empty, truncated and foreign files."""
    # os.path instead of Path: its tests return False where Path raises (no permission, invalid name).
    if os.path.exists(path) and not os.path.isfile(path):
        raise DataFileError(f"{path}: this is a folder or a device; give the .npz file itself.")
    try:
        stream = path.open("rb")
    except FileNotFoundError as error:
        raise DataFileError(f"{path}: there is no such file; check the path.") from error
    except (OSError, ValueError) as error:
        raise DataFileError(f"{path}: this file cannot be opened ({_reason(error)}).") from error
    start = stream.read(2)
    problem = None
    if not start:
        problem = "this file is empty (0 bytes); copy it again."
    elif start != b"PK":
        problem = "this is not an .npz file; write one with numpy.savez_compressed."
    elif not zipfile.is_zipfile(stream):
        problem = "this .npz file is truncated (its end is missing); copy it again."
    if problem:
        stream.close()
        raise DataFileError(f"{path}: {problem}")
    stream.seek(0)
    return stream


def _check_sizes(stream: BinaryIO, path: Path) -> None:
    """Refuses an archive that would unpack to more than it may, by its own table and by its arrays' headers.

    An array whose header promises more than its entry holds is refused too: NumPy would allocate it first.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            total = sum(entry.file_size for entry in entries)
            promised = [_promised(archive, entry) for entry in entries[:MOST_ENTRIES]]
    except Exception as error:
        raise DataFileError(
            f"{path}: this file is damaged ({_reason(error)}); copy it again."
        ) from error
    if len(entries) > MOST_ENTRIES or total > LARGEST_ARCHIVE:
        raise DataFileError(
            f"{path}: this file unpacks to {len(entries)} arrays of {total / 1e9:.1f} GB together; at most "
            f"{MOST_ENTRIES} and {LARGEST_ARCHIVE / 1e9:.1f} GB are read: cut it into several files."
        )
    for entry, size in zip(entries, promised, strict=True):
        if size > entry.file_size:
            raise DataFileError(
                f"{path}: `{entry.filename}` says that it holds {size} bytes and holds {entry.file_size}: "
                "this file is damaged; copy it again."
            )
    stream.seek(0)


def _promised(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Bytes of the array that the header of an entry describes; 0 for what is no array of numbers."""
    with archive.open(entry) as stream:
        if stream.read(6) != b"\x93NUMPY":
            return 0
        version, _ = stream.read(2)
        form = np.lib.format
        header = form.read_array_header_1_0 if version == 1 else form.read_array_header_2_0
        shape, _, dtype = header(stream)
    return math.prod(shape) * dtype.itemsize * (not dtype.hasobject)


def _read(archive, key: str, path: Path) -> np.ndarray:
    """One array of an opened archive."""
    try:
        return np.asarray(archive[key])
    except Exception as error:
        if "allow_pickle" in str(error):
            raise DataFileError(
                f"{path}: `{key}` holds Python objects. They are never loaded, because a pickle "
                "can run any program; save it as a plain array of numbers."
            ) from error
        raise DataFileError(
            f"{path}: `{key}` is damaged ({_reason(error)}); copy the file again."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of an error, for use inside a sentence."""
    text = str(getattr(error, "strerror", None) or error).strip().partition("\n")[0].rstrip(".")
    return text or type(error).__name__


def save_archive(path: str | Path, arrays: Mapping[str, np.ndarray | float]) -> Path:
    """Writes to a temporary file in the same folder, then renames it to replace the target atomically."""
    expects("path", path, (str, Path), "a path")
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as stream:
            plain = {key: np.asarray(value) for key, value in arrays.items()}
            np.savez_compressed(stream, allow_pickle=False, **plain)
        beside.replace(path)
    except OSError as error:
        raise OutputDirError(
            f"{path}: this file cannot be written ({_reason(error)}); choose another place."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return path


def write_page(path: str | Path, page: str) -> Path:
    """Writes a page of text.

    **Raises:** `OutputDirError` if the file cannot be written.
    """
    path = Path(path)
    try:
        path.write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise OutputDirError(
            f"{path}: this file cannot be written ({_reason(error)}); choose another place."
        ) from error
    return path


def write_json(path: Path, content: dict) -> None:
    """Writes a file of results atomically, so that an interrupt cannot leave a partial one.

    Numbers that are not finite become `null`, since JSON cannot represent them.

    **Raises:** `OutputDirError` if the file cannot be written.
    """
    temporary = path.with_suffix(".json.tmp")
    write_page(temporary, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")
    os.replace(temporary, path)


def _plain(content: Any) -> Any:
    """The content with arrays as lists, and `None` for numbers that are not finite."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, np.ndarray):
        return _plain(content.tolist())
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float | np.floating):
        return float(content) if np.isfinite(content) else None
    return content


@checked_arguments
def check_output_dir(path: str | Path) -> Path:
    """Makes sure, before any long computation, that files can be written into a folder.

    Creates the folder with its parents and writes a small test file. Checking permissions is not
    enough: a superuser passes all such checks, and a read-only or full disk fails in spite of them.
    A link in the folder to a file outside of it is refused, since writing there would replace that file.

    **Returns:** the path as `Path`.

    **Raises:** `OutputDirError` with the reason and the remedy.
    """
    path = Path(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise OutputDirError(
            f"{path}: this is a file, not a folder; choose another name for the output folder."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputDirError(
            f"{path}: the output folder cannot be created ({_reason(error)}); "
            "choose a place where you may write."
        ) from error
    try:
        with tempfile.TemporaryFile(dir=path, prefix=".probe") as probe:
            probe.write(b"diffnsd")
            probe.flush()
    except OSError as error:
        raise OutputDirError(
            f"{path}: files cannot be written into the output folder ({_reason(error)}); "
            "check its permissions and the free space, or choose another place."
        ) from error
    inside = path.resolve()
    links = [entry for entry in path.iterdir() if entry.is_symlink() and not entry.is_dir()]
    if out := [link for link in links if inside not in link.resolve().parents]:
        raise OutputDirError(
            f"{out[0]}: this is a link to {out[0].resolve()}, outside of the output folder; remove it, or "
            "choose another folder."
        )
    return path
