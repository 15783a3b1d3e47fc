"""Lie groups: their elements, tangent vectors, the maps between them, and group actions."""

from ._action import (
    AbstractAction as AbstractAction,
    CoadjointAction as CoadjointAction,
    Diagonal as Diagonal,
    IsospectralAction as IsospectralAction,
    LeftTranslation as LeftTranslation,
    ProductAction as ProductAction,
    RightTranslation as RightTranslation,
    SphereAction as SphereAction,
    StiefelAction as StiefelAction,
)
from ._base import AbstractGroup as AbstractGroup
from ._euclidean import Euclidean as Euclidean
from ._joint_space import JointSpace as JointSpace
from ._matrix import GL as GL, SL as SL, SO as SO, matrix_log as matrix_log
from ._planar import SE2 as SE2, SO2 as SO2
from ._pose import Pose as Pose, PoseGroup as PoseGroup
from ._product import Product as Product
from ._retraction import (
    AbstractRetraction as AbstractRetraction,
    Cayley as Cayley,
    Exponential as Exponential,
    QuaternionVector as QuaternionVector,
    dexpinv_series as dexpinv_series,
    truncation as truncation,
)
from ._rotation_vectors import RotationVectors as RotationVectors
from ._se3 import SE3 as SE3
from ._so3 import (
    SO3 as SO3,
    quaternion_log as quaternion_log,
    quaternion_product as quaternion_product,
    rotate as rotate,
    rotation_matrix as rotation_matrix,
)
from ._so3_matrix import (
    SO3Matrix as SO3Matrix,
    quaternion_from_matrix as quaternion_from_matrix,
)
