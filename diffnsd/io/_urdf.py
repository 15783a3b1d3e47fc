"""What URDF has, and the parser of MuJoCo leaves out."""

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from ._parse import content
from ._plan import Plan
from ._read import BALL, FREE

LEFT_OUT = {
    "transmission": (
        "transmission",
        "no actuators are made of them, and their reductions have no effect",
    ),
    "gazebo": (
        "gazebo",
        "what is said to that simulator, such as friction and sensors, is not read",
    ),
    "joint/safety_controller": ("safety_controller", "no controller acts"),
    "joint/calibration": ("calibration", "reference positions have no effect"),
    "joint/limit[@velocity]": ("limit velocity", "the speed of joints is not limited"),
    "joint/limit[@effort]": (
        "limit effort",
        "joints have no actuators, whose effort it would limit",
    ),
}
"""Places of elements, what they are called, and why they change nothing here."""


def robot_of(source: str | os.PathLike) -> ElementTree.Element | None:
    """The root of a URDF file; `None` of one in MJCF."""
    text = content(source)
    root = ElementTree.fromstring(text) if b"<robot" in text else None
    return root if root is not None and root.tag == "robot" else None


def check_mimics(robot: ElementTree.Element, plan: Plan) -> None:
    """The parser makes equalities of the `mimic` joints of a URDF file, and leaves out those that it cannot.

    **Raises:** `ValueError` if one names a joint that does not exist, or moves in more than one way.
    """
    scalar = {name for name, _, kind, _, _ in plan.joints if kind not in (FREE, BALL)}
    for joint in robot.iter("joint"):
        mimics = (mimic.get("joint") for mimic in joint.findall("mimic"))
        names = [f"joint/{name}" for mimic in mimics for name in (joint.get("name"), mimic)]
        if strange := [n for n in names if n not in scalar]:
            raise ValueError(
                f"a mimic joint names {strange[0]}, which is no hinge and no slide of the file."
            )


def unread(robot: ElementTree.Element, plan: Plan) -> Iterator[str]:
    """What of a URDF file has no effect, and what it does not say but means: a sentence each."""
    for place, (name, why) in LEFT_OUT.items():
        if count := len(robot.findall(place)):
            yield f"{name} ({count}): {why}"
    children = {child.get("link") for child in robot.findall("joint/child")}
    links = [link.get("name") for link in robot.findall("link")]
    for base in (name for name in links if name not in children | {"world"}):
        yield (
            f"base: link {base} is fixed to the world; it is free with a link named world, and a joint of "
            "type floating from that to it"
        )
    near = {
        plan.bodies[body][0].removeprefix("body/")
        for pair in plan.pairs
        for one, two in (pair[:2], pair[1::-1])
        if plan.geoms[one][2] is None
        for body in [plan.geoms[two][2]]
        if body is not None and plan.bodies[body][1] is None
    }
    if near:
        carried = ", ".join(sorted(near))
        yield (
            f"base: what is fixed to the world may touch the links that it carries ({carried}), as in "
            "MuJoCo; other links do not touch those that they carry"
        )
