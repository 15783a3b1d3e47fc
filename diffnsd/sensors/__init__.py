"""Sensors: what instruments on a mechanism read, as pure functions of a solution."""

from ._base import (
    AbstractMeanSensor as AbstractMeanSensor,
    AbstractSensor as AbstractSensor,
    AbstractStateSensor as AbstractStateSensor,
    Sensors as Sensors,
)
from ._coordinates import (
    ActuatorForce as ActuatorForce,
    Coordinate as Coordinate,
    CoordinateRate as CoordinateRate,
    JointPosition as JointPosition,
    JointVelocity as JointVelocity,
)
from ._forces import (
    Accelerometer as Accelerometer,
    ContactForce as ContactForce,
    Force as Force,
    Torque as Torque,
    Touch as Touch,
)
from ._frames import (
    FrameAngularVelocity as FrameAngularVelocity,
    FrameAxis as FrameAxis,
    FrameLinearVelocity as FrameLinearVelocity,
    FrameOrientation as FrameOrientation,
    FramePosition as FramePosition,
    Gyro as Gyro,
    Magnetometer as Magnetometer,
    Velocimeter as Velocimeter,
)
from ._instant import (
    Frame as Frame,
    Instant as Instant,
    Interval as Interval,
    Site as Site,
)
from ._masses import (
    AngularMomentum as AngularMomentum,
    CentreOfMass as CentreOfMass,
    CentreOfMassVelocity as CentreOfMassVelocity,
)
