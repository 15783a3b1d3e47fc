"""The contact modes at the start of a smooth phase: held, sticking or sliding."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._numerics import short_sum
from ..._result import RESULTS
from ..._types import Args, Scalar, State
from ...complementarity import ComplementarityProblem, solve_complementarity
from ...complementarity.problem._problem import broadcast_law
from ...model import Model
from .._impact import slip_rows
from ._event_phase import Phase, limits, rows_of, slow_slip, tiny_of, velocities


def modes(model: Model, t: Scalar, state: State, args: Args, may_hold, loose, solver):
    """The contact modes, held, sticking or sliding, by the laws between forces and accelerations.

    `0 <= lam ⟂ d/dt u >= 0` for contacts that are closed and at rest; friction follows the direction of
    the slip, or of its rate where the slip vanishes. Slips that have just broken loose slide.

    **Arguments:** `may_hold`: contacts that are closed and at rest, `(c,)`; `loose`: directions of slips that
    have just broken loose, of length 1 over the slip rows of a contact, else 0, `(r,)`; `solver`: of the
    laws.

    **Returns:** `held (c,)`; `stuck`, `side`, and which slips begin at zero, `(r,)`; whether the laws have a
    solution; and how many contacts slide where there may be none or several, as `wedged` of steps counts.
    """
    rows, tiny = rows_of(model, t, state.q), tiny_of(model, state)
    no = jnp.zeros(len(rows.contact), bool)
    everything = Phase(model, t, state, may_hold, may_hold, no, 0.0 * loose, no, args)
    free, matrix, _, _ = everything.contact_terms(t, state)
    opens = np.zeros(len(may_hold), bool)
    opens[rows.contact[rows.is_normal]] = True
    active = jnp.where(opens, may_hold, _is_on(model, t, state))
    slip = velocities(model, t, state)
    speed = rows.size(slip)
    # A slip with several rows is followed until it is slow, see `Phase.distances`.
    least = jnp.where(rows.turns, 2 * slow_slip(model, state), tiny)
    moves = rows.is_slip & (speed > least)
    side = jnp.where(moves, slip / jnp.where(moves, speed, 1), 0)
    side = jnp.where(rows.size(loose) > 0, loose, side)
    side = jnp.where(active[rows.contact], side, 0)
    sliding = jnp.where(moves, side, 0)

    laws, at = [], 0
    for interaction, count in zip(model.interactions, model.contacts(t, state.q), strict=True):
        law, k = broadcast_law(interaction.law, count, free.dtype), interaction.rows
        own = side[at : at + count * k].reshape(count, k)
        if slip_rows(interaction):
            law = law.held(tuple(own[:, i] for i in slip_rows(interaction)))
        laws.append((law, (count, k)))
        at += count * k
    problem = ComplementarityProblem(matrix, free, tuple(laws), active)
    found = solve_complementarity(problem, solver, throw=False)

    normal = jnp.zeros_like(may_hold, dtype=free.dtype)
    normal = normal.at[rows.contact[rows.is_normal]].set(found.z[rows.is_normal])
    held = may_hold & (normal > 0)
    takes_part = jnp.where(opens, held, active)[rows.contact]
    lower, upper, mu = limits(model, t, state.q, free.dtype)
    reach = (upper - lower) / 2 + mu * found.z[rows.normal]
    slips = jnp.abs(rows.size(found.z - (lower + upper) / 2) - reach) <= 1e-9 * reach
    rate = rows.size(found.w)
    slips = slips & (rate > tiny)
    starts = jnp.where(slips, found.w / jnp.where(slips, rate, 1), 0)
    side = jnp.where(rows.size(side) > 0, side, starts)
    side = jnp.where(rows.is_slip & takes_part, side, 0)
    slides = rows.size(side) > 0
    stuck = jnp.asarray(~rows.is_normal) & takes_part & ~slides
    own = jnp.asarray(rows.pairs.T, matrix.dtype)
    by_friction = short_sum(own * matrix * (mu * sliding)[None], 1)
    slide = jnp.any((own > 0) & (sliding != 0)[None], axis=1)
    wedged = jnp.sum(slide & (jnp.diagonal(matrix) <= by_friction), dtype=jnp.int32)
    return held, stuck, side, slides & ~moves, found.result == RESULTS.successful, wedged


def _is_on(model: Model, t: Scalar, state: State) -> Array:
    """Which contacts are not switched off by a mask, `(c,)`."""
    pairs = zip(model.interactions, model.contacts(t, state.q), strict=True)
    return jnp.concatenate([jnp.ones(c, bool) if i.mask is None else i.mask.on for i, c in pairs])
