"""The sensors of MJCF files against those of MuJoCo."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import io, sensors

ZERO = jnp.zeros(())
FRAMES = "framepos framequat framexaxis frameyaxis framezaxis framelinvel frameangvel".split()
OBJECTS = (
    ("site", "palm"),
    ("geom", "trunk"),
    ("body", "hand"),
    ("xbody", "arm"),
    ("body", "world"),
)
MOUNTED = "".join(
    f'<{kind} name="{kind}_{obj}_{name}" objtype="{obj}" objname="{name}"/>'
    for kind in FRAMES
    for obj, name in OBJECTS[:4]
) + "".join(
    f'<{kind} name="{kind}_in_{obj}_{name}" objtype="site" objname="palm" reftype="{obj}" refname="{name}"/>'
    for kind in FRAMES
    for obj, name in OBJECTS[1:]
)
OTHERS = """
 <gyro site="palm"/><velocimeter name="speed" site="palm"/><magnetometer name="compass" site="palm"/>
 <accelerometer name="imu" site="palm"/><force name="force" site="palm"/><torque name="torque" site="elbow"/>
 <jointpos name="angle" joint="turn"/><jointvel name="rate" joint="reach"/>
 <ballquat name="ball" joint="ball"/><ballangvel name="spin" joint="ball"/>
 <subtreecom name="centre" body="base"/><subtreelinvel name="drift" body="arm"/>
 <subtreeangmom name="momentum" body="base"/>
 <subtreecom name="everything" body="world"/><tendonpos name="length" tendon="string"/>
 <tendonvel name="pull" tendon="string"/><actuatorfrc name="push" actuator="motor"/>
 <touch name="touch" site="palm"/>"""
UNREAD = """<clock name="clock"/><framepos name="seen" objtype="camera" objname="eye"/>
 <rangefinder name="range" site="palm"/><framepos name="noisy" objtype="site" objname="palm" noise=".1"/>
 <jointpos name="clipped" joint="turn" cutoff=".1"/>
 <jointpos name="late" joint="turn" delay=".1" nsample="3"/>"""
HAND = """<mujoco><compiler angle="radian"/><option gravity="0.2 0 -9" magnetic=".1 -.2 .3"/><worldbody>
 <camera name="eye" pos="1 1 1"/>
 <body name="base" pos="0 0 2"><freejoint/>
  <geom name="trunk" type="box" size=".1 .2 .3" pos=".1 0 .05" euler=".1 .2 .3"/>
  <body name="arm" pos=".2 .1 .5" euler=".4 0 .1"><joint name="ball" type="ball" pos="0 .05 .1" damping=".2"/>
   <geom type="capsule" size=".05 .2" pos="0 .1 0" mass=".3"/><site name="elbow" pos=".1 0 .1" euler="1 0 2"/>
   <body name="hand" pos="0 .8 0"><joint name="turn" axis="1 .2 0" pos=".01 .02 .03" damping=".1"/>
    <joint name="reach" type="slide" axis="0 1 1" stiffness="4"/>
    <geom type="box" pos=".1 .2 .3" euler=".3 0 .2" size=".1 .05 .02"/>
    <site name="palm" type="ellipsoid" size=".1 .2 .3" pos=".05 .1 -.2" euler=".3 -.2 .5"/>
  </body></body></body></worldbody>
 <tendon><fixed name="string"><joint joint="turn" coef="1.5"/><joint joint="reach" coef="-.5"/></fixed>
 </tendon>
 <actuator><motor name="motor" joint="turn" gear="3"/><position joint="reach" kp="5"/></actuator>
 <contact><exclude body1="base" body2="arm"/><exclude body1="arm" body2="hand"/></contact>
 <sensor>{}</sensor></mujoco>"""


def sensed(m, d, name):
    """What a sensor of MuJoCo reads."""
    return np.array(d.sensor(name).data)


def random_state(m, d, rng):
    q = m.qpos0.copy()
    mujoco.mj_integratePos(m, q, rng.normal(size=m.nv), 0.7)
    d.qpos[:], d.qvel[:], d.ctrl[:] = q, rng.normal(size=m.nv), rng.normal(size=m.nu)
    mujoco.mj_forward(m, d)


def test_sensors_of_a_state_are_those_of_mujoco():
    text = HAND.format(MOUNTED + OTHERS)
    m = mujoco.MjModel.from_xml_string(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    model, elements, _ = io.load_mjcf(text)
    found = elements.sensors()
    names = [m.sensor(i).name or str(i) for i in range(m.nsensor)]
    assert set(found) == set(names) and not any("sensor" in line for line in elements.report)
    read = jax.jit(lambda q, v, u: found.at(model, ZERO, nsd.State(q, v), u))
    for _ in range(5):
        random_state(m, d, rng)
        got = read(d.qpos, d.qvel, d.ctrl)
        means = {"imu", "force", "torque", "touch"}
        assert set(got) == set(names) - means
        for i, name in enumerate(names):
            if name not in means:
                expected = sensed(m, d, i)
                scale = max(1.0, np.max(np.abs(expected)))
                np.testing.assert_allclose(got[name], expected, atol=1e-13 * scale)  # 2e-15


def test_accelerations_and_transmitted_forces_are_those_of_mujoco():
    """In one smooth step from the same state, with an error of the first order in its length."""
    text = HAND.format(OTHERS)
    m = mujoco.MjModel.from_xml_string(text)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    d = mujoco.MjData(m)
    model, elements, _ = io.load_mjcf(text)
    model, found = nsd.Model(model.system), elements.sensors()
    random_state(m, d, np.random.default_rng(3))

    means = {k: found[k] for k in ("imu", "force", "torque")}
    errors = []
    for h in (1e-5, 5e-6):
        start = nsd.State(jnp.asarray(d.qpos), jnp.asarray(d.qvel))
        run = nsd.simulate(model, nsd.MoreauJean(), 0.0, h, h, start, jnp.asarray(d.ctrl))
        got = sensors.Sensors(means)(model, run)
        errors.append(np.concatenate([got[k][-1] - sensed(m, d, k) for k in means]))
    scale = np.max(np.abs(np.concatenate([sensed(m, d, k) for k in means])))
    assert np.max(np.abs(errors[0])) < 1e-3 * scale  # 4e-4
    np.testing.assert_allclose(errors[0], 2 * errors[1], atol=1e-6 * scale)


def test_what_is_not_read_is_named():
    _, elements, _ = io.load_mjcf(HAND.format(UNREAD))
    text = "\n".join(elements.report)
    assert set(elements.sensors()) == {"noisy", "clipped", "late"}
    for name in ("sensor/clock (clock)", "sensor/seen (framepos)", "sensor/range (rangefinder)"):
        assert name in text
    assert "noise of sensors is left out: sensor/noisy" in text
    assert "delay of sensors is left out: sensor/late" in text
    assert "cutoff of sensors is left out: sensor/clipped" in text


BLOCK = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .1"><freejoint/>
 <geom type="box" size=".2 .2 .1" mass="3"/><site name="left" type="box" size=".11 .3 .05" pos="-.1 0 -.1"/>
 <site name="above" type="sphere" size=".05" pos=".2 .2 .1"/></body></worldbody>
 <sensor><touch name="left" site="left"/><touch name="above" site="above"/></sensor></mujoco>"""


def test_touch_of_a_resting_box_is_that_of_mujoco():
    """Half of the weight under half of the box; the contacts of MuJoCo are soft and settle first."""
    m = mujoco.MjModel.from_xml_string(BLOCK)
    d = mujoco.MjData(m)
    mujoco.mj_step(m, d, 1000)
    model, elements, start = io.load_mjcf(BLOCK, law=lambda mu, e: nsd.NewtonImpact(e))
    run = nsd.simulate(model, nsd.MoreauJean(theta=1.0), 0.0, 0.01, elements.timestep, start)
    got = elements.sensors()(model, run)
    np.testing.assert_allclose(got["left"][1:, 0], 3 * 9.81 / 2, rtol=1e-9)
    np.testing.assert_allclose(sensed(m, d, "left"), got["left"][-1], rtol=1e-4)
    assert np.all(np.asarray(got["above"]) == 0) and sensed(m, d, "above") == 0


def test_the_place_of_a_site_is_a_parameter_that_is_written_back(tmp_path):
    """`∂(R p)/∂p = R`, through the name of the site; and the file has the new place."""
    text = HAND.format('<framepos name="there" objtype="site" objname="palm"/>')
    model, elements, start = io.load_mjcf(text)

    def there(place):
        moved = eqx.tree_at(lambda e: e.values["site/palm/pos"], elements, place)
        return moved.sensors()["there"].at(model, ZERO, start)

    place = elements["site/palm/pos"]
    turn = sensors.Site(2)
    axes = jnp.stack([sensors.FrameAxis(turn, i).at(model, ZERO, start) for i in range(3)], axis=1)
    np.testing.assert_allclose(jax.jacrev(there)(place), axes, atol=1e-14)
    moved = eqx.tree_at(lambda e: e.values["site/palm/pos"], elements, place + 0.25)
    io.save_mjcf(moved, text, tmp_path / "moved.xml")
    _, again, _ = io.load_mjcf(tmp_path / "moved.xml")
    np.testing.assert_allclose(again["site/palm/pos"], place + 0.25, atol=1e-6)


def test_sensors_of_ignored_actuators_are_not_read():
    text = HAND.format('<actuatorfrc name="push" actuator="motor"/>').replace(
        '<motor name="motor" joint="turn" gear="3"/>',
        '<motor name="motor" site="palm" gear="1 0 0 0 0 0"/>',
    )
    with pytest.raises(ValueError, match="actuator/motor"):
        io.load_mjcf(text)
    _, elements, _ = io.load_mjcf(text, ignore=["actuator/motor"])
    assert len(elements.sensors()) == 0
    assert any("sensor/push (actuatorfrc)" in line for line in elements.report)
