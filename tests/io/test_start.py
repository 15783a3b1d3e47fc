"""Where a file starts: at `qpos0`, or near it, where its equalities hold."""

import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import io

LINK = (
    '<link name="{}"><inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" '
    'iyz="0"/></inertial></link>'
)
JOINT = (
    '<joint name="{}" type="continuous"><parent link="{}"/><child link="{}"/><axis xyz="0 0 1"/>{}'
    "</joint>"
)
MIMIC = "".join(
    (
        '<robot name="r">',
        *(LINK.format(name) for name in "abc"),
        JOINT.format("lead", "a", "b", ""),
        JOINT.format("led", "b", "c", '<mimic joint="lead" multiplier="-2.5" offset="0.1"/>'),
        "</robot>",
    )
)
ROD = '<geom type="capsule" fromto="0 0 0 .3 0 0" size=".02" contype="0" conaffinity="0"/>'
TREE = f"""<mujoco><worldbody><body name="a" pos="0 0 1"><joint name="j" axis="0 1 0" ref=".2"/>{ROD}
  <body name="b" pos=".3 0 0"><joint name="k" axis="0 1 0"/>{ROD}</body></body>
 <body name="c" pos="1 0 0"><freejoint/>{ROD}</body></worldbody>
<tendon><fixed name="t"><joint joint="j" coef="1"/><joint joint="k" coef="2"/></fixed></tendon>
<keyframe><key name="as given" qpos="0 0 1 0 0 1 0 0 0"/></keyframe>
<equality>{{}}</equality></mujoco>"""


def opening(model, state):
    gaps = model.gaps(jnp.zeros(()), state.q)
    return max(float(np.max(np.abs(gap))) for gap in gaps if gap is not None)


def test_a_mimic_joint_starts_at_its_offset_and_keeps_it():
    model, elements, start = io.load_mjcf(MIMIC)
    np.testing.assert_array_equal(start.q, [0, 0.1])
    assert any("joint/led at 0.1" in line for line in elements.report)
    turning = nsd.State(start.q, jnp.array([1.0, -2.5]))
    run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.1, 0.01, turning)
    lead, led = np.asarray(run.states.q).T
    assert lead[-1] > 0.09  # 0.1
    np.testing.assert_allclose(led, 0.1 - 2.5 * lead, atol=1e-12)  # 6e-17


@pytest.mark.parametrize(
    "equality",
    [
        '<joint joint1="j" joint2="k" polycoef=".1 2 0 0 0"/><joint joint1="k" polycoef=".3 0 0 0 0"/>',
        '<tendon tendon1="t" polycoef=".3 0 0 0 0"/>',
        '<weld body1="b" body2="c" relpose=".5 0 0 .9 .1 0 .2"/>',
        '<weld body1="c" relpose=".5 0 0 .9 .1 0 .2"/>',
    ],
    ids=("chain of joints", "tendon", "weld", "weld to the world"),
)
def test_equalities_hold_at_the_start(equality):
    model, elements, start = io.load_mjcf(TREE.format(equality))
    reference = elements.state()
    assert opening(model, reference) > 0.05  # 0.1 to 1.5
    assert opening(model, start) < 1e-10  # 2e-15
    assert [line for line in elements.report if line.startswith("start: ")]
    np.testing.assert_array_equal(elements.keyframes["as given"][0], [0, 0, 1, 0, 0, 1, 0, 0, 0])


def test_a_file_whose_equalities_hold_starts_at_its_reference():
    closed = '<connect body1="b" body2="c" anchor=".2 0 0"/><joint joint1="j" joint2="k"/>'
    _, elements, start = io.load_mjcf(TREE.format(closed))
    np.testing.assert_array_equal(start.q, elements.state().q)
    assert not [line for line in elements.report if line.startswith("start: ")]


def test_equalities_that_contradict_each_other_are_reported():
    both = '<joint joint1="j" polycoef=".1 0 0 0 0"/><joint joint1="j" polycoef=".3 0 0 0 0"/>'
    _, elements, _ = io.load_mjcf(TREE.format(both))
    assert any("open by 0.2" in line and "keyframe" in line for line in elements.report)


def test_an_equality_that_is_ignored_moves_nothing():
    weld = '<weld name="w" body1="b" body2="c" relpose=".5 0 0 .9 .1 0 .2" torquescale="0"/>'
    _, elements, start = io.load_mjcf(TREE.format(weld), ignore="equality/w")
    np.testing.assert_array_equal(start.q, elements.state().q)
