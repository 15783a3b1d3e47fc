"""Which contacts of an interaction are solved in a step, and the first one of the others that closes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from .._jax import always_staged
from .._numerics import short_sum, smallest_entries
from .._types import Scalar
from ..complementarity.problem._problem import broadcast_law
from ..model import Interaction, Model
from ..relations._base import Contacts


class Selection(eqx.Module):
    """Which contacts of an interaction are solved: `hit`, or `None` for all of them.

    Of few contacts a mask `(a, c)`: `hit[i, j]` is true if the i-th solved contact is contact j. Picking and
    spreading are sums over it, which are elementwise over a batch, unlike gather and scatter. Of more than
    `MASKED` their indices `(a,)`, as a mask costs with the product of both numbers. `seen`: the
    relation evaluated for all contacts, `None` where all are solved. `listed`: the list of a relation that
    makes one in every step, see `AbstractRelation.listed`. `time`: of the step, not batched.
    """

    hit: Bool[Array, "a c"] | Int[Array, " a"] | None
    seen: Contacts | None = None
    listed: Any = None
    time: Any = None

    def pick(self, x: Array) -> Array:
        """Rows of `x (c, ...)` that are solved, `(a, ...)`."""
        if self.hit is None:
            return x
        return _masked_sum(self.time, self.hit, x) if self.hit.ndim == 2 else x[self.hit]

    def spread(self, x: Array) -> Array:
        """The inverse of `pick`: `(a, ...)` to `(c, ...)`, zero elsewhere."""
        if self.hit is None or self.seen is None:
            return x
        if self.hit.ndim == 2:
            return _masked_sum(self.time, self.hit.T, x)
        zeros = jnp.zeros((self.seen.drift.shape[1], *x.shape[1:]), x.dtype)
        return zeros.at[self.hit].set(x)

    @property
    def rest(self) -> Bool[Array, " c"]:
        """Contacts that are not solved, and those that are but should not be: their gaps are not known."""
        if self.hit is None or self.seen is None:
            return jnp.zeros(0, bool)
        count = self.seen.drift.shape[1]
        if self.hit.ndim == 2:
            left = ~jnp.any(self.hit, axis=0)
        else:
            left = jnp.ones(count, bool).at[self.hit].set(False)
        return left if self.seen.known is None else left | ~self.seen.known


def _masked_sum(time, hit: Array, x: Array) -> Array:
    """`Σ_j hit_ij x_j`. On a CPU a stage of its own: fused with it, `x` is computed again for each `i`."""

    def chosen(hit, x):
        mask = hit.reshape(hit.shape + (1,) * (x.ndim - 1))
        return short_sum(jnp.where(mask, x[None], 0), 1, UNROLLED)

    stage = partial(always_staged, time, chosen)
    return jax.lax.platform_dependent(hit, x, cpu=stage, default=chosen)


UNROLLED = 32
"""Most contacts over which a pick is a chain of additions, which fuses where a reduction does not."""

MASKED = 128
"""Most contacts of which some are picked by a mask; ranks cost with the square of their number."""


def smallest(values: Array, count: int) -> Bool[Array, "a c"] | Int[Array, " a"]:
    """The mask of the `count` smallest entries, in their order of appearance; of many their indices.

    Computed by ranks: comparisons are elementwise and vectorise over a batch; a sort does not.
    """
    if values.shape[0] > MASKED:
        return jnp.sort(smallest_entries(values, count))
    order = np.arange(values.shape[0], dtype=np.int32)
    earlier = order[None, :] < order[:, None]
    below = (values[None, :] < values[:, None]) | ((values[None, :] == values[:, None]) & earlier)
    chosen = jnp.sum(below, axis=1, dtype=jnp.int32) < count
    place = jnp.sum(chosen[None, :] & earlier, axis=1, dtype=jnp.int32)
    return chosen[None, :] & (place[None, :] == np.arange(count, dtype=np.int32)[:, None])


def select(interaction: Interaction, model: Model, t: Scalar, q) -> tuple[Interaction, Selection]:
    """The interaction restricted to the contacts with the smallest gaps."""
    relation = interaction.on(model.system)
    listed = relation.listed(q) if relation.needs_positions else None
    if listed is not None:
        if interaction.mask is not None or interaction.max_active is not None:
            raise ValueError(
                "neighbour_contacts lists other contacts in every step: it takes no mask and no max_active; "
                "its `capacity` and `contacts` limit them."
            )
        seen = listed.observe(model.system.group, t, q)
        chosen = Interaction(listed, interaction.law)
        return chosen, Selection(None, seen, listed)
    limits = [x for x in (interaction.max_active, relation.most_known) if x is not None]
    if not limits or not relation.needs_positions:
        return interaction, Selection(None)
    limit = min(limits)
    if relation.count(model.system.group, t, q) <= limit:
        return interaction, Selection(None)
    seen = relation.observe(model.system.group, t, q)
    gap = interaction.reachable(seen.gap)
    if gap is None:
        return interaction, Selection(None)
    seen = Contacts(gap, seen.H, seen.drift, seen.known)
    ranked = gap if seen.known is None else jnp.where(seen.known, gap, jnp.inf)
    selection = Selection(
        smallest(jax.lax.stop_gradient(ranked), limit), seen, time=jnp.asarray(t, gap.dtype)
    )
    restricted = relation.take(selection.pick)
    if restricted is None:
        return interaction, Selection(None)
    law = broadcast_law(interaction.law, gap.shape[0], gap.dtype)
    mask = None if interaction.mask is None else interaction.mask.pick(selection.pick, gap.dtype)
    return Interaction(restricted, jax.tree.map(selection.pick, law), mask=mask), selection


def crowded(left: Sequence[Array]) -> Int[Array, "2"]:
    """The first contact of masks, one `(c,)` for each interaction; see `StepInfo.crowded`."""
    first = jnp.full(2, -1, jnp.int32)
    for number, mask in reversed(list(enumerate(left))):
        places = np.arange(len(mask), dtype=np.int32)
        # The smallest index by a minimum: in a batch `argmax` is slower.
        place = jnp.min(jnp.where(mask, places, len(mask)), initial=len(mask))
        first = jnp.where(place < len(mask), jnp.stack([jnp.int32(number), place]), first)
    return first


def left_out(selections: Sequence[Selection], v, h) -> Int[Array, "2"]:
    """The first contact that was not solved and closes within the step, see `crowded`."""
    return crowded([_left_out(selection, v, h) for selection in selections])


def _left_out(selection: Selection, v, h) -> Bool[Array, " c"]:
    """Which contacts were not solved and close within the step; for a list one entry: whether any."""
    if selection.listed is not None:
        return selection.listed.may_miss(v, h)[None]
    if selection.hit is None or selection.seen is None or selection.seen.gap is None:
        return jnp.zeros(0, bool)
    normal = selection.seen.first(1).velocity(v)[0]
    return selection.rest & (selection.seen.gap + h * jnp.minimum(normal, 0) < 0)
