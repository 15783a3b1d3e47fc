"""Spatial tendons against MuJoCo and closed forms: lengths, springs, limits, dry friction, derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import io

ZERO = jnp.zeros(())
STRINGS = """<mujoco><compiler angle="radian"/>
<worldbody><site name="wall" pos="0 1 2"/><site name="hook" pos="1 0 3"/>
 <body name="base" pos="0 0 2"><freejoint/><geom type="box" size=".1 .2 .3" pos=".1 0 .05" euler=".1 .2 .3"/>
  <site name="one" pos=".1 .2 .3"/><site name="two" pos="-.1 .2 0"/>
  <body pos=".2 .1 .5" euler=".4 0 .1"><joint type="ball" pos="0 .05 .1"/><geom size=".1" pos="0 .1 0"/>
   <site name="three" pos=".3 0 .1"/>
   <body pos="0 .8 0"><joint name="turn" axis="1 .2 0" actuatorfrcrange="-2 3"/>
    <joint name="reach" type="slide" axis="0 1 1"/><geom size=".1"/><site name="four" pos="0 0 .2"/>
 </body></body></body></worldbody>
<tendon>
 <spatial name="tackle" stiffness="50" damping="3" springlength=".2 .5" range="0 9"><site site="wall"/>
  <site site="one"/><site site="two"/><pulley divisor="2"/><site site="two"/><site site="three"/>
  <pulley divisor="4"/><site site="four"/><site site="hook"/></spatial>
 <fixed name="sum" stiffness="2"><joint joint="turn" coef=".7"/><joint joint="reach" coef="-2"/></fixed>
 <spatial name="line" damping="1"><site site="hook"/><site site="four"/></spatial>
</tendon>
<actuator><position tendon="tackle" kp="20" kv="1" gear="1.5"/><motor tendon="sum" gear="2"/>
 <motor joint="turn"/><motor tendon="line" gear="-3" ctrlrange="-1 1"/></actuator>
<equality><tendon tendon1="line" tendon2="sum" polycoef=".1 .5 .2 0 0"/></equality></mujoco>"""


def test_lengths_forces_and_energies_are_those_of_mujoco():
    m = mujoco.MjModel.from_xml_string(STRINGS)
    m.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    model, elements, _ = io.load_mjcf(STRINGS)
    system, (*_, limit, held) = model.system, model.interactions
    length = limit.relation.function.coordinate

    @jax.jit
    def ours(q, v, u):
        state = nsd.State(q, v)
        tackle, rate, _ = length.moving(ZERO, state)
        energy = system.potential(ZERO, q)[None]
        return system.force(ZERO, state, u), tackle, rate, held.relation.gap(ZERO, q), energy

    for _ in range(20):
        q, u = m.qpos0.copy(), rng.normal(size=m.nu)
        mujoco.mj_integratePos(m, q, rng.normal(size=m.nv), 0.7)
        d.qpos[:], d.qvel[:], d.ctrl[:] = q, rng.normal(size=m.nv), u
        mujoco.mj_forward(m, d)
        force = d.qfrc_passive + d.qfrc_actuator - d.qfrc_bias
        theirs = force, d.ten_length[:1], d.ten_velocity[:1], d.efc_pos[:1], d.energy[:1]
        for own, expected in zip(ours(q, d.qvel, u), theirs, strict=True):
            scale = np.max(np.abs(expected))
            np.testing.assert_allclose(own, expected, atol=1e-13 * scale)  # 2e-15
    assert elements.plan.tendons[0][2] == ((0, 2, 1.0), (2, 3, 1.0), (3, 4, 2.0), (5, 1, 4.0))


HANGING = """<mujoco><custom><numeric name="restitution" data=".5"/></custom>
<worldbody><site name="hook"/>
 <body name="bob"><joint type="slide" axis="0 0 1"/><geom size=".1" mass="2"/><site name="bob"/></body>
</worldbody>
<tendon><spatial name="string" {}><site site="hook"/><site site="bob"/></spatial></tendon></mujoco>"""


def fall(text, z, speed, seconds, h=1e-3):
    model, _, _ = io.load_mjcf(text)
    start = nsd.State(jnp.array([z]), jnp.array([speed]))
    return nsd.simulate(model, nsd.MoreauJean(), 0.0, seconds, h, start).states


@pytest.mark.slow
def test_a_string_that_tightens_bounces():
    """The bob falls 0.4 m until the string is tight, and rises with half of its speed."""
    text = HANGING.format('limited="true" range="0 .5"')
    strike = np.sqrt(2 * 0.4 / 9.81)
    h = (strike + 0.1) / 400
    states = fall(text, -0.1, 0.0, 400 * h, h)
    after = 0.5 * 9.81 * strike - 9.81 * 0.1
    assert abs(states.v[-1, 0] - after) < 0.01  # 3e-3, of first order in the step
    assert abs(states.q[-1, 0] - (-0.5 + 0.05 * 9.81 * strike - 0.005 * 9.81)) < 2e-3  # 4e-4


def test_dry_friction_of_a_string_holds_or_slows_a_fall():
    slow = fall(HANGING.format('frictionloss="15"'), -0.3, 0.0, 0.2)
    np.testing.assert_allclose(slow.v[-1, 0], -(9.81 - 15 / 2) * 0.2, rtol=1e-9)  # 1e-15
    held = fall(HANGING.format('frictionloss="25"'), -0.3, 0.0, 0.2)
    assert np.max(np.abs(held.v)) < 1e-12  # 1e-19


SPRING = HANGING.format('stiffness="30" springlength=".2"').replace(
    'type="slide" axis="0 0 1"', 'type="free"'
)


def test_derivatives_by_the_position_of_a_site():
    """A spring between two points, `−k (|d| − l) d/|d|` along `d`, by its fixed end."""
    _, elements, start = io.load_mjcf(SPRING)
    start = nsd.State(start.q.at[:3].set(jnp.array([0.3, -0.2, 0.5])), start.v)

    def force(hook):
        values = elements.values | {"site/hook/pos": hook}
        system = eqx.tree_at(lambda e: e.values, elements, values).system()
        return system.force(ZERO, start, None)[:3]

    def closed(hook):
        d = start.q[:3] - hook
        return -30 * (1 - 0.2 / jnp.linalg.norm(d)) * d + jnp.array([0, 0, -2 * 9.81])

    hook = jnp.array([0.1, 0.2, 0.9])
    expected = jax.jacfwd(closed)(hook)
    np.testing.assert_allclose(jax.jit(force)(hook), closed(hook), atol=1e-13)  # 4e-15
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.jit(derivative(force))(hook), expected, atol=1e-12)  # 7e-15
    meeting = jax.jit(jax.jacrev(force))(start.q[:3])
    assert np.all(np.isfinite(meeting))


WRAPPED = """<mujoco><worldbody><site name="wall" pos="0 .1 .9"/>
 <geom name="post" type="cylinder" size=".12 .3" pos=".3 .1 1.2" euler="20 70 10"/>
 <body name="a" pos="0 0 1"><freejoint/><geom name="ball" size=".2" pos=".1 .02 .05"/>
  <geom name="drum" type="cylinder" size=".15 .3" pos="-.1 0 .3" euler="30 40 0"/>
  <site name="over" pos=".1 .4 .05"/><site name="beside" pos="-.1 .3 .5"/><site name="top" pos=".3 0 .4"/>
  <body name="b" pos=".4 .1 .3"><joint type="ball"/><geom size=".05" pos="0 0 .3"/>
   <site name="one" pos=".1 .1 .4"/><site name="two" pos="-.4 .1 0"/></body></body></worldbody>
<tendon>
 <spatial name="ball" stiffness="1"><site site="wall"/><geom geom="ball"/><site site="one"/></spatial>
 <spatial name="side"><site site="wall"/><geom geom="ball" sidesite="over"/><site site="two"/></spatial>
 <spatial name="drum"><site site="wall"/><geom geom="drum"/><site site="one"/></spatial>
 <spatial name="rod"><site site="wall"/><geom geom="drum" sidesite="beside"/><site site="one"/></spatial>
 <spatial name="all" range="0 9"><site site="wall"/><geom geom="post"/><site site="top"/><site site="one"/>
  <pulley divisor="3"/><site site="top"/><geom geom="ball" sidesite="over"/><site site="two"/>
  <geom geom="drum"/><site site="wall"/></spatial>
</tendon></mujoco>"""


def test_tendons_around_geoms_have_the_lengths_of_mujoco():
    m = mujoco.MjModel.from_xml_string(WRAPPED)
    d, rng = mujoco.MjData(m), np.random.default_rng(1)
    model, elements, _ = io.load_mjcf(WRAPPED)
    lengths = elements.tendon_length(elements.tree(), list(range(5)))
    ours = jax.jit(lambda q, v: lengths.moving(ZERO, nsd.State(q, v))[:2])
    wrapped, straight = np.zeros(5, int), np.zeros(5, int)
    for _ in range(600):
        q = m.qpos0.copy()
        mujoco.mj_integratePos(m, q, rng.normal(size=m.nv), 0.7)
        d.qpos[:], d.qvel[:] = q, rng.normal(size=m.nv)
        mujoco.mj_forward(m, d)
        length, rate = ours(q, d.qvel)
        np.testing.assert_allclose(length, d.ten_length, rtol=0, atol=1e-12)  # 2e-15
        np.testing.assert_allclose(rate, d.ten_velocity, rtol=0, atol=1e-12)  # 1e-14
        around = d.ten_wrapnum > [2, 2, 2, 2, 7]
        wrapped, straight = wrapped + around, straight + ~around
    assert np.all(wrapped > 40) and np.all(straight > 20)


def test_a_side_site_inside_a_geom_is_refused():
    text = WRAPPED.replace('name="over" pos=".1 .4 .05"', 'name="over" pos=".1 .1 .05"')
    with pytest.raises(ValueError, match="tendon/side: has a side site inside"):
        io.load_mjcf(text)
