"""Contact laws: a convex set of multipliers and a bias of the local velocity."""

from ._base import (
    AbstractLaw as AbstractLaw,
    Context as Context,
    check_range as check_range,
    parameter as parameter,
)
from ._cohesive import Cohesive as Cohesive
from ._complementarity import Complementarity as Complementarity
from ._coulomb_friction import CoulombFriction as CoulombFriction
from ._dry_friction import DryFriction as DryFriction
from ._equality import Equality as Equality
from ._fremond import fremond_impact as fremond_impact
from ._gap_stabilized import GapStabilized as GapStabilized
from ._mixed import Mixed as Mixed
from ._newton_impact import NewtonImpact as NewtonImpact
from ._normal_cone import NormalCone as NormalCone
from ._relay import Relay as Relay
from ._rolling_friction import RollingFriction as RollingFriction
