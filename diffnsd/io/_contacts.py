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
    numbers = {i for pair in elements.plan.pairs for i in pair[:2]}
    used = {i: elements.geom(i) for i in numbers}
    for pairs in alike(elements.plan):
        mu, dimensions = coefficients(elements, pairs), pairs[0][2]
        slides = mu > 0

        def length(key, pairs=pairs, mu=mu, slides=slides):
            return jnp.where(
                slides, coefficients(elements, pairs, key) / jnp.where(slides, mu, 1), 0
            )

        relation = shape_contacts(
            [(used[one], used[two]) for one, two, *_ in pairs],
            near=elements.near,
            spin=length("spin") if dimensions > 3 else None,
            roll=length("roll") if dimensions > 4 else None,
        )
        law = elements.law(mu[np.array(relation.function.pair)], elements["contact/restitution"])
        yield Interaction(relation, law, elements.max_active)


def coefficients(elements: Any, pairs: tuple[tuple, ...], key: str = "friction") -> Array:
    """A coefficient of every pair, `(pairs,)`.

    Of the two geoms the larger friction counts; of equal ones each has half of the derivative.
    """
    geoms = elements.plan.geoms
    ends = [(geoms[p[0]][0], geoms[p[1]][0]) if p[3] is None else (p[3], p[3]) for p in pairs]
    names = sorted({name for both in ends for name in both})
    values = jnp.stack([elements[f"{name}/{key}"] for name in names])
    place = {name: i for i, name in enumerate(names)}
    one, two = np.array([[place[name] for name in both] for both in ends]).T
    rubs = np.array([pair[2] > 1 for pair in pairs])
    return jnp.where(rubs, jnp.maximum(values[one], values[two]), 0)
