"""Relations between the state and the local variables of contacts."""

from ._base import AbstractRelation as AbstractRelation
from ._body_points import BodyPointsPlane as BodyPointsPlane, tangents as tangents
from ._contact_frame import ContactFrame as ContactFrame
from ._first_order import (
    FirstOrderLinear as FirstOrderLinear,
    FirstOrderRelation as FirstOrderRelation,
    FirstOrderType1 as FirstOrderType1,
    FirstOrderType2 as FirstOrderType2,
)
from ._gap import GapRelation as GapRelation
