"""Activations of actuators: against MuJoCo and closed forms, at limits, in keyframes and derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import io

SLIDER = """<mujoco><option gravity="0 0 0"/><worldbody>
 <body><joint name="x" type="slide" axis="1 0 0" damping=".5" range="-.05 9" actuatorfrcrange="-30 40"/>
 <joint name="y" type="slide" axis="0 1 0"/><geom size=".1" mass="2"/></body></worldbody><actuator>
 <general name="sum" joint="x" dyntype="integrator" gainprm="3"/>
 <motor joint="y" ctrlrange="-1 1"/>
 <general name="lag" joint="x" dyntype="filter" dynprm=".2" gainprm="7" biastype="affine" biasprm="0 -5 -1"/>
 <general joint="y" dyntype="filterexact" dynprm=".05" gainprm="2" forcerange="-3 3"/>
 <general name="stop" joint="y" dyntype="integrator" {} ctrlrange="-4 4"/>
</actuator><keyframe><key qpos=".1 .2" qvel="1 2" act=".3 -1 .5 .1" ctrl="1 3 1.5 -.7 9"/></keyframe>
</mujoco>"""


def by_mujoco(text, seconds, h):
    """The motion from the keyframe; Euler, of first order, extrapolated from two steps."""
    ends = []
    for step in (h, h / 2):
        m = mujoco.MjModel.from_xml_string(text)
        m.opt.timestep = step
        m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
        d = mujoco.MjData(m)
        mujoco.mj_resetDataKeyframe(m, d, 0)
        mujoco.mj_step(m, d, round(seconds / step))
        ends.append(np.concatenate([d.qpos, d.qvel, d.act]))
    return 2 * ends[1] - ends[0]


def by_us(text, seconds, h):
    model, elements, _ = io.load_mjcf(text)
    q, v, act, controls = elements.keyframes["0"]
    start = elements.state(q, v, act)
    run = nsd.simulate(model, nsd.MoreauJean(), 0.0, seconds, h, start, args=controls)
    bodies, activations = elements.split(run.states)
    return jnp.concatenate([bodies.q, bodies.v, activations], axis=1)


def test_activations_follow_those_of_mujoco():
    text = SLIDER.format("")
    found = by_us(text, 0.2, 1e-3)
    np.testing.assert_allclose(found[-1], by_mujoco(text, 0.2, 1e-4), atol=2e-5)  #


@pytest.mark.slow
def test_an_activation_stops_at_its_limit():
    """At 4/s it is at 0.6 after 0.125 s, and stays there."""
    text = SLIDER.format('actlimited="true" actrange="-.2 .6"')
    found = by_us(text, 0.2, 1e-3)
    np.testing.assert_allclose(found[-1], by_mujoco(text, 0.2, 1e-4), atol=2e-5)  #
    np.testing.assert_allclose(found[126:, -1], 0.6, atol=1e-9)  #


STEP = """<mujoco><option gravity="0 0 0"/><worldbody><body><joint name="x" type="slide" damping="1"/>
 <geom size=".1" mass="2"/></body></worldbody>
 <actuator><general name="m" joint="x" dyntype="filter" dynprm=".3"/></actuator></mujoco>"""


@pytest.mark.slow
def test_the_derivative_by_a_time_constant():
    """`act = u (1 − exp(−t/tau))` in closed form, forward and reverse, and for a batch."""
    model, elements, start = io.load_mjcf(STEP)
    assert isinstance(model.system, nsd.SystemProduct)

    def end(tau):
        values = elements.values | {"actuator/m/dynprm": tau}
        model = eqx.tree_at(lambda e: e.values, elements, values).model()
        run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.5, 1e-3, start, args=jnp.array([2.0]))
        return elements.split(run.states)[1][-1, 0]

    tau, t = jnp.array(0.3), 0.5
    decay = np.exp(-t / 0.3)
    value, slope = jax.jit(jax.value_and_grad(end))(tau)
    assert abs(value - 2 * (1 - decay)) < 1e-6  #
    assert abs(slope + 2 * decay * t / 0.3**2) < 1e-5  #
    both = jax.jit(jax.vmap(jax.jacfwd(end)))(jnp.array([0.3, 0.2]))
    np.testing.assert_allclose(both[0], slope, rtol=1e-12)


def test_sites_and_activations_are_saved(tmp_path):
    strings = """<worldbody><site name="hook"/></worldbody><tendon><spatial name="line"><site site="hook"/>
     <site site="bob"/></spatial></tendon></mujoco>"""
    text = STEP.replace("</body>", '<site name="bob" pos=".1 0 0"/></body>')
    text = text.replace("</mujoco>", strings)
    _, elements, _ = io.load_mjcf(text)
    new = {"site/hook/pos": jnp.array([0.1, 0.2, 0.3]), "actuator/m/dynprm": jnp.array(0.7)}
    changed = eqx.tree_at(lambda e: e.values, elements, elements.values | new)
    io.save_mjcf(changed, text, tmp_path / "moved.xml")
    _, again, _ = io.load_mjcf(tmp_path / "moved.xml")
    for name, value in new.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-6)
    assert again.plan == elements.plan


def test_activations_of_ignored_actuators_are_left_out_of_keyframes():
    text = SLIDER.format("").replace(
        'name="lag" joint="x" dyntype="filter"', 'name="lag" joint="x" dyntype="muscle"'
    )
    model, elements, start = io.load_mjcf(text, ignore=["actuator/lag"])
    q, v, act, _ = elements.keyframes["0"]
    np.testing.assert_array_equal(act, [0.3, 0.5, 0.1])
    assert len(model.system.slices()) == 2 and start.v.shape == (2 + 3,)
    bodies, again = elements.split(elements.state(q, v, act))
    np.testing.assert_array_equal(jnp.concatenate([bodies.q, bodies.v, again]), [*q, *v, *act])


def test_controls_of_keyframes_are_those_of_the_actuators_that_are_kept():
    text = """<mujoco><worldbody><body><joint name="x" type="slide"/><geom size=".1"/></body></worldbody>
    <actuator><motor name="a" joint="x"/><general name="odd" joint="x" dyntype="filter" dynprm="0"/>
    <motor name="b" joint="x"/></actuator>
    <keyframe><key name="k" ctrl="1 2 3" act="0"/></keyframe></mujoco>"""
    with pytest.raises(ValueError, match="odd.*time constant"):
        io.load_mjcf(text)
    _, elements, _ = io.load_mjcf(text, ignore=["actuator/odd"])
    np.testing.assert_array_equal(elements.keyframes["k"][3], [1, 3])


def test_the_bodies_of_a_model_with_activations_alone():
    model, elements, start = io.load_mjcf(SLIDER.format('actlimited="true" actrange="-1 1"'))
    bodies, which = model.part(0)
    assert (
        which == (0,) and len(model.interactions) == 2
    )  # the limit of the slider, that of an activation
    alone = elements.split(start)[0]
    gap = bodies.gaps(jnp.zeros(()), alone.q)[0]
    np.testing.assert_array_equal(gap, model.gaps(jnp.zeros(()), start.q)[0])
    assert model.part(1)[1] == (1,) and model.part(None) == (model, (0, 1))
    with pytest.raises(ValueError, match="part=2, but the SystemProduct of the model has 2 parts"):
        model.part(2)
