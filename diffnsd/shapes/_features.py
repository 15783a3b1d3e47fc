"""The features with which two convex shapes touch: corner or curved patch, edge, or flat face."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._cores import Core
from ._separation import separation

POINT, EDGE1, EDGE2, CROSSED, FACE1, FACE2 = range(6)
"""Kinds of contact. Points (corners and curved patches) of both; an edge of shape 1 or of shape 2 and a
point; edges of both; a flat face of shape 1 or of shape 2 and anything."""
ROUNDS = 2
"""How often features are chosen anew."""
NEWTON = 4
"""Newton steps for the direction in each round."""
PARALLEL = 1e-6
"""Largest sine of an angle between edges that have no crossing."""


def unit(x: Float[Array, "3"], otherwise: Array) -> Float[Array, "3"]:
    """A vector of length 1; another one where the length is zero."""
    square = jnp.sum(x * x)
    usable = square > jnp.finfo(x.dtype).tiny ** 0.5
    return jnp.where(usable, x / jnp.sqrt(jnp.where(usable, square, 1)), otherwise)


def orthogonal(n: Float[Array, "3"]) -> Float[Array, "3"]:
    """Some unit vector orthogonal to a unit vector."""
    axis = jax.nn.one_hot(jnp.argmin(jnp.abs(n)), 3, dtype=n.dtype)
    return unit(jnp.cross(n, axis), axis)


def newton_step(
    core1: Core, core2: Core, n: Array, between: Array, edge: Array, on_edge: Array
) -> Float[Array, "3"]:
    """A step towards the direction in which the distance of two features is stationary.

        φ(n) = n · d − max n · a1 − max n · a2,    |n| = 1,    n · e = 0 where there is an edge e

    From the stationary point itself it gives the derivative of the direction (implicit functions). It does
    not move where the second derivative of `φ` on the sphere is singular.

    **Arguments:** `n`: constant; `between`: `d`, from a vertex of shape 2 to one of shape 1 [m].
    """
    across = orthogonal(n)
    edge = jnp.where(on_edge, unit(edge, across), across)
    base = unit(n - jnp.where(on_edge, jnp.dot(edge, n), 0) * edge, n)
    frame = jnp.stack([edge, jnp.cross(base, edge)])
    gradient = between - core1.offset(base) - core2.offset(base)
    (a, b), (_, c) = _stiffness(*jax.lax.stop_gradient((core1, core2, base, frame, gradient)))
    x, y = frame @ gradient
    a, b, x = jnp.where(on_edge, c, a), jnp.where(on_edge, 0, b), jnp.where(on_edge, 0, x)
    determinant, size = a * c - b * b, (jnp.abs(a) + jnp.abs(c)) ** 2
    tiny = 1e7 * jnp.finfo(n.dtype).eps * (core1.scale + core2.scale + jnp.max(jnp.abs(between)))
    usable = (jnp.abs(determinant) > 1e-9 * size) & (size > tiny**2)
    inverse = jnp.where(usable, 1 / jnp.where(usable, determinant, 1), 0)
    step = inverse * jnp.stack([c * x - b * y, a * y - b * x])
    return unit(base + step @ frame, base)


def _stiffness(
    core1: Core, core2: Core, n: Array, frame: Array, gradient: Array
) -> Float[Array, "2 2"]:
    """Minus the second derivative of the distance of two features on the sphere of directions."""
    bend = core1.curvature(n) + core2.curvature(n)
    return frame @ bend @ frame.T + jnp.dot(n, gradient) * jnp.eye(2, dtype=n.dtype)


def edge_ends(core: Core, k: Int[Array, ""]) -> Float[Array, "2 3"]:
    """The two ends of an edge; a vertex twice of a shape without edges."""
    if not core.edges:
        return jnp.stack([core.vertices[0], core.vertices[0]])
    return core.vertices[jnp.asarray(core.edges)[k]]


def _nearest_edge(core: Core, n: Float[Array, "3"]) -> Int[Array, ""]:
    """The edge that lies furthest out in direction `n`, by the end that lies less so."""
    if not core.edges:
        return jnp.zeros((), int)
    return jnp.argmax(jnp.min((core.vertices @ n)[np.array(core.edges)], axis=1))


def features_at(core1: Core, core2: Core, n: Float[Array, "3"]) -> tuple:
    """Vertices and edges that touch first along `n`: indices `(vertex1, vertex2, edge1, edge2)`."""
    return (
        jnp.argmin(core1.vertices @ n),
        jnp.argmax(core2.vertices @ n),
        _nearest_edge(core1, -n),
        _nearest_edge(core2, n),
    )


def parallel(arm1: Array, arm2: Array, sine: float) -> Array:
    """Whether the sine of the angle between two edges is less than a number."""
    normal = jnp.cross(arm1, arm2)
    size = jnp.sum(arm1 * arm1) * jnp.sum(arm2 * arm2)
    return jnp.sum(normal * normal) <= sine**2 * size


def crossed(arm1: Array, arm2: Array, n: Array) -> Float[Array, "3"]:
    """The unit normal of two edges on the side of `n`; `n` where they are parallel."""
    normal = jnp.cross(arm1, arm2)
    normal = jnp.where(jnp.dot(normal, n) < 0, -normal, normal)
    return unit(jnp.where(parallel(arm1, arm2, PARALLEL), n, normal), n)


def _best_face(core1: Core, core2: Core, normals: Array) -> tuple[Array, Array]:
    if not len(normals):
        return jnp.zeros((), int), jnp.array(-jnp.inf, normals.dtype)
    values = separation(core1, core2, normals)
    k = jnp.argmax(values)
    return k, values[k]


def _improved(core1: Core, core2: Core, n: Array) -> tuple[Float[Array, "4 3"], Bool[Array, " 4"]]:
    """Directions for the kinds of contact without faces, from the features at a direction; which exist."""
    vertex1, vertex2, edge1, edge2 = features_at(core1, core2, n)
    ends1, ends2 = edge_ends(core1, edge1), edge_ends(core2, edge2)
    arm1, arm2 = ends1[1] - ends1[0], ends2[1] - ends2[0]
    point1, point2 = core1.vertices[vertex1], core2.vertices[vertex2]
    between = jnp.stack([point1 - point2, ends1[0] - point2, point1 - ends2[0]])
    edges = jnp.stack([arm1, arm1, arm2])
    on_edge = np.array([False, True, True])

    def refine(between, edge, on_edge):
        def step(n, _):
            return newton_step(core1, core2, n, between, edge, on_edge), None

        return jax.lax.scan(step, n, None, length=NEWTON)[0]

    found = jax.vmap(refine)(between, edges, on_edge)
    exists = [True, bool(core1.edges), bool(core2.edges), ~parallel(arm1, arm2, PARALLEL)]
    return jnp.concatenate([found, crossed(arm1, arm2, n)[None]]), jnp.stack(exists)


def choose(core1: Core, core2: Core, n: Float[Array, "3"]) -> tuple:
    """The direction of the signed distance and the features that touch, from a direction near it; constants.

    Of the directions of all kinds of contact the one is taken along which the shapes are furthest apart: none
    can be better than the true one.

    **Returns:** `n`, the kind, and indices `(vertex1, vertex2, edge1, edge2, face1, face2)`.
    """
    core1, core2, n = jax.lax.stop_gradient((core1, core2, n))
    face1, value1 = _best_face(core1, core2, -core1.normals)
    face2, value2 = _best_face(core1, core2, core2.normals)
    values_of_faces = jnp.stack([value1, value2])
    normal1 = -core1.normals[face1] if len(core1.normals) else n
    normal2 = core2.normals[face2] if len(core2.normals) else n
    # What is flatter is preferred where there is a tie.
    scale = 1e3 * jnp.finfo(n.dtype).eps * (core1.scale + core2.scale)
    bonus = jnp.array([0, 1, 1, 2, 3, 3, -1], n.dtype)

    def round_(n, _):
        tried, exists = _improved(core1, core2, n)
        values = jnp.where(exists, separation(core1, core2, tried), -jnp.inf)
        before = separation(core1, core2, n[None])
        values = jnp.concatenate([values, values_of_faces, before]) + bonus * scale
        kind = jnp.argmax(values)
        return jnp.concatenate([tried, jnp.stack([normal1, normal2, n])])[kind], kind

    n, kinds = jax.lax.scan(round_, n, None, length=ROUNDS)
    kind = jnp.where(kinds[-1] == 6, POINT, kinds[-1])
    return n, kind, (*features_at(core1, core2, n), face1, face2)
