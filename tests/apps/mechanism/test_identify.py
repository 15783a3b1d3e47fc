"""Numbers of a file from motions that others computed: MuJoCo for a pendulum, closed forms for a block."""

import json
from types import SimpleNamespace

import equinox as eqx
import mujoco
import numpy as np
import pytest
from typer.testing import CliRunner

from diffnsd.apps.cli import app
from diffnsd.apps.mechanism import load_runs, mechanism_job
from diffnsd.apps.mechanism._data import repeated_runs
from diffnsd.apps.mechanism._names import quantities, with_rebound
from diffnsd.apps.mechanism._run import _measured
from diffnsd.io import load_mjcf

runner = CliRunner()
PENDULUM = """<mujoco><option timestep=".0005" integrator="RK4"/><worldbody><body name="arm">
 <joint name="pivot" axis="0 1 0" damping="{}"/>
 <geom name="rod" type="capsule" size=".02 .2" pos="0 0 -.25" mass=".4" contype="0" conaffinity="0"/>
</body></worldbody></mujoco>"""
BLOCK = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1" friction=".5"/>
 <body name="block" pos="0 0 .05"><freejoint/>
  <geom name="sides" type="box" size=".1 .1 .05" mass=".7" friction="0"/></body>
</worldbody></mujoco>"""
DT, FRAMES = 0.02, 50


def swings(damping=0.03, noise=1e-3, starts=(1.2, -0.7, 2.0, 0.4)):
    """The motion of the damped pendulum by the fourth order of MuJoCo, every 0.02 s, with sensor noise."""
    model = mujoco.MjModel.from_xml_string(PENDULUM.format(damping))
    rng, angles, rates = np.random.default_rng(1), [], []
    for k, angle in enumerate(starts):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = angle, 0.5 * k
        rates.append(0.5 * k)
        for _ in range(FRAMES):
            angles.append(data.qpos[0])
            for _ in range(40):
                mujoco.mj_step(model, data)
    n = len(starts)
    seen = np.array(angles) + noise * rng.normal(size=n * FRAMES)
    qvel = np.full((n * FRAMES, 1), np.nan)
    qvel[::FRAMES, 0] = rates
    times = np.tile(DT * np.arange(FRAMES), n)
    return {
        "qpos": seen[:, None],
        "qvel": qvel,
        "times": times,
        "offsets": FRAMES * np.arange(n + 1),
    }


def slides(mu=0.3):
    """Blocks that slide to rest on a floor: `v t − mu g t² / 2` until `t = v / (mu g)`."""
    rng, rows, rates = np.random.default_rng(2), [], []
    for speed, heading in ((1.0, 0.3), (1.5, 2.0), (0.7, -1.0), (1.2, 4.0)):
        t = np.minimum(DT * np.arange(FRAMES), speed / (mu * 9.81))
        along = speed * t - mu * 9.81 * t**2 / 2
        q = np.zeros((FRAMES, 7))
        q[:, 0], q[:, 1], q[:, 2], q[:, 3] = (
            along * np.cos(heading),
            along * np.sin(heading),
            0.05,
            1,
        )
        q[1:, :3] += 1e-4 * rng.normal(size=(FRAMES - 1, 3))
        rows.append(q)
        v = np.zeros((FRAMES, 6))
        v[0, :2] = speed * np.cos(heading), speed * np.sin(heading)
        rates.append(v)
    times = np.tile(DT * np.arange(FRAMES), 4)
    return {
        "qpos": np.concatenate(rows),
        "qvel": np.concatenate(rates),
        "times": times,
        "offsets": FRAMES * np.arange(5),
    }


def identify(folder, text, arrays, free, *options):
    """The command in a folder; its result."""
    (folder / "model.xml").write_text(text)
    np.savez(folder / "runs.npz", **arrays)
    out = folder / "out"
    command = ["identify", str(folder / "model.xml"), str(folder / "runs.npz"), "--out", str(out)]
    done = runner.invoke(app, [*command, "--free", free, *options])
    assert done.exit_code == 0, done.output
    return json.loads((out / "result.json").read_text()), out


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    arrays = swings()
    # Of one run 15 of 50 frames were lost.
    arrays["qpos"][60:75] = np.nan
    folder = tmp_path_factory.mktemp("pendulum")
    return identify(folder, PENDULUM.format(0.1), arrays, "joint/pivot/damping", "--posterior")


@pytest.mark.nightly
def test_the_damping_of_a_pendulum_from_motions_of_mujoco(pendulum):
    result, _ = pendulum
    found = result["parameters"]["joint/pivot/damping"]
    assert result["status"] == "converged", result["warnings"]
    assert found["start"] == 0.1 and found["free"] and found["determined"]
    # Measured: 1.5e-5 off, with a standard error of 1.1e-5.
    error = abs(found["value"] - 0.03)
    assert error < 3 * found["standard_error"] and error < 3e-4, found
    assert not any("--substeps" in text for text in result["warnings"])
    assert result["prediction"]["rotation_deg"] < 0.2 and result["prediction"]["failed"] == 0


@pytest.mark.nightly
def test_the_posterior_with_exact_derivatives(pendulum):
    """Through the simulation, which is smooth here: as wide as the standard error, about the estimate."""
    result, out = pendulum
    found = result["parameters"]["joint/pivot/damping"]
    drawn = json.loads((out / "posterior.json").read_text())
    damping = drawn["parameters"]["joint/pivot/damping"]
    assert drawn["details"]["derivatives"].startswith("exact")
    # What speaks against the fit stands on the page; nothing else does here.
    assert all("there are only 4 groups" in sentence for sentence in drawn["warnings"])
    # Measured without lost frames: 1.04 standard errors wide, 0.02 off.
    assert 0.5 < damping["deviation"] / found["standard_error"] < 2
    assert abs(damping["mean"] - found["value"]) < 0.3 * found["standard_error"]
    assert result["posterior"]["sampler"] == "Laplace"


@pytest.mark.nightly
def test_what_an_identification_of_a_file_writes(pendulum):
    result, out = pendulum
    with np.load(out / "predictions.npz") as found:
        assert found["qpos"].shape == (4 * FRAMES, 1) and np.all(np.isfinite(found["qpos"]))
        np.testing.assert_array_equal(found["offsets"], FRAMES * np.arange(5))
        seen = swings()["qpos"]
        np.testing.assert_allclose(found["qpos"][::FRAMES], seen[::FRAMES], atol=1e-12)
    _, elements, _ = load_mjcf(str(out / "fitted.xml"))
    value = result["parameters"]["joint/pivot/damping"]["value"]
    np.testing.assert_allclose(elements["joint/pivot/damping"], value, rtol=1e-5)
    assert (out / "report.html").stat().st_size > 20_000
    assert (out / "replay.html").stat().st_size > 100_000


@pytest.mark.nightly
def test_steps_that_are_too_long_for_the_data_are_said(tmp_path):
    """With contacts that may close steps are of first order, whether or not they do."""
    floor = '<worldbody><geom type="plane" size="1 1 1" pos="0 0 -5"/>'
    text = PENDULUM.replace(' contype="0" conaffinity="0"', "").replace("<worldbody>", floor)
    result, _ = identify(tmp_path, text.format(0.1), swings(damping=0.3), "joint/pivot/damping")
    found = result["parameters"]["joint/pivot/damping"]
    off = (found["value"] - 0.3) / found["standard_error"]
    (said,) = (text for text in result["warnings"] if "--substeps 16" in text)
    moved = float(said.split("would move by ")[1].split()[0])
    # Half the step takes half of the error away.
    assert abs(off) > 4 and abs(moved / abs(off) - 0.5) < 0.2, (off, moved)


@pytest.mark.nightly
def test_the_friction_of_a_sliding_block(tmp_path):
    result, _ = identify(tmp_path, BLOCK, slides(), "geom/floor/friction")
    found = result["parameters"]["geom/floor/friction"]
    assert result["status"] == "converged", result["warnings"]
    # Measured: 1.3e-5 off, with a standard error of 1.1e-5; 6e-4 and 8e-4 after a first look 20 % wide.
    error = abs(found["value"] - 0.3)
    assert error < 3 * found["standard_error"] and error < 1e-4, found


def job_of(tmp_path, arrays, text=BLOCK, names=("geom/floor/friction",)):
    np.savez(tmp_path / "runs.npz", **arrays)
    _, elements, _ = load_mjcf(text)
    return mechanism_job(elements, load_runs(tmp_path / "runs.npz", elements), list(names))


def test_what_was_not_measured_has_no_weight(tmp_path):
    arrays = slides()
    arrays["qpos"][10:15] = np.nan
    arrays["qpos"][120, 4] = np.nan  # one entry of a quaternion
    mask = np.asarray(job_of(tmp_path, arrays).mask)
    assert mask.shape == (4, FRAMES, 2)
    lost = np.zeros((4, FRAMES), bool)
    lost[0, 10:15] = lost[2, 20] = True
    np.testing.assert_array_equal(mask, np.repeat(~lost[..., None], 2, axis=2))


def test_a_missing_joint_hides_the_bodies_behind_it(tmp_path):
    chain = """<mujoco><worldbody><body name="a"><joint/><geom size=".1"/><body name="b" pos="1 0 0"><joint/>
     <geom size=".1"/></body></body><body name="c"><joint/><geom size=".1"/></body></worldbody></mujoco>"""
    qpos = np.zeros((5, 3))
    qpos[2, 0] = qpos[3, 1] = np.nan
    mask = job_of(
        tmp_path, {"qpos": qpos, "times": np.arange(5.0)}, chain, ["joint/0/damping"]
    ).mask
    expected = np.ones((5, 3), bool)
    expected[2, :2] = expected[3, 1] = False
    np.testing.assert_array_equal(mask[0], np.concatenate([expected, expected], axis=1))


def test_velocities_that_were_not_measured_come_from_the_first_frames(tmp_path):
    arrays = slides()
    given = np.asarray(job_of(tmp_path, arrays).velocities)
    del arrays["qvel"]
    guessed = np.asarray(job_of(tmp_path, arrays).velocities)
    # Measured: 0.008 m/s, from 0.1 mm of noise in five frames 20 ms apart.
    np.testing.assert_allclose(guessed, given, atol=0.03)


def broken(**changes):
    arrays = slides() | changes
    return {key: x for key, x in arrays.items() if x is not None}


def later(key, row, value):
    values = slides()[key].astype(float)
    values[row] = value
    return {key: values}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"qpos": np.zeros((200, 8))}, "the file has 7 coordinates (joint/0): it must be (F, 7)"),
        ({"qvel": np.zeros((200, 7))}, "`qvel` has shape (200, 7), but the file has 6 velocities"),
        ({"times": np.zeros(200)}, "run 0: `times` do not increase"),
        (later("times", 70, 0.411), "run 1: `times` are not equal steps of 0.02 s (frame 20"),
        ({"offsets": np.array([0, 50, 50, 200])}, "run 1: `offsets` gives it no frames"),
        ({"offsets": np.array([0, 50, 51, 200])}, "run 1: `offsets` gives it 1 frame,"),
        ({"offsets": np.array([0, 50, 100])}, "must start at 0 and end at 200"),
        ({"times": None}, "the keys times are missing"),
        (later("qpos", 100, np.nan), "run 2: `qpos` of its first frame has NaN"),
        (later("qpos", (60, 3), 0.9), "run 1: `qpos` of joint/0 is no unit quaternion at frame 10"),
        (later("qpos", (60, 0), np.inf), "infinite numbers; NaN stands for"),
        ({"controls": np.zeros((200, 1))}, "the file has 0 actuators"),
    ],
)
def test_runs_that_do_not_fit_the_file_are_explained(tmp_path, changes, sentence):
    with pytest.raises(ValueError) as raised:
        job_of(tmp_path, broken(**changes))
    assert sentence in str(raised.value), raised.value
    assert "runs.npz" in str(raised.value)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["geom/flor/friction"], "it has geom/floor/friction, "),
        (["geom/sides/friction"], "is 0, but of two geoms the larger friction counts"),
        (["body/block/iquat"], "is a direction"),
        (["joint/0/actuatorfrcrange"], "finite value"),
        ([], "--free names what to identify"),
    ],
)
def test_names_that_cannot_be_fitted_are_explained(names, sentence):
    _, elements, _ = load_mjcf(BLOCK)
    with pytest.raises(ValueError) as raised:
        quantities(elements, names, 0.1)
    assert sentence in str(raised.value), raised.value


@pytest.mark.parametrize(
    ("free", "sentence"),
    [("geom/flor/friction", "it has geom/floor/friction, "), ("", "--free names what to identify")],
)
def test_wrong_names_are_refused_before_the_data_are_read(tmp_path, free, sentence):
    (tmp_path / "model.xml").write_text(BLOCK)
    files = [str(tmp_path / "model.xml"), str(tmp_path / "not there.npz")]
    done = runner.invoke(app, ["identify", *files, "--free", free, "--out", str(tmp_path)])
    assert done.exit_code == 2 and sentence in " ".join(done.output.split()), done.output


def test_bounds_and_priors_by_the_kind_of_number():
    _, elements, _ = load_mjcf(BLOCK)
    names = ["geom/floor/friction", "contact/restitution", "body/block/mass", "option/gravity"]
    friction, restitution, mass, gravity = quantities(elements, names, 0.1).values()
    assert friction.bounds == (0.0, None) and friction.deviation is None
    assert restitution.bounds == (0.0, 1.0) and restitution.deviation == 0.1
    assert mass.bounds == (0.0, None) and mass.deviation == pytest.approx(0.21)
    assert gravity.bounds == (None, None) and gravity.deviation == pytest.approx(0.1962)


def test_units_follow_from_what_a_joint_moves():
    text = """<mujoco><worldbody><body name="cart"><joint name="rail" type="slide"/><geom size=".1"/>
     <body name="arm"><joint name="pivot"/><geom size=".1"/></body></body>
     <body name="loose"><freejoint name="flies"/><geom size=".1"/></body></worldbody></mujoco>"""
    _, elements, _ = load_mjcf(text)
    units = {
        "joint/rail/damping": "N s/m",
        "joint/rail/frictionloss": "N",
        "joint/pivot/damping": "N m s/rad",
        "joint/pivot/stiffness": "N m/rad",
        "joint/pivot/armature": "kg m²",
        "body/arm/mass": "kg",
    }
    found = quantities(elements, list(units), 0.1)
    assert {name: one.unit for name, one in found.items()} == units


def test_a_free_restitution_starts_where_it_can_change():
    _, elements, _ = load_mjcf(BLOCK)
    assert float(with_rebound(elements, ["contact/restitution"])["contact/restitution"]) == 0.1
    assert float(with_rebound(elements, ["geom/floor/friction"])["contact/restitution"]) == 0.0
    _, bouncy, _ = load_mjcf(BLOCK, restitution=0.6)
    assert float(with_rebound(bouncy, ["contact/restitution"])["contact/restitution"]) == 0.6


@pytest.mark.slow
def test_controls_of_a_run_drive_it(tmp_path):
    """4 N on 2 kg in one run, and none in the other: the closed form of the motion at the frames."""
    cart = """<mujoco><worldbody><body><joint name="track" type="slide" axis="1 0 0"/>
     <geom size=".1" mass="2"/></body></worldbody><actuator><motor joint="track" gear="4"/></actuator>
    </mujoco>"""
    t = np.tile(0.1 * np.arange(6), 2)
    push = np.repeat([1.0, 0.0], 6)
    arrays = {
        "qpos": (push * t**2)[:, None],
        "qvel": np.zeros((12, 1)),
        "times": t,
        "offsets": np.array([0, 6, 12]),
        "controls": push[:, None],
    }
    job = job_of(tmp_path, arrays, cart, ["actuator/0/gear"])
    found = eqx.filter_jit(eqx.filter_vmap(job.motion, in_axes=(None, 0, 0)))(
        job.model, job.runs, job.velocities
    )
    assert not np.any(found.failed)
    np.testing.assert_allclose(found.errors, 0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["model.xml"], "give the measured runs too"),
        (["model.xml", "runs.npz", "--tosses", "3"], "--tosses draws from the tosses of a cube"),
        (["runs.npz"], "give its MJCF or URDF file first: diffnsd identify FILE.xml runs.npz"),
        (["runs.npz", "model.xml"], "file first: diffnsd identify model.xml runs.npz"),
        (["cube.npz", "runs.npz"], "to predict other tosses give --predict runs.npz"),
    ],
)
def test_files_that_are_missing_or_swapped_are_explained(tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.xml").write_text(BLOCK)
    np.savez("runs.npz", qpos=np.zeros((4, 7)))
    np.savez("cube.npz", position=np.zeros((4, 3)))
    done = runner.invoke(app, ["identify", *given, "--free", "x"])
    assert done.exit_code == 2 and sentence in " ".join(done.output.split()), done.output


def test_keys_that_are_not_read_and_runs_that_are_copies_are_said(tmp_path):
    arrays = slides()
    arrays["velocities"] = arrays.pop("qvel")
    arrays["qpos"][2 * FRAMES : 3 * FRAMES] = arrays["qpos"][:FRAMES]
    np.savez(tmp_path / "runs.npz", **arrays)
    said = []
    session, elements = SimpleNamespace(print=said.append), load_mjcf(BLOCK)[1]
    runs, _ = _measured(session, elements, tmp_path / "runs.npz", None)
    (note,) = said
    assert note.endswith("the key `velocities` is not read; is it `qvel`?")
    (warning,) = repeated_runs(runs)
    assert warning.startswith("runs 0, 2 are the same to the last bit")
    np.savez(tmp_path / "runs.npz", **slides())
    assert not repeated_runs(load_runs(tmp_path / "runs.npz", elements))
