"""Contacts that let go, and contacts that begin to slip, inside a step: how that enters the derivative.

Where sticking ends, or a contact lets go, forces do not jump, and the time of that event needs no
derivative. But a step has one law over all of its length: in the first step that moves, the derivative is
that of a motion that was free all along, although it was free for a part `phi` of it. With the velocities
`w` that such contacts have at the end of that step, and the motion `v_held` in which they would have none,

    dv1 = dv_held + phi (dv1 − dv_held),      v1 − v_held = M^-1 H^T W^-1 w

The force that opens a contact grows at a nearly constant rate. So `phi` follows from the impulse `P` that
would hold it in this step, and from what was to spare in the step before, `S`:

    phi = 1/2 + P / (P + S)        between 1/2 and 3/2

for a step whose forces are those at its middle. More than 1: it began to move in the step before, too late to
be seen there. Values remain those of the step.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._jax import call_where, with_value, without_derivative
from ..._numerics import lu_solve, matrix_inverse, safe_norm
from ..._types import Local, Scalar, State
from ...complementarity.problem._problem import broadcast_law
from ...model import Interaction, Model
from .._impact import slip_rows, slips_of, still
from .._warm_start import Recent

LastThree = tuple[Float[Array, "3 c k"], ...]
"""Impulses of a step and of the two before, per interaction."""
STEADY = 2.0
"""Factor by which the force that is to spare may change faster in one step than in the other."""


class Releases(NamedTuple):
    """Which contacts let go in a step, and which begin to slip in it, `(c,)` each."""

    opens: Bool[Array, " c"]
    slips: Bool[Array, " c"]


def released(
    model: Model,
    t: Scalar,
    end: State,
    outputs: tuple[Local, ...],
    before: tuple[Recent, ...] | None,
    now: tuple[Recent, ...] | None,
    found: Releases,
) -> State:
    """The state at the end of a step, with the derivative of a motion that was held for a part of it.

    **Arguments:** `t`, `end`: time and state at the end of the step; `outputs`: local velocities for which
    its laws hold, per interaction `(c, k)`; `before`, `now`: impulses up to the step before and up to this
    one, or `None`, and nothing is changed; `found`: what happens in it.
    """
    if before is None or now is None:
        return end
    last_three = tuple(
        jnp.stack([a.last, b.last, b.before]) for a, b in zip(now, before, strict=True)
    )
    some = jnp.any(found.opens | found.slips)
    change = call_where(some, _change, model, t, end, outputs, last_three, found)
    return eqx.tree_at(lambda s: s.v, end, with_value(end.v - change, end.v))


def pressed(reactions: tuple[Recent, ...] | None, default: Array) -> Bool[Array, " c"]:
    """Which contacts had a normal impulse in the last step; `default` if impulses are not known."""
    if reactions is None:
        return default
    return jnp.concatenate([past.last[:, 0] > 0 for past in reactions])


def stuck(model: Model, reactions: tuple[Recent, ...] | None) -> Bool[Array, " c"]:
    """Which contacts stuck in the last step: with a friction within its bound, whatever the slip at its end.

    On a curved surface that slip is not zero, but the error of the step.
    """
    if reactions is None:
        return jnp.zeros((), bool)
    parts = []
    for interaction, past in zip(model.interactions, reactions, strict=True):
        c = len(past.last)
        if not interaction.law.is_unilateral or not slip_rows(interaction):
            parts.append(jnp.zeros(c, bool))
            continue
        z, law = past.last.T, broadcast_law(interaction.law, c, past.last.dtype)
        little = float(jnp.finfo(z.dtype).eps) ** 0.4 * z[0]
        friction = safe_norm(z[1:])
        first = jnp.zeros_like(z[1:]).at[0].set(1)
        along = z[1:] / jnp.where(friction > 0, friction, 1)[None]
        along = jnp.where(friction[None] > 0, along, first)
        more = z.at[1:].add(little[None] * along)
        inside = jnp.max(jnp.abs(law.set().project(more) - more), axis=0) <= 0.1 * little
        parts.append(inside & (z[0] > 0))
    return jax.lax.stop_gradient(jnp.concatenate(parts))


def _change(model: Model, t, end: State, outputs, impulses: LastThree, found: Releases):
    """`(1 − phi) (dv1 − dv_held)`, with the value 0."""
    rate = jnp.concatenate([u[:, 0] for u in outputs])
    moved = jnp.concatenate([rate[None], slips_of(model, outputs)])
    gain = _gain(*without_derivative((model, t, end, outputs, impulses, moved, found)))
    return jnp.tensordot(gain, moved - jax.lax.stop_gradient(moved), 2)


def _gain(model: Model, t, end: State, outputs, impulses: LastThree, moved, found: Releases):
    """`(1 − phi) M^-1 H^T W^-1`, from `moved (3, c)` to velocities: `(n, 3, c)`.

    Rows that stay closed, or stick, are held as well. All are held by springs: redundant rows do no harm.
    """
    mass = model.system.mass(t, end.q)
    rows = _all_rows(model, t, end, outputs, impulses, found)
    inverse = matrix_inverse(mass)
    mobility = jnp.einsum("kic,ij,kjc->kc", rows.output, inverse, rows.input)
    used = (rows.held | rows.moves) & (mobility > 0)
    # Springs keep half of the digits for the force in them.
    stiff = 0.1 / float(jnp.finfo(mass.dtype).eps) ** 0.5
    stiffness = jnp.where(used, stiff / jnp.where(used, mobility, 1), 0)
    pushes = jnp.moveaxis(rows.input * stiffness[:, None], 1, 0)
    sprung = mass + jnp.einsum("ikc,kjc->ij", pushes, rows.output)
    pushes = jnp.where(rows.moves, pushes, 0)[:, :3]
    gain = lu_solve(sprung[:, :, None], pushes.reshape((len(mass), -1))).reshape(pushes.shape)

    w = jnp.where(rows.moves[:3], moved, 0)
    held = jnp.tensordot(gain, w, 2)
    left = w - jnp.einsum("kic,i->kc", rows.output[:3], held)
    free = 0.5 + _share(w, stiffness[:3] * left, rows, found)
    held_part = jnp.where(jnp.isfinite(free), 1 - free, 0)[None, None]
    return jnp.where(jnp.isfinite(gain), gain * held_part, 0)


def _share(w, hold, rows: "_Rows", found: Releases) -> Float[Array, " c"]:
    """`P / (P + S)` of every contact; infinite where the force does not grow steadily.

    It does not in the first step of a run, where a force jumps, or after a step that was split. The bound of
    friction is what it is in this step, in proportion to the normal force if there is one.
    """
    speed, friction = jnp.sqrt(jnp.sum(w[1:] ** 2, 0)), jnp.sqrt(jnp.sum(rows.past[1:3] ** 2, 0))
    along = w[1:] / jnp.where(speed > 0, speed, 1)[None]
    normal, pressed = rows.past[0], rows.past[0, 0] > 0
    ratio = jnp.where(pressed[None], normal / jnp.where(pressed, normal[0], 1)[None], 1)
    bound = friction[:1] * ratio
    needed = jnp.where(found.opens, hold[0], jnp.sum(along * hold[1:], 0))
    _, spare, earlier = jnp.where(found.opens[None], normal, bound - friction)
    spare = jnp.maximum(spare, 0)
    grown, growing = needed + spare, earlier - spare
    known = (needed > 0) & (grown < STEADY * growing) & (growing < STEADY * grown)
    known &= ~found.opens | (spare > 0)  # what was open before does not open again
    return jnp.where(known, needed / jnp.where(known, grown, 1), jnp.inf)


class _Rows(NamedTuple):
    """Rows of all contacts: the normal, two slips, others; zeros where a contact has none.

    **Arguments:** `output`, `input`: `(k, n, c)`; `held`, `moves`: which are held, and which begin to move,
    `(k, c)`; `past`: impulses of this step and of the two before.
    """

    output: Array
    input: Array
    held: Bool[Array, "k c"]
    moves: Bool[Array, "k c"]
    past: Float[Array, "k 3 c"]


def _all_rows(model: Model, t, end: State, outputs, impulses: LastThree, found: Releases):
    """The rows of all interactions."""
    least = max(3, *(1 + i.rows for i in model.interactions))
    cuts = np.cumsum(model.contacts(t, end.q))[:-1]
    opens, slips = (jnp.split(x, cuts) for x in found)
    each = zip(model.interactions, outputs, impulses, opens, slips, strict=True)
    parts = []
    for interaction, *known in each:
        rows = _rows(interaction, model, t, end, *known)
        lead = int(slip_rows(interaction) == (0,))  # it has no normal row

        def placed(x, lead=lead):
            ends = (lead, least - lead - len(x)), *[(0, 0)] * (x.ndim - 1)
            return jnp.pad(x, ends)

        parts.append(jax.tree.map(placed, rows))
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=-1), *parts)


def _rows(
    interaction: Interaction, model: Model, t, end: State, u, impulses, opens, slips
) -> _Rows:
    """The rows of an interaction that take part in its law."""
    H, _ = interaction.on(model.system).linearised(model.system.group, t, end.q)
    H, past = H[: interaction.rows], impulses.transpose(2, 0, 1)
    now, before = past[:, 0], past[:, 1]
    still_ = jnp.abs(u[:, : interaction.rows].T) <= still(model, end)
    mask = interaction.mask
    on = jnp.ones_like(opens) if mask is None else mask.on
    if interaction.law.holds_gap:
        held = jnp.broadcast_to(on, still_.shape)
        return _Rows(H, H, held, jnp.zeros_like(held), past)
    at = slip_rows(interaction)
    moves = jnp.where(np.isin(np.arange(interaction.rows), at)[:, None], slips[None], False)
    if interaction.law.never_opens:
        return _Rows(H, H, on[None] & still_ & ~moves, moves, past)
    loaded = on & (now[0] > 0)
    held = (loaded[None] & still_ & ~moves).at[0].set(loaded & ~opens)
    # The friction of a contact that slides is in proportion to its normal force.
    acting = jnp.where(opens, before, now)
    pressed = acting[0] > 0
    part = jnp.where(pressed, acting / jnp.where(pressed, acting[0], 1)[None], 0)
    part = jnp.where((~still_ & ~moves) | opens[None], part, 0).at[0].set(1)
    normal = jnp.einsum("kc,kic->ic", part, H)
    return _Rows(H, H.at[0].set(normal), held, moves.at[0].set(opens), past)
