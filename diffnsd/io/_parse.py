"""MuJoCo's parser: what it reads, its words where it cannot, and what helps."""

import os
from pathlib import Path
from typing import Any

from .._expects import shown

MESH_PATHS = (
    "the addresses of ROS packages are unknown here: put the files into a folder, and "
    '<mujoco><compiler meshdir="FOLDER" strippath="true"/></mujoco> into <robot>, or give their contents, '
    'assets={"NAME.stl": bytes}'
)
REMEDIES = {
    "moving bodies must be larger than mjMINVAL": (
        "a body that moves needs mass: give it a geom with a mass or a density, or an <inertial> (of a URDF "
        "link too), or remove its joints, which fixes it to its parent"
    ),
    "opening file 'package:": MESH_PATHS,
    "Error opening file": (
        "paths start from the folder of the file, or its compiler's meshdir: correct the path, or give the "
        "contents, assets={name: bytes}"
    ),
    "no decoder found for mesh": "meshes are read as .stl, .obj and .msh: convert this one",
    "XML parse error": (
        "this is no well-formed XML: about that line an element is not closed, or closed by another name, or "
        "a quote is missing"
    ),
    "Schema violation": "remove it, or correct its name: MuJoCo's XML reference lists all elements",
    "unrecognized attribute": "remove it, or correct its name: MuJoCo's XML reference lists all attributes",
    "repeated name": "give one of them another name",
    "plane only allowed in static bodies": "make it a thin box, or fix its body by removing the joints",
    "must satisfy A + B >= C": (
        "no body has such moments of inertia: correct them, or let "
        '<compiler balanceinertia="true"/> do so'
    ),
    "free joint can only be used on top level": "move the body into <worldbody>",
    "Unrecognized XML model type": "the first element must be <mujoco> or <robot>",
}
"""What helps, by words of the parser; the first that are in its message count."""


def mujoco_of_reader() -> Any:
    """The module of MuJoCo.

    **Raises:** `ImportError` without it.
    """
    try:
        import mujoco
    except ImportError:
        raise ImportError(
            'reading MJCF and URDF needs MuJoCo: pip install "diffnsd[io]".'
        ) from None
    return mujoco


def is_text(source: str | os.PathLike) -> bool:
    """Whether the source is the text of a file, not its path."""
    return isinstance(source, str) and source.lstrip().startswith("<")


def content(source: str | os.PathLike) -> bytes:
    """The bytes of a file, whose first line says how they are encoded."""
    return str(source).encode() if is_text(source) else Path(source).read_bytes()


def parsed(mujoco: Any, source: str | os.PathLike, assets: dict[str, bytes] | None) -> Any:
    """What the parser of MuJoCo reads, before it is compiled.

    **Raises:** `ValueError` with its words and a remedy; `TypeError` for assets that are no bytes.
    """
    for name, found in (assets or {}).items():
        if not isinstance(name, str) or not isinstance(found, bytes):
            raise TypeError(
                f"assets must be the bytes of files by name; {name!r} is {shown(found)}."
            )
    text = is_text(source)
    if not text and (not str(source) or Path(source).is_dir()):
        what = "a folder" if str(source) else "empty"
        raise ValueError(f"source is {what}: {str(source)!r}; give a file, or the text of one.")
    if not text and not Path(source).is_file():
        raise ValueError(
            f"there is no file {source}; give a path, or the text of an MJCF or URDF file."
        )
    try:
        if text:
            return mujoco.MjSpec.from_string(source, assets=assets or {})
        return mujoco.MjSpec.from_file(os.fspath(source), assets=assets or {})
    except ValueError as error:
        raise ValueError(_with_remedy("read", error)) from None


def compiled(spec: Any) -> Any:
    """The compiled model.

    **Raises:** `ValueError` with the words of MuJoCo and a remedy.
    """
    try:
        return spec.compile()
    except ValueError as error:
        raise ValueError(_with_remedy("compile", error)) from None


def _with_remedy(verb: str, error: ValueError) -> str:
    words = str(error).strip()
    remedies = (
        f"\n{help[0].upper()}{help[1:]}." for phrase, help in REMEDIES.items() if phrase in words
    )
    return f"MuJoCo cannot {verb} the file: {words}{next(remedies, '')}"
