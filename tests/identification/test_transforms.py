import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from diffnsd.identification import (
    AtLeast,
    AtMost,
    Interval,
    PhysicalInertia,
    PhysicalMoments,
    Positive,
    Unbounded,
)

SCALARS = [
    Unbounded(),
    Unbounded(scale=1e-3),
    Positive(),
    Positive(scale=8.1e-4),
    AtLeast(0.0),
    AtLeast(-2.0, scale=0.1, softness=0.05),
    AtMost(3.0, scale=2.0),
    Interval(0.0, 1.0),
    Interval(0.1, 0.7, softness=0.2),
    Interval(-1e3, 1e4),
]


def slope(transform):
    return jax.grad(lambda x: transform.forward(x))


@pytest.mark.slow
@pytest.mark.parametrize("transform", SCALARS)
def test_round_trip_and_derivative(transform):
    raw = jnp.linspace(-0.8, 1.7, 41)
    forward = jax.jit(transform.forward)
    values = forward(raw)
    assert jnp.all(jnp.diff(values) > 0)
    derivative = jax.jit(jax.vmap(slope(transform)))(raw)
    inner = derivative > 0.3 * jnp.max(derivative)
    np.testing.assert_allclose(transform.inverse(values)[inner], raw[inner], atol=1e-9)

    step = 1e-6
    central = (forward(raw + step) - forward(raw - step)) / (2 * step)
    np.testing.assert_allclose(derivative, central, rtol=1e-4, atol=1e-7 * jnp.max(derivative))


@pytest.mark.parametrize("transform", SCALARS)
def test_extremes_are_admissible_and_derivatives_finite(transform):
    raw = jnp.asarray([-1e150, -1e8, 0.0, 0.5, 1.0, 1e8, 1e150])
    raw = jnp.clip(raw, -300, 300) if isinstance(transform, Positive) else raw
    value, derivative = jax.jit(jax.vmap(jax.value_and_grad(transform.forward)))(raw)
    lo, hi = transform.limits()
    assert np.all((lo <= value) & (value <= hi))
    assert jnp.all(jnp.isfinite(value)) and jnp.all(jnp.isfinite(derivative))


@settings(max_examples=60, deadline=None)
@given(st.floats(-50, 50), st.floats(-10, 10), st.floats(1e-3, 1e3))
def test_interval_stays_inside_and_is_monotone(raw, lo, width):
    transform = Interval(lo, lo + width)
    value = transform.forward(jnp.asarray(raw))
    assert lo <= value <= lo + width
    assert transform.forward(jnp.asarray(raw + 0.5)) >= value


@settings(max_examples=60, deadline=None)
@given(st.floats(0.002, 0.998))
def test_interval_round_trip_of_values(value):
    transform = Interval(0.0, 1.0)
    assert abs(transform.forward(transform.inverse(jnp.asarray(value))) - value) < 1e-12


@pytest.mark.parametrize(
    ("transform", "bound", "inside"),
    [
        (Interval(0.0, 1.0), 0.0, 0.01),
        (Interval(0.0, 1.0), 1.0, 0.99),
        (Interval(2.0, 4.0), 2.0, 2.02),
        (AtLeast(0.0), 0.0, 0.01),
        (AtMost(1.0), 1.0, 0.99),
    ],
)
def test_a_start_on_the_bound_can_leave_it(transform, bound, inside):
    raw = transform.inverse(jnp.asarray(bound))
    value, derivative = jax.jit(jax.value_and_grad(transform.forward))(raw)
    assert abs(value - inside) < 1e-6
    lo, hi = transform.limits()
    width = hi - lo if np.isfinite(hi - lo) else 1.0
    assert abs(derivative / width - 0.5) < 0.01


@pytest.mark.parametrize("transform", [AtLeast(0.0), Interval(0.0, 1.0), AtMost(0.0)])
@pytest.mark.parametrize("size", [8e-4, 1e-5])
def test_a_small_admissible_value_is_kept(transform, size):
    value = -size if isinstance(transform, AtMost) else size
    raw = transform.inverse(jnp.asarray(value))
    # Measured: 3e-13 relative at most.
    np.testing.assert_allclose(transform.forward(raw), value, rtol=1e-10)


def test_a_scale_for_each_component():
    lo, scale = [0.0, 1.0], [1e-3, 10.0]
    transform = AtLeast(lo, scale)
    np.testing.assert_allclose(transform.forward(transform.inverse(jnp.asarray(lo))), [1e-5, 1.1])
    mirror = AtMost(np.negative(lo), scale)
    raw = jnp.asarray([-0.3, 0.7])
    np.testing.assert_array_equal(mirror.forward(-raw), -transform.forward(raw))


def test_bounds_for_each_component():
    transform = Interval([0.0, -1.0], [1.0, 1.0])
    value = jnp.asarray([0.25, -0.5])
    np.testing.assert_allclose(transform.forward(transform.inverse(value)), value, rtol=1e-12)
    assert hash(transform) == hash(Interval(np.array([0.0, -1.0]), (1.0, 1.0)))
    assert transform == Interval(np.array([0.0, -1.0]), (1.0, 1.0))


@pytest.mark.parametrize(
    ("transform", "value", "words"),
    [
        (Positive(), 0.0, "positive"),
        (AtLeast(0.0), -0.1, "at least 0"),
        (AtMost(1.0), 1.5, "at most 1"),
        (Interval(0.0, 1.0), 1.2, "between 0.0 and 1.0"),
        (Unbounded(), np.nan, "not finite"),
        (PhysicalMoments(), [1.0, 1.0, 2.5], "triangle inequality"),
        (PhysicalMoments(), [1.0, 1.0, -1.0], "positive"),
        (PhysicalMoments(), 1.0, "shape"),
        (PhysicalInertia(), [1.0, 1.0, 1.0], "PhysicalMoments"),
        (PhysicalInertia(), np.diag([1.0, 1.0, 2.5]), "triangle inequality"),
        (PhysicalInertia(), np.eye(3) + np.eye(3, k=1), "symmetric"),
    ],
)
def test_inadmissible_values_are_refused(transform, value, words):
    with pytest.raises(ValueError, match=words):
        transform.inverse(jnp.asarray(value))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Interval(1.0, 1.0),
        lambda: Interval(0.0, np.inf),
        lambda: AtLeast(-np.inf),
        lambda: AtMost(np.nan),
        lambda: Positive(scale=0.0),
        lambda: AtLeast([0.0, 0.0], scale=[1.0, -1.0]),
        lambda: AtMost(0.0, softness=0.5),
        lambda: Interval(0.0, 1.0, softness=0.5),
    ],
)
def test_senseless_transforms_are_refused(make):
    with pytest.raises(ValueError):
        make()


def triangle_margin(inertia):
    moments = np.linalg.eigvalsh(np.asarray(inertia))
    return np.min(moments.sum(-1) - 2 * moments.max(-1)) / np.max(moments)


raws = st.lists(st.floats(-3, 3), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(raws)
def test_any_raw_numbers_give_a_physical_inertia(raw):
    inertia = PhysicalInertia().forward(jnp.asarray(raw))
    assert np.all(np.linalg.eigvalsh(np.asarray(inertia)) > 0)
    # Rounding of the eigenvalues of nearly flat bodies: 1e-14 at most.
    assert triangle_margin(inertia) > -1e-12
    moments = PhysicalMoments().forward(jnp.asarray(raw[:3]))
    assert triangle_margin(jnp.diag(moments)) > -1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1.5, 1.5), min_size=6, max_size=6))
def test_inertia_round_trip(raw):
    transform, raw = PhysicalInertia(), jnp.asarray(raw)
    np.testing.assert_allclose(transform.inverse(transform.forward(raw)), raw, atol=1e-7)


def test_inertia_of_batches_and_flat_bodies():
    cube = 8.1e-4 * jnp.eye(3)
    both = jnp.stack([cube, jnp.diag(jnp.asarray([1.0, 2.0, 2.5]))])
    transform = PhysicalInertia()
    np.testing.assert_allclose(transform.forward(transform.inverse(both)), both, atol=1e-12)
    np.testing.assert_allclose(transform.inverse(cube)[1:], 0.0, atol=1e-12)

    plate = jnp.diag(jnp.asarray([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(transform.forward(transform.inverse(plate)), plate, atol=1e-5)
    moments = PhysicalMoments()
    thin = moments.forward(moments.inverse(jnp.asarray([1.0, 1.0, 2.0])))
    np.testing.assert_allclose(thin, [1.0, 1.0, 2.0], atol=1e-5)


@pytest.mark.slow
def test_inertia_derivative_is_that_of_the_second_moments():
    # At the sphere J = I / 2, d tr(I) / d a = 2 tr(I), and trace(I) = 2 trace(J).
    transform = PhysicalInertia()
    raw = transform.inverse(2.0 * jnp.eye(3))
    jacobian = jax.jit(jax.jacfwd(transform.forward))(raw)
    np.testing.assert_allclose(jnp.trace(jacobian[..., 0]), 2 * 6.0, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.jacrev(transform.forward))(raw), jacobian, atol=1e-12)
    # s12 turns into a product of inertia -J_xy = -1.
    np.testing.assert_allclose(jacobian[0, 1, 3], -1.0, rtol=1e-12)
