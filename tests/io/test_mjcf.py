"""Mechanisms from MJCF and URDF files against MuJoCo, closed forms, and what must be refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import identification, io
from diffnsd.io._contacts import coefficients

ZERO = jnp.zeros(())
EVERYTHING = """<mujoco><compiler angle="radian"/><option
 gravity="0.2 0 -9" density="30" viscosity=".2" wind="1 0 .5"/>
<custom><numeric name="restitution" data="0.4"/></custom>
<worldbody><geom name="floor" type="plane" size="1 1 1" friction=".3"/>
 <body name="base" pos="0 0 2"><freejoint name="root"/>
  <geom name="trunk" type="box" size=".1 .2 .3" pos=".1 0 .05" euler=".1 .2 .3" friction=".5"/>
  <body name="arm" pos=".2 .1 .5" euler=".4 0 .1">
   <joint name="ball" type="ball" pos="0 .05 .1" stiffness="3" damping=".2" armature=".01" range="0 1.2"/>
   <geom type="capsule" size=".05 .2" pos="0 .1 0" mass=".3"/>
   <body name="hand" pos="0 .8 0">
    <joint name="turn" axis="1 .2 0" pos=".01 .02 .03" damping=".1" ref=".3" range="-1 2" frictionloss=".2"/>
    <joint name="reach" type="slide" axis="0 1 1" stiffness="4" springref=".2" actuatorfrcrange="-2 1"/>
    <geom name="tip" type="sphere" size=".1" friction=".7"/>
  </body></body></body>
 <body pos="2 0 1" gravcomp=".4"><joint name="first" axis="0 1 0"/><geom type="cylinder" size=".05 .3"/>
  <body pos="0 0 .5" gravcomp="1.2"><joint name="second" axis="0 1 0"/>
   <geom type="ellipsoid" size=".1 .05 .2"/>
  </body></body>
</worldbody>
<tendon><fixed name="string" stiffness="5" damping=".3" springlength=".1 .4" range="-1 1"><joint joint="first"
  coef="1"/><joint joint="second" coef="-.5"/></fixed></tendon>
<actuator><motor joint="turn" gear="30" ctrlrange="-.5 .5"/>
 <position name="servo" joint="first" kp="20" kv="1"/>
 <velocity joint="reach" kv="3" forcerange="-1 2"/><motor tendon="string" gear="2"/>
 <motor joint="ball" gear="1 2 3"/>
 <general joint="second" gainprm="2" biastype="affine" biasprm="1 -3 -.1"/></actuator>
<equality><joint joint1="second" joint2="first" polycoef="0 .5 .1 0 0" active="false"/></equality>
<contact><exclude body1="base" body2="hand"/></contact></mujoco>"""


@pytest.mark.slow
def test_forces_are_those_of_mujoco():
    m = mujoco.MjModel.from_xml_string(EVERYTHING)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    model, _, start = io.load_mjcf(EVERYTHING)
    system = model.system
    np.testing.assert_allclose(start.q, m.qpos0, atol=1e-15)
    ours = jax.jit(lambda q, v, u: system.force(ZERO, nsd.State(q, v), u))
    for _ in range(20):
        q, u = m.qpos0.copy(), rng.normal(size=m.nu)
        mujoco.mj_integratePos(m, q, rng.normal(size=m.nv), 0.7)
        d.qpos[:], d.qvel[:], d.ctrl[:] = q, rng.normal(size=m.nv), u
        mujoco.mj_forward(m, d)
        expected = d.qfrc_passive + d.qfrc_actuator - d.qfrc_bias
        scale = np.max(np.abs(expected))
        np.testing.assert_allclose(ours(q, d.qvel, u), expected, atol=1e-13 * scale)  # 1e-15


SMOOTH = """<mujoco><option density="3" viscosity=".01"/><worldbody>
 <body><joint type="hinge" axis="0 1 0" damping=".05" stiffness="1" armature=".02"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.4" size=".04"/>
  <body pos="0 0 -.4"><joint name="elbow" type="hinge" axis="1 0 0" damping=".1"/>
   <geom type="box" pos="0 0 -.15" size=".03 .05 .15"/>
   <body pos="0 0 -.3"><joint name="rail" type="slide" axis="1 0 0" stiffness="30" damping=".3"/>
    <geom type="ellipsoid" size=".05 .06 .07"/>
    <body pos="0 0 -.1"><joint type="ball" damping=".02"/>
     <geom type="cylinder" pos=".05 0 0" size=".03 .08"/></body></body></body></body>
 <body pos="1 0 0"><freejoint/><geom type="box" size=".05 .1 .15"/></body></worldbody>
 <actuator><motor joint="elbow" gear="2"/><position joint="rail" kp="40"/></actuator></mujoco>"""


@pytest.mark.slow
def test_smooth_motion_is_that_of_mujoco():
    """A second of free motion; MuJoCo by Euler's method, extrapolated from two steps.

    Nothing here has a range: where one ends, extrapolation fails.
    """
    model, _, start = io.load_mjcf(SMOOTH)
    controls, ends = np.array([0.3, 0.2]), []
    rates = np.random.default_rng(1).normal(size=model.system.velocities)
    for h in (2e-5, 1e-5):
        m = mujoco.MjModel.from_xml_string(SMOOTH)
        m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
        m.opt.timestep = h
        d = mujoco.MjData(m)
        d.ctrl[:], d.qvel[:] = controls, rates
        mujoco.mj_step(m, d, round(1 / h))
        ends.append(np.concatenate([d.qpos, d.qvel]))
    free, start = nsd.Model(model.system), nsd.State(start.q, jnp.array(rates))
    run = nsd.simulate(
        free, nsd.RKMK(), 0.0, 1.0, 1e-3, start, args=controls, saveat=nsd.SaveAt.end()
    )
    found = np.concatenate([run.states.q, run.states.v])
    np.testing.assert_allclose(found, 2 * ends[1] - ends[0], atol=1e-6)  # 2e-8


def test_pairs_that_may_touch_are_those_of_mujoco():
    shapes = ' <geom name="{}" size=".5" contype="{}" conaffinity="{}"/>'
    text = f"""<mujoco><worldbody>{shapes.format("w", 1, 1)}
     <body name="a"><joint/>{shapes.format("a1", 1, 1)}{shapes.format("a2", 2, 4)}
      <body name="b"><joint/>{shapes.format("b1", 1, 1)}{shapes.format("b2", 4, 2)}
       <body name="c">{shapes.format("c1", 1, 3)}<body name="d"><joint/>{shapes.format("d1", 1, 1)}</body>
     </body></body></body><body name="e"><joint/>{shapes.format("e1", 1, 1)}</body></worldbody>
     <contact><exclude body1="e" body2="d"/><pair geom1="a1" geom2="b1" friction=".9 .9 .1 .1 .1"/></contact>
    </mujoco>"""
    m = mujoco.MjModel.from_xml_string(text)
    d = mujoco.MjData(m)
    mujoco.mj_forward(m, d)  # all spheres lie in one another
    _, elements, _ = io.load_mjcf(text)
    pairs = elements.plan.pairs
    assert {frozenset(p[:2]) for p in pairs} == {frozenset(c.geom.tolist()) for c in d.contact}
    frictions = {frozenset(c.geom.tolist()): c.friction[0] for c in d.contact}
    expected = [frictions[frozenset(pair[:2])] for pair in pairs]
    assert coefficients(elements, pairs).tolist() == expected


SLIDE = """<mujoco><option timestep=".001"/><worldbody>
 <geom name="floor" type="plane" size="1 1 1" friction=".2"/>
 <body name="block" pos="0 0 .1"><freejoint/>
  <geom name="block" type="box" size=".2 .2 .1" friction="{}"/></body>
</worldbody></mujoco>"""


@pytest.mark.slow
def test_a_parameter_is_identified_by_its_name_in_the_file():
    """The larger friction counts: that of the floor as long as that of the block is smaller."""
    _, elements, start = io.load_mjcf(SLIDE.format(0.1), max_active=None)
    params, rebuild = identification.parameters(
        elements, lambda e: {"mu": e["geom/floor/friction"], "other": e["geom/block/friction"]}
    )
    start = eqx.tree_at(lambda s: s.v, start, start.v.at[0].set(1.0))

    def distance(params):
        model = rebuild(params).model()
        run = nsd.simulate(model, nsd.MoreauJean(theta=1.0), 0.0, 0.6, elements.timestep, start)
        return run.states.q[-1, 0]

    value, slope = jax.value_and_grad(distance)(params)
    assert abs(value - 1 / (2 * 0.2 * 9.81)) < 1e-3  # 5e-4
    by_name = dict(zip(params.names, slope.raw, strict=True))
    assert abs(by_name["mu"] + 1 / (2 * 0.2**2 * 9.81)) < 0.02  # 6e-3 of 1.27
    assert by_name["other"] == 0


FOUR_BAR = """<mujoco><option timestep=".001"/><worldbody>
 <body name="crank"><joint name="crank" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 .3" size=".01"/>
  <body name="rod" pos="0 0 .3"><joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .5 0 0" size=".01"/>
  </body></body>
 <body name="rocker" pos=".5 0 0"><joint axis="0 1 0"/>
  <geom type="capsule" fromto="0 0 0 0 0 .3" size=".01"/></body>
</worldbody>
<contact><exclude body1="rod" body2="rocker"/><exclude body1="crank" body2="rocker"/></contact>
<equality><connect body1="rod" body2="rocker" anchor=".5 0 0"/></equality></mujoco>"""


@pytest.mark.nightly
def test_a_loop_of_the_file_stays_closed_and_keeps_its_energy():
    """A parallelogram: its rod only translates, so that it swings as a pendulum of known period."""
    model, elements, start = io.load_mjcf(FOUR_BAR)
    start = eqx.tree_at(lambda s: s.v, start, jnp.array([1.0, -1.0, 1.0]))
    run = nsd.simulate(model, nsd.Projected(nsd.MoreauJean()), 0.0, 0.5, elements.timestep, start)
    q = run.states.q
    gaps = jax.vmap(lambda q: model.gaps(ZERO, q)[-1])(q)
    assert np.max(np.abs(gaps)) < 1e-8  # 2e-10
    np.testing.assert_allclose(q[:, 0], q[:, 2], atol=1e-8)  # 1e-9
    np.testing.assert_allclose(q[:, 1], -q[:, 0], atol=1e-8)
    total = run.energy.total
    assert np.max(np.abs(total - total[0])) < 1e-3 * np.max(np.abs(run.energy.kinetic))  # 2e-4


INERTIAL = """<inertial><mass value="1"/>
 <inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>"""
URDF = f"""<robot name="gripper"><link name="base"/>
 <link name="left">{INERTIAL}</link><link name="right">{INERTIAL}</link>
 <joint name="drive" type="prismatic"><parent link="base"/><child link="left"/><axis xyz="1 0 0"/>
  <limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
 <joint name="follow" type="prismatic"><parent link="base"/><child link="right"/><axis xyz="1 0 0"/>
  <mimic joint="{{}}" multiplier="-2" offset=".1"/>
  <limit lower="-3" upper="3" effort="1" velocity="1"/></joint></robot>"""


@pytest.mark.slow
def test_mimic_joints_of_urdf_move_together():
    model, elements, start = io.load_mjcf(URDF.format("drive"))
    assert len(elements.plan.equalities) == 1  # the parser of MuJoCo makes one of a mimic joint
    start = nsd.State(jnp.array([0.0, 0.1]), jnp.array([0.3, -0.6]))
    run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 1.0, 0.01, start)
    np.testing.assert_allclose(run.states.q[-1], [0.3, -0.5], atol=1e-9)  # 1e-16
    with pytest.raises(ValueError, match="a mimic joint names joint/nowhere"):
        io.load_mjcf(URDF.format("nowhere"))


def test_files_in_other_encodings_are_read(tmp_path):
    first = '<?xml version="1.0" encoding="ISO-8859-1"?><!-- caf\u00e9 -->'
    for name, text in (
        ("a.urdf", URDF.format("drive")),
        ("b.xml", f"<mujoco><worldbody>{BODY}</worldbody></mujoco>"),
    ):
        (tmp_path / name).write_bytes((first + text).encode("latin-1"))
        assert io.load_mjcf(tmp_path / name)[1].plan.joints


@pytest.mark.slow
def test_what_is_saved_is_what_was_loaded(tmp_path):
    _, elements, _ = io.load_mjcf(EVERYTHING)
    new = {
        "body/hand/mass": elements["body/hand/mass"] * 1.5,
        "joint/turn/damping": jnp.array(0.123),
        "body/4/gravcomp": jnp.array(0.66),
        "geom/tip/friction": jnp.array(0.77),
        "geom/trunk/size": jnp.array([0.11, 0.21, 0.31]),
        "actuator/servo/gear": elements["actuator/servo/gear"] * 2,
        "option/gravity": jnp.array([0.0, 0.0, -3.0]),
        "contact/restitution": jnp.array(0.25),
    }
    changed = eqx.tree_at(lambda e: e.values, elements, elements.values | new)
    path = tmp_path / "fitted.xml"
    io.save_mjcf(changed, EVERYTHING, path)
    _, again, _ = io.load_mjcf(path)
    for name, value in changed.values.items():
        scale = np.max(np.abs(value), initial=1e-3)
        np.testing.assert_allclose(again[name], value, atol=1e-5 * scale, rtol=1e-5)  # six digits
    with pytest.raises(ValueError, match="the source has no actuator/0"):
        io.save_mjcf(changed, FOUR_BAR, path)


BODY = '<body name="b"><joint name="j"/><geom name="g" size=".1"/><site name="s"/></body>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<mujoco><worldbody><body></worldbody></mujoco>", "^MuJoCo cannot read the file"),
        ("nowhere.xml", "^there is no file nowhere.xml"),
        ("<mujoco/>", "it has no joint"),
        (f"<mujoco><worldbody>{BODY}</worldbody><actuator><motor site='s' name='m'/></actuator></mujoco>",
         "actuator/m: acts on something else"),
        (f"<mujoco><worldbody>{BODY}</worldbody><actuator><general joint='j' dyntype='muscle' dynprm='1'/>"
         "</actuator></mujoco>", "has other dynamics"),
        (f"<mujoco><worldbody>{BODY}<geom name='w' size='1'/></worldbody><contact><pair geom1='g' geom2='w'"
         " condim='6' friction='1 1 .1 .2 .3'/></contact></mujoco>", "two different frictions"),
        (f"<mujoco><worldbody>{BODY}<site name='w'/></worldbody><tendon><spatial name='t'><site site='s'/>"
         "<geom geom='g' sidesite='s'/><site site='w'/></spatial></tendon></mujoco>", "has a side site"),
        ("<mujoco><worldbody><body gravcomp='1'><joint name='j' actuatorgravcomp='true'/><geom size='.1'/>"
         "</body></worldbody></mujoco>", "joint/j: compensates weight by its actuators"),
        ("<mujoco><worldbody><body name='b'><joint/></body></worldbody></mujoco>",
         "(?s)cannot compile.*'b'.*A body that moves needs mass: give it a geom"),
        ("<mujoco><asset><mesh name='m' file='missing.stl'/></asset></mujoco>",
         "(?s)missing.stl.*its compiler's meshdir: correct the path"),
        ("<mujoco><worldbody><body></worldbody></mujoco>", "(?s)no well-formed XML: about that line"),
        (f"<mujoco><worldbody>{BODY}<foo/></worldbody></mujoco>", "(?s)'foo', line 1.*reference lists all"),
        (f"<mujoco><worldbody>{BODY}{BODY}</worldbody></mujoco>", "(?s)repeated name 'b'.*another name"),
        (f"<mujoco><worldbody>{BODY}<geom name='w' size='1' friction='-.2'/></worldbody></mujoco>",
         "geom/w/friction is -0.2; a coefficient of friction is 0"),
        (f"<mujoco><custom><numeric name='restitution' data='1.5'/></custom><worldbody>{BODY}</worldbody>"
         "</mujoco>", r"custom/numeric .restitution. is \[1.5\], but must be one number in \[0, 1\]"),
        (f"<mujoco><custom><numeric name='restitution' data='.1 .2'/></custom><worldbody>{BODY}</worldbody>"
         "</mujoco>", "must be one number"),
    ],
)  # fmt: skip
def test_files_that_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        io.load_mjcf(text)


def test_a_restitution_that_is_given_lies_in_its_range():
    with pytest.raises(
        ValueError, match=r"^restitution is \[-1.0\], but must be one number in \[0, 1\]"
    ):
        io.load_mjcf(f"<mujoco><worldbody>{BODY}</worldbody></mujoco>", restitution=-1.0)


def test_what_is_ignored_is_reported():
    text = f"""<mujoco><worldbody>{BODY}<site name='w'/></worldbody><tendon><spatial name='t'><site site='s'/>
     <geom geom='g' sidesite='s'/><site site='w'/></spatial></tendon><actuator>
     <motor tendon='t'/><motor joint='j'/></actuator></mujoco>"""
    for ignored in ("tendon", "tendon/t"):
        _, elements, _ = io.load_mjcf(text, ignore=[ignored])
        assert (
            "tendon/t: has a side site inside the geom that it wraps around, or on another body (ignored)"
            in elements.report
        )
        assert len(elements.plan.actuators) == 1
    with pytest.raises(ValueError, match="tendon/t"):
        io.load_mjcf(text, ignore=["tendon/u"])
    for strange in ("tendon/u", "foo"):
        with pytest.raises(ValueError, match=f"ignore names '{strange}', which is no element"):
            io.load_mjcf(text, ignore=["tendon", "condim", strange])


def test_a_folder_and_nothing_are_no_files(tmp_path):
    with pytest.raises(ValueError, match="source is a folder"):
        io.load_mjcf(tmp_path)
    with pytest.raises(ValueError, match="source is empty"):
        io.load_mjcf("")


def test_torsional_friction_that_is_ignored_leaves_that_of_sliding():
    text = TWO.format(floor='condim="6" priority="1"', more="")
    _, elements, _ = io.load_mjcf(text)
    assert [pair[2] for pair in elements.plan.pairs if 0 in pair[:2]] == [6, 6]
    model, elements, _ = io.load_mjcf(text, ignore="condim")
    assert [i.rows for i in model.interactions] == [3]
    on_floor = [p for p in elements.plan.pairs if 0 in p[:2]]
    assert coefficients(elements, tuple(on_floor)).tolist() == [0.3, 0.3]


MARKER = """<mujoco><worldbody>{}<body name="target" mocap="true"><body>
 <geom name="mark" size=".2" contype="{}" conaffinity="0"/><site name="t"/></body>{}</body>
 <site name="w"/></worldbody>{}</mujoco>"""


def test_bodies_of_mocap_are_refused_where_others_depend_on_them():
    """The scenes of robots have markers of targets that touch nothing."""
    _, elements, _ = io.load_mjcf(MARKER.format(BODY, 0, "", ""))
    assert "mocap: body/target stays where it is; nothing moves by it" in elements.report
    weld = '<equality><weld body1="target" body2="b"/></equality>'
    rope = '<tendon><spatial><site site="t"/><site site="s"/></spatial></tendon>'
    for parts in (
        (1, "", ""),
        (0, "<body><joint/><geom size='1'/></body>", ""),
        (0, "", weld),
        (0, "", rope),
    ):
        with pytest.raises(ValueError, match="body/target: is moved by mocap"):
            io.load_mjcf(MARKER.format(BODY, *parts))


def test_names_and_controls_that_do_not_fit():
    body = '<body><joint name="j"/><geom name="floor" size=".1"/></body>'
    motors = '<actuator><motor joint="j"/><motor joint="j"/></actuator>'
    text = f"<mujoco><worldbody>{body}</worldbody>{motors}</mujoco>"
    model, elements, start = io.load_mjcf(text)
    with pytest.raises(KeyError, match="geom/floor/friction"):
        elements["geom/ground/friction"]
    with pytest.raises(ValueError, match="controls of the 2 actuators"):
        nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.1, 0.01, start, args=jnp.zeros(5))


TWO = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1" friction=".3" {floor}/>
 <body name="a"><joint name="p" axis="0 0 1" type="slide" stiffness="3"/>
  <geom name="ball" size=".1" friction="1.5"/></body>
 <body name="b" pos=".5 .1 .2" euler="20 30 40"><freejoint/>
  <geom name="cube" type="box" size=".1 .1 .1"/></body></worldbody>{more}</mujoco>"""


def test_the_geom_of_higher_priority_gives_the_friction():
    for floor, expected in (('priority="2"', 0.3), ("", 1.5), ('priority="-1"', 1.5)):
        _, elements, _ = io.load_mjcf(TWO.format(floor=floor, more=""))
        pair = next(p for p in elements.plan.pairs if p[:2] == (0, 1))
        assert float(coefficients(elements, (pair,))[0]) == pytest.approx(expected)


def test_a_weld_holds_where_the_file_puts_it():
    more = '<equality><weld body1="a" body2="b" anchor=".1 .2 .3"/></equality>'
    model, _, start = io.load_mjcf(TWO.format(floor="", more=more))
    gap = model.gaps(ZERO, start.q)[-1]
    assert gap.shape == (6,) and float(np.max(np.abs(gap))) < 1e-12  # 1e-16
    off, _, _ = io.load_mjcf(
        TWO.format(floor="", more=more + '<option><flag equality="disable"/></option>')
    )
    assert len(off.interactions) == len(model.interactions) - 1


def test_what_the_options_disable():
    flags = (
        '<option><flag spring="disable" damper="disable"/></option><tendon><fixed stiffness="5" '
    )
    more = flags + 'damping="2" springlength=".1"><joint joint="p" coef="1"/></fixed></tendon>'
    model, _, start = io.load_mjcf(TWO.format(floor="", more=more))
    moving = nsd.State(start.q.at[0].set(1.0), start.v.at[0].set(1.0))
    force = model.system.force(ZERO, moving, None)
    assert float(force[0]) == pytest.approx(
        -9.81 * float(model.system.masses[0])
    )  # its weight alone


def test_elements_without_names_do_not_share_numbers():
    text = """<mujoco><worldbody><body><joint name="1" damping="1"/><geom size=".1"/>
     <body><joint damping="7"/><geom size=".1"/></body></body></worldbody></mujoco>"""
    model, elements, _ = io.load_mjcf(text)
    np.testing.assert_array_equal(model.system.damping, [1.0, 7.0])
    assert float(elements["joint/1/damping"]) == 1 and float(elements["joint/#1/damping"]) == 7


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('<equality><weld body1="a" body2="b" torquescale="0"/></equality>', "torquescale"),
        ('<tendon><fixed name="t" actuatorfrcrange="-1 1"><joint joint="p" coef="1"/></fixed></tendon>',
         "tendon/t: limits the force"),
        ('<option actuatorgroupdisable="1"/><actuator><motor name="m" joint="p" group="1"/></actuator>',
         "actuator/m: belongs to a group"),
        ('<option><flag override="enable"/></option>', "flag/override"),
        ('<contact><pair name="c" geom1="ball" geom2="cube" friction="1 .1 .1 .1 .1"/></contact>',
         "pair/c: has two different"),
        ('<actuator><pid name="m" joint="p" kp="1"/></actuator>', "actuator/m: has not one control"),
    ],
)  # fmt: skip
def test_what_would_change_the_motion_in_silence_is_refused(more, words):
    with pytest.raises(ValueError, match=words):
        io.load_mjcf(TWO.format(floor="", more=more))


def test_ignored_tendons_take_their_equalities_with_them():
    tendons = "".join(
        f'<{kind} name="{name}">{inside}</{kind}>'
        for kind, name, inside in (
            ("spatial", "s", '<site site="w"/><geom geom="ball" sidesite="w"/><site site="x"/>'),
            ("fixed", "t", '<joint joint="p" coef="1"/>'),
            ("fixed", "u", '<joint joint="p" coef="2"/>'),
        )
    )
    more = f'<worldbody><site name="w"/><site name="x" pos="1 0 0"/></worldbody><tendon>{tendons}</tendon>'
    more += '<equality><tendon tendon1="s" tendon2="t"/><tendon tendon1="u"/></equality>'
    _, elements, _ = io.load_mjcf(TWO.format(floor="", more=more), ignore=["tendon"])
    assert [t[0] for t in elements.plan.tendons] == ["tendon/t", "tendon/u"]
    assert [e[1:] for e in elements.plan.equalities] == [(3, 1, -1)]


def test_meshes_are_hulls_and_files_of_meshes_can_be_saved(tmp_path):
    corners = np.random.default_rng(0).normal(size=(400, 3))
    corners /= np.linalg.norm(corners, axis=1, keepdims=True)
    (tmp_path / "m.obj").write_text(
        "".join(f"v {x} {y} {z}\n" for x, y, z in corners) + "f 1 2 3\nf 4 5 6\n"
    )
    text = """<mujoco><!-- a comment -- with dashes --><asset><mesh name="m" file="m.obj" inertia="convex"
     maxhullvert="{}"/></asset><worldbody><geom type="plane" size="1 1 1"/>
     <body name="b" pos="0 0 9"><freejoint/><geom name="g" type="mesh" mesh="m"/></body></worldbody>
    </mujoco>"""
    source, target = tmp_path / "source.xml", tmp_path / "deeper" / "target.xml"
    target.parent.mkdir()
    source.write_text(text.format(12))
    model, elements, start = io.load_mjcf(source)
    gap = model.gaps(ZERO, start.q)[0]
    m = mujoco.MjModel.from_xml_path(str(source))
    d = mujoco.MjData(m)
    mujoco.mj_forward(m, d)
    distance = mujoco.mj_geomDistance(m, d, 0, 1, 100.0, None)
    assert float(np.min(gap)) == pytest.approx(
        distance, abs=1e-6
    )  # 1e-7: MuJoCo keeps meshes in float32
    heavier = eqx.tree_at(lambda e: e.values["body/b/mass"], elements, replace_fn=lambda x: 2 * x)
    io.save_mjcf(heavier, source, target)
    _, again, _ = io.load_mjcf(target)
    assert float(again["body/b/mass"]) == pytest.approx(
        2 * float(elements["body/b/mass"]), rel=1e-5
    )


def test_a_mesh_with_many_corners_is_refused_or_touches_with_fewer(tmp_path):
    corners = np.random.default_rng(0).normal(size=(400, 3))
    corners /= np.linalg.norm(corners, axis=1, keepdims=True)
    flat = " ".join(f"{x:.6f}" for x in corners.ravel())
    text = f"""<mujoco><asset><mesh name="m" vertex="{flat}"/></asset><worldbody>
     <geom type="plane" size="1 1 1"/>
     <body pos="0 0 3"><freejoint/><geom name="g" type="mesh" mesh="m"/></body></worldbody></mujoco>"""
    with pytest.raises(
        ValueError, match="hull/geom/g: has more than 64 corners.* 6.3e-02 m outside"
    ):
        io.load_mjcf(text)
    model, elements, start = io.load_mjcf(text, ignore=["hull"])
    assert any(line.startswith("hull/geom/g") for line in elements.report)
    assert len(elements.hulls["geom/g"].vertices) <= 64
    d = mujoco.MjData(m := mujoco.MjModel.from_xml_string(text))
    mujoco.mj_forward(m, d)
    distance = mujoco.mj_geomDistance(m, d, 0, 1, 100.0, None)
    assert 0 <= float(np.min(model.gaps(ZERO, start.q)[0])) - distance < 0.063  # 0.034
    all_of_them = io.load_mjcf(text, max_vertices=400)[1].hulls["geom/g"]
    assert len(all_of_them.vertices) == 400
    with pytest.raises(ValueError, match="at least 4, as a tetrahedron has"):
        io.load_mjcf(text, max_vertices=3)


def test_pairs_that_are_not_near_are_left_out_and_reported():
    """Of three balls over a floor the lowest has a contact; two others that overlap it did not fit."""
    balls = "".join(
        f'<body pos="{i} 0 .1"><joint type="slide" axis="0 0 1"/><geom name="g{i}" size=".1"/></body>'
        for i in range(3)
    )
    floor = '<geom name="floor" type="plane" size="9 9 1"/>'
    text = f"<mujoco><worldbody>{floor}{balls}</worldbody></mujoco>"
    for near, known in ((3, 6), (1, 2)):  # of each two kinds: ball and floor, two balls
        model, elements, _ = io.load_mjcf(text, near=near)
        relation = model.interactions[0].relation
        placed = elements.tree().frames(jnp.array([-0.01, -0.02, -0.01]))
        assert np.sum(relation.function.known(placed)) == known
    left = {relation.function.names[pair]: gap for pair, gap in relation.function.crowded(placed)}
    assert sorted(left) == ["geom/floor with geom/g0", "geom/floor with geom/g2"]
    np.testing.assert_allclose(list(left.values()), -0.01, atol=1e-15)


def test_urdf_is_saved_as_mjcf_with_its_mimics(tmp_path):
    _, elements, _ = io.load_mjcf(URDF.format("drive"))
    io.save_mjcf(elements, URDF.format("drive"), tmp_path / "gripper.xml")
    model, saved, start = io.load_mjcf(tmp_path / "gripper.xml")
    assert saved.plan.equalities == elements.plan.equalities
    held = model.gaps(ZERO, jnp.array([0.3, -0.5]))[-1]
    assert held.shape == (1,) and abs(float(held[0])) < 1e-6
    with pytest.raises(ValueError, match="MJCF, not URDF"):
        io.save_mjcf(elements, URDF.format("drive"), tmp_path / "gripper.urdf")


@pytest.mark.nightly
def test_drag_is_differentiable_by_the_medium():
    _, elements, start = io.load_mjcf(EVERYTHING)

    def power(density):
        medium = elements.values | {"option/density": density}
        system = eqx.tree_at(lambda e: e.values, elements, medium).system()
        return system.force(ZERO, nsd.State(start.q, jnp.ones_like(start.v)), None)

    slope = jax.jit(jax.jacfwd(power))(jnp.array(30.0))
    difference = (power(jnp.array(31.0)) - power(jnp.array(29.0))) / 2  # the drag is linear in it
    np.testing.assert_allclose(slope, difference, atol=1e-12)  # 1e-14
