"""Coordinates of a tree of joints: numbers and rotations in one array."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float

from .._block_diagonal import BlockDiagonal
from .._jax import entries_at
from .._types import Config, Scalar, Vector
from ._base import Square, shape_problem
from ._euclidean import Euclidean
from ._product import AbstractDirectProduct
from ._rotation_vectors import RotationVectors
from ._so3 import SO3


class JointSpace(AbstractDirectProduct):
    """`R^e x SO(3)^r`, with elements stored in one array, joint after joint.

    Elements have shape `(n + r,)`: angles and displacements as they are, each rotation as a unit
    quaternion, scalar first. Tangent vectors have shape `(n,)`: rates, and the angular velocity of each
    rotation in the frame that it turns. This is the order of `qpos` and `qvel` in MuJoCo.

    **Arguments:** `n`: dimension; `rotations`: where the three entries of each rotation begin in a
    tangent vector, in increasing order; `rotation`: how they are stored, `SO3()`, or `RotationVectors()`,
    with which elements have shape `(n,)` and the places of tangent vectors.
    """

    n: int
    rotations: tuple[int, ...] = ()
    rotation: SO3 | RotationVectors = SO3()

    skew_ad = True

    @property
    def dim(self) -> int:
        return self.n

    @property
    def size(self) -> int:
        """Number of entries of an element, `n + r`."""
        return self.n + (self._width - 3) * len(self.rotations)

    @property
    def _width(self) -> int:
        """Number of entries of a stored rotation."""
        return jax.eval_shape(self.rotation.identity).shape[0]

    def _places(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Entries of the numbers `(e,)` and of the rotations `(r, width)`; `width` is 3 or 4."""
        starts = np.array(self.rotations, np.int32) + (width - 3) * np.arange(len(self.rotations))
        turning = (starts[:, None] + np.arange(width)).astype(np.int32)
        rest = np.setdiff1d(np.arange(self.n + (width - 3) * len(starts), dtype=np.int32), turning)
        return rest, turning

    def _split(self, x: Config | Vector) -> Any:
        numbers, turning = self._places(self._width if x.shape[0] == self.size else 3)
        return entries_at(x, numbers), entries_at(x, turning)

    def _each(self, name: str, *shares) -> Any:
        """The results for the numbers and, with a leading axis, for the rotations."""
        method = getattr(self.rotation, name)
        numbers = getattr(Euclidean(self.n - 3 * len(self.rotations)), name)
        turns = [s[1] for s in shares]
        if len(self.rotations) == 1:
            out = jax.tree.map(lambda x: x[None], method(*(x[0] for x in turns)))
        else:
            out = jax.vmap(method)(*turns)
        return numbers(*(s[0] for s in shares)), out

    def _order(self, width: int) -> np.ndarray:
        """Where each entry stands among the numbers, followed by the rotations."""
        return np.argsort(np.concatenate([x.reshape(-1) for x in self._places(width)]))

    def _together(self, values, width: int) -> Array:
        return entries_at(jnp.concatenate([values[0], values[1].reshape(-1)]), self._order(width))

    def _element(self, values) -> Config:
        return self._together(values, self._width)

    def _vector(self, values) -> Vector:
        return self._together(values, 3)

    def _matrix(self, values) -> Square:
        numbers, turns = values
        whole = jax.scipy.linalg.block_diag(
            numbers, BlockDiagonal(jnp.moveaxis(turns, 0, -1)).dense()
        )
        order = self._order(3)
        return entries_at(entries_at(whole, order), order, 1)

    def _largest(self, values) -> Scalar:
        return jnp.maximum(values[0], jnp.max(values[1]))

    def own_columns(self, places: np.ndarray) -> np.ndarray | None:
        turning = self._places(self._width)[1]
        if np.any(np.isin(places, turning)):
            return None
        # A quaternion has one entry more than its tangent vector.
        before = np.sum(turning[:, 0] < places[..., None], axis=-1)
        return places - (self._width - 3) * before

    def identity(self) -> Config:
        numbers, turning = self._places(self._width)
        return self._element(
            (jnp.zeros(len(numbers)), jnp.tile(self.rotation.identity(), (len(turning), 1)))
        )

    def hat(self, xi: Vector) -> Square:
        """Translations of the numbers, then the skew matrices of the rotations."""
        numbers, turns = self._each("hat", self._split(xi))
        return jax.scipy.linalg.block_diag(numbers, *turns)

    def vee(self, matrix: Square) -> Vector:
        first = self.n - 3 * len(self.rotations) + 1
        blocks = [matrix[i : i + 3, i : i + 3] for i in range(first, len(matrix), 3)]
        numbers = Euclidean(first - 1).vee(matrix[:first, :first])
        return self._vector((numbers, jnp.stack([SO3().vee(b) for b in blocks])))

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        numbers, turns = self._each("casimirs", self._split(mu))
        return jnp.concatenate([numbers, turns.reshape(-1)])

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def check(self, q: Config) -> str | None:
        if problem := shape_problem("q", q, (self.size,)):
            return problem
        turning = np.asarray(q)[self._places(self._width)[1]]
        return next((m for m in map(self.rotation.check, turning) if m), None)
