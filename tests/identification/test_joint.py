"""Shared parameters and unknowns of every run, beside dense least squares and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from diffnsd import identification
from diffnsd.identification import joint_least_squares, linearise, linearise_by_run, uncertainty

N, R, M, P = 7, 9, 3, 2


def linear():
    """Random linear residuals of 7 runs, as data."""
    rng = np.random.default_rng(0)
    shapes = (N, R, P), (N, R, M), (N, R)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def line_residual(params, own, run):
    shared, block, measured = run
    return {"data": shared @ params + block @ own - measured, "start": own}


def dense(residual, params, own, runs):
    """The same as one function of all unknowns."""
    return jax.vmap(residual, in_axes=(None, 0, 0))(params, own, runs)


@pytest.mark.slow
def test_a_linear_problem_is_that_of_dense_least_squares():
    runs = linear()

    def prior(p):
        return 0.3 * (p - 1.0)

    zero = jnp.zeros(P), jnp.zeros((N, M))
    fit = joint_least_squares(line_residual, *zero, runs, shared=prior, rtol=1e-14)

    def everything(both):
        return dense(line_residual, both[0], both[1], runs), prior(both[0])

    whole = linearise(everything, zero)
    matrix = np.asarray(whole.jacobian)
    solution = np.linalg.lstsq(matrix, -np.asarray(whole.residual), rcond=None)[0]
    # Measured: 1e-9, the damping that is left.
    np.testing.assert_allclose(fit.params, solution[:P], atol=1e-7)
    np.testing.assert_allclose(fit.aux.unknowns.ravel(), solution[P:], atol=1e-7)
    # Standard errors: those of the whole covariance, with the same degrees of freedom.
    found = uncertainty(fit.params, fit.linearisation)
    at = linearise(everything, (fit.params, fit.aux.unknowns))
    expected = uncertainty((fit.params, fit.aux.unknowns), at)
    np.testing.assert_allclose(found.covariance, expected.covariance[:P, :P], rtol=1e-10)
    assert found.degrees_of_freedom == expected.degrees_of_freedom == N * R + P - P


def decay(params, own, run):
    """Exponentials of one rate, from starts that are measured badly."""
    times, measured, start = run
    value = own["start"] * jnp.exp(-params["rate"] * times) + params["floor"]
    return (value - measured) / 0.01, (own["start"] - start)[None] / 0.2


def decays(n=6):
    rng = np.random.default_rng(1)
    start, times = rng.uniform(1, 2, n), np.tile(np.linspace(0, 3, 15), (n, 1))
    measured = start[:, None] * np.exp(-1.3 * times) + 0.2 + rng.normal(0, 0.01, times.shape)
    seen = start + rng.normal(0, 0.2, n)
    return tuple(map(jnp.asarray, (times, measured, seen)))


@pytest.mark.slow
def test_a_nonlinear_problem_is_that_of_scipy():
    runs = decays()
    params = {"floor": jnp.asarray(0.0), "rate": jnp.asarray(0.7)}
    fit = joint_least_squares(decay, params, {"start": runs[2]}, runs, rtol=1e-12)

    def flat(x):
        out = dense(decay, {"floor": x[0], "rate": x[1]}, {"start": x[2:]}, runs)
        return jnp.concatenate([leaf.ravel() for leaf in out])

    run = jax.jit(flat)
    best = scipy.optimize.least_squares(
        lambda x: np.asarray(run(x)), np.r_[0.0, 0.7, runs[2]], xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    found = np.r_[fit.params["floor"], fit.params["rate"], fit.aux.unknowns["start"]]
    np.testing.assert_allclose(found, best.x, atol=2e-7)  # measured 2e-8, of SciPy's differences
    np.testing.assert_allclose(fit.loss, best.cost, rtol=1e-10)
    covariance = np.linalg.inv(best.jac.T @ best.jac)[:2, :2] * 2 * best.cost / (6 * 15 - 2)
    np.testing.assert_allclose(
        uncertainty(fit.params, fit.linearisation).covariance, covariance, rtol=1e-4
    )


@pytest.mark.slow
def test_taking_a_noisy_start_as_exact_biases_what_estimating_it_does_not():
    runs = decays(200)
    params = {"floor": jnp.asarray(0.1), "rate": jnp.asarray(1.0)}
    joint = joint_least_squares(decay, params, {"start": runs[2]}, runs)
    found = uncertainty(joint.params, joint.linearisation, groups=np.arange(200))
    taken = identification.least_squares(
        lambda p: dense(decay, p, {"start": runs[2]}, runs)[0], params
    )
    value, error = found["['rate']"]
    assert abs(value - 1.3) < 3 * error < 0.02
    assert abs(float(taken.params["rate"]) - 1.3) > 3 * abs(value - 1.3)


@pytest.mark.slow
def test_an_outlier_is_left_to_a_robust_loss():
    runs, params = decays(20), {"floor": jnp.asarray(0.1), "rate": jnp.asarray(1.0)}
    broken = runs[0], runs[1].at[3, 7].add(5.0), runs[2]

    def rate(data, robust=None):
        start = {"start": runs[2]}
        fit = joint_least_squares(decay, params, start, data, robust=robust)
        return float(fit.params["rate"])

    clean, huber = rate(runs), rate(broken, identification.Huber(2.0))
    assert abs(huber - clean) < 0.02 * abs(rate(broken) - clean)


@pytest.mark.slow
def test_robust_standard_errors_are_those_of_all_unknowns_together():
    """Outliers do not bend the loss, in the unknowns of a run neither."""
    runs, zero = linear(), (jnp.zeros(P), jnp.zeros((N, M)))
    huber = identification.Huber(0.7)
    fit = joint_least_squares(line_residual, *zero, runs, robust=huber, rtol=1e-14, max_steps=200)

    def everything(both):
        return dense(line_residual, both[0], both[1], runs)

    at = linearise(everything, (fit.params, fit.aux.unknowns), robust=huber)
    assert 0.05 < np.mean(np.asarray(at.curvature) == 0) < 0.6
    found = uncertainty(fit.params, fit.linearisation)
    expected = uncertainty((fit.params, fit.aux.unknowns), at)
    # Measured: 1e-7, of the end of the fit.
    np.testing.assert_allclose(found.standard_errors, expected.standard_errors[:P], rtol=1e-5)


def bounded(params, own, run):
    return decay({"floor": params["floor"], "rate": params["rate"]}, own, run)


@pytest.mark.slow
def test_a_parameter_on_its_bound_is_held_there():
    """The rest is the fit with the rate fixed at the bound."""
    runs, values = decays(), {"floor": jnp.asarray(0.1), "rate": jnp.asarray(1.0)}
    params, _ = identification.parameters(values, lambda p: p, {"rate": (0.0, 1.2)})
    fit = joint_least_squares(bounded, params, {"start": runs[2]}, runs, rtol=1e-12)
    np.testing.assert_allclose(fit.values()["rate"], 1.2, atol=1e-8)

    def held(floor, own, run):
        return decay({"floor": floor, "rate": 1.2}, own, run)

    alone = joint_least_squares(held, values["floor"], {"start": runs[2]}, runs, rtol=1e-12)
    np.testing.assert_allclose(fit.values()["floor"], alone.params, atol=1e-7)


@pytest.mark.slow
def test_programs_are_shared_with_the_linearisation():
    runs, programs = decays(), identification.Programs()
    params = {"floor": jnp.asarray(0.1), "rate": jnp.asarray(1.0)}
    given = decay, params, {"start": runs[2]}, runs
    once = programs.compiled(linearise_by_run, *given)
    fit = joint_least_squares(*given, programs=programs, max_steps=2)
    assert programs.compiled(linearise_by_run, *given) is once and fit.evaluations.gradient == 2
    # The fit that goes on from there needs no evaluation at its start.
    more = decay, fit.params, fit.aux.unknowns, runs
    on = joint_least_squares(*more, programs=programs, max_steps=2, rows=fit.aux.rows)
    assert on.evaluations.gradient == 1 and on.history.loss[0] == fit.loss


@pytest.mark.parametrize(
    ("unknowns", "sentence"),
    [(jnp.zeros((5, 1)), "same length"), (jnp.asarray(0.0), "leading axis")],
)
def test_unknowns_that_do_not_fit_are_explained(unknowns, sentence):
    with pytest.raises(ValueError, match=sentence):
        joint_least_squares(decay, jnp.zeros(2), unknowns, decays())
