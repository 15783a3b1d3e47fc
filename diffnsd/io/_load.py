"""Reads mechanisms from MJCF and URDF files."""

import dataclasses
import os
from collections.abc import Callable, Sequence

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
from ._numbers import check_coefficients, restitution_of
from ._parse import compiled, mujoco_of_reader, parsed
from ._plan import Plan
from ._read import Reader
from ._sensors import sensor_plan
from ._start import closed_start
from ._support import IGNORED, softened, unknown, without_counterpart, without_ignored
from ._urdf import check_mimics, robot_of, unread


@checked_arguments
def load_mjcf(
    source: str | os.PathLike,
    *,
    ignore: str | Sequence[str] = (),
    restitution: float | None = None,
    law: Callable = CoulombFriction,
    max_active: int | None = 16,
    max_vertices: int = MOST,
    near: int | None = None,
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
    - `near`: find the places only of so many pairs of each two kinds of geoms, the nearest ones by bounding
      spheres, see `relations.shape_contacts`: 16 hulls on a floor, 136 pairs, step five times faster with 16.
      A step in which another pair closes ends with `contact_overflow`. `None`: of all pairs.
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
    mujoco = mujoco_of_reader()
    _check_law(law)
    if max_vertices < 4:
        raise ValueError(
            f"max_vertices must be at least 4, as a tetrahedron has, got {max_vertices}."
        )
    m = compiled(parsed(mujoco, source, assets))
    reader = Reader(mujoco, m)
    plan = reader.plan()
    robot = robot_of(source)
    if robot is not None:
        check_mimics(robot, plan)
    check_coefficients(reader)
    meshes = mesh_hulls(reader, plan, max_vertices)
    missing = [*without_counterpart(reader, plan), *large_hulls(meshes, max_vertices)]
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    open_ = [(n, why) for n, why in missing if not {n, n.partition("/")[0]} & ignored]
    if open_:
        listed = "\n".join(f"  {name}: {why}" for name, why in open_)
        kinds = sorted({name.partition("/")[0] for name, _ in open_})
        raise ValueError(
            f"the file has elements that change the motion and have no counterpart:\n{listed}\n"
            f"To load it without them, give ignore={kinds}, or their names; on the command line "
            f"--ignore {','.join(kinds)}."
        )
    if strange := unknown(reader, ignored):
        raise ValueError(
            f"ignore names {strange[0]!r}, which is no element of the file and no kind; kinds are "
            f"{', '.join(IGNORED)}."
        )
    if not m.nv:
        raise ValueError("nothing in the file can move: it has no joint.")
    plan = without_ignored(plan, {name for name, _ in missing})
    if "condim" in ignored:
        pairs = tuple((one, two, min(dims, 3), name) for one, two, dims, name in plan.pairs)
        plan = dataclasses.replace(plan, pairs=pairs)
    plan = dataclasses.replace(plan, sensors=tuple(sensor_plan(reader, plan)))
    report = tuple(f"{n}: {why} (ignored)" for n, why in missing) + tuple(softened(reader, plan))
    report += () if robot is None else tuple(unread(robot, plan))
    start, moved = closed_start(reader, plan)
    reader.keep("contact", restitution=restitution_of(reader, restitution))
    values = eval_now(lambda: {name: jnp.asarray(x, float) for name, x in reader.values.items()})
    elements = Elements(
        values,
        shapes_of(reader, plan, meshes, max_vertices),
        _keyframes(reader, plan),
        plan,
        law,
        max_active,
        near,
        report + moved,
        float(m.opt.timestep),
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
