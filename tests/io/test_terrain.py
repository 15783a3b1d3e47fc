"""Height fields of files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import shapes

io = pytest.importorskip("diffnsd.io")
pytest.importorskip("mujoco")

ROWS, COLUMNS, RISE = 4, 5, 0.4
SLOPE = " ".join(str(x) for _ in range(ROWS) for x in np.linspace(0, 1, COLUMNS))
TEXT = f"""<mujoco><asset><hfield name="slope" nrow="{ROWS}" ncol="{COLUMNS}" size="1 1 {RISE} .1"
  elevation="{SLOPE}"/></asset><worldbody>
  <geom name="ground" type="hfield" hfield="slope" pos="0 .1 .2" euler="0 0 90"/>
  <body pos="0 0 1"><freejoint/><geom type="sphere" size=".1"/></body></worldbody></mujoco>"""


@pytest.mark.slow
def test_a_slope_is_a_plane():
    """Heights that rise along x of a geom that is turned by a quarter: the distance from a plane."""
    model, elements, start = io.load_mjcf(TEXT)
    ground = elements.hulls["geom/ground"]
    assert isinstance(ground, shapes.HeightField) and ground.heights.shape == (ROWS, COLUMNS)
    assert any(
        "height" in line for line in elements.report
    )  # what of the terrain differs, in words
    normal = np.array([0.0, -RISE / 2, 1.0]) / np.hypot(RISE / 2, 1)  # x of the geom is y here
    on_ground = np.array([0.0, 0.1, 0.2 + RISE / 2])

    @jax.jit
    def gap(place):
        (gaps,) = model.gaps(jnp.zeros(()), start.q.at[:3].set(place))
        return gaps[0]

    rng = np.random.default_rng(0)
    for place in rng.uniform(-0.3, 0.3, (20, 3)) + [0.0, 0.1, 0.8]:
        exact = normal @ (place - on_ground) - 0.1
        # Measured 2e-16.
        np.testing.assert_allclose(gap(jnp.asarray(place)), exact, atol=1e-12)
        np.testing.assert_allclose(jax.grad(gap)(jnp.asarray(place)), normal, atol=1e-10)
