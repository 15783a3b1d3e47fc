"""The rounds of a fit on a made-up motion that costs nothing: its status, interrupts, failures, result."""

import contextlib
import dataclasses
import io
import json
import operator
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from diffnsd import identification
from diffnsd.apps.fit import (
    Identified,
    Job,
    Quantity,
    Simulated,
    Spread,
    _motions,
    _posterior,
    about_predictions,
    bands,
    draw_and_show,
    fit_and_show,
    identify,
    posterior_of,
    write_fit_report,
    write_result,
)
from diffnsd.apps.fit._fit import _Rounds
from diffnsd.apps.fit._outputs import SCHEMA
from diffnsd.apps.fit._steps import across, bias_of, is_smooth


class Line(eqx.Module):
    """`x = mu t` along the path, times `1 + velocity[0]`; a step fails beyond `mu = 2`, or with a spin."""

    def __call__(self, model, run, velocity):
        measured, spin = run
        along = jnp.stack(
            [model["mu"] * 0.1 * jnp.arange(20.0), jnp.zeros(20), jnp.zeros(20)], axis=1
        )
        errors = (along * (1 + velocity[0]) - measured) / 0.1
        both = jnp.stack([errors, jnp.zeros_like(errors)], axis=1)
        return Simulated(both, (model["mu"] > 2) | (spin > 1))


class Jump(Line):
    """The same with a jump, at whose edge the optimum lies."""

    def __call__(self, model, run, velocity):
        mu = model["mu"] + jnp.where(model["mu"] > 0.3990, 0.02, 0.0)
        return super().__call__(model | {"mu": mu}, run, velocity)


def line(mu, motion=None, spin=(0.0,) * 5, velocity=0.0):
    """Five noisy runs of 20 frames whose truth is 0.4, and a start value."""
    measured = 1e-3 * np.random.default_rng(0).normal(size=(5, 20, 3))
    measured[..., 0] += 0.4 * 0.1 * np.arange(20)
    return Job(
        {"mu": jnp.asarray(mu), "e": jnp.asarray(0.1)},
        Line() if motion is None else motion,
        (jnp.asarray(measured), jnp.asarray(spin)),
        jnp.ones((5, 20, 2), bool),
        jnp.zeros((5, 6)).at[0, 0].set(velocity),
        jnp.array([0.01] * 3 + [0.08] * 3),
        jnp.array([0.03, 0.03]),
        operator.getitem,
        {"mu": Quantity("", (0.0, None)), "e": Quantity("", (0.0, 1.0), 0.1)},
        ("mu",),
    )


@pytest.mark.slow
def test_the_status_says_how_the_fit_ended():
    done = identify(line(0.25))
    assert done.status == "converged", done.warnings
    # Measured: 0.40007, with a standard error of 0.0002.
    assert abs(done.value("mu") - 0.4) < 1e-3 and done.standard_errors["mu"] < 1e-3
    assert len(done.rounds) == len(done.losses) and done.rounds[-1] > 1

    lo, hi = done.intervals["mu"]
    assert lo < done.value("mu") < hi and lo < 0.4 < hi

    # The refinement alone finds the optimum too.
    short = identify(line(0.25), rounds=1, steps=1)
    assert short.status == "converged" and abs(short.value("mu") - 0.4) < 1e-3

    failed = identify(line(0.25, velocity=np.nan))
    assert failed.status == "failed" and "start values" in failed.warnings[-1]
    assert failed.value("mu") == 0.25 and np.isnan(failed.loss)


class Teeth(Line):
    """The same with teeth: the derivative of each has the wrong sign."""

    width: float = 1e-4

    def __call__(self, model, run, velocity):
        saw = model["mu"] - jnp.floor(model["mu"] / self.width) * self.width
        mu = model["mu"] - 2 * saw + self.width
        return super().__call__(model | {"mu": mu}, run, velocity)


def test_a_loss_that_jumps_where_it_is_least():
    """The optimum lies at the edge of a jump: no step lowers the loss, though its slope is not 0."""
    done = identify(line(0.25, Jump()))
    assert done.status == "converged", done.warnings
    # The truth is 0.4 on one side, 0.38 on the other; between them the residuals are averaged.
    assert 0.38 < done.value("mu") < 0.4


def test_a_rough_loss_is_seen_through():
    """Where the derivative is -1 times the slope a descent does not move; the refinement does."""
    done = identify(line(0.38, Teeth()))
    # Every descent step goes away from 0.4. Measured: 0.3988 +- 0.0010 from 0.38.
    assert abs(done.value("mu") - 0.4) < 2e-3
    lo, hi = done.intervals["mu"]
    assert lo < 0.4 < hi


def test_teeth_wider_than_what_the_data_tell_do_not_converge():
    done = identify(line(0.38, Teeth(4e-3)))
    assert done.status == "not converged" and "open by" in done.warnings[-1]
    assert abs(done.value("mu") - 0.4) < 4e-3


class Block(Line):
    """A block that slides to rest: `v t - mu g t^2 / 2` until `t = v / (mu g)`, where it stays."""

    def __call__(self, model, run, velocity):
        measured, _ = run
        errors = (
            block(model["mu"], measured[0, 1], jnp) * (1 + velocity[0]) - measured[:, 0]
        ) / 0.1
        both = jnp.stack([errors, jnp.zeros_like(errors)], axis=1)[..., None]
        return Simulated(jnp.broadcast_to(both, (20, 2, 3)), jnp.asarray(False))


def block(mu, speed, np):
    t = np.minimum(0.1 * np.arange(20.0), speed / (9.81 * mu))
    return speed * t - mu * 9.81 * t**2 / 2


def blocks():
    """Five blocks of 3 to 5 m/s under friction 0.3, without noise; their speeds are in the second column."""
    job = line(0.4, Block())
    speeds = np.linspace(3.0, 5.0, 5)
    measured = np.stack([[block(0.3, v, np), np.full(20, v), np.zeros(20)] for v in speeds])
    return eqx.tree_at(lambda j: j.runs[0], job, jnp.asarray(measured.transpose(0, 2, 1)))


def test_a_smooth_loss_is_looked_at_closely():
    """The motion is curved in friction: a first look 20 % wide leaves 3.5e-4 +- 3.7e-4 in the estimate."""
    done = identify(blocks())
    error = abs(done.value("mu") - 0.3)
    assert done.status == "converged", done.warnings
    # Measured: 1.8e-6 off, with a standard error of 1.7e-6, the curvature that is left: there is no noise.
    assert error < 2 * done.standard_errors["mu"] and error < 5e-6, done.standard_errors
    # At most 5 steps, what tells the smoothness, and 3 looks; of weights and of 8 points each.
    assert done.rollouts <= 5 * (1 + 5 + 3 + 3 * (1 + 8))


@pytest.mark.slow
@pytest.mark.parametrize("motion", [Jump(), Teeth(), Teeth(4e-3)])
def test_a_rough_loss_is_first_looked_at_from_afar(motion, monkeypatch):
    """What is measured of its smoothness changes nothing but the number of rollouts."""
    module = sys.modules[_Rounds.__module__]
    done = identify(line(0.38, motion))
    monkeypatch.setattr(module, "bends_of", lambda *_: None)
    wide = identify(line(0.38, motion))
    assert done.value("mu") == wide.value("mu") and done.standard_errors == wide.standard_errors


def test_what_is_smooth_across_a_look():
    """One residual of one run, in closed form: a power, a jump, a tooth, a run that fails."""
    widths = jnp.array([0.2])
    points, along = across(jnp.array([1.0]), widths)
    np.testing.assert_allclose(points[:, 0], [1.2, 1.0, 0.8])
    weights = jnp.full((1, 1, 1), 3.0)

    def seen(value, slope, failed=False):
        rows = (np.reshape(x(points), (3, 1, 1, 1, 1)) for x in (value, lambda x: slope(x) * along))
        return is_smooth(Simulated(next(rows), np.full((3, 1), failed)), next(rows), weights)

    # Simpson's rule is 5e-4 off for 1 / x, of a change of 0.42, and misses a jump.
    assert seen(lambda x: 1 / x, lambda x: -1 / x**2)
    assert seen(lambda x: x + 0.02 * (x > 1.1), np.ones_like)  # 0.02 of 0.42
    assert not seen(lambda x: x + 0.03 * (x > 1.1), np.ones_like)  # 0.03 of 0.43
    assert not seen(lambda x: x, lambda x: -np.ones_like(x))
    assert not seen(lambda x: x, np.ones_like, failed=True)
    assert not seen(lambda x: np.where(x > 1.1, np.inf, x), np.ones_like)
    assert seen(np.zeros_like, np.zeros_like)


def test_the_bias_of_a_look_is_that_of_its_mean_residual():
    """Two numbers, two residuals of the second order, in closed form."""
    bent = np.array([[2.0, 0.3], [0.3, -1.0]])

    def residual(x):
        return jnp.stack([x[0] + x @ bent @ x, x[1]])

    widths = np.array([0.02, 0.05])
    look = identification.SecantJacobian(jnp.asarray(widths), frames=2)
    found = identification.linearise(residual, jnp.zeros(2), jacobian=look)
    np.testing.assert_allclose(found.jacobian, np.eye(2), atol=1e-12)
    bends = np.array([[2.0 * 0.2**2, 0.0], [-1.0 * 0.2**2, 0.0]])  # over widths of 0.2
    bias = bias_of(found, bends, widths / 0.2)
    np.testing.assert_allclose(bias, np.abs(found.residual), atol=1e-12)


def test_the_loss_is_that_of_the_estimate():
    """From the far side the trials overshoot into motions that fail, which no fit may accept."""
    done = identify(line(1.9), rounds=1)
    assert done.loss == done.losses[-1] < 1e-2 * done.losses[0] and done.failed == ()


def test_a_run_that_cannot_be_simulated_is_reported():
    done = identify(line(0.25, spin=(0.0, 0.0, 0.0, 2.0, 0.0)))
    assert done.failed == (3,)
    assert any("1 of 5 runs a step did not reach its tolerance" in w for w in done.warnings)
    assert abs(done.value("mu") - 0.4) < 1e-3


@pytest.mark.parametrize("starts", [1, 2])
def test_a_fit_of_which_no_run_can_be_simulated_says_so(starts):
    done = identify(line(0.25, spin=(2.0,) * 5), starts=starts)
    assert done.status == "failed" and "in all 5 runs a step" in done.warnings[-1]


def test_options_are_named_where_there_are_some(tmp_path):
    """The sentence of the fit itself is for all; a command adds what it offers."""
    session, job = Session(), line(0.25, spin=(2.0,) * 5)
    for remedy, end in (
        ("", "their start values."),
        ("take --substeps 16", " Take --substeps 16."),
    ):
        with pytest.raises(ValueError, match=re.escape(end) + "$"):
            fit_and_show(session, job, tmp_path, lambda _: {}, remedy=remedy)
        written = json.loads((tmp_path / "result.json").read_text())["warnings"][-1]
        assert written.endswith(end) and written.count("--substeps") == bool(remedy)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_interrupt_between_evaluations(tmp_path, after):
    def interrupt(record, stage):
        if stage == f"round 1 of 1, evaluation {after}":
            raise KeyboardInterrupt

    done = identify(line(0.25), notify=interrupt)
    assert done.status == "interrupted" and len(done.losses) == after
    write_result(tmp_path / "result.json", done)
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["status"] == "interrupted"
    assert content["loss"] == (min(done.losses) if after else None)
    assert (content["parameters"]["mu"]["value"] != 0.25) == (after == 2)


def test_what_is_not_finite_is_written_as_null(tmp_path):
    job = line(0.25)
    job = dataclasses.replace(job, free=("mu", "e"))
    record = Identified(job, status="converged", truth={"mu": 0.4})
    record.standard_errors = {"mu": 0.01, "e": float("inf")}
    record.correlations = np.array([[1.0, np.nan], [np.nan, 1.0]])
    record.losses, record.rounds, record.loss = [2.0, float("inf"), float("nan")], [1] * 3, 2.0
    extra = {"prediction": {"largest_residual": np.float64("nan"), "tosses": 3}}
    write_result(tmp_path / "result.json", record, extra)

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    content = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert content["schema"] == SCHEMA and content["parameters"]["mu"]["truth"] == 0.4
    assert content["parameters"]["e"]["standard_error"] is None
    assert content["correlations"] == [[1.0, None], [None, 1.0]]
    assert content["loss_history"] == [2.0, None, None] and content["loss"] == 2.0
    assert content["prediction"] == {"largest_residual": None, "tosses": 3}


def test_weights_fall_along_a_run_and_what_was_not_measured_has_none():
    job = line(0.25, spin=(0.0, 2.0, 0.0, 0.0, 0.0))
    mask = job.mask.at[0, 7, 0].set(False).at[0, 15:].set(False)
    record = Identified(dataclasses.replace(job, mask=mask))
    value, failed = _Rounds(record, lambda *_: None).weights("")
    # Closed form: the error grows by mu t times the deviation of the velocity.
    grown = 0.25 * np.arange(20) * 0.01
    expected = np.sqrt(20 / 29) / np.stack([np.hypot(grown, 0.03), np.full(20, 0.03)], axis=1)
    expected[7, 0] = expected[15:] = 0
    np.testing.assert_allclose(value[0], expected, rtol=1e-12)
    assert failed.tolist() == [False, True, False, False, False] and not np.any(value[1])


@pytest.mark.parametrize(("limit", "programs"), [(2000, 1), (99, 2)])
def test_all_purposes_share_one_program(monkeypatch, limit, programs):
    """Weights, descent, refinement, predictions and bands of other batches: one compiled simulation.

    Of 100 measured frames; above the limit there is one without derivatives too.
    """
    compiled = []
    monkeypatch.setattr(sys.modules[_Rounds.__module__], "LARGE", limit)
    monkeypatch.setattr(_motions, "PROGRAMS", identification.Programs())
    inner = _motions._simulated
    monkeypatch.setattr(_motions, "_simulated", lambda *x: compiled.append(1) or inner(*x))
    done = identify(line(0.25))
    batch = jax.tree.map(lambda x: np.asarray(x)[[0, 3] * 20], done.job.runs)
    found, slopes = done.motions(
        batch, np.tile(done.raw, (40, 1)), np.zeros((40, 6)), None, np.eye(6)[[0] * 20 + [1] * 20]
    )
    assert len(compiled) == programs and abs(done.value("mu") - 0.4) < 1e-3
    # The closed form of the motion and of its derivative by the first velocity; the second has none.
    along = done.value("mu") * 0.1 * np.arange(20.0)
    np.testing.assert_allclose(found.errors[0, :, 0, 0], (along - batch[0][0, :, 0]) / 0.1)
    np.testing.assert_allclose(slopes[:20, :, 0, 0], np.tile(along / 0.1, (20, 1)))
    assert not np.any(slopes[20:])


def test_a_single_run_has_no_standard_errors():
    job = line(0.25)
    one = eqx.tree_at(
        lambda j: (j.runs, j.mask, j.velocities),
        job,
        (jax.tree.map(lambda x: x[:1], job.runs), job.mask[:1], job.velocities[:1]),
    )
    done = identify(one)
    assert done.standard_errors == {} and "two or more" in " ".join(done.warnings)
    assert abs(done.value("mu") - 0.4) < 1e-2


def test_a_quantity_of_several_numbers_is_fitted_and_written_number_by_number(tmp_path):
    """Two slopes in one array; their noise is that of the mean of 5 runs of 20 frames."""

    rng, t = np.random.default_rng(3), 0.1 * np.arange(20)
    measured = t[None, :, None] * np.array([0.4, -0.2]) + 1e-3 * rng.normal(size=(5, 20, 2))
    job = Job(
        {"slopes": jnp.zeros(2)},
        Slopes(),
        jnp.asarray(measured),
        jnp.ones((5, 20, 1), bool),
        jnp.zeros((5, 1)),
        jnp.array([1e-3]),
        jnp.array([1e-2]),
        operator.getitem,
        {"slopes": Quantity("m/s", deviation=10.0)},
        ("slopes",),
    )
    done = identify(job)
    assert done.status == "converged" and set(done.standard_errors) == {"slopes[0]", "slopes[1]"}
    write_result(tmp_path / "result.json", done)
    found = json.loads((tmp_path / "result.json").read_text())["parameters"]["slopes"]
    np.testing.assert_allclose(found["value"], [0.4, -0.2], atol=5e-4)  # measured 1e-4
    assert found["determined"] == [True, True] and np.shape(found["standard_error"]) == (2,)
    # Without an error that runs share, both kinds of error tell the same: measured 0.6 to 1.3 times.
    assert np.shape(found["standard_error_independent"]) == (2,)
    write_fit_report(tmp_path / "report.html", done, "Slopes", [], None)
    assert 'data-name="if residuals were independent"' in (tmp_path / "report.html").read_text()


class Slopes(eqx.Module):
    """`x = (slopes + velocity) t`."""

    def __call__(self, model, run, velocity):
        slopes = model["slopes"] + velocity
        along = 0.1 * jnp.arange(20.0)[:, None] * slopes[None]
        return Simulated((along - run)[:, None], jnp.asarray(False))


class Narrow(Line):
    """Finite between 0.2 and 0.401 only: a descent gets there, a look around does not."""

    def __call__(self, model, run, velocity):
        found = super().__call__(model, run, velocity)
        return Simulated(jnp.where(model["mu"] < 0.401, found.errors, jnp.inf), found.failed)


def test_a_refinement_that_cannot_begin_ends_with_a_sentence():
    done = identify(line(0.399, Narrow()))
    assert done.status == "not converged" and "refinement around the estimate" in done.warnings[-1]
    assert done.standard_errors == {} and 0.399 <= done.value("mu") < 0.401


def test_a_run_that_is_all_outliers_is_named():
    job = line(0.25)
    measured, spin = job.runs
    rng = np.random.default_rng(4)
    wild = jnp.asarray(measured.at[2].set(jnp.asarray(rng.normal(size=(20, 3)))))
    done = identify(dataclasses.replace(job, runs=(wild, spin)))
    assert any("run 2 does not fit the model" in w for w in done.warnings)
    assert sum("does not fit the model" in w for w in done.warnings) == 1


class Deaf(Line):
    """A motion that does not depend on `mu`."""

    def __call__(self, model, run, velocity):
        return super().__call__({"mu": 0.4 + 0.0 * model["mu"]}, run, velocity)


def test_data_that_determine_nothing_are_said_to(tmp_path):
    done = identify(line(0.25, Deaf()))
    assert done.determined == {"mu": False} and not np.isfinite(done.standard_errors["mu"])
    assert done.status == "not determined" and "none of what is free (mu)" in done.warnings[-1]
    assert any("do not depend on mu at all" in w for w in done.warnings)
    assert not any("(inf" in w for w in done.warnings)
    write_result(tmp_path / "result.json", done)
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["not_determined"] == ["mu"] and written["correlations"] == [[1.0]]
    write_fit_report(tmp_path / "report.html", done, "Nothing", [], None)
    assert "none of what is free (mu)" in (tmp_path / "report.html").read_text()


def test_a_prior_that_the_data_contradict_is_named(tmp_path):
    """The truth of `mu` is 0.4. Built in is 0.25 with a deviation that lets the data, or the prior, win."""
    for deviation, apart, contradicts in ((0.04, 3.7, True), (1e-3, 150, True), (0.1, 1.5, False)):
        quantities = {"mu": Quantity("", (0.0, None), deviation), "e": Quantity("", (0.0, 1.0))}
        done = identify(dataclasses.replace(line(0.25), quantities=quantities))
        said = [w for w in done.warnings if w.startswith("the prior of mu (0.25 ±")]
        assert len(said) == contradicts, done.warnings
        if contradicts:  # measured 3.7 and 148: what the data alone say is 0.4 whoever wins
            words = r"alone say \((0.\d+) ± .*about ([\d.]+) standard deviations"
            ((alone, found),) = re.findall(words, said[0])
            assert abs(float(found) / apart - 1) < 0.05 and abs(float(alone) - 0.4) < 2e-3
    write_result(tmp_path / "result.json", done)
    written = json.loads((tmp_path / "result.json").read_text())["parameters"]
    assert (
        written["mu"]["prior"] == {"centre": 0.25, "deviation": 0.1} and not written["e"]["prior"]
    )
    write_fit_report(tmp_path / "report.html", done, "A prior", [], None)
    assert '<td data-name="prior">0.25 ± 0.1</td>' in (tmp_path / "report.html").read_text()


def test_runs_that_are_all_outliers_are_named_though_none_is_worse_than_the_others():
    job = line(0.25)
    wild = 5 * np.random.default_rng(4).normal(size=(5, 20, 3))
    done = identify(dataclasses.replace(job, runs=(jnp.asarray(wild), job.runs[1])))
    named = [w for w in done.warnings if "does not fit the model" in w]
    assert len(named) == 5, done.warnings


def test_predictions_worse_than_nothing_are_named():
    """Four runs: good, further off than the size, worse than no motion, and one that hardly moves."""
    errors, still = np.array([0.1, 1.2, 0.6, 1e-3]), np.array([3.0, 3.0, 0.5, 1e-4])
    (said,) = about_predictions(errors, still, list("abcd"))
    assert said.startswith("2 of 4 predicted runs") and "b (120%), c (60%) of the size" in said
    assert about_predictions(errors[:1], still[:1], ["a"]) == []


class Product(Line):
    """Only `mu (1 + e)` moves anything."""

    def __call__(self, model, run, velocity):
        return super().__call__({"mu": model["mu"] * (1 + model["e"])}, run, velocity)


def test_two_quantities_that_only_act_together_are_said_to():
    job = dataclasses.replace(
        line(0.25, Product()),
        quantities={"mu": Quantity("", (0.0, None)), "e": Quantity("", (0.0, 1.0))},
        free=("mu", "e"),
    )
    done = identify(job)
    assert any("mu is strongly correlated with e" in w for w in done.warnings)


class Pushed(Line):
    """The truth of `e` is below its bound."""

    def __call__(self, model, run, velocity):
        return super().__call__({"mu": model["mu"] + 0.5 * model["e"]}, run, velocity)


def test_a_quantity_that_is_pushed_against_its_interval_stops_there():
    """`mu` cannot be below 0.45: the best `e` is 0, and its raw number would be minus infinity."""
    job = line(0.45, Pushed())
    job = dataclasses.replace(
        job, free=("e",), quantities={"mu": Quantity(), "e": Quantity("", (0.0, 1.0))}
    )
    done = identify(job)
    # All residuals are outliers there, so that nothing bends the loss: the standard error is infinite.
    assert done.status == "not determined" and not np.isfinite(done.standard_errors["e"])
    assert any("all residuals that depend on e are outliers" in w for w in done.warnings), (
        done.warnings
    )
    assert 0 < done.value("e") < 2e-3 and any("its bound 0" in w for w in done.warnings)
    # The table cuts the interval off where the draws are.
    assert done.intervals["e"] == (0.0, 1.0)


def test_draws_have_the_covariance_of_the_estimate_and_respect_bounds():
    model = {"mu": jnp.asarray(0.4), "e": jnp.asarray(0.01)}
    params, rebuild = identification.parameters(
        model, lambda m: dict(m), {"mu": (0.0, None), "e": (0.0, 1.0)}
    )
    # In physical units 0.02 and 0.03 with a correlation of 0.6: e reaches its bound.
    covariance = np.array([[4e-4, 3.6e-4], [3.6e-4, 9e-4]])
    slopes = np.array(
        [jax.grad(t.forward)(r) for r, t in zip(params.raw, params.transforms, strict=True)]
    )
    order = [params.names.index(name) for name in ("mu", "e")]
    raw = np.zeros((2, 2))
    raw[np.ix_(order, order)] = covariance / np.outer(slopes[order], slopes[order])
    found = Spread(params, rebuild, raw, 1000).samples(20_000)
    mu, e = found["mu"], found["e"]
    # Measured: 0.4000, 0.02005; 37 % of the draws of e end at its bound, the normal law says 36.9 %.
    assert abs(mu.mean() - 0.4) < 5e-4 and abs(mu.std() - 0.02) < 5e-4
    assert np.all((e > 0) & (e < 1)) and abs(np.mean(e < 1.1e-5) - 0.369) < 0.02
    free = e > 0.01
    slope = np.polyfit(e[free], mu[free], 1)[0]
    assert abs(slope - 0.4) < 0.05  # 3.6e-4 / 9e-4


def test_a_band_holds_what_its_own_draws_measure():
    """A motion `x = v t` whose start is drawn as the band assumes: nine in ten of the frames are inside."""
    params, rebuild = identification.parameters(
        {"mu": jnp.asarray(0.4)}, lambda m: dict(m), {"mu": (0.0, None)}
    )
    times, rng = np.linspace(0, 1, 30), np.random.default_rng(1)
    true = rng.normal(1.0, 0.1, (24, 1))

    def positions(which, raw, starts):
        along = np.asarray(starts) * times
        return np.stack([along, 0 * along, 0 * along], axis=2)

    measured = positions(None, None, true) + 0.02 * rng.normal(size=(24, 30, 3))
    found = bands(
        Spread(params, rebuild, np.zeros((1, 1)), 10),
        positions,
        np.arange(24),
        np.full((24, 1), 1.0),
        np.array([0.1]),
        0.02,
        measured,
        np.ones((24, 30), bool),
    )
    assert found is not None and 0.84 < found.share < 0.94  # measured 0.88; quantiles of 40 draws
    assert found.of(30, 5) is None
    low, high = found.of(3, 5)
    assert low.shape == (5, 3) and np.all(low < high)
    assert bands(None, positions, np.arange(0), *(np.zeros((0, 1)),) * 5) is None


class Wells(Line):
    """Two valleys in `mu`: the true one at 0.4, and another at 1.2, between them a ridge."""

    def __call__(self, model, run, velocity):
        mu = model["mu"]
        shift = 3 * (mu - 0.4) * (mu - 1.2)
        # Near 1.2 the motion is almost that of 0.4.
        return super().__call__(
            model | {"mu": 0.4 + shift + 0.05 * (mu > 0.8).astype(float)}, run, velocity
        )


@pytest.mark.nightly
def test_a_fit_from_several_starts_finds_the_better_valley(tmp_path):
    job = line(1.3, Wells())
    bounds = {"mu": Quantity("", (0.0, 1.6)), "e": job.quantities["e"]}
    job = dataclasses.replace(job, quantities=bounds)
    one, four = identify(job), identify(job, starts=4)
    assert one.value("mu") > 1 and not one.valleys
    assert abs(four.value("mu") - 0.4) < 1e-2  # measured 0.4001
    assert four.status == "converged" and len(four.valleys) >= 2
    assert four.valleys[0].loss < four.valleys[1].loss
    assert sum(len(valley.starts) for valley in four.valleys) == 4

    write_result(tmp_path / "result.json", four)
    written = json.loads((tmp_path / "result.json").read_text())["valleys"]
    assert len(written) == len(four.valleys) and sum(valley["starts"] for valley in written) == 4
    np.testing.assert_allclose(written[0]["values"]["mu"], four.valleys[0].values["mu"])
    write_fit_report(tmp_path / "report.html", four, "Two valleys", [], None)
    page = (tmp_path / "report.html").read_text()
    assert "Where the starts led" in page and "Distribution of the estimate" in page


# --- the posterior after a fit ----------------------------------------------------------------

LAPLACE = identification.Laplace(draws=2000)


@pytest.fixture(scope="module")
def fitted():
    return identify(line(0.25))


class Session:
    """Prints into a list."""

    def __init__(self):
        self.lines, self.console = [], Console(file=io.StringIO())

    def print(self, text):
        self.lines.append(text)

    def stage(self, text):
        self.print(text)
        return contextlib.nullcontext()


def test_exact_derivatives_and_a_plane_give_the_width_of_the_estimate(fitted):
    """The motion is linear: both are the same posterior, and that of the standard error."""
    assert fitted.status == "converged" and not fitted.is_rough
    exact = posterior_of(fitted, LAPLACE)
    plane = posterior_of(dataclasses.replace(fitted, is_rough=True), LAPLACE)
    for found in (exact, plane):
        mean, deviation = found["mu"]
        # Measured: 0.02 deviations, and 1.13, at the independent error of 8.7e-5.
        assert abs(mean - fitted.value("mu")) < 0.5 * deviation
        assert abs(deviation / fitted.standard_errors["mu"] - 1) < 0.2
        low, high = found.interval(0.99)["mu"]
        assert low < 0.4 < high
    assert abs(exact["mu"][1] / plane["mu"][1] - 1) < 0.02


def test_pages_and_files_say_the_same(fitted, tmp_path):
    session = Session()
    given = session, fitted, LAPLACE, tmp_path, "Posterior of a line"
    draws, seeds = [], (3, 0)
    for seed in seeds:
        entry = draw_and_show(*given, seed=seed)["posterior"]
        drawn = json.loads((tmp_path / "posterior.json").read_text())
        draws.append(drawn["parameters"]["mu"]["interval"])
    assert draws[0] != draws[1] and entry["seed"] == seeds[-1]
    assert (entry["page"], entry["sampler"]) == ("posterior.html", "Laplace")
    assert entry["warnings"] == drawn["warnings"] and drawn["details"]["derivatives"].startswith(
        "exact"
    )
    low, high = drawn["parameters"]["mu"]["interval"]
    assert f"posterior: mu from {low:.5g} to {high:.5g}, nine in ten draws" in session.lines
    assert "Posterior of a line" in (tmp_path / "posterior.html").read_text()
    assert draw_and_show(session, fitted, None, tmp_path, "") == {}


def test_without_standard_errors_there_is_none(fitted, tmp_path, monkeypatch):
    """Each reason has its sentence, an interrupt too, after which what follows is still written."""

    def said(**changes):
        record = dataclasses.replace(fitted, warnings=[], **changes)
        assert draw_and_show(Session(), record, LAPLACE, tmp_path, "") == {"posterior": None}
        return record.warnings

    one = jax.tree.map(lambda x: x[:1], (fitted.job.runs, fitted.job.mask, fitted.job.velocities))
    job = dataclasses.replace(
        fitted.job, **dict(zip(("runs", "mask", "velocities"), one, strict=True))
    )
    unknown = dataclasses.replace(fitted.spread, covariance=np.zeros((1, 1)))
    assert "not drawn: one run says nothing about how runs differ" in said(spread=None, job=job)[0]
    assert "not drawn: the fit has no standard errors" in said(spread=None)[0]
    assert "not drawn: the data do not determine" in said(spread=unknown)[0]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_posterior, "noise_of", interrupt)
    assert said() == ["the posterior was interrupted: there are no draws."]
    assert not list(tmp_path.iterdir())
