"""What may be wrong with an elastic body, in the user's terms."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._expects import listed
from ..._jax import concrete, eval_now, is_traced
from .._base import in_words
from ._base import check_lanes


def unused_coordinates(body: Any) -> np.ndarray:
    """Which coordinates `(p, w)` no element uses: angles of nodes without beams."""
    d = body.points.shape[1]
    width = max(part.width(d) for part in body.elements)
    unused = np.ones((body.points.shape[0], width), bool)
    for part in body.elements:
        unused[np.unique(np.asarray(part.nodes)), : part.width(d)] = False
    return unused


def check_layout(body: Any) -> str | None:
    """What is wrong with nodes, elements and prescribed coordinates, or `None`."""
    if not body.elements:
        return "elements is empty; give at least one group, such as Tetrahedra(...)"
    if body.points.ndim != 2 or body.points.shape[1] not in (1, 2, 3):
        return f"points must have shape (p, d) with d = 1, 2 or 3, got {body.points.shape}"
    p, d = body.points.shape
    if body.gravity is not None and body.gravity.shape != (d,):
        return f"gravity must have shape ({d},), got {body.gravity.shape}"
    for part in body.elements:
        name = type(part).__name__
        if d not in part.dimensions:
            wanted = " or ".join(map(str, part.dimensions))
            return f"{name} need points in {wanted} dimensions, and points has shape {(p, d)}"
        if problem := _missing(f"nodes of {name}", part.nodes, p):
            return problem
        check_lanes(part)
    unused = np.flatnonzero(np.all(unused_coordinates(body), axis=1))
    if unused.size:
        return (
            f"nodes {listed(unused)} belong to no element and have neither stiffness nor mass; remove "
            "them (mesh.compact())"
        )
    points = concrete(body.points)
    if not is_traced(points):
        for part in body.elements:
            found = part.flaws(np.asarray(points)[np.asarray(part.nodes)])
            if found is not None and np.any(found[1]):
                elements = listed(np.flatnonzero(found[1]))
                return f"elements {elements} of {type(part).__name__} {found[0]}"
    return _prescribed_twice(body) or _misplaced_loads(body)


def _missing(name: str, nodes, p: int) -> str | None:
    known = np.asarray(nodes)
    bad = np.unique(known[(known < 0) | (known >= p)])
    if not bad.size:
        return None
    return f"{name} has the numbers {listed(bad)}, but points has only the nodes 0 ... {p - 1}"


def _prescribed_twice(body: Any) -> str | None:
    unused = unused_coordinates(body)
    p, w = unused.shape
    taken = np.full((p, w), -1)
    for number, part in enumerate(body.prescribed):
        axes = np.array(range(w) if part.axes is None else part.axes)
        if np.any((axes < 0) | (axes >= w)):
            return f"axes of prescribed {number} are {listed(axes)}, but nodes have the axes 0 ... {w - 1}"
        nodes = np.asarray(part.nodes)
        if problem := _missing(f"nodes of prescribed {number}", nodes, p):
            return problem
        if np.unique(nodes).size < nodes.size or np.any(taken[nodes[:, None], axes] >= 0):
            seen = taken[nodes[:, None], axes]
            twice = nodes[np.any(seen >= 0, axis=1)]
            if not twice.size:
                values, counts = np.unique(nodes, return_counts=True)
                return f"nodes {listed(values[counts > 1])} are listed twice in prescribed {number}"
            return (
                f"nodes {listed(twice)} are prescribed twice along the same axis, by prescribed "
                f"{seen.max()} and {number}; take them out of one of them"
            )
        taken[nodes[:, None], axes] = number
    turning = (taken >= 0)[:, 3:] if w == 6 else np.zeros((p, 3), bool)
    if np.any(parted := np.any(turning, axis=1) & ~np.all(turning, axis=1)):
        return (
            f"of the rotation of nodes {listed(np.flatnonzero(parted))} some axes are prescribed and others "
            "are not; prescribe the axes 3, 4 and 5 together, or hold the others by stiff Beams"
        )
    if np.all((taken >= 0) | unused):
        return "every coordinate is prescribed, so nothing is left to move; take some out of prescribed"
    return None


def _misplaced_loads(body: Any) -> str | None:
    p, d = body.points.shape
    checks = (
        _missing(f"nodes of {type(load).__name__}", load.nodes_used, p) or load.misfit(d)
        for load in body.loads
    )
    return next((problem for problem in checks if problem), None)


def check_elastic(body: Any, q=None) -> str | None:
    """What is wrong with parameters that are known; with the mass and the elements at `q`, if it is given."""
    for part in body.elements:
        if problem := part.check():
            return problem
    if body.damping is not None and (problem := body.damping.check()):
        return problem
    if q is None or is_traced(q) or np.shape(q) != body.free.shape:
        return None
    known = concrete(body)
    mass = eval_now(lambda b: b.mass_times(jnp.ones_like(b.rest_nodes)), known)
    lacks, d = (np.asarray(mass) <= 0) & _is_free(body), body.points.shape[1]
    without = np.flatnonzero(np.any(lacks, axis=1))
    if without.size and not np.any(lacks[:, :d]):
        return (
            f"angles of nodes {listed(without)} have no inertia; give their PlanarBeams a `rotary` [kg m], "
            "such as line_density * height**2 / 12 (for statics use equilibrium)"
        )
    if without.size:
        return (
            f"nodes {listed(without)} have a coordinate without mass; give their elements a density, add "
            "Masses(nodes, mass), or prescribe it (for statics use equilibrium)"
        )
    found = inverted_elements(known, jnp.zeros((), q.dtype), concrete(q))
    return None if found is None else f"at the start {found}"


def inverted_elements(body: Any, t, q) -> str | None:
    """Which elements are inside out, with the remedy, or `None`."""
    return next(iter(in_words(eval_now(lambda b, q: b.flaws(t, q), body, q))), None)


def _is_free(body: Any) -> np.ndarray:
    return np.asarray(body.unknown) < body.free.shape[0]
