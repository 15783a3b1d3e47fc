"""Meshes: generators, boundaries, and files by way of meshio."""

import itertools
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._arguments import AbstractChecked, checked_arguments
from ..._expects import listed, refuse_below
from ..._jax import eval_now
from ..._numerics import as_float
from ..._optional import require


class Mesh(AbstractChecked):
    """Nodes and cells of one kind.

    **Arguments:** `points`: coordinates at rest [m], `(p, d)`; `cells`: node numbers, `(e, k)`, `k` = 2 for
    bars and beams, 3 for triangles, 4 for tetrahedra.

    **Raises:** `ValueError` if shapes do not fit, or a cell has a node that is not there.
    """

    points: Float[Array, "p d"]
    cells: Int[Array, "e k"]

    def __init__(self, points, cells):
        self.points = as_float(points)
        array = np.asarray(cells)
        if self.points.ndim != 2 or array.ndim != 2:
            raise ValueError(
                f"points must have shape (p, d) and cells (e, k), got {self.points.shape} and "
                f"{array.shape}."
            )
        p = self.points.shape[0]
        bad = np.flatnonzero(np.any((array < 0) | (array >= p), axis=1))
        if bad.size:
            raise ValueError(
                f"cells {listed(bad)} have node numbers outside of 0 ... {p - 1}, the rows of points; "
                "numbers begin at 0."
            )
        self.cells = eval_now(jnp.asarray, array.astype(np.int32))

    def where(self, condition: Callable) -> np.ndarray:
        """Numbers of the nodes whose coordinates `condition(x)` accepts, `x` of shape `(d, p)`."""
        return np.flatnonzero(np.asarray(condition(np.asarray(self.points).T)))

    def boundary(self) -> np.ndarray:
        """Facets that belong to one cell only, `(f, k − 1)`, outward (of triangles: cell on the left).

        **Raises:** `ValueError` for other cells than triangles and tetrahedra.
        """
        cells, k = np.asarray(self.cells), self.cells.shape[1]
        faces = {3: [(0, 1), (1, 2), (2, 0)], 4: [(0, 2, 1), (0, 1, 3), (1, 2, 3), (0, 3, 2)]}.get(
            k
        )
        if faces is None:
            raise ValueError(
                f"cells of {k} nodes have no facets; boundary() is for triangles and tetrahedra. Choose "
                "nodes by where(condition)."
            )
        facets = cells[:, np.array(faces)].reshape(-1, k - 1)
        _, first, count = np.unique(
            np.sort(facets, axis=1), axis=0, return_index=True, return_counts=True
        )
        return facets[np.sort(first[count == 1])]

    def hinges(self) -> np.ndarray:
        """Edges between two triangles with their opposite corners, `(h, 4)`, for `Hinges`.

        **Raises:** `ValueError` for other cells than triangles.
        """
        cells = np.asarray(self.cells)
        if cells.shape[1] != 3:
            raise ValueError(
                f"hinges() are edges between triangles, and these cells have {cells.shape[1]} nodes; of a "
                "body's surface take Mesh(mesh.points, mesh.boundary()).hinges()."
            )
        turns = np.concatenate([np.roll(cells, -i, axis=1) for i in range(3)])
        keys = np.sort(turns[:, :2], axis=1)
        order = np.lexsort(keys.T)
        keys, turns = keys[order], turns[order]
        pairs = np.flatnonzero(np.all(keys[1:] == keys[:-1], axis=1))
        return np.concatenate([turns[pairs], turns[pairs + 1, 2:]], axis=1)

    def oriented(self) -> "Mesh":
        """The same cells, with two nodes exchanged where triangles or tetrahedra are inverted."""
        points, cells = np.asarray(self.points), np.array(self.cells)
        edges = points[cells[:, 1:]] - points[cells[:, :1]]
        if edges.shape[1] != edges.shape[2]:
            return self
        turned = np.linalg.det(edges) < 0
        cells[turned, -2:] = cells[turned, -2:][:, ::-1]
        return Mesh(self.points, cells)

    def compact(self) -> "Mesh":
        """The mesh without the nodes that no cell uses; the others keep their order."""
        used, cells = np.unique(np.asarray(self.cells), return_inverse=True)
        return Mesh(self.points[used], cells.reshape(self.cells.shape))


@checked_arguments
def bar(length: float, n: int, dimension: int = 1) -> Mesh:
    """A straight line along the first axis, from 0 to `length` [m], in `n` equal cells."""
    refuse_below("length", length, 0, strictly=True)
    refuse_below("n", n, 1)
    _refuse_dimension(dimension, 1)
    points = np.zeros((n + 1, dimension))
    points[:, 0] = np.linspace(0, length, n + 1)
    first = np.arange(n)
    return Mesh(points, np.stack([first, first + 1], axis=1))


@checked_arguments
def sheet(size: tuple[float, float], shape: tuple[int, int], dimension: int = 2) -> Mesh:
    """A rectangle from the origin in the plane of the first two axes, as triangles.

    **Arguments:** `size`: `(a, b)` [m]; `shape`: number of squares along each, with two triangles in each,
    whose diagonals alternate; `dimension`: 2, or 3 for `Membranes`.
    """
    _refuse_dimension(dimension, 2)
    points, corners = _grid(size, shape)
    points = np.pad(points, ((0, 0), (0, dimension - 2)))
    a, b, c, d = (corners[bits] for bits in itertools.product((0, 1), repeat=2))
    odd = np.add.outer(np.arange(shape[0]), np.arange(shape[1])).reshape(-1, 1) % 2 == 1
    first = np.where(odd, np.stack([a, c, b], axis=1), np.stack([a, c, d], axis=1))
    second = np.where(odd, np.stack([b, c, d], axis=1), np.stack([a, d, b], axis=1))
    return Mesh(points, np.concatenate([first, second], axis=1).reshape(-1, 3))


@checked_arguments
def block(size: tuple[float, float, float], shape: tuple[int, int, int]) -> Mesh:
    """A box from the origin as tetrahedra, six in each of `shape` cells along the axes.

    **Arguments:** `size`: `(a, b, c)` [m]; `shape`: number of cells along each.
    """
    points, corners = _grid(size, shape)
    cells = []
    # Six paths along the edges of a cell from its first corner to its last one (Kuhn).
    for path in itertools.permutations(range(3)):
        bits, nodes = [0, 0, 0], [corners[(0, 0, 0)]]
        for axis in path:
            bits[axis] = 1
            nodes.append(corners[tuple(bits)])
        odd = path in ((0, 2, 1), (1, 0, 2), (2, 1, 0))
        cells.append(np.stack(nodes[:2] + nodes[:1:-1] if odd else nodes, axis=1))
    return Mesh(points, np.stack(cells, axis=1).reshape(-1, 4))


def _refuse_dimension(dimension: int, least: int, most: int = 3) -> None:
    if not least <= dimension <= most:
        raise ValueError(f"dimension must be from {least} to {most}, got {dimension}.")


def _grid(size, shape):
    """Points of a regular grid, and for each corner of its cells the numbers of the nodes there."""
    if len(size) != len(shape) or any(n < 1 for n in shape) or any(s <= 0 for s in size):
        raise ValueError(
            f"size and shape must be positive and of one length, got {size} and {shape}."
        )
    axes = [np.linspace(0, s, n + 1) for s, n in zip(size, shape, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    number = np.arange(points[..., 0].size).reshape(points.shape[:-1])
    corners = {}
    for bits in itertools.product((0, 1), repeat=len(shape)):
        part = tuple(slice(b, b + n) for b, n in zip(bits, shape, strict=True))
        corners[bits] = number[part].reshape(-1)
    return points.reshape(-1, len(shape)), corners


CELLS = {"line": 2, "triangle": 3, "tetra": 4}
"""Kinds of cells that `read_mesh` takes, in the words of meshio, and their numbers of nodes."""


@checked_arguments
def read_mesh(path: str | Path, cells: str = "tetra", dimension: int | None = None) -> Mesh:
    """Reads the cells of one kind from a mesh file of any format that meshio knows (gmsh, VTK, ...).

    **Arguments:** `path`; `cells`: `"tetra"`, `"triangle"` or `"line"`; `dimension`: keep only the first
    coordinates, default all.

    **Returns:** a `Mesh`, without nodes that these cells do not use, and with positive orientation.

    **Raises:** `ImportError` without meshio (extra `mesh`); `ValueError` if the file has no such cells, with
    those that it has.
    """
    if cells not in CELLS:
        raise ValueError(f"cells must be one of {', '.join(CELLS)}, got {cells!r}.")
    meshio = require("meshio", "reading mesh files", "mesh")
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: there is no file {path}; give that of a mesh.")
    try:
        found = meshio.read(path)
    except ImportError:
        raise  # of a reader that the format needs
    except SystemExit as error:  # meshio ends the program where no reader takes the file
        raise _unreadable(path, "meshio has no reader for what is in it") from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise _unreadable(path, reason) from error
    parts = [part.data for part in found.cells if part.type == cells]
    if not parts:
        others = {part.type: 0 for part in found.cells}
        for part in found.cells:
            others[part.type] += len(part.data)
        names = ", ".join(f"{count} of type {name}" for name, count in others.items()) or "none"
        raise ValueError(
            f"{path.name} has no cells of type {cells}, but {names}; pass cells=... for one of "
            f"{', '.join(CELLS)}, or mesh it anew with linear elements."
        )
    points = np.asarray(found.points, float)
    if dimension is not None:
        _refuse_dimension(dimension, 1, points.shape[1])
    points = points[:, :dimension]
    if not np.all(np.isfinite(points)):
        raise ValueError(f"the file {path} has coordinates that are not finite; mesh it anew.")
    return Mesh(points, np.concatenate(parts)).compact().oriented()


def _unreadable(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"the file {path} cannot be read as a mesh ({reason}); copy or write it again, in a format of meshio "
        "that its ending names."
    )
