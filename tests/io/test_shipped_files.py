"""The mechanisms that gymnasium ships: all load, nothing but what hard contacts lack is left out."""

from importlib.resources import files

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import io

FOLDER = files("gymnasium") / "envs" / "mujoco" / "assets"
NAMES = sorted(f.name for f in FOLDER.iterdir() if f.name.endswith(".xml"))
SOFT = ("softness (", "margin: ", "solver options (")
QUICK = ("hopper.xml", "inverted_pendulum.xml", "reacher.xml")
DEPRECATED = pytest.mark.filterwarnings("ignore:compiler attribute 'settotalmass':UserWarning")


def test_the_files_are_there():
    assert len(NAMES) == 14 and set(QUICK) < set(NAMES)


@DEPRECATED
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_it_loads_with_softness_alone_in_the_report(name):
    _, elements, start = io.load_mjcf(str(FOLDER / name))
    assert not [line for line in elements.report if not line.startswith(SOFT)], elements.report
    m = mujoco.MjModel.from_xml_path(str(FOLDER / name))
    np.testing.assert_array_equal(start.q, m.qpos0)
    assert len(elements.plan.actuators) == m.nu and len(elements.plan.joints) == m.njnt


@DEPRECATED
@pytest.mark.parametrize(
    "name",
    ["hopper.xml", "reacher.xml", pytest.param("ant.xml", marks=pytest.mark.slow)],
)
def test_masses_forces_and_frames_are_those_of_mujoco(name):
    model, elements, _ = io.load_mjcf(str(FOLDER / name))
    m = mujoco.MjModel.from_xml_path(str(FOLDER / name))
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    d, rng, tree = mujoco.MjData(m), np.random.default_rng(0), elements.tree()

    def ours(q, v, u):
        forces = model.system.force(jnp.zeros(()), nsd.State(q, v), u)
        return tree.mass(jnp.zeros(()), q), forces, tree.frames(q).position

    run = eqx.filter_jit(ours)
    for _ in range(2):
        q = m.qpos0.copy()
        mujoco.mj_integratePos(m, q, 0.7 * rng.normal(size=m.nv), 1.0)
        d.qpos[:], d.qvel[:], d.ctrl[:] = q, rng.normal(size=m.nv), rng.normal(size=m.nu)
        mujoco.mj_forward(m, d)
        mass = np.zeros((m.nv, m.nv))
        mujoco.mj_fullM(m, d, mass)
        forces = d.qfrc_passive - d.qfrc_bias + d.qfrc_actuator
        found = jax.tree.map(np.asarray, run(q, d.qvel.copy(), d.ctrl.copy()))
        for a, b in zip(found, (mass, forces, d.xpos[1:]), strict=True):
            scale = np.max(np.abs(b))
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-14 * scale)  # 2e-16
