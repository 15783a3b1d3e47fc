"""What `diffnsd simulate NAME` runs."""

import equinox as eqx
import numpy as np
import pytest

from diffnsd.models import READY, tossed_cube
from diffnsd.simulation import SaveAt, simulate


@pytest.mark.parametrize("name", READY)
def test_ready_models_can_be_simulated(name):
    ready = READY[name]()
    assert ready.summary and len(ready.summary) < 100
    assert ready.model.check(ready.state0) is None
    assert len(ready.coordinates) == ready.model.system.velocities
    shapes = eqx.filter_eval_shape(
        lambda state0: simulate(ready.model, ready.integrator, 0.0, ready.t1, ready.dt, state0),
        ready.state0,
    )
    assert shapes.ts.shape == (round(ready.t1 / ready.dt) + 1,)


def test_the_tossed_cube_comes_to_rest_on_a_face():
    ready = READY["tossed_cube"]()
    solution = simulate(
        ready.model, ready.integrator, 0.0, ready.t1, ready.dt, ready.state0, saveat=SaveAt(4)
    )
    total = np.asarray(solution.energy.total)
    assert np.max(np.diff(total)) < 1e-9  # contact takes energy, flight keeps it to O(h)
    np.testing.assert_allclose(total[-1], 0.37 * 9.81 * 0.0524, rtol=1e-6)
    assert np.max(np.abs(solution.states.v[-1])) < 1e-6
    assert np.min(solution.gaps[0]) > -5e-4
    normal, tangent = solution.impulses[0][..., 0], solution.impulses[0][..., 1:]
    assert np.all(np.linalg.norm(tangent, axis=-1) <= 0.18 * normal + 1e-9)


@pytest.mark.parametrize("half_width", [0.0, -0.05, float("nan")])
def test_a_cube_has_a_size(half_width):
    with pytest.raises(ValueError, match="half_width must be (positive|one finite number)"):
        tossed_cube(half_width=half_width)
