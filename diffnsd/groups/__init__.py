"""Lie groups: configurations, their tangent vectors and the maps between them."""

from ._base import AbstractGroup as AbstractGroup
from ._euclidean import Euclidean as Euclidean
from ._pose import Pose as Pose, PoseGroup as PoseGroup
from ._product import Product as Product
from ._so3 import (
    SO3 as SO3,
    quaternion_log as quaternion_log,
    quaternion_product as quaternion_product,
    rotate as rotate,
    rotation_matrix as rotation_matrix,
)
