"""The quantities of a file that may be identified: units, bounds and priors by the kind of number."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ...io import Elements
from ...io._read import FREE, SLIDE
from ..fit import Quantity

NOT_NEGATIVE = (0.0, None)


class Kind(NamedTuple):
    """A kind of number.

    **Arguments:** `unit`; `bounds`; the deviation of its prior: `relative` to the largest entry, in `sizes`
    of the mechanism, or `absolute`, `None` without one; `turning`: the unit of a joint that turns, where that
    is another one. The lengths of tendons are taken as metres.
    """

    unit: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    relative: float | None = None
    sizes: float | None = None
    absolute: float | None = None
    turning: str | None = None


KINDS = {
    "friction": Kind("", NOT_NEGATIVE),
    "spin": Kind("m", NOT_NEGATIVE),
    "roll": Kind("m", NOT_NEGATIVE),
    "restitution": Kind("", (0.0, 1.0), absolute=0.1),
    "mass": Kind("kg", NOT_NEGATIVE, relative=0.3),
    "inertia": Kind("kg m²", NOT_NEGATIVE, relative=0.3),
    "size": Kind("m", NOT_NEGATIVE, relative=0.05),
    "pos": Kind("m", sizes=0.1),
    "ipos": Kind("m", sizes=0.1),
    "gravity": Kind("m/s²", relative=0.02),
    "damping": Kind("N s/m", NOT_NEGATIVE, turning="N m s/rad"),
    "stiffness": Kind("N/m", NOT_NEGATIVE, turning="N m/rad"),
    "armature": Kind("kg", NOT_NEGATIVE, turning="kg m²"),
    "frictionloss": Kind("N", NOT_NEGATIVE, turning="N m"),
    "density": Kind("kg/m³", NOT_NEGATIVE),
    "viscosity": Kind("Pa s", NOT_NEGATIVE),
    "wind": Kind("m/s"),
}
"""By the last part of a name. Masses and inertias are known to a third, sizes to 5 %, gravity to 2 %: without
forces that are known, motion determines only their ratios. Other numbers have no bounds and no prior."""
RESTITUTION, REBOUND = "contact/restitution", 0.1
"""Where a restitution that is free starts at least: slow rebounds are landings, whatever it is."""
LEAST_DIMENSIONS = {"friction": 2, "spin": 4, "roll": 6}
"""The condim of contacts in which a coefficient counts."""
DIRECTIONS = ("quat", "iquat", "axis")


def quantities(elements: Elements, names: list[str], size: float) -> dict[str, Quantity]:
    """The named quantities of a file.

    **Raises:** `ValueError` for a name that the file does not have, with names that are near; for a
    direction; for a number that is not finite; for a friction that does not count.
    """
    if len(names) == 0:
        raise ValueError(
            "--free names what to identify, such as geom/floor/friction or contact/restitution."
        )
    found = {}
    for name in dict.fromkeys(names):
        try:
            value = np.asarray(elements[name])
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        key = name.rpartition("/")[2]
        if key in DIRECTIONS:
            raise ValueError(
                f"{name} is a direction, not numbers that are free; it cannot be fitted."
            )
        if not np.all(np.isfinite(value)):
            raise ValueError(
                f"{name} is {value.tolist()} in the file; give it a finite value there."
            )
        kind = KINDS.get(key, Kind())
        found[name] = _quantity(_unit(elements, name, kind), kind, value, size)
    for name in found:
        if name.rpartition("/")[2] in LEAST_DIMENSIONS:
            _check_friction(elements, name, found)
    return found


def with_rebound(elements: Elements, names: list[str]) -> Elements:
    """The elements with a restitution that can change, if it is free: without rebound it has no effect."""
    if RESTITUTION not in names or elements[RESTITUTION] >= REBOUND:
        return elements
    return eqx.tree_at(
        lambda e: e[RESTITUTION], elements, jnp.full_like(elements[RESTITUTION], REBOUND)
    )


def _unit(elements: Elements, name: str, kind: Kind) -> str:
    """The unit of a number; of a free joint, which moves and turns, none that is one."""
    types = {joint[0]: joint[2] for joint in elements.plan.joints}
    joint = types.get(name.rpartition("/")[0], SLIDE)
    if kind.turning is None or joint == SLIDE:
        return kind.unit
    return "SI" if joint == FREE else kind.turning


def _quantity(unit: str, kind: Kind, value: np.ndarray, size: float) -> Quantity:
    largest = float(np.max(np.abs(value), initial=0.0))
    deviations = (
        None if kind.relative is None else kind.relative * largest,
        None if kind.sizes is None else kind.sizes * size,
        kind.absolute,
    )
    return Quantity(unit, kind.bounds, next((d for d in deviations if d), None))


def _check_friction(elements: Elements, name: str, free: dict[str, Quantity]) -> None:
    """Of two geoms the larger friction counts: the smaller one has no effect.

    **Raises:** `ValueError` if that of `name` counts in no pair.
    """
    key = name.rpartition("/")[2]
    geoms = [f"{geom[0]}/{key}" for geom in elements.plan.geoms]
    own, others = float(elements[name]), []
    for one, two, dimensions, given in elements.plan.pairs:
        if dimensions < LEAST_DIMENSIONS[key]:
            continue
        if given is not None:
            if name == f"{given}/{key}":
                return
            continue
        pair = geoms[one], geoms[two]
        if name in pair:
            other = pair[pair[0] == name]
            if other in free or float(elements[other]) < own:
                return
            others.append(other)
    if not others:
        raise ValueError(f"{name} has no effect: no contact with its friction is possible.")
    raise ValueError(
        f"{name} is {own:g}, but of two geoms the larger friction counts: that of {others[0]} is "
        f"{float(elements[others[0]]):g}. Set this one to 0 in the file, so that the free one counts."
    )
