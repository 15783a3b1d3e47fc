"""What flights before the first contact tell: start velocities, and whether units are those of the file."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from diffnsd.apps.mechanism import load_runs
from diffnsd.apps.mechanism._job import moving
from diffnsd.apps.mechanism._starts import flying_frames, with_estimated_starts
from diffnsd.apps.mechanism._units import _falls_freely, check_units
from diffnsd.io import load_mjcf

BALL = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
 <body name="ball" pos="0 0 .5"><freejoint/>
  <inertial pos="0 0 0" mass=".4" diaginertia="4e-4 4e-4 4e-4"/>
  <geom type="sphere" size=".05"/></body>
</worldbody></mujoco>"""
DT, FRAMES, FLIGHT, RUNS = 1 / 150, 30, 20, 60
PLACE, TURN = 2e-4, 2e-3
"""Noise of a frame [m], [rad]."""
SPEED, SPIN = 0.05, 0.4
"""Noise of a measured velocity [m/s], [rad/s]."""


def flights(lost=False):
    """Balls of equal moments of inertia that fly, spin, and lie on the floor from frame 20 on; the truth."""
    rng = np.random.default_rng(0)
    t = DT * np.arange(FRAMES)
    rows, rates, truth = [], [], []
    for _ in range(RUNS):
        v, w = rng.normal(size=3), 4 * rng.normal(size=3)
        turn = Rotation.random(rng=rng)
        q = np.zeros((FRAMES, 7))
        q[:, :3] = (0, 0, 0.5) + v * t[:, None] - np.array((0, 0, 9.81)) / 2 * t[:, None] ** 2
        q[FLIGHT:, 2] = 0.05
        q[:, :3] += PLACE * rng.normal(size=(FRAMES, 3))
        seen = turn * Rotation.from_rotvec(w * t[:, None])
        seen = seen * Rotation.from_rotvec(TURN * rng.normal(size=(FRAMES, 3)))
        q[:, 3:] = seen.as_quat(scalar_first=True)
        if lost:
            # Frames 8 to 10 were lost, and one is wrong by a centimetre.
            q[8:11] = np.nan
            q[14, :2] += 0.01
        rows.append(q)
        truth.append(np.concatenate([v, w]))
        rate = np.full((FRAMES, 6), np.nan)
        rate[0] = truth[-1] + np.repeat([SPEED, SPIN], 3) * rng.normal(size=6)
        rates.append(rate)
    arrays = {
        "qpos": np.concatenate(rows),
        "qvel": np.concatenate(rates),
        "times": np.tile(t, RUNS),
        "offsets": FRAMES * np.arange(RUNS + 1),
    }
    return arrays, np.array(truth)


def runs_of(folder, arrays):
    np.savez(folder / "runs.npz", **arrays)
    elements = load_mjcf(BALL)[1]
    return elements, load_runs(folder / "runs.npz", elements)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_the_starts_of_flights(tmp_path, lost):
    """As sure as least squares through the noisy first frame can be."""
    arrays, truth = flights(lost)
    elements, runs = runs_of(tmp_path, arrays)
    found, estimated = with_estimated_starts(elements, runs, 4)
    assert estimated.all()
    errors = (found.velocities - truth).reshape(RUNS, 2, 3)
    t = DT * np.arange(1, FLIGHT)
    noise = np.sqrt(1 / (t @ t) + t.sum() ** 2 / (t @ t) ** 2)
    for error, scatter in zip(np.moveaxis(errors, 1, 0), (PLACE, TURN), strict=True):
        # Measured: 1.09 and 1.07; with lost frames 1.08 and 1.06. The measured velocities: 20 and 17.
        assert 0.8 < np.sqrt(np.mean(error**2)) / (scatter * noise) < 1.3


@pytest.mark.nightly
def test_what_touches_from_the_start_or_never_keeps_its_velocity(tmp_path):
    arrays, _ = flights()
    arrays["qpos"][2:FRAMES, 2] = 0.05  # the first run lands at once
    arrays["qpos"][FRAMES : 2 * FRAMES, 2] += 1.0  # the second one flies on
    arrays["qpos"] = arrays["qpos"][: 3 * FRAMES]
    arrays = {k: v[: 3 * FRAMES] for k, v in arrays.items()} | {"offsets": FRAMES * np.arange(4)}
    elements, runs = runs_of(tmp_path, arrays)
    found, estimated = with_estimated_starts(elements, runs, 4)
    np.testing.assert_array_equal(estimated, [False, False, True])
    np.testing.assert_array_equal(found.velocities[:2], runs.velocities[:2])
    assert np.all(found.velocities[2] != runs.velocities[2])


def test_limits_and_activations(tmp_path):
    """Of a product of systems the gaps are those of its bodies."""
    text = """<mujoco><worldbody><body name="arm"><joint name="elbow" limited="true" range="-90 90"/>
     <geom size=".1"/></body></worldbody>
     <actuator><general joint="elbow" dyntype="filter" dynprm=".1"/></actuator></mujoco>"""
    elements = load_mjcf(text)[1]
    angles = np.array([0.0, 0.5, 1.0, 1.57, 1.0])[:, None]
    np.savez(tmp_path / "runs.npz", qpos=angles, times=np.arange(5.0))
    flying = flying_frames(elements, load_runs(tmp_path / "runs.npz", elements))
    np.testing.assert_array_equal(flying, [[True, True, True, False, False]])


@pytest.mark.parametrize(
    ("old", "new", "moves", "falls"),
    [
        (
            "<worldbody>",
            "<worldbody><body name='table'><geom size='.1' pos='2 0 0'/></body>",
            [False, True],
            True,
        ),
        ('name="ball" pos', 'name="ball" gravcomp=".5" pos', [True], False),
        ("<freejoint/>", "<joint type='free' damping='.1'/>", [True], False),
        ("<worldbody>", "<option viscosity='.1'/><worldbody>", [True], False),
        ("<freejoint/>", "<joint type='slide'/>", [True], False),
        ("<freejoint/>", "<freejoint/>", [True], True),
    ],
)
def test_what_moves_and_falls_freely(old, new, moves, falls):
    elements = load_mjcf(BALL.replace(old, new))[1]
    assert moving(elements).tolist() == moves and _falls_freely(elements) == falls


def scaled(key, factor):
    arrays, _ = flights()
    if key == "times":
        return arrays | {"times": arrays["times"] * factor}
    arrays["qpos"][:, :3] *= factor
    return arrays


@pytest.mark.parametrize(("key", "factor"), [("qpos", 1e3), ("times", 1e3)])
def test_flights_in_other_units_are_refused(tmp_path, key, factor):
    with pytest.raises(
        ValueError, match=r"fall with .* gravity of the file is 9\.81 m/s²: .* metres"
    ):
        check_units(*runs_of(tmp_path, scaled(key, factor)))


def test_sliding_bodies_in_millimetres_are_refused_since_they_float(tmp_path):
    """Blocks of 0.1 m slide under friction 0.3 with 0.1 mm of noise; in millimetres 50 m above the floor.

    Between neighbouring frames the fall is lost in the noise: 350 m/s² at each, of a fall of 9.8.
    """
    elements = load_mjcf(
        """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .05"><freejoint/>
        <geom type="box" size=".1 .1 .05" mass=".7"/></body></worldbody></mujoco>"""
    )[1]
    rng, t = np.random.default_rng(0), 0.02 * np.arange(30)
    q = np.zeros((4, 30, 7))
    for run, speed in enumerate((1.0, 1.5, 0.7, 1.2)):
        moving = np.minimum(t, speed / (0.3 * 9.81))
        q[run, :, 0], q[run, :, 2:4] = speed * moving - 0.3 * 9.81 * moving**2 / 2, (0.05, 1.0)
        q[run, 1:, :3] += 1e-4 * rng.normal(size=(29, 3))
    for factor, wrong in ((1.0, False), (1e3, True)):
        rows = q * np.repeat([factor, 1.0], [3, 4])
        arrays = {"qpos": rows.reshape(-1, 7), "times": np.tile(t, 4), "offsets": 30 * np.arange(5)}
        np.savez(tmp_path / "runs.npz", **arrays)
        runs = load_runs(tmp_path / "runs.npz", elements)
        if wrong:
            with pytest.raises(ValueError, match=r"fall with -0\.0245 m/s².* seem to float"):
                check_units(elements, runs)
        else:
            check_units(elements, runs)


def test_bounces_in_millimetres_are_refused(tmp_path):
    """They seem to lie in the air, so that a parabola through a whole run says nothing of gravity.

    Balls that fall 0.1 to 0.3 m and bounce with restitution 0.1 to 0.7, seen each 20 ms with 0.3 mm of noise.
    """
    rng, t = np.random.default_rng(1), 0.02 * np.arange(40)
    q = np.zeros((8, 40, 7))
    q[:, :, 3] = 1.0
    for run in q:
        rise, start, speed, again = rng.uniform(0.1, 0.3), 0.0, 0.0, rng.uniform(0.1, 0.7)
        while start < t[-1]:
            since, flown = t - start, t >= start
            run[flown, 2] = (rise + speed * since - 9.81 / 2 * since**2)[flown]
            landing = np.sqrt(speed**2 + 2 * 9.81 * rise)
            start, rise, speed = start + (speed + landing) / 9.81, 0.0, max(again * landing, 0.05)
        run[:, :3] += (0, 0, 0.05) + 3e-4 * rng.normal(size=(40, 3))
    arrays = {"qpos": q.reshape(-1, 7), "times": np.tile(t, 8), "offsets": 40 * np.arange(9)}
    check_units(*runs_of(tmp_path, arrays))
    arrays["qpos"][:, :3] *= 1e3
    # Measured: 9.81e3, of a standard error of 28; parabolas through whole runs -1.2e3 with 151, between
    # neighbouring frames 3.0e3 with 589: neither is ten errors away from 9.81.
    with pytest.raises(ValueError, match=r"fall with 9\.81e\+03 m/s².* metres"):
        check_units(*runs_of(tmp_path, arrays))


def test_flights_in_si_units_pass(tmp_path):
    check_units(*runs_of(tmp_path, flights()[0]))
    check_units(*runs_of(tmp_path, flights(lost=True)[0]))


def test_angles_in_degrees_are_refused(tmp_path):
    text = """<mujoco><worldbody><body name="arm"><joint name="elbow" limited="true" range="-90 90"/>
     <geom size=".1"/></body></worldbody></mujoco>"""
    elements = load_mjcf(text)[1]
    angles = np.linspace(0.3, 1.2, 20)[:, None]
    for factor, wrong in ((1.0, False), (180 / np.pi, True)):
        np.savez(tmp_path / "runs.npz", qpos=factor * angles, times=np.arange(20.0))
        runs = load_runs(tmp_path / "runs.npz", elements)
        if wrong:
            with pytest.raises(
                ValueError, match="joint/elbow lies between 17.2 and 68.8.* degrees"
            ):
                check_units(elements, runs)
        else:
            check_units(elements, runs)
