"""The state of a step of `Located` between its trials."""

import equinox as eqx
import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from ..._jax import SAVED_NAME
from ..._result import RESULTS
from ..._types import Scalar, State
from .._base import Carry, StepInfo


class Before(eqx.Module):
    """Known before a trial: contacts that touch, whose slip has just reversed, or reverses in the trial.

    `may`: whether its impacts and slip reversals can still be located.
    """

    touching: Bool[Array, " c"]
    turning: Bool[Array, " c"]
    turns: Bool[Array, " c"]
    may: Bool[Array, ""]


class Run(eqx.Module):
    """State within a step: the state `start` at its time `past`, and a trial of the rest.

    `strikes`: contacts left out of the trial; `touching`: contacts closed when it began; `pressed`: the
    fastest rebound from which forces bring a contact back within a few steps; `side`: where friction
    was held, and against which direction of the slip; `turned`: contacts whose slip changed sign there;
    `unheld`: contacts whose slip reversed where friction was not held; `pending`: whether anything
    crossed; `before`, `trial`: the reports of the part before `start` and of the trial.
    """

    past: Scalar
    start: State
    end: State
    carry: Carry
    strikes: Bool[Array, " c"]
    touching: Bool[Array, " c"]
    slow: Float[Array, " c"]
    pressed: Float[Array, " c"]
    side: Float[Array, "2 c"]
    turned: Bool[Array, " c"]
    unheld: Bool[Array, " c"]
    pending: Bool[Array, ""]
    count: Int[Array, ""]
    before: StepInfo
    trial: StepInfo
    result: RESULTS


def kept(found):
    """Values without derivative, named so that reverse mode saves them instead of recomputing them."""
    return jax.tree.map(lambda x: checkpoint_name(x, SAVED_NAME), found)
