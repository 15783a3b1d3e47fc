"""The sensors of a file."""

from collections.abc import Callable, Iterator
from typing import Any

from .. import sensors as kinds
from ._plan import Plan
from ._read import Reader

FRAMES = {
    "site": ("pos", "quat"),
    "geom": ("pos", "quat"),
    "body": ("ipos", "iquat"),
    "xbody": (),
}
"""Objects that have a frame, by the names of MuJoCo: `body` is that of the inertia of a body."""


def sensor_plan(reader: Reader, plan: Plan) -> Iterator[tuple]:
    """`(name, type, what it is mounted on, ...)` of every sensor that is read."""
    for s in range(reader.m.nsensor):
        kind = _type(reader, s)
        row = TYPES[kind][0](reader, plan, s) if kind in TYPES else None
        if row is not None:
            yield reader.name("sensor", s).removeprefix("sensor/"), kind, *row


def unread_sensors(reader: Reader, plan: Plan) -> Iterator[str]:
    """Sentences on sensors that are not in the plan, and on what is left out of others."""
    m, read = reader.m, {f"sensor/{row[0]}" for row in plan.sensors}
    names = [reader.name("sensor", s) for s in range(m.nsensor)]
    unread = [f"{n} ({_type(reader, s)})" for s, n in enumerate(names) if n not in read]
    if unread:
        yield f"sensors that are not read: {', '.join(unread)}"
    left_out = {"noise": m.sensor_noise, "cutoff": m.sensor_cutoff, "delay": m.sensor_delay}
    for what, found in left_out.items():
        changed = [name for name, x in zip(names, found, strict=True) if x and name in read]
        if changed:
            yield f"{what} of sensors is left out: {', '.join(changed)}"


def sensors_of(elements: Any, shapes: dict[int, Callable]) -> kinds.Sensors:
    """The sensors of a file with its numbers; `shapes`: makers of shapes from sizes, by type."""
    made = {
        name: TYPES[kind][1](elements, shapes, *row) for name, kind, *row in elements.plan.sensors
    }
    return kinds.Sensors(made, 0 if elements.plan.activations else None)


# From a compiled model to rows of a plan.


def _type(reader: Reader, s: int) -> str:
    kind = reader.mujoco.mjtSensor(int(reader.m.sensor_type[s])).name
    return kind.removeprefix("mjSENS_").lower()


def _object(reader: Reader, kind: int) -> str:
    return reader.mujoco.mjtObj(int(kind)).name.removeprefix("mjOBJ_").lower()


def _frame(reader: Reader, kind: int, index: int) -> tuple:
    """`(body, place of the position, of the orientation)` in the values of a file."""
    m, name = reader.m, _object(reader, kind)
    bodies = {"site": m.site_bodyid, "geom": m.geom_bodyid}
    body = int(bodies[name][index]) if name in bodies else int(index)
    keys = (f"{reader.name(name.removeprefix('x'), index)}/{key}" for key in FRAMES[name])
    # MuJoCo numbers the world as body 0, which has no numbers of its own.
    return (body - 1, *keys) if body else (None, *(keys if name in bodies else ()))


def _of_frame(reader: Reader, plan: Plan, s: int) -> tuple | None:
    """The frame of a sensor, and of its reference; `None` if one of them is that of a camera."""
    m = reader.m
    ends = [(m.sensor_objtype[s], m.sensor_objid[s])]
    if m.sensor_refid[s] >= 0:
        ends.append((m.sensor_reftype[s], m.sensor_refid[s]))
    if any(_object(reader, kind) not in FRAMES for kind, _ in ends):
        return None
    return tuple(_frame(reader, *end) for end in ends)


def _of_touch(reader: Reader, plan: Plan, s: int) -> tuple:
    site = int(reader.m.sensor_objid[s])
    name, kind = reader.name("site", site), int(reader.m.site_type[site])
    return _frame(reader, reader.mujoco.mjtObj.mjOBJ_SITE, site), kind, f"{name}/size"


def _subtree(plan: Plan, body: int) -> tuple[int, ...] | None:
    """The bodies that a body carries, itself included; `None` for all, those of the world."""
    if body < 0:
        return None
    found = [body]
    for i, (_, parent) in enumerate(plan.bodies):
        if parent in found:
            found.append(i)
    return tuple(found)


def _of_subtree(reader: Reader, plan: Plan, s: int) -> tuple:
    return (_subtree(plan, int(reader.m.sensor_objid[s]) - 1),)


def _of_site_and_subtree(reader: Reader, plan: Plan, s: int) -> tuple:
    site = int(reader.m.sensor_objid[s])
    body = int(reader.m.site_bodyid[site]) - 1
    return _frame(reader, reader.mujoco.mjtObj.mjOBJ_SITE, site), _subtree(plan, body)


def _of_coordinate(reader: Reader, plan: Plan, s: int) -> tuple:
    joint = plan.joints[int(reader.m.sensor_objid[s])]
    size = int(reader.m.sensor_dim[s])
    first = joint[3 if _type(reader, s) in ("jointpos", "ballquat") else 4]
    return (tuple(range(first, first + size)),)


def _of_element(reader: Reader, plan: Plan, s: int) -> tuple | None:
    """The number of a tendon or actuator among those of the plan."""
    kind = _object(reader, reader.m.sensor_objtype[s])
    listed = [row[0] for row in (plan.tendons if kind == "tendon" else plan.actuators)]
    name = reader.name(kind, int(reader.m.sensor_objid[s]))
    return (listed.index(name),) if name in listed else None


# From rows of a plan to sensors.


def _site(elements: Any, frame: tuple) -> kinds.Site:
    body, *places = frame
    return kinds.Site(body, *(elements[place] for place in places))


def _framed(make: Callable) -> Callable:
    """A sensor of a frame, and of a reference where there is one."""
    return lambda elements, shapes, *frames: make(*(_site(elements, frame) for frame in frames))


def _axis(axis: int) -> Callable:
    return _framed(lambda site, *reference: kinds.FrameAxis(site, axis, *reference))


def _touch(elements: Any, shapes: dict, frame: tuple, kind: int, size: str) -> kinds.Touch:
    return kinds.Touch(_site(elements, frame), shapes[kind](elements[size]))


def _carried(make: Callable) -> Callable:
    return lambda elements, shapes, frame, bodies: make(_site(elements, frame), bodies)


def _plain(make: Callable) -> Callable:
    return lambda elements, shapes, entries: make(entries)


def _tendon(make: Callable) -> Callable:
    return lambda elements, shapes, which: make(elements.tendon_length(elements.tree(), [which]))


def _magnetometer(elements: Any, shapes: dict, frame: tuple) -> kinds.Magnetometer:
    return kinds.Magnetometer(_site(elements, frame), elements["option/magnetic"])


def _actuator_force(elements: Any, shapes: dict, which: int) -> kinds.ActuatorForce:
    return kinds.ActuatorForce(elements.actuation(elements.tree()).force, which)


# How a sensor is read from a compiled model, and made of its row.
TYPES: dict[str, tuple[Callable, Callable]] = {
    "framepos": (_of_frame, _framed(kinds.FramePosition)),
    "framequat": (_of_frame, _framed(kinds.FrameOrientation)),
    "framexaxis": (_of_frame, _axis(0)),
    "frameyaxis": (_of_frame, _axis(1)),
    "framezaxis": (_of_frame, _axis(2)),
    "framelinvel": (_of_frame, _framed(kinds.FrameLinearVelocity)),
    "frameangvel": (_of_frame, _framed(kinds.FrameAngularVelocity)),
    "gyro": (_of_frame, _framed(kinds.Gyro)),
    "velocimeter": (_of_frame, _framed(kinds.Velocimeter)),
    "accelerometer": (_of_frame, _framed(kinds.Accelerometer)),
    "magnetometer": (_of_frame, _magnetometer),
    "touch": (_of_touch, _touch),
    "force": (_of_site_and_subtree, _carried(kinds.Force)),
    "torque": (_of_site_and_subtree, _carried(kinds.Torque)),
    "subtreecom": (_of_subtree, _plain(kinds.CentreOfMass)),
    "subtreelinvel": (_of_subtree, _plain(kinds.CentreOfMassVelocity)),
    "subtreeangmom": (_of_subtree, _plain(kinds.AngularMomentum)),
    "jointpos": (_of_coordinate, _plain(kinds.JointPosition)),
    "jointvel": (_of_coordinate, _plain(kinds.JointVelocity)),
    "ballquat": (_of_coordinate, _plain(kinds.JointPosition)),
    "ballangvel": (_of_coordinate, _plain(kinds.JointVelocity)),
    "tendonpos": (_of_element, _tendon(kinds.Coordinate)),
    "tendonvel": (_of_element, _tendon(kinds.CoordinateRate)),
    "actuatorfrc": (_of_element, _actuator_force),
}
