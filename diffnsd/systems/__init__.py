"""Dynamical systems: mass matrix, force and configuration group."""

from . import elastic as elastic
from ._base import AbstractSystem as AbstractSystem, Kind as Kind
from ._chain import SpringChain as SpringChain
from ._euler_lagrange import EulerLagrangeSystem as EulerLagrangeSystem
from ._first_order import FirstOrderSystem as FirstOrderSystem, LinearField as LinearField
from ._first_order_form import (
    state_rate as state_rate,
    state_rate_jacobian as state_rate_jacobian,
    velocity_after as velocity_after,
)
from ._flow import LieFlow as LieFlow
from ._lagrangian import LagrangianSystem as LagrangianSystem
from ._newton_euler import NewtonEulerSystem as NewtonEulerSystem
from ._product import Gyrator as Gyrator, SystemProduct as SystemProduct
from ._springs import (
    SpringDamper as SpringDamper,
    Wrenches as Wrenches,
    wrench_at as wrench_at,
)
from .elastic import Elastic as Elastic
from .trees._joints import (
    AbstractTreeJoint as AbstractTreeJoint,
    Ball as Ball,
    Body as Body,
    Fixed as Fixed,
    Free as Free,
    Hinge as Hinge,
    Slide as Slide,
)
from .trees._multibody import Multibody as Multibody
