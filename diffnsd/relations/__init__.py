"""Relations between the state and the local variables of contacts."""

from ._base import AbstractRelation as AbstractRelation, ContactPlaces as ContactPlaces
from ._compliant import CompliantRelation as CompliantRelation
from ._first_order import (
    FirstOrderLinear as FirstOrderLinear,
    FirstOrderRelation as FirstOrderRelation,
    FirstOrderType1 as FirstOrderType1,
    FirstOrderType2 as FirstOrderType2,
)
from ._gap import GapRelation as GapRelation
from ._joint import (
    Coordinates as Coordinates,
    Joint as Joint,
    JointCoupler as JointCoupler,
    JointLimits as JointLimits,
    ball_joint as ball_joint,
    cylindrical as cylindrical,
    fixed_joint as fixed_joint,
    hinge as hinge,
    prismatic as prismatic,
)
from ._part import OnPart as OnPart
from ._rates import (
    Harmonic as Harmonic,
    PrescribedVelocity as PrescribedVelocity,
    RateRelation as RateRelation,
)
from .contacts._body_points import BodyPointsPlane as BodyPointsPlane, tangents as tangents
from .contacts._contact_frame import ContactFrame as ContactFrame
from .contacts._neighbours import (
    NeighbourContacts as NeighbourContacts,
    neighbour_contacts as neighbour_contacts,
)
from .contacts._nodes import NodesHalfSpace as NodesHalfSpace
from .contacts._nodes_shapes import NodesShapes as NodesShapes
from .contacts._pairs import touching_pairs as touching_pairs
from .contacts._planar_contact import PlanarContact as PlanarContact
from .contacts._round import (
    capsule_on_plane as capsule_on_plane,
    disk_on_disk as disk_on_disk,
    disk_on_line as disk_on_line,
    sphere_on_plane as sphere_on_plane,
    sphere_on_sphere as sphere_on_sphere,
    sphere_on_surface as sphere_on_surface,
)
from .contacts._shape_contacts import Geom as Geom, shape_contacts as shape_contacts
