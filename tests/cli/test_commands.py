"""The command line end to end: what it writes, what it says to bad input, after an interrupt."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from diffnsd.cli import app
from diffnsd.cli._cube import CubeParameters, lanes, pose_error, smooth_start, toss
from diffnsd.cli._demo import make_tosses
from diffnsd.cli._fit import Identified, check_free, identify, weights
from diffnsd.cli._outputs import write_result
from diffnsd.io import load_tosses, save_tosses
from diffnsd.rollout import rollout

runner = CliRunner()


@pytest.fixture(scope="module")
def tosses():
    return make_tosses(count=6, seed=3)


@pytest.fixture(scope="module")
def data_file(tosses, tmp_path_factory):
    return save_tosses(tmp_path_factory.mktemp("data") / "tosses.npz", tosses)


@pytest.fixture(scope="module")
def identified(data_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    done = runner.invoke(
        app, ["identify", str(data_file), "--out", str(out), "--free", "mu", "--tosses", "0"]
    )
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.slow
def test_identify_recovers_the_friction_of_its_own_data(identified):
    result = json.loads((identified / "result.json").read_text())
    friction = result["parameters"]["mu"]
    # The truth is 0.22; restitution, truly 0.15, is held at 0 here.
    assert abs(friction["value"] - 0.22) < 0.02
    assert 0 < friction["standard_error"] < 0.02
    assert result["status"] == "converged"
    assert result["rollouts"] <= 6 * 50
    assert result["gradient_evaluations"] % 6 == 0
    assert result["compile_seconds"] > 0 and result["run_seconds"] > 0


@pytest.mark.slow
def test_identify_writes_predictions_from_the_measured_first_frame(identified, tosses):
    with np.load(identified / "predictions.npz") as found:
        assert set(found.files) == {"toss_id", "offsets", "position", "quaternion_wxyz"}
        np.testing.assert_array_equal(found["offsets"], tosses.offsets)
        first = np.asarray(tosses.offsets[:-1])
        np.testing.assert_allclose(found["position"][first], tosses.position[first], atol=1e-6)
        norms = np.linalg.norm(found["quaternion_wxyz"], axis=1)
        np.testing.assert_allclose(norms, 1, atol=1e-6)
    assert (identified / "report.html").stat().st_size > 20_000
    assert (identified / "replay.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--free", "mu,colour"], "there are: mu, e, half_width, gravity, inertia_over_mass"),
        (["--tosses", "-3"], "--tosses must be 0 (all) or more"),
    ],
)
def test_bad_options_are_explained(data_file, tmp_path, arguments, sentence):
    done = runner.invoke(app, ["identify", str(data_file), "--out", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_a_missing_or_broken_file_is_explained(tmp_path):
    done = runner.invoke(app, ["identify", str(tmp_path / "no.npz"), "--out", str(tmp_path)])
    assert done.exit_code == 2 and "no.npz" in done.output.replace("\n", "")
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK\x03\x04 not a zip")
    done = runner.invoke(app, ["identify", str(broken), "--out", str(tmp_path)])
    assert done.exit_code == 2 and "error" in done.output


def test_an_output_that_is_a_file_is_explained(data_file, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    done = runner.invoke(app, ["identify", str(data_file), "--out", str(taken)])
    assert done.exit_code == 2


def test_simulate_lists_the_models_for_a_wrong_name():
    done = runner.invoke(app, ["simulate", "perpetuum"])
    assert done.exit_code == 2 and "bouncing_ball" in done.output


def test_simulate_a_ready_model(tmp_path):
    done = runner.invoke(app, ["simulate", "sliding_block", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "motion.npz") as motion:
        assert np.all(np.isfinite(motion["v"]))
    assert (tmp_path / "motion.svg").exists()


def test_an_interrupt_keeps_the_best_so_far(tosses, tmp_path):
    start = CubeParameters.nominal(tosses)
    record = Identified(("mu",), start, start)

    def interrupt(record, stage):
        if stage.startswith("weights"):
            raise KeyboardInterrupt

    out = identify(lanes(tosses), start, ("mu",), float(tosses.dt), state=record, notify=interrupt)
    assert out.status == "interrupted"
    write_result(tmp_path / "result.json", out)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "interrupted"


def test_unknown_and_repeated_parameters():
    assert check_free(["mu", "e", "mu"]) == ("mu", "e")
    with pytest.raises(ValueError, match="there are: mu"):
        check_free([])


def test_weights_fall_along_a_toss_and_ignore_padding(tosses):
    lane = jax.tree.map(lambda x: x[0], lanes(tosses, 100))
    cube = CubeParameters.nominal(tosses)
    value = jax.jit(lambda c, x: weights(c, x, float(tosses.dt), 1, 0.1048))(cube, lane)
    moving = np.asarray(value[:90])
    assert np.all(np.diff(moving, axis=0) <= 1e-12) and np.all(moving > 0)
    assert np.all(np.asarray(value[90:]) == 0)


def test_smooth_start_recovers_the_velocity_of_a_flight(tosses):
    noisy = tosses.velocity_world.copy()
    first = np.asarray(tosses.offsets[:-1])
    smooth = smooth_start(tosses)
    true = make_tosses(count=6, seed=3)
    del noisy
    # A parabola through ten or more frames of 0.1 mm noise: a few mm/s.
    change = np.linalg.norm(smooth.velocity_world[first] - true.velocity_world[first], axis=1)
    assert np.median(change) < 0.08


@pytest.mark.slow
def test_plain_rollouts_of_the_measured_tosses(data_dir):
    """mu = 0.18, e = 0, four steps a frame: the accuracy of a rigid solver on real data."""
    tosses = load_tosses(data_dir / "tossed_cube" / "tossed_cube_open.npz")
    cube = CubeParameters.nominal(tosses, mu=0.18, e=0.0)
    batch, dt = lanes(tosses), float(tosses.dt)
    cubes = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(tosses),)), cube)
    out = rollout(lambda pair: toss(pair[0], pair[1], dt, 4), (cubes, batch))
    position, quaternion, residual, failed, penetration = map(np.asarray, out)
    error = jax.vmap(lambda a, p, q: pose_error(a, p, q, 0.1048))(batch, position, quaternion)
    mask = np.asarray(batch.mask)
    size = np.linalg.norm(np.asarray(error), axis=-1)
    mean = (size * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    # Measured: 13.84 % and 18.84 degrees.
    assert 100 * mean[:, 0].mean() < 14.0
    assert np.degrees(mean[:, 1].mean()) < 19.5
    # Measured: 1.0e-9 everywhere, no failure, 0.003 mm.
    assert residual.max() < 1e-8 and failed.sum() == 0
    assert penetration.max() < 5e-4
