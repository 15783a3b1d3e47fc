"""Many trajectories of unequal length in arrays of one shape, and fitting them in short segments.

A trajectory is *padded* to the longest one and carries a mask. A long chaotic trajectory is cut
into segments that each start from a measured (or a free) state; short segments make the loss
smooth, longer ones make it sharp.

Reference for multiple shooting: H. G. Bock, K. J. Plitt (1984), doi:10.1016/S1474-6670(17)61205-9;
for chaotic motion: H. U. Voss, J. Timmer, J. Kurths (2004), doi:10.1142/S0218127404010345.
"""

from collections.abc import Callable, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._types import Scalar
from ._base import with_axes


def pad(trajectories: Sequence[PyTree]) -> tuple[PyTree[Array], Bool[Array, "n t"]]:
    """Stacks trajectories of unequal length; the padding repeats the last frame of each.

    Repeating keeps padded frames valid (unit quaternions stay unit), so that masked lanes never
    produce NaN in a derivative.

    **Arguments:** `trajectories`: `n` arrays of shape `(t_i, ...)`, or pytrees of such arrays with
    one `t_i` each.

    **Returns:** arrays of shape `(n, t, ...)`, `t` the longest length, and the mask of the frames
    that are real.

    **Raises:** `ValueError` for no trajectory, an empty one, or shapes that do not match.
    """
    if len(trajectories) == 0:
        raise ValueError("there are no trajectories to pad.")
    lengths = np.asarray([_length(i, trajectory) for i, trajectory in enumerate(trajectories)])
    if len({jax.tree.structure(trajectory) for trajectory in trajectories}) > 1:
        raise ValueError("the trajectories are pytrees of different structure.")
    frames = np.arange(np.max(lengths))

    def stack(*arrays):
        arrays = [np.asarray(array) for array in arrays]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise ValueError(
                f"the frames of the trajectories have different shapes: {sorted(shapes)}."
            )
        return jnp.asarray(np.stack([a[np.minimum(frames, len(a) - 1)] for a in arrays]))

    return jax.tree.map(stack, *trajectories), jnp.asarray(frames < lengths[:, None])


def _length(index: int, trajectory: PyTree) -> int:
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(trajectory)}
    if len(lengths) != 1 or lengths <= {()} or lengths == {(0,)}:
        raise ValueError(
            f"trajectory {index} must have at least one frame, and equally many in all its arrays."
        )
    return lengths.pop()[0]


def _aligned(mask: Array, values: Array) -> Array:
    """A mask with as many axes as the values, which begin with its shape."""
    if values.shape[: mask.ndim] != mask.shape:
        raise ValueError(
            f"values of shape {values.shape} do not begin with the mask's {mask.shape}."
        )
    return jnp.broadcast_to(with_axes(mask, values.ndim), values.shape)


def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Scalar:
    """Mean of the entries that count: `sum(mask * values) / sum(mask)`; 0 if none does.

    **Arguments:** `values`: any shape that begins with the shape of `mask`; `mask`: boolean.

    **Returns:** a scalar. The derivative with respect to entries that do not count is zero, also
    where these are not finite. **Raises:** `ValueError` for shapes that do not match.
    """
    keep = _aligned(mask, values)
    count = jnp.maximum(jnp.sum(keep), 1).astype(values.dtype)
    return jnp.sum(jnp.where(keep, values, 0)) / count


def mean_of_means(values: Float[Array, "n t ..."], mask: Bool[Array, "n t"]) -> Scalar:
    """Mean over trajectories of the mean over each one's frames: every trajectory weighs the same.

    **Arguments:** `values`: shape `(n, t, ...)`; `mask`: shape `(n, t)`.

    **Returns:** a scalar; trajectories without any frame are left out. **Raises:** `ValueError` for
    shapes that do not match.
    """
    keep = _aligned(mask, values)
    return masked_mean(jax.vmap(masked_mean)(values, keep), jnp.any(mask, axis=1))


class ShootingPlan(eqx.Module):
    """Segments of padded trajectories: `s` of them, each with `f` frames to predict at most.

    Segment `i` starts at frame `start[i]` of trajectory `trajectory[i]`, where the state is known,
    and predicts the frames `start[i] + 1, ..., start[i] + length[i]`.

    **Arguments:**

    - `trajectory`, `start`, `length`: shape `(s,)`.
    - `mask`: shape `(s, f)`; which predicted frames exist.
    - `following`: shape `(s,)`; the segment that starts where this one ends.
    - `has_following`: shape `(s,)`; whether there is one (`following` is then meaningful).
    """

    trajectory: Int[Array, " s"]
    start: Int[Array, " s"]
    length: Int[Array, " s"]
    mask: Bool[Array, "s f"]
    following: Int[Array, " s"]
    has_following: Bool[Array, " s"]

    @property
    def frames(self) -> Int[Array, "s f"]:
        """Frame number of every predicted frame; that of the last one where there is none."""
        ahead = 1 + jnp.arange(self.mask.shape[1])
        return self.start[:, None] + jnp.minimum(ahead[None, :], self.length[:, None])

    def gather_states(self, measured: PyTree[Array]) -> PyTree[Array]:
        """The measured state at the start of every segment.

        **Arguments:** `measured`: padded arrays `(n, t, ...)`. **Returns:** arrays `(s, ...)`.
        """
        return jax.tree.map(lambda x: x[self.trajectory, self.start], measured)

    def gather_targets(self, measured: PyTree[Array]) -> PyTree[Array]:
        """The measured frames that the segments predict; to be compared under `mask`.

        **Arguments:** `measured`: padded arrays `(n, t, ...)`. **Returns:** arrays `(s, f, ...)`,
        filled up with the last frame of the segment.
        """
        frames = self.frames
        rows = jnp.broadcast_to(self.trajectory[:, None], frames.shape)
        return jax.tree.map(lambda x: x[rows, frames], measured)

    def gather_ends(self, predicted: PyTree[Array]) -> PyTree[Array]:
        """The last predicted frame of every segment.

        **Arguments:** `predicted`: arrays `(s, f, ...)`. **Returns:** arrays `(s, ...)`.
        """
        return jax.tree.map(lambda x: x[jnp.arange(x.shape[0]), self.length - 1], predicted)

    def defects(
        self,
        starts: PyTree[Array],
        ends: PyTree[Array],
        difference: Callable[[PyTree, PyTree], PyTree] | None = None,
    ) -> PyTree[Array]:
        """Jumps between the end of each segment and the start of the one that follows it.

        With free start states as parameters, the trajectory is continuous where these vanish.

        **Arguments:**

        - `starts`, `ends`: pytrees of arrays `(s, ...)`.
        - `difference`: `difference(end, start)`, leafwise subtraction by default; for rotations the
          difference of their group.

        **Returns:** the differences, arrays `(s, ...)`, zero for segments that nothing follows.
        """
        starts = jax.tree.map(lambda x: x[self.following], starts)
        difference = difference or partial(jax.tree.map, jnp.subtract)
        jumps = difference(ends, starts)
        return jax.tree.map(lambda x: jnp.where(_aligned(self.has_following, x), x, 0), jumps)

    def continuity(
        self,
        starts: PyTree[Array],
        ends: PyTree[Array],
        weight: float | Array,
        difference: Callable[[PyTree, PyTree], PyTree] | None = None,
    ) -> Scalar:
        """Penalty `weight * (mean over segments of |defect|^2)`, to be added to a loss.

        **Arguments:** as for `defects`; `weight`: 1 over the variance allowed to a jump.

        **Returns:** a scalar, 0 if no segment follows another.
        """
        jumps = self.defects(starts, ends, difference)
        total = sum(jnp.sum(jump**2) for jump in jax.tree.leaves(jumps))
        count = jnp.maximum(jnp.sum(self.has_following), 1)
        return weight * total / count.astype(jnp.result_type(total))


def segments(
    lengths: Sequence[int] | np.ndarray, frames_per_segment: int, *, min_frames: int = 1
) -> ShootingPlan:
    """Cuts trajectories into segments that start at frames `0, f, 2 f, ...` of each.

    **Arguments:**

    - `lengths`: number of frames of each trajectory.
    - `frames_per_segment`: `f`, frames that a segment predicts; at least the longest length less
      one gives one segment for each trajectory.
    - `min_frames`: a rest of fewer frames at the end of a trajectory is left out.

    **Returns:** a `ShootingPlan`; its shapes depend on the arguments only.

    **Raises:** `ValueError` if a number is out of range or no segment results.
    """
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise ValueError(f"lengths must be a list of whole numbers, got {lengths!r}.")
    if frames_per_segment < 1 or not 1 <= min_frames <= frames_per_segment:
        raise ValueError(
            "need 1 <= min_frames <= frames_per_segment, "
            f"got min_frames={min_frames}, frames_per_segment={frames_per_segment}."
        )
    pieces = [
        (j, first, min(frames_per_segment, int(frames) - 1 - first))
        for j, frames in enumerate(lengths)
        for first in range(0, int(frames) - min_frames, frames_per_segment)
    ]
    if not pieces:
        raise ValueError(
            f"no trajectory has the {min_frames + 1} frames that a segment needs "
            f"(lengths {lengths})."
        )
    trajectory, start, length = np.asarray(pieces).T
    here, joined = np.arange(len(pieces)), np.append(np.diff(trajectory) == 0, False)
    return ShootingPlan(
        trajectory=jnp.asarray(trajectory),
        start=jnp.asarray(start),
        length=jnp.asarray(length),
        mask=jnp.asarray(np.arange(np.max(length)) < length[:, None]),
        following=jnp.asarray(here + joined),
        has_following=jnp.asarray(joined),
    )
