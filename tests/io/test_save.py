"""What a file can hold: numbers that are written back, and those that MuJoCo computes from others."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import io
from diffnsd.io._save import check_writable

ROD = '<geom type="capsule" fromto="0 0 0 .3 0 0" size=".02" contype="0" conaffinity="0"/>'
LINKED = f"""<mujoco><option density="1.2"/><worldbody>
 <body name="a" pos="0 0 1"><joint name="ja" axis="0 1 0"/>{ROD}</body>
 <body name="b" pos=".3 0 1"><joint name="jb" type="slide"/><joint name="kb" axis="0 1 0"/>{ROD}</body>
 <body name="c" pos="0 1 0"><freejoint name="jc"/>{ROD}</body></worldbody>
<equality><connect name="pin" body1="a" body2="b" anchor=".3 0 0"/>
 <joint name="gear" joint1="jb" joint2="kb" polycoef="0 .5 .1 0 0"/></equality></mujoco>"""


@pytest.mark.parametrize("name", ["body/a/pos", "body/b/pos"])
def test_places_of_bodies_that_an_equality_computes_with_are_refused(name):
    _, elements, _ = io.load_mjcf(LINKED)
    with pytest.raises(
        ValueError, match=f"^{name} cannot be fitted: .*computes equality/pin/data anew"
    ):
        check_writable(elements, [name], LINKED)


def test_other_numbers_are_written(tmp_path):
    _, elements, _ = io.load_mjcf(LINKED)
    new = {
        "body/c/pos": jnp.array([0.1, 1.0, 0.2]),
        "option/density": jnp.array(1.5),
        "equality/gear/data": jnp.array([0.0, 0.6, 0.1, 0.0, 0.0]),
        "joint/ja/springref": jnp.array(0.25),
    }
    check_writable(elements, new, LINKED)
    changed = eqx.tree_at(lambda e: [e.values[n] for n in new], elements, list(new.values()))
    io.save_mjcf(changed, LINKED, tmp_path / "changed.xml")
    _, again, start = io.load_mjcf(tmp_path / "changed.xml")
    for name, value in new.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-5)  # six digits
    np.testing.assert_allclose(start.q[3:6], new["body/c/pos"], rtol=1e-5)


def test_a_free_joint_offers_no_numbers_that_follow_from_its_body():
    _, elements, _ = io.load_mjcf(LINKED)
    free = {name.rpartition("/")[2] for name in elements.values if name.startswith("joint/jc/")}
    assert not free & {"pos", "axis", "ref", "springref"} and "damping" in free
