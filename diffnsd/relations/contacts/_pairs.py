"""Which geoms may touch."""

from collections.abc import Sequence
from itertools import combinations

from ..._arguments import checked_arguments
from ._shape_contacts import Geom


@checked_arguments
def touching_pairs(
    geoms: Sequence[Geom],
    *,
    parents: Sequence[int | None] | None = None,
    excluded: Sequence[tuple[int | None, int | None]] = (),
    groups: Sequence[int] | None = None,
    touches: Sequence[int] | None = None,
) -> list[tuple[Geom, Geom]]:
    """The pairs of geoms that may touch, for `shape_contacts`.

        pairs = touching_pairs([ground, *links], parents=[None, 0, 1], excluded=[(0, 2)])
        Interaction(shape_contacts(pairs, near=8), CoulombFriction(0.4))

    Geoms of one body, and those of the world among themselves, never touch. The rules are those of MuJoCo,
    but for bodies that are fixed to each other: there they are one body, here list them in `excluded`.

    **Arguments:**

    - `geoms`: in pairs in this order.
    - `parents`: of each body the body that carries it, `None` for the world, as given to `Body`: a body and
      its parent do not touch, as their geoms overlap at the joint; with the world it may. `None`: all may.
    - `excluded`: pairs of bodies that do not touch, `None` for the world.
    - `groups`, `touches`: of each geom bits, `(g,)`: two geoms may touch where a group of one is among those
      that the other touches, `groups[i] & touches[j]` or `groups[j] & touches[i]` (`contype` and
      `conaffinity` of MJCF). By default 1, so that all may.

    **Returns:** the pairs, in the order of the geoms.

    **Raises:** `ValueError` if a body is in no place of `parents` or comes before its parent, a body that is
    excluded is not there, bits are negative or not as many as geoms, or no pair is left.
    """
    bits = []
    for name, given in (("groups", groups), ("touches", touches)):
        found = [1] * len(geoms) if given is None else [int(x) for x in given]
        if len(found) != len(geoms) or min(found, default=0) < 0:
            raise ValueError(
                f"{name} must be an integer, 0 or more, for each of the {len(geoms)} geoms, got {given}."
            )
        bits.append(found)
    bodies = {g.body for g in geoms}
    never = {frozenset(pair) for pair in excluded}
    if parents is not None:
        last = max((b for b in bodies if b is not None), default=-1)
        if last >= len(parents):
            raise ValueError(
                f"parents must be one for each body, got {len(parents)}; a geom is on body {last}."
            )
        for body, parent in enumerate(parents):
            if parent is not None and not 0 <= parent < body:
                raise ValueError(
                    f"the parent of body {body} must be a body before it, or None for the world, got "
                    f"{parent}."
                )
        bodies |= {None, *range(len(parents))}
        never |= {frozenset((i, p)) for i, p in enumerate(parents) if p is not None}
    for pair in excluded:
        if strange := [b for b in pair if b not in bodies and b is not None]:
            raise ValueError(f"excluded names body {strange[0]}, on which there is no geom.")
    pairs = [
        (geoms[i], geoms[j])
        for i, j in combinations(range(len(geoms)), 2)
        if geoms[i].body != geoms[j].body
        and bits[0][i] & bits[1][j] | bits[0][j] & bits[1][i]
        and frozenset((geoms[i].body, geoms[j].body)) not in never
    ]
    if not pairs:
        raise ValueError(
            "no pair of geoms is left that may touch: see groups, excluded and parents."
        )
    return pairs
