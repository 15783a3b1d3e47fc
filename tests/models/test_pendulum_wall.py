"""The pendulum at the wall: time and rate of the impact, rebound, energy."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipkinc

from diffnsd.integrators import MoreauJean
from diffnsd.models import (
    pendulum_impact_rate,
    pendulum_rebound_angle,
    pendulum_small_impact_time,
    pendulum_state,
    pendulum_wall,
    pendulum_wall_angle,
)
from diffnsd.simulation import simulate

G, LENGTH, DISTANCE, E = 9.81, 0.8, 0.2, 0.7


def impact_time(angle):
    """From rest at `angle` to the wall: `t = sqrt(l/g) (F(pi/2, k) − F(phi, k))`."""
    k = np.sin(angle / 2)
    phi = np.arcsin(np.sin(float(pendulum_wall_angle(LENGTH, DISTANCE)) / 2) / k)
    return np.sqrt(LENGTH / G) * (ellipkinc(np.pi / 2, k**2) - ellipkinc(phi, k**2))


def test_small_angles():
    wall = float(pendulum_wall_angle(LENGTH, DISTANCE))
    for scale, bound in ((1.5, 0.05), (1.2, 0.03)):
        time = float(pendulum_small_impact_time(-wall * scale, LENGTH, DISTANCE))
        assert abs(time / impact_time(-wall * scale) - 1) < bound


@pytest.mark.parametrize("dt", [2e-3, 5e-4])
def test_impact_and_rebound(dt):
    model = pendulum_wall(E, LENGTH, DISTANCE)
    solution = simulate(model, MoreauJean(), 0.0, 1.5, dt, pendulum_state(1.2))
    q, v = np.asarray(solution.states.q[:, 0]), np.asarray(solution.states.v[:, 0])
    ts, total = np.asarray(solution.ts), np.asarray(solution.energy.total)
    first = int(np.argmax(np.asarray(solution.impulses[0][:, 0, 0]) > 1e-9))

    assert abs(ts[first] - impact_time(1.2)) < 1.5 * dt
    rate = float(pendulum_impact_rate(1.2, LENGTH, DISTANCE))
    assert abs(v[first - 1] - rate) < G / LENGTH * dt
    np.testing.assert_allclose(v[first], -E * v[first - 1], rtol=1e-2)  # force within the step
    rebound = float(pendulum_rebound_angle(1.2, E, LENGTH, DISTANCE))
    swing = q[first : first + int(1.0 / dt)]
    assert abs(np.max(swing) - rebound) < 2 * dt

    # Between impacts the energy is kept to second order.
    assert np.max(np.abs(total[:first] - total[0])) < 5 * dt**2  # 3.3 dt² measured
    assert np.min(solution.gaps[0]) > -LENGTH * abs(rate) * dt


def test_parameters_reach_the_closed_forms():
    """The rate at the wall from the model's own energy."""
    model = pendulum_wall(E, LENGTH, DISTANCE, mass=2.0)
    zero = jnp.zeros(())
    before = model.energy(zero, pendulum_state(1.2)).total
    wall = pendulum_wall_angle(LENGTH, DISTANCE)
    after = model.energy(
        zero, pendulum_state(wall, pendulum_impact_rate(1.2, LENGTH, DISTANCE))
    ).total
    np.testing.assert_allclose(after, before, rtol=1e-12)
    np.testing.assert_allclose(model.gaps(zero, wall[None])[0], [0.0], atol=1e-15)
