import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd.identification import masked_mean, mean_of_means, pad, segments


def test_pad_repeats_the_last_frame():
    a, b = np.arange(6.0).reshape(3, 2), np.ones((1, 2))
    out, mask = pad([a, b])
    assert out.shape == (2, 3, 2)
    np.testing.assert_array_equal(mask, [[True, True, True], [True, False, False]])
    np.testing.assert_array_equal(out[0], a)
    np.testing.assert_array_equal(out[1], np.ones((3, 2)))
    tree, mask = pad([{"x": a, "t": np.arange(3.0)}, {"x": b, "t": np.arange(1.0)}])
    assert tree["x"].shape == (2, 3, 2) and tree["t"].shape == (2, 3)


@pytest.mark.parametrize(
    ("trajectories", "words"),
    [
        ([], "no trajectories"),
        ([np.zeros((0, 2))], "at least one frame"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "different shapes"),
        ([{"a": np.zeros(2), "b": np.zeros(3)}], "equally many"),
        ([np.float64(1.0)], "at least one frame"),
        ([{"a": np.zeros(2)}, {"b": np.zeros(2)}], "structure"),
    ],
)
def test_pad_refuses(trajectories, words):
    with pytest.raises(ValueError, match=words):
        pad(trajectories)


def test_masked_means_ignore_padding_even_if_it_is_not_finite():
    values, mask = pad([np.array([1.0, 3.0, 5.0]), np.array([10.0])])
    assert masked_mean(values, mask) == 19.0 / 4
    assert mean_of_means(values, mask) == (3.0 + 10.0) / 2
    broken = jnp.where(mask, values, jnp.nan)
    for mean in (masked_mean, mean_of_means):
        square = jax.jit(jax.value_and_grad(lambda x, mean=mean: mean(x**2, mask)))
        value, slope = square(broken)
        assert np.isfinite(value) and np.isfinite(np.asarray(slope)[np.asarray(mask)]).all()
    wide = jnp.stack([values, 2 * values], axis=-1)
    assert masked_mean(wide, mask) == 1.5 * 19.0 / 4
    assert masked_mean(values, jnp.zeros_like(mask)) == 0
    with pytest.raises(ValueError, match="do not begin"):
        masked_mean(values, mask[:, :2])


def test_segments_cover_every_frame_once():
    lengths = [7, 3, 1, 5]
    plan = segments(lengths, 2)
    seen = []
    rows = (np.asarray(x) for x in (plan.trajectory, jax.jit(lambda p: p.frames)(plan), plan.mask))
    for j, frames, mask in zip(*rows, strict=True):
        seen += [(j, f) for f in frames[mask]]
    assert sorted(seen) == [(j, f) for j, n in enumerate(lengths) for f in range(1, n)]
    np.testing.assert_array_equal(plan.mask.sum(1), plan.length)
    # One segment per trajectory, where segments are long.
    whole = segments(lengths, 100)
    assert whole.mask.shape == (3, 6) and not whole.has_following.any()
    np.testing.assert_array_equal(segments([7, 4], 4, min_frames=3).trajectory, [0, 1])


@pytest.mark.parametrize(
    "arguments",
    [([3], 0), ([1, 1], 4), (np.array([2.5]), 1), (np.array([[3]]), 1)],
    ids=["zero", "short", "real", "2d"],
)
def test_segments_refuses(arguments):
    with pytest.raises(ValueError):
        segments(*arguments)


def test_gather_follows_the_plan():
    tracks = [np.arange(7.0), 100 + np.arange(4.0)]
    measured, _ = pad(tracks)
    plan = segments([7, 4], 3)
    np.testing.assert_array_equal(plan.gather_states(measured), [0, 3, 100])
    targets = plan.gather_targets(measured)
    np.testing.assert_array_equal(targets, [[1, 2, 3], [4, 5, 6], [101, 102, 103]])
    np.testing.assert_array_equal(plan.gather_ends(targets), [3, 6, 103])
    # The true track is continuous, a shifted one is not.
    starts, ends = plan.gather_states(measured), plan.gather_ends(targets)
    np.testing.assert_array_equal(plan.defects(starts, ends), 0)
    shifted = starts.at[1].add(0.5)
    np.testing.assert_array_equal(plan.defects(shifted, ends), [-0.5, 0, 0])
    np.testing.assert_allclose(plan.continuity(shifted, ends, 4.0), 1.0)
    doubled = plan.defects(shifted, ends, lambda a, b: 2 * (a - b))
    np.testing.assert_array_equal(doubled, [-1.0, 0, 0])


def test_a_short_last_segment_ends_at_its_last_frame():
    measured, _ = pad([np.arange(6.0)])
    plan = segments([6], 3)
    np.testing.assert_array_equal(plan.gather_ends(plan.gather_targets(measured)), [3, 5])


@pytest.mark.slow
def test_shooting_smooths_a_chaotic_fit():
    # Logistic map x' = r x (1 - x), r = 3.9: over 40 steps the loss is wild, over 3 a bowl.
    def roll(r, x, steps):
        return jax.lax.scan(lambda x, _: (r * x * (1 - x),) * 2, x, None, length=steps)[1]

    track = jnp.concatenate([jnp.asarray([0.3]), roll(3.9, jnp.asarray(0.3), 40)])[None]
    grid = jnp.linspace(3.7, 4.0, 61)

    def loss(r, plan):
        predicted = jax.vmap(lambda x: roll(r, x, plan.mask.shape[1]))(plan.gather_states(track))
        return masked_mean((predicted - plan.gather_targets(track)) ** 2, plan.mask)

    def turns(plan):
        values = jax.jit(jax.vmap(lambda r: loss(r, plan)))(grid)
        assert values[40] < 1e-12  # 4e-15: forty steps of chaos amplify rounding
        return int(jnp.sum(jnp.diff(jnp.sign(jnp.diff(values))) != 0))

    assert turns(segments([41], 3)) == 1
    assert turns(segments([41], 40)) > 10
