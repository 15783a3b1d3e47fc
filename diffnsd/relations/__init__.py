"""Relations between the state and the local variables of contacts."""

from ._base import AbstractRelation as AbstractRelation
from ._body_points import BodyPointsPlane as BodyPointsPlane, tangents as tangents
from ._contact_frame import ContactFrame as ContactFrame
from ._gap import GapRelation as GapRelation
from ._joint import (
    Joint as Joint,
    JointLimits as JointLimits,
    ball_joint as ball_joint,
    cylindrical as cylindrical,
    fixed_joint as fixed_joint,
    hinge as hinge,
    prismatic as prismatic,
)
from ._planar_contact import PlanarContact as PlanarContact
from ._rates import (
    Harmonic as Harmonic,
    PrescribedVelocity as PrescribedVelocity,
    RateRelation as RateRelation,
)
