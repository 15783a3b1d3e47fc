"""URDF: what of a file has no effect is said, its base, and the addresses of its meshes."""

import pytest

from diffnsd import io

INERTIAL = """<inertial><mass value="1"/>
 <inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>"""
LINK = f'<link name="{{}}">{INERTIAL}<collision><geometry>{{}}</geometry></collision></link>'
BOX = '<box size=".1 .1 .1"/>'
LEG = """<joint name="hip" type="revolute"><parent link="trunk"/><child link="leg"/><origin xyz="0 0 .3"/>
 <axis xyz="0 1 0"/><limit lower="-1" upper="1"{}/></joint>"""
WALKER = f'<robot name="r">{LINK.format("trunk", BOX)}{LINK.format("leg", BOX)}{LEG}{{}}</robot>'
FREE = """<link name="world"/><joint name="base" type="floating"><parent link="world"/>
 <child link="trunk"/></joint>"""


def report(text):
    return io.load_mjcf(text)[1].report


@pytest.mark.parametrize(
    ("limit", "more", "sentence"),
    [
        ("", '<transmission name="t"/>', "transmission (1): no actuators are made"),
        ("", "<gazebo/><gazebo/>", "gazebo (2): "),
        (' velocity="3"', "", "limit velocity (1): the speed of joints is not limited"),
        (' effort="20"', "", "limit effort (1): "),
        ('/><safety_controller k_velocity="1"', "", "safety_controller (1): no controller acts"),
        ('/><calibration rising="0"', "", "calibration (1): "),
    ],
)
def test_nothing_is_dropped_in_silence(limit, more, sentence):
    said = report(WALKER.format(limit, more))
    assert [line for line in said if line.startswith(sentence)], said
    name = sentence.split(" (")[0]
    assert not [line for line in report(WALKER.format("", "")) if line.startswith(name)]


def test_the_base_is_fixed_unless_it_floats():
    """A fixed base may touch what it carries, as in MuJoCo; one that is free may not."""
    _, elements, _ = io.load_mjcf(WALKER.format("", ""))
    assert [pair[:2] for pair in elements.plan.pairs] == [(0, 1)]
    fixed, touching = (line for line in elements.report if line.startswith("base: "))
    assert "link trunk is fixed to the world" in fixed and "carries (leg)" in touching
    _, elements, _ = io.load_mjcf(WALKER.format("", FREE))
    assert elements.plan.pairs == () and len(elements.plan.joints) == 2
    assert not [line for line in elements.report if line.startswith("base: ")]


def test_addresses_of_packages_are_explained_and_the_remedies_work(tmp_path):
    mesh = '<mesh filename="package://walker/meshes/leg.obj"/>'
    text = WALKER.replace(LINK.format("leg", BOX), LINK.format("leg", mesh)).format("", "")
    with pytest.raises(ValueError, match=r"(?s)leg.obj.*addresses of ROS packages.*strippath"):
        io.load_mjcf(text)
    corners = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    assert io.load_mjcf(text, assets={"leg.obj": corners.encode()})[1].hulls
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "leg.obj").write_text(corners)
    option = '<mujoco><compiler meshdir="parts" strippath="true"/></mujoco>'
    file = tmp_path / "walker.urdf"
    file.write_text(text.replace('<robot name="r">', f'<robot name="r">{option}'))
    assert io.load_mjcf(file)[1].hulls
