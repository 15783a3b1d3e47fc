"""Small meshes for the 3D replay, as plain arrays in the body frame [m]."""

import numpy as np

# Positions of the pips on the faces of a die, in units of half the half width.
_PIPS = {
    1: [(0, 0)],
    2: [(-1, -1), (1, 1)],
    3: [(-1, -1), (0, 0), (1, 1)],
    4: [(-1, -1), (-1, 1), (1, -1), (1, 1)],
    5: [(-1, -1), (-1, 1), (0, 0), (1, -1), (1, 1)],
    6: [(-1, -1), (-1, 0), (-1, 1), (1, -1), (1, 0), (1, 1)],
}
# Opposite faces of a die sum to seven; the order of faces is +x, -x, +y, -y, +z, -z.
_FACES = (1, 6, 2, 5, 3, 4)


def box_edges(half: np.ndarray) -> np.ndarray:
    """The edges of a box with half widths `half` [m], shape (3,): segments, shape (12, 2, 3)."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=float)
    pairs = [
        (a, b) for a in range(8) for b in range(a) if np.abs(corners[a] - corners[b]).sum() == 2
    ]
    return (corners * half)[np.array(pairs)]


def box_pips(half: np.ndarray, sides: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Discs on the faces of a box, placed as on a die, so that its orientation is visible.

    Half widths `half` [m] have shape (3,). Returns vertices (V, 3) in m and triangles (F, 3) as
    vertex indices.
    """
    angles = np.linspace(0.0, 2 * np.pi, sides, endpoint=False)
    ring = np.column_stack([np.cos(angles), np.sin(angles)])
    fan = np.array([[0, 1 + k, 1 + (k + 1) % sides] for k in range(sides)])
    lift = 0.004 * half.min()
    vertices, triangles = [], []
    for face, number in enumerate(_FACES):
        axis, sign = face // 2, 1 - 2 * (face % 2)
        u, v = (axis + 1) % 3, (axis + 2) % 3
        radius = 0.15 * min(half[u], half[v])
        for a, b in _PIPS[number]:
            disc = np.zeros((sides + 1, 3))
            disc[:, axis] = sign * (half[axis] + lift)
            disc[:, u], disc[:, v] = 0.5 * a * half[u], 0.5 * b * half[v]
            disc[1:, [u, v]] += radius * ring
            triangles.append(fan + sum(len(part) for part in vertices))
            vertices.append(disc)
    return np.concatenate(vertices), np.concatenate(triangles)


def polyline(points: np.ndarray, at_most: int) -> np.ndarray:
    """Joins points (T, 3) by at most `at_most` segments, shape (S, 2, 3); keeps both end points."""
    keep = np.unique(
        np.linspace(0, len(points) - 1, min(len(points), at_most + 1)).round().astype(int)
    )
    kept = points[keep]
    return np.stack([kept[:-1], kept[1:]], axis=1)
