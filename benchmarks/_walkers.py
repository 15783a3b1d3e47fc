"""Two walking machines as MJCF, for all engines: a planar leg and a sphere on four legs."""

import numpy as np

HOPPER = """
<mujoco model="hopper">
  <compiler angle="degree" inertiafromgeom="true"/>
  <default>
    <joint armature="1" damping="1" limited="true"/>
    <geom conaffinity="0" friction="0.9"/>
  </default>
  <option timestep="0.002"/>
  <worldbody>
    <geom name="floor" conaffinity="1" size="20 20 .125" type="plane"/>
    <body name="torso" pos="0 0 1.25">
      <joint armature="0" axis="1 0 0" damping="0" limited="false" name="rootx" pos="0 0 -1.25" type="slide"/>
      <joint armature="0" axis="0 0 1" damping="0" limited="false" name="rootz" pos="0 0 -1.25" type="slide"/>
      <joint armature="0" axis="0 1 0" damping="0" limited="false" name="rooty" type="hinge"/>
      <geom size="0.05 0.2" type="capsule"/>
      <body name="thigh" pos="0 0 -0.2">
        <joint axis="0 -1 0" name="thigh" range="-150 0" type="hinge"/>
        <geom pos="0 0 -0.225" size="0.05 0.225" type="capsule"/>
        <body name="leg" pos="0 0 -0.7">
          <joint axis="0 -1 0" name="leg" pos="0 0 0.25" range="-150 0" type="hinge"/>
          <geom size="0.04 0.25" type="capsule"/>
          <body name="foot" pos="0.13 0 -0.35">
            <joint axis="0 -1 0" name="foot" pos="-0.13 0 0.1" range="-45 45" type="hinge"/>
            <geom friction="2" pos="-0.065 0 0.1" quat="1 0 -1 0" size="0.06 0.195" type="capsule"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor ctrllimited="true" ctrlrange="-1 1" gear="200" joint="thigh"/>
    <motor ctrllimited="true" ctrlrange="-1 1" gear="200" joint="leg"/>
    <motor ctrllimited="true" ctrlrange="-1 1" gear="200" joint="foot"/>
  </actuator>
</mujoco>
"""
"""A planar leg on a floor: 6 velocities, 8 contacts of capsules, 3 limits. Sizes as in gymnasium's Hopper."""


def _ant() -> str:
    """A sphere on four legs of two hinges: 14 velocities. Sizes as in gymnasium's Ant."""
    legs, motors = [], []
    for k, (x, y) in enumerate(((1, 1), (-1, 1), (-1, -1), (1, -1))):
        hinge = f'axis="{-y} {x} 0" range="{"30 70" if y == x == 1 or x == -y == 1 else "-70 -30"}"'
        near, far = f"{0.2 * x} {0.2 * y} 0", f"{0.4 * x} {0.4 * y} 0"
        capsule = '<geom fromto="0 0 0 {}" size="0.08" type="capsule"/>'
        legs.append(
            f'<body>{capsule.format(near)}<body pos="{near}">'
            f'<joint axis="0 0 1" name="hip{k}" range="-30 30" type="hinge"/>{capsule.format(near)}'
            f'<body pos="{near}"><joint name="ankle{k}" type="hinge" {hinge}/>{capsule.format(far)}'
            "</body></body></body>"
        )
        motors += [f'<motor gear="150" joint="{name}{k}"/>' for name in ("hip", "ankle")]
    return (
        '<mujoco model="ant"><compiler angle="degree" inertiafromgeom="true"/><option timestep="0.01"/>'
        '<default><joint armature="1" damping="1" limited="true"/>'
        '<geom conaffinity="0" density="5" friction="1"/></default><worldbody>'
        '<geom conaffinity="1" name="floor" size="40 40 40" type="plane"/><body pos="0 0 0.75">'
        '<geom size="0.25" type="sphere"/><joint armature="0" damping="0" limited="false" type="free"/>'
        f"{''.join(legs)}</body></worldbody><actuator>{''.join(motors)}</actuator></mujoco>"
    )


WALKERS = {"hopper": HOPPER, "ant": _ant()}
"""MJCF by name."""
CONTROLS = {"hopper": 3, "ant": 8}
STEPS = 200


def velocities(name: str, batch: int, seed: int = 0) -> np.ndarray:
    """Random velocities at the reference configuration, `(batch, nv)` [m/s, rad/s]."""
    size = {"hopper": 6, "ant": 14}[name]
    return np.random.default_rng(seed).normal(size=(batch, size)) / 10
