"""Convex sets of multipliers: projections, their derivatives and barrier proximal maps."""

from ._base import AbstractSet as AbstractSet
from ._box import Box as Box
from ._free import Free as Free
from ._half_line import HalfLine as HalfLine
from ._polytope import Polytope as Polytope
from ._product import Product as Product
from ._rolling_cone import RollingCone as RollingCone
from ._second_order_cone import SecondOrderCone as SecondOrderCone
from ._sliding_cone import SlidingCone as SlidingCone
