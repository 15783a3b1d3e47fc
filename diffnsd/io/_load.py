"""Reads mechanisms from MJCF and URDF files."""

import dataclasses
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arguments import checked_arguments
from .._expects import shown
from .._jax import eval_now
from .._types import State
from ..laws import AbstractLaw, CoulombFriction
from ..model import Model
from ._elements import Elements
from ._hulls import MOST, large_hulls, mesh_hulls, shapes_of
from ._plan import Plan
from ._read import BALL, FREE, Reader
from ._sensors import sensor_plan
from ._start import closed_start
from ._support import IGNORED, softened, unknown, without_counterpart, without_ignored


@checked_arguments
def load_mjcf(
    source: str | os.PathLike,
    *,
    ignore: str | Sequence[str] = (),
    restitution: float | None = None,
    law: Callable = CoulombFriction,
    max_active: int | None = 16,
    max_vertices: int = MOST,
    assets: dict[str, bytes] | None = None,
) -> tuple[Model, Elements, State]:
    """The model of an MJCF or URDF file, read by the parser of MuJoCo.

        model, elements, start = io.load_mjcf("hopper.xml")
        run = simulate(model, MoreauJean(), 0.0, 1.0, elements.timestep, start, args=controls)

    Defaults, includes, meshes and inertias are resolved by the parser. Bodies become a `Multibody` whose
    `q` and `v` have the order of `qpos` and `qvel`. Geoms become shapes in contact, with the larger of their
    two frictions, as in MuJoCo, for condim 4 and 6 with those of spinning and rolling in one elliptic cone.
    Limits, dry friction of joints and tendons, equalities, actuators and the drag of a fluid are those of the
    file. `args` of a simulation are the controls, `(nu,)`, or a function
    `(t, state)` of them. Contacts are hard: `elements.report` lists what has no counterpart here.
    `elements.sensors()` are the sensors of the file, functions of a solution.

    Activations of actuators are states of first order: with any, the system is a `SystemProduct` of the
    `Multibody` and of them. `elements.state(q, v, activations)` makes its states, `elements.split` takes
    them apart, and controls that are a function receive the state of the bodies.

    **Arguments:**

    - `source`: a path, or the text of a file.
    - `ignore`: names of elements without counterpart that are left out, as the error lists them
      (`"tendon/string"`), or their kinds (`"tendon"`). With `"condim"` contacts slide, as with condim 3,
      without friction of spinning and rolling. With `"hull"` meshes with many corners touch with
      `max_vertices` of them.
    - `restitution`: of all contacts and limits; by default that of `<numeric name="restitution">` in the
      `custom` part of the file, else 0.
    - `law`: `law(mu, e)` of the contacts, with `mu (c,)`, such as
      `lambda mu, e: GapStabilized(CoulombFriction(mu, e))`.
    - `max_active`: how many contacts between geoms are solved at a time, those with the smallest gaps; a
      step in which more close ends with `contact_overflow`. `None`: all that are possible.
    - `max_vertices`: the most corners of the hull of a mesh, at least 4.
    - `assets`: contents of the files that a text refers to, by name.

    **Returns:** the model; its `Elements`, numbers by name, which make the model anew from other numbers; the
    state at `qpos0`, at rest, with activations 0. Where equalities are open there, such as that of a `mimic`
    joint with an offset, it is the state near it in which they hold, and the report says so; keyframes stay
    as the file has them.

    **Raises:** `ImportError` without MuJoCo; `ValueError`, with the words of the parser, if the file does not
    parse, or with a list of the elements that change the motion and are not supported; for names in `ignore`
    that are neither kinds nor elements of the file.
    """
    mujoco = _mujoco()
    _check_law(law)
    if max_vertices < 4:
        raise ValueError(
            f"max_vertices must be at least 4, as a tetrahedron has, got {max_vertices}."
        )
    spec = _spec(mujoco, source, assets)
    try:
        compiled = spec.compile()
    except ValueError as error:
        raise ValueError(f"MuJoCo cannot compile the file: {error}") from None
    reader = Reader(mujoco, compiled)
    plan = reader.plan()
    _check_mimics(source, plan)
    meshes = mesh_hulls(reader, plan, max_vertices)
    missing = [*without_counterpart(reader, plan), *large_hulls(meshes, max_vertices)]
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    open_ = [(n, why) for n, why in missing if not {n, n.partition("/")[0]} & ignored]
    if open_:
        listed = "\n".join(f"  {name}: {why}" for name, why in open_)
        kinds = sorted({name.partition("/")[0] for name, _ in open_})
        raise ValueError(
            f"the file has elements that change the motion and have no counterpart:\n{listed}\n"
            f"To load it without them, give ignore={kinds}, or their names."
        )
    if strange := unknown(reader, ignored):
        raise ValueError(
            f"ignore names {strange[0]!r}, which is no element of the file and no kind; kinds are "
            f"{', '.join(IGNORED)}."
        )
    if not compiled.nv:
        raise ValueError("nothing in the file can move: it has no joint.")
    plan = without_ignored(plan, {name for name, _ in missing})
    if "condim" in ignored:
        pairs = tuple((one, two, min(dims, 3), name) for one, two, dims, name in plan.pairs)
        plan = dataclasses.replace(plan, pairs=pairs)
    plan = dataclasses.replace(plan, sensors=tuple(sensor_plan(reader, plan)))
    report = tuple(f"{n}: {why} (ignored)" for n, why in missing) + tuple(softened(reader, plan))
    start, moved = closed_start(reader, plan)
    reader.keep("contact", restitution=_restitution(mujoco, compiled, restitution))
    values = eval_now(lambda: {name: jnp.asarray(x, float) for name, x in reader.values.items()})
    elements = Elements(
        values,
        shapes_of(reader, plan, meshes, max_vertices),
        _keyframes(reader, plan),
        plan,
        law,
        max_active,
        report + moved,
        float(compiled.opt.timestep),
    )
    return elements.model(), elements, elements.state(jnp.asarray(start, float))


def _check_law(law: Callable) -> None:
    try:
        made = law(jnp.full(1, 0.5), jnp.full(1, 0.5))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"law(mu, e) must make a law, such as CoulombFriction(mu, e); it raises: {error}"
        ) from error
    if not isinstance(made, AbstractLaw):
        raise TypeError(
            f"law(mu, e) must return a law, such as CoulombFriction(mu, e); got {shown(made)}."
        )


def _keyframes(reader: Reader, plan: Plan) -> dict[str, tuple[Array, Array, Array, Array]]:
    """Configuration, velocity, activations and controls of every keyframe."""
    m, own = reader.m, np.array([entry for _, _, entry, _ in plan.activations], int)
    held = np.array([reader.controls[name] for name, _, _ in plan.actuators], int)
    names = [reader.name("key", k).removeprefix("key/") for k in range(m.nkey)]
    parts = (m.key_qpos, m.key_qvel, m.key_act[:, own], m.key_ctrl[:, held])
    return eval_now(
        lambda: {
            n: tuple(jnp.asarray(np.array(x[k]), float) for x in parts) for k, n in enumerate(names)
        }
    )


def _mujoco() -> Any:
    try:
        import mujoco
    except ImportError:
        raise ImportError(
            'reading MJCF and URDF needs MuJoCo: pip install "diffnsd[io]".'
        ) from None
    return mujoco


def _is_text(source: str | os.PathLike) -> bool:
    return isinstance(source, str) and source.lstrip().startswith("<")


def _spec(mujoco: Any, source: str | os.PathLike, assets: dict[str, bytes] | None) -> Any:
    """What the parser of MuJoCo reads, before it is compiled."""
    for name, content in (assets or {}).items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise TypeError(
                f"assets must be the bytes of files by name; {name!r} is {shown(content)}."
            )
    text = _is_text(source)
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
        raise ValueError(f"MuJoCo cannot read the file: {error}") from None


def _check_mimics(source: str | os.PathLike, plan: Plan) -> None:
    """The parser makes equalities of the `mimic` joints of a URDF file, and leaves out those that it cannot.

    **Raises:** `ValueError` if one names a joint that does not exist, or moves in more than one way.
    """
    # Bytes of a file: its first line says how they are encoded.
    text = str(source).encode() if _is_text(source) else Path(source).read_bytes()
    if b"<robot" not in text:
        return
    scalar = {name for name, _, kind, _, _ in plan.joints if kind not in (FREE, BALL)}
    for joint in ElementTree.fromstring(text).iter("joint"):
        mimics = (mimic.get("joint") for mimic in joint.findall("mimic"))
        names = [f"joint/{name}" for mimic in mimics for name in (joint.get("name"), mimic)]
        if strange := [n for n in names if n not in scalar]:
            raise ValueError(
                f"a mimic joint names {strange[0]}, which is no hinge and no slide of the file."
            )


def _restitution(mujoco: Any, m: Any, given: float | None) -> float:
    if given is not None:
        return given
    index = mujoco.mj_name2id(m, mujoco.mjtObj.mjOBJ_NUMERIC, "restitution")
    return float(m.numeric_data[m.numeric_adr[index]]) if index >= 0 else 0.0


@checked_arguments
def save_mjcf(
    elements: Elements,
    source: str | os.PathLike,
    path: str | os.PathLike,
    assets: dict[str, bytes] | None = None,
) -> None:
    """Writes an MJCF file with the numbers of `elements`, such as those that were identified.

    Only numbers that differ from those of the source are changed.
    The writer of MuJoCo gives six digits.

    **Arguments:** `source`, `assets`: as they were loaded; `path`: the file to write.

    **Raises:** as `load_mjcf`; `ValueError` if the source has other elements, a file cannot hold a number, or
    `path` ends in `.urdf`, which nothing here writes.
    """
    if str(path).lower().endswith(".urdf"):
        raise ValueError(f"{path} would hold MJCF, not URDF: give a name that ends in .xml.")
    mujoco = _mujoco()
    spec = _spec(mujoco, source, assets)
    spec.compiler.inertiafromgeom = int(mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO)
    spec.compiler.saveinertial = True
    given = spec.compile()
    # Masses are stated, not implied by geoms: neither could be changed alone otherwise.
    for body in spec.bodies[1:]:
        body.explicitinertial, body.fullinertia = True, np.full(6, np.nan)
        body.mass, body.inertia = given.body_mass[body.id], given.body_inertia[body.id]
        body.ipos, body.iquat = given.body_ipos[body.id], given.body_iquat[body.id]
    # Nor do springs of tendons follow sites that are moved.
    for tendon in spec.tendons:
        tendon.springlength = given.tendon_lengthspring[tendon.id]
    _set_restitution(mujoco, spec, given, float(elements["contact/restitution"]))
    compiled = spec.compile()
    reader = Reader(mujoco, compiled)
    reader.plan()
    wanted = {n: np.asarray(x) for n, x in elements.values.items() if n != "contact/restitution"}
    if strange := [n for n in wanted if n not in reader.values]:
        raise ValueError(
            f"the source has no {strange[0]}; give the file that the elements were loaded from."
        )
    changed = {n: x for n, x in wanted.items() if not np.array_equal(x, reader.values[n])}
    if fixed := [
        n for n, x in changed.items() if n not in reader.views or not np.all(np.isfinite(x))
    ]:
        raise ValueError(f"{fixed[0]} cannot be changed in a file; change it there by hand.")
    for name, value in changed.items():
        reader.views[name][...] = value
    if not _is_text(source) and (spec.meshes or spec.hfields):
        # Meshes stay where they are.
        spec.meshdir = os.path.join(os.path.dirname(os.path.abspath(source)), spec.meshdir)
    try:
        spec.copy_back(compiled)
        for body in spec.bodies[1:]:  # which `copy_back` forgets
            body.gravcomp = compiled.body_gravcomp[body.id]
        Path(path).write_text(spec.to_xml())
    except (mujoco.FatalError, ValueError) as error:
        raise ValueError(f"MuJoCo cannot write these numbers: {error}") from None
    except OSError as error:
        raise ValueError(f"the file cannot be written: {error}; choose another path.") from None
    again = Reader(mujoco, _spec(mujoco, path, assets).compile())
    again.plan()
    for name, value in wanted.items():
        found, known = again.values[name], np.isfinite(value)
        scale = np.max(np.abs(value[known]), initial=1e-3)
        if not np.allclose(found[known], value[known], rtol=0, atol=1e-5 * scale):
            raise ValueError(f"MuJoCo wrote {name} as {found.tolist()}, not {value.tolist()}.")


def _set_restitution(mujoco: Any, spec: Any, given: Any, value: float) -> None:
    """Writes the restitution where `load_mjcf` finds it, unless it is that of the source."""
    if value == _restitution(mujoco, given, None):
        return
    numeric = spec.numeric("restitution")
    if numeric is None:
        numeric = spec.add_numeric(name="restitution", size=1)
    numeric.data = [value]
