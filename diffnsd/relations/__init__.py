"""Relations between the state and the local variables of contacts."""

from ._base import AbstractRelation as AbstractRelation
from ._body_points import BodyPointsPlane as BodyPointsPlane, tangents as tangents
from ._contact_frame import ContactFrame as ContactFrame
from ._gap import GapRelation as GapRelation
