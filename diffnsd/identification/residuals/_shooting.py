"""Trajectories of unequal length in arrays of one shape, and fitting them in short segments.

Each trajectory is *padded* to the length of the longest one and has a mask. A long chaotic
trajectory is cut into segments that each start from a measured (or a free) state. Short segments
make the loss smooth, longer ones make it sharp.

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

from ..._arguments import checked_arguments, checked_kinds
from ..._expects import booleans
from ..._numerics import as_float
from ..._types import Scalar
from .._base import with_axes


@checked_kinds
def pad(trajectories: Sequence[PyTree]) -> tuple[PyTree[Array], Bool[Array, "n t"]]:
    """Stacks trajectories of unequal length; the padding repeats the last frame of each.

    The repetition keeps padded frames valid (unit quaternions stay unit), so that masked frames
    never produce NaN in a derivative.

    **Arguments:** `trajectories`: `n` arrays of shape `(t_i, ...)`, or pytrees of such arrays with
    one `t_i` each.

    **Returns:** arrays of shape `(n, t, ...)`, where `t` is the longest length, and the mask of the
    real frames.

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
    """The mask broadcast to the shape of the values, whose leading shape it must have."""
    if values.shape[: mask.ndim] != mask.shape:
        raise ValueError(
            f"values of shape {values.shape} do not begin with the mask's {mask.shape}."
        )
    return jnp.broadcast_to(with_axes(mask, values.ndim), values.shape)


@checked_kinds
def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Scalar:
    """Mean of the entries selected by `mask`: `sum(mask * values) / sum(mask)`; 0 if there are none.

    **Arguments:** `values`: any shape that begins with the shape of `mask`; `mask`: boolean.

    **Returns:** a scalar. The derivative with respect to masked-out entries is zero, even if they
    are not finite. **Raises:** `ValueError` for shapes that do not match.
    """
    values, mask = as_float(values), booleans("mask", mask)
    keep = _aligned(mask, values)
    count = jnp.maximum(jnp.sum(keep), 1).astype(values.dtype)
    return jnp.sum(jnp.where(keep, values, 0)) / count


@checked_kinds
def mean_of_means(values: Float[Array, "n t ..."], mask: Bool[Array, "n t"]) -> Scalar:
    """Mean over trajectories of the mean over their frames: all trajectories have equal weight.

    **Arguments:** `values`: shape `(n, t, ...)`; `mask`: shape `(n, t)`.

    **Returns:** a scalar; trajectories without frames are left out. **Raises:** `ValueError` for
    shapes that do not match.
    """
    values, mask = as_float(values), booleans("mask", mask)
    if mask.ndim != 2:
        raise ValueError(f"mask must have shape (n, t), got {mask.shape}.")
    keep = _aligned(mask, values)
    return masked_mean(jax.vmap(masked_mean)(values, keep), jnp.any(mask, axis=1))


class ShootingPlan(eqx.Module):
    """`s` segments of padded trajectories, each with at most `f` frames to predict.

    Segment `i` starts at frame `start[i]` of trajectory `trajectory[i]`, where the state is known,
    and predicts the frames `start[i] + 1, ..., start[i] + length[i]`.

    **Arguments:**

    - `trajectory`, `start`, `length`: shape `(s,)`.
    - `mask`: shape `(s, f)`; which predicted frames exist.
    - `following`: shape `(s,)`; the segment that starts where this one ends.
    - `has_following`: shape `(s,)`; whether there is one (`following` is meaningful only then).
    """

    trajectory: Int[Array, " s"]
    start: Int[Array, " s"]
    length: Int[Array, " s"]
    mask: Bool[Array, "s f"]
    following: Int[Array, " s"]
    has_following: Bool[Array, " s"]

    @property
    def frames(self) -> Int[Array, "s f"]:
        """Index of every predicted frame; where none exists, that of the segment's last frame."""
        ahead = 1 + jnp.arange(self.mask.shape[1])
        return self.start[:, None] + jnp.minimum(ahead[None, :], self.length[:, None])

    def gather_states(self, measured: PyTree[Array]) -> PyTree[Array]:
        """The measured state at the start of every segment.

        **Arguments:** `measured`: padded arrays `(n, t, ...)`. **Returns:** arrays `(s, ...)`.
        """
        return jax.tree.map(lambda x: x[self.trajectory, self.start], measured)

    def gather_targets(self, measured: PyTree[Array]) -> PyTree[Array]:
        """The measured frames that the segments predict; compare them using `mask`.

        **Arguments:** `measured`: padded arrays `(n, t, ...)`. **Returns:** arrays `(s, f, ...)`,
        padded with the last frame of the segment.
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

        If the start states are free parameters, the trajectory is continuous where the jumps vanish.

        **Arguments:**

        - `starts`, `ends`: pytrees of arrays `(s, ...)`.
        - `difference`: `difference(end, start)`, leafwise subtraction by default; for rotations use
          the difference of their group.

        **Returns:** the differences, arrays `(s, ...)`, zero for segments without a successor.
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

        **Arguments:** as for `defects`; `weight`: the inverse of the allowed variance of a jump.

        **Returns:** a scalar, 0 if no segment follows another.
        """
        jumps = self.defects(starts, ends, difference)
        total = sum(jnp.sum(jump**2) for jump in jax.tree.leaves(jumps))
        count = jnp.maximum(jnp.sum(self.has_following), 1)
        return weight * total / count.astype(jnp.result_type(total))


@checked_arguments
def segments(
    lengths: Sequence[int] | np.ndarray, frames_per_segment: int, *, min_frames: int = 1
) -> ShootingPlan:
    """Cuts trajectories into segments that start at frames `0, f, 2 f, ...` of each.

    **Arguments:**

    - `lengths`: number of frames of each trajectory.
    - `frames_per_segment`: `f`, the number of frames that a segment predicts. A value of at least
      the longest length minus one gives one segment per trajectory.
    - `min_frames`: a shorter remainder at the end of a trajectory is left out.

    **Returns:** a `ShootingPlan`; its shapes depend only on the arguments.

    **Raises:** `ValueError` if a number is out of range or there are no segments.
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
