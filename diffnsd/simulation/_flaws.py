"""Parts of a system that leave what its model holds for, as elements that turn inside out."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._jax import where, without_derivative
from .._types import Count, Scalar, State
from ..model import Model
from ..systems._base import in_words


class Flaw(eqx.Module):
    """`step`: the first step at whose end it was there, -1 if none; `parts`: of which parts then, `(e,)`."""

    step: Count
    parts: Bool[Array, " e"]


Flaws = dict[str, Flaw]
"""By the sentence of `AbstractSystem.flaws`; empty for most systems, which then pay nothing."""


def no_flaws(model: Model, t0: Scalar, state0: State) -> Flaws:
    """Before the first step."""
    masks = model.system.flaws(t0, state0.q)
    return {words: Flaw(jnp.asarray(-1, int), jnp.zeros_like(m)) for words, m in masks.items()}


def flaws_then(flaws: Flaws, model: Model, t1: Scalar, i, state1: State) -> Flaws:
    """After step `i`, which ends at `t1`."""
    masks = without_derivative(model.system.flaws(t1, state1.q))
    now = {words: (flaws[words].step < 0) & jnp.any(mask) for words, mask in masks.items()}
    return {
        words: where(now[words], Flaw(jnp.asarray(i, int), mask), flaws[words])
        for words, mask in masks.items()
    }


def sentences(flaws: Flaws) -> list[str]:
    """What was wrong first, and in which step; of a batch, in the first simulation."""
    found = []
    for words, flaw in flaws.items():
        step, parts = np.asarray(flaw.step), np.asarray(flaw.parts)
        for index in np.argwhere(step >= 0)[:1]:
            at = tuple(int(i) for i in index)
            (what,) = in_words({words: parts[at]})
            sentence = f"at the end of step {step[at]} {what}"
            if at:
                one = at[0] if len(at) == 1 else at
                several = (
                    f"in {np.sum(step >= 0)} of {step.size} simulations, first the one at index"
                )
                sentence = f"{several} {one}, {sentence}"
            found.append(sentence)
    return found
