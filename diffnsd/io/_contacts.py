"""The contacts between the geoms of a file."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..model import Interaction
from ..relations import shape_contacts
from ._plan import Plan


def alike(plan: Plan) -> list[tuple[tuple, ...]]:
    """The pairs that may touch, in groups of equal rows: of condim 1 and 3, of 4, and of 6."""
    groups = ((1, 3), (4,), (6,))
    found = (tuple(p for p in plan.pairs if p[2] in group) for group in groups)
    return [pairs for pairs in found if pairs]


def contacts(elements: Any) -> Iterator[Interaction]:
    """An interaction for each group of `alike` pairs.

    The friction of sliding, of spinning and of rolling is that of MuJoCo's elliptic cones: one cone for all
    rows, whose lengths are the ratios of the coefficients.
    """
    used = {i: elements.geom(i) for pair in elements.plan.pairs for i in pair[:2]}
    for pairs in alike(elements.plan):
        dimensions = pairs[0][2]
        mu = _of_pairs(elements, pairs, "friction")
        keys = ("spin", "roll")[: (dimensions > 3) + (dimensions > 4)]
        slides = mu > 0
        lengths = {
            key: jnp.where(slides, _of_pairs(elements, pairs, key) / jnp.where(slides, mu, 1), 0)
            for key in keys
        }
        relation = shape_contacts([(used[one], used[two]) for one, two, *_ in pairs], **lengths)
        law = elements.law(mu[np.array(relation.function.pair)], elements["contact/restitution"])
        yield Interaction(relation, law, elements.max_active)


def _of_pairs(elements: Any, pairs: tuple[tuple, ...], key: str) -> Array:
    return jnp.stack([coefficient(elements, *pair, key) for pair in pairs])


def coefficient(
    elements: Any, one: int, two: int, dimensions: int, name: str | None, key: str = "friction"
) -> Array:
    """A coefficient of a pair.

    Of the two geoms the larger friction counts; of equal ones each has half of the derivative.
    """
    if dimensions == 1:
        return jnp.zeros(())
    if name is not None:
        return elements[f"{name}/{key}"]
    return jnp.maximum(*(elements[f"{elements.plan.geoms[i][0]}/{key}"] for i in (one, two)))
