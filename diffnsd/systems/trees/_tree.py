"""The structure of a tree of joints as index tables and masks; nothing here depends on values.

Every joint is a link. A body with several joints has a chain of links, of which the last carries it; a
body without joints has one link. All sums over ancestors and subtrees are products with constant masks, and
poses are composed by doubling (every link with its ancestor, then with the ancestor's, ...), so that the size
of the program grows with the logarithm of the depth, and not with the number of bodies.

References: R. Featherstone, Rigid Body Dynamics Algorithms (2008), doi:10.1007/978-1-4899-7560-7, chapter 4;
W. D. Hillis, G. L. Steele, Data parallel algorithms (1986), doi:10.1145/7902.7903, for the doubling.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._joints import AbstractTreeJoint, Body, Fixed


@dataclass(frozen=True)
class Topology:
    """Which joints a tree has, hashable.

    **Arguments:** `parents`: parent of each body, −1 for the world; `joints`: the classes of the joints of
    each body.
    """

    parents: tuple[int, ...]
    joints: tuple[tuple[type[AbstractTreeJoint], ...], ...]

    @property
    def tables(self) -> "Tables":
        """The index tables, computed once for each structure."""
        return _tables(self)


@dataclass(frozen=True, eq=False)
class Tables:
    """Index tables and masks of `l` links, `b` bodies, `j` joints and `n` entries of `v`, NumPy arrays.

    **Arguments:**

    - `body`: body of each link `(l,)`; `first`: whether it is the first of its body; `joint`: its joint, −1
      for none; `kind`: the class of that joint.
    - `last`: the last link of each body `(b,)`.
    - `hops`: for each round of doubling the ancestor with which a link is composed, −1 for none, `(l,)`.
    - `root`: the first link of the tree of each link `(l,)`; `above`: which links are on the way from a link
      to the root, itself included, `(l, l)`.
    - `link`: the link that an entry of `v` moves, `(n,)`; `unit`: its direction in the frame of that link for
      rotations and translations that are not along the axis of a joint, `(n, 3)`; `by_axis`, `turns`,
      `in_world`: whether it is about or along an axis, a rotation, along an axis of the world, `(n,)`.
    - `moves`: whether an entry of `v` moves a link, `(l, n)`.
    - `q_start`, `v_start`: first coordinate and rate of each joint `(j,)`.
    """

    body: np.ndarray
    first: np.ndarray
    joint: np.ndarray
    kind: tuple[type[AbstractTreeJoint], ...]
    last: np.ndarray
    hops: tuple[np.ndarray, ...]
    root: np.ndarray
    above: np.ndarray
    link: np.ndarray
    unit: np.ndarray
    by_axis: np.ndarray
    turns: np.ndarray
    in_world: np.ndarray
    moves: np.ndarray
    q_start: np.ndarray
    v_start: np.ndarray

    @property
    def rotations(self) -> tuple[int, ...]:
        """Where the rotations begin in `v`."""
        found = [(int(s), k) for s, k in zip(self.v_start, self._of_joints(), strict=True)]
        return tuple(s + k.rates - 3 for s, k in found if k.rates >= 3)

    def _of_joints(self) -> list[type[AbstractTreeJoint]]:
        return [k for i, k in enumerate(self.kind) if self.joint[i] >= 0]


def topology(bodies: Sequence[Body]) -> Topology:
    """The structure of bodies; raises `ValueError` where they are no tree."""
    for i, body in enumerate(bodies):
        if body.parent is not None and not 0 <= body.parent < i:
            before = f"come before it (0 to {i - 1}), or be None" if i else "be None"
            raise ValueError(
                f"body {i} has parent {body.parent}; the parent must {before} for the world."
            )
        free = any(j.moves_freely for j in body.joints)
        if free and (body.parent is not None or len(body.joints) > 1):
            raise ValueError(
                f"body {i} is Free: it must have no parent and no other joint; use Ball or Slide "
                "joints to move it with respect to a parent."
            )
    parents = tuple(-1 if b.parent is None else b.parent for b in bodies)
    return Topology(parents, tuple(tuple(type(j) for j in b.joints) for b in bodies))


@functools.lru_cache(maxsize=256)
def _tables(tree: Topology) -> Tables:
    body, first, joint, kind, parent, last = [], [], [], [], [], []
    count = 0
    for i, joints in enumerate(tree.joints):
        above = last[tree.parents[i]] if tree.parents[i] >= 0 else -1
        for k, each in enumerate(joints or (Fixed,)):
            parent.append(above)
            above = len(body)
            body.append(i)
            first.append(k == 0)
            kind.append(each)
            joint.append(count if joints else -1)
            count += bool(joints)
        last.append(above)
    sizes = [k for k, j in zip(kind, joint, strict=True) if j >= 0]
    q_start = np.cumsum([0, *(k.coordinates for k in sizes)])[:-1].astype(np.int32)
    v_start = np.cumsum([0, *(k.rates for k in sizes)])[:-1].astype(np.int32)
    link, unit, by_axis, turns, in_world = [], [], [], [], []
    for i, k in enumerate(kind):
        for row in range(k.rates):
            link.append(i)
            by_axis.append(k.rates == 1)
            turns.append(not (k.slides or (k.moves_freely and row < 3)))
            in_world.append(k.moves_freely and row < 3)
            unit.append(np.zeros(3) if k.rates == 1 else np.eye(3)[row % 3])
    n, count = len(link), len(body)
    above = np.eye(count, dtype=bool)
    for i, p in enumerate(parent):
        if p >= 0:
            above[i] |= above[p]
    return Tables(
        body=np.array(body, np.int32),
        first=np.array(first),
        joint=np.array(joint, np.int32),
        kind=tuple(kind),
        last=np.array(last, np.int32),
        hops=_hops(np.array(parent, np.int32)),
        root=np.argmax(above, axis=1).astype(np.int32),
        above=above,
        link=np.array(link, np.int32),
        unit=np.array(unit).reshape(n, 3),
        by_axis=np.array(by_axis, bool),
        turns=np.array(turns, bool),
        in_world=np.array(in_world, bool),
        moves=above[:, np.array(link, np.int32)] if n else np.zeros((count, 0), bool),
        q_start=q_start,
        v_start=v_start,
    )


def _hops(parent: np.ndarray) -> tuple[np.ndarray, ...]:
    """Ancestors at distances 1, 2, 4, ... until none is left."""
    hops = []
    while np.any(parent >= 0):
        hops.append(parent)
        parent = np.where(parent >= 0, parent[np.maximum(parent, 0)], -1).astype(np.int32)
    return tuple(hops)
