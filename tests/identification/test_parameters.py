import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from diffnsd.identification import (
    Interval,
    PhysicalInertia,
    Positive,
    Scaled,
    Tied,
    Unbounded,
    parameters,
)


class Law(eqx.Module):
    e: jax.Array
    mu: float
    corners: int = 8


class Body(eqx.Module):
    mass: jax.Array
    inertia: jax.Array
    points: jax.Array
    laws: list[Law]
    name: str = eqx.field(static=True, default="cube")


SIGNS = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], float)


@pytest.fixture
def body():
    return Body(
        mass=jnp.asarray(0.37),
        inertia=8.1e-4 * jnp.eye(3),
        points=0.0524 * jnp.asarray(SIGNS),
        laws=[Law(jnp.asarray(0.0), 0.18), Law(jnp.asarray(0.5), 0.3)],
    )


@pytest.mark.slow
def test_names_values_bounds_and_units(body):
    params, rebuild = parameters(
        body,
        lambda b: {"mu": b.laws[0].mu, "e": b.laws[0].e, "I": b.inertia},
        {"mu": (0, None), "e": (0, 1), "I": PhysicalInertia()},
        units={"I": "kg m^2"},
    )
    assert params.names == ("mu", "e", "I")
    assert params.units == (None, None, "kg m^2")
    assert [leaf.shape for leaf in jax.tree.leaves(params)] == [(), (), (6,)]
    assert all(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(params["mu"], 0.18)
    np.testing.assert_allclose(params.values()["I"], body.inertia, atol=1e-15)
    # The start on the bound is moved inside by the softness of the interval.
    assert 0.005 < params["e"] < 0.011

    again = rebuild(params)
    assert again.name == "cube" and again.laws[0].corners == 8
    np.testing.assert_allclose(again.laws[0].mu, 0.18)
    np.testing.assert_allclose(again.inertia, body.inertia, atol=1e-15)
    np.testing.assert_array_equal(again.laws[1].e, body.laws[1].e)


def test_names_from_paths_of_tuples_and_single_leaves(body):
    params, _ = parameters(body, lambda b: (b.mass, b.laws[1].mu), (Positive(), None))
    assert params.names == ("mass", "laws[1].mu")
    assert params.transforms == (Positive(), Unbounded())
    params, rebuild = parameters(body, lambda b: b.laws[1].e, (0, 1))
    assert params.names == ("laws[1].e",) and params.transforms == (Interval(0, 1),)
    np.testing.assert_allclose(rebuild(params).laws[1].e, 0.5)
    params, rebuild = parameters({"a": jnp.ones(2)}, lambda m: m["a"])
    assert params.names == ("['a']",)


def test_tied_and_scaled_leaves(body):
    params, rebuild = parameters(
        body,
        lambda b: {
            "half_width": Tied(b.points, scales=SIGNS),
            "ratio": Tied((b.inertia,), scales=(0.37 * np.eye(3),)),
            "mass": Scaled((b.mass, b.laws[1].mu)),
        },
        {"half_width": Positive()},
    )
    np.testing.assert_allclose(params["half_width"], 0.0524)
    np.testing.assert_allclose(params["ratio"], 8.1e-4 / 0.37)
    assert params["mass"] == 1.0
    changed = rebuild(params.with_values({"half_width": 0.05, "ratio": 1e-3, "mass": 2.0}))
    np.testing.assert_allclose(changed.points, 0.05 * SIGNS)
    np.testing.assert_allclose(changed.inertia, 0.37e-3 * np.eye(3))
    np.testing.assert_allclose(changed.mass, 0.74)
    np.testing.assert_allclose(changed.laws[1].mu, 0.6)

    same = eqx.tree_at(lambda b: b.laws[1].e, body, jnp.asarray(0.0))
    params, rebuild = parameters(same, lambda b: {"e": Tied((b.laws[0].e, b.laws[1].e))})
    changed = rebuild(params.with_values({"e": 0.25}))
    assert changed.laws[0].e == changed.laws[1].e == 0.25


def test_works_with_grad_jit_and_optax(body):
    params, rebuild = parameters(body, lambda b: {"mu": b.laws[0].mu}, {"mu": Positive()})

    @jax.jit
    @jax.grad
    def slope(p):
        return rebuild(p).laws[0].mu ** 2

    # d(mu^2)/d(log mu) = 2 mu^2
    np.testing.assert_allclose(slope(params).raw[0], 2 * 0.18**2, rtol=1e-12)
    optimizer = optax.sgd(1.0)
    updates, _ = optimizer.update(slope(params), optimizer.init(params), params)
    moved = optax.apply_updates(params, updates)
    np.testing.assert_allclose(moved["mu"], 0.18 * np.exp(-2 * 0.18**2), rtol=1e-12)


def test_a_start_value_far_below_one_is_kept():
    """The scale of a one-sided bound is that of the value, not 1."""
    start = {"I": jnp.asarray(8e-4), "w": jnp.asarray([0.0, 3e-5, 2.0]), "z": jnp.zeros(2)}
    bounds = {"I": (0, None), "w": (0, None), "z": (None, 0)}
    params, _ = parameters(start, lambda m: {name: m[name] for name in m}, bounds)
    np.testing.assert_allclose(params["I"], 8e-4, rtol=1e-12)
    # Raw numbers of the order of one: gradient methods take steps of that size.
    assert 0.5 < params.raw[0] < 2
    # What lies on the bound is moved by a hundredth of the scale, as documented.
    np.testing.assert_allclose(params["w"], [1e-2, 3e-5, 2.0], rtol=1e-12)
    np.testing.assert_allclose(params["z"], [-1e-2, -1e-2], rtol=1e-12)
    again, _ = parameters({"I": jnp.asarray(9e-4)}, lambda m: {"I": m["I"]}, {"I": (0, None)})
    assert again.transforms[0] == params.transforms[0]  # nearby starts share a program


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (([0.0, -np.inf], [1.0, 1.0]), "others have none on the same side"),
        ((0.0, [1.0, np.inf]), "others have none on the same side"),
        (([0.0, None], 1.0), "lo < hi"),
        ((np.nan, 1.0), "lo < hi"),
        ((np.inf, 1.0), "lo < hi"),
        ((np.inf, None), "lo < hi"),
        ((None, -np.inf), "lo < hi"),
        ((1.0, 0.0), "lo < hi"),
        (([0.0, 0.0, 0.0], None), r"shape \(3,\), but the parameter \(2,\)"),
        (Interval([0.0, 0.0, 0.0], 1.0), r"shape \(3,\), but the parameter \(2,\)"),
        (("zero", 1.0), "must be a number"),
    ],
)
def test_senseless_bounds_are_refused(bound, words):
    with pytest.raises(ValueError, match=f"Parameter x: .*{words}"):
        parameters({"x": jnp.asarray([0.5, 0.5])}, lambda m: {"x": m["x"]}, {"x": bound})


def test_a_bound_with_components_on_a_number_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2,\), but the parameter \(\)"):
        parameters({"x": jnp.asarray(0.5)}, lambda m: {"x": m["x"]}, {"x": ([0, 0], [1, 1])})


def test_keeps_the_dtype_of_the_model():
    model = {"x": jnp.asarray(0.5, jnp.float32)}
    params, rebuild = parameters(model, lambda m: {"x": m["x"]}, {"x": (0, 1)})
    assert params.raw[0].dtype == jnp.float32
    assert rebuild(params)["x"].dtype == jnp.float32


@pytest.mark.parametrize(
    ("where", "bounds", "error", "words"),
    [
        (lambda b: b.friction, None, ValueError, r"(?s)friction.*laws\[0\]\.mu"),
        (lambda b: b.laws[7].mu, None, ValueError, "does not have"),
        (lambda b: b.laws[0], None, ValueError, "a Law"),
        (lambda b: b.mass * 2, None, ValueError, "whole leaves"),
        (lambda b: b.inertia[0], None, ValueError, "whole leaves"),
        (lambda b: {}, None, ValueError, "nothing"),
        (lambda b: b.laws[0].corners, None, TypeError, "floating point"),
        (lambda b: {"mu": b.laws[0].mu}, {"mu": (0.2, 1)}, ValueError, "Parameter mu: .*between"),
        (lambda b: {"mu": b.laws[0].mu}, {"e": (0, 1)}, ValueError, "bounds for e"),
        (lambda b: {"mu": b.laws[0].mu}, {"mu": 3}, ValueError, r"pair \(lo, hi\)"),
        (lambda b: (b.mass, b.inertia), (Positive(),), ValueError, "one entry for each"),
        (lambda b: {"a": b.mass, "b": b.mass}, None, ValueError, "same leaf"),
        (lambda b: Tied((b.mass, b.laws[0].e)), None, ValueError, "one value"),
        (lambda b: Tied((b.mass,), scales=(1.0, 2.0)), None, ValueError, "scales"),
    ],
)
def test_errors_say_what_to_do(body, where, bounds, error, words):
    with pytest.raises(error, match=words):
        parameters(body, where, bounds)


def test_not_a_number_is_refused(body):
    broken = eqx.tree_at(lambda b: b.mass, body, jnp.asarray(jnp.nan))
    with pytest.raises(ValueError, match="mass.*not finite"):
        parameters(broken, lambda b: b.mass)


def test_errors_of_parameters(body):
    params, rebuild = parameters(body, lambda b: {"mu": b.laws[0].mu}, {"mu": (0, None)})
    other, _ = parameters(body, lambda b: {"m": b.mass})
    with pytest.raises(KeyError, match="there are: mu"):
        params["e"]
    with pytest.raises(ValueError, match="at least"):
        params.with_values({"mu": -1.0})
    with pytest.raises(ValueError, match="shape"):
        params.with_values({"mu": jnp.asarray([1.0, 2.0])})
    with pytest.raises(ValueError, match="another model"):
        rebuild(other)
    with pytest.raises(ValueError, match="units"):
        parameters(body, lambda b: {"m": b.mass}, units={"mu": "1"})
