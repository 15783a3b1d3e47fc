"""Sensors: what instruments on a mechanism read, as pure functions of a solution.

    imu = Site(body=0, position=(0.1, 0.0, 0.05))
    sensors = Sensors({"gyro": Gyro(imu), "acc": Accelerometer(imu), "foot": Touch(sole, Sphere(0.02))})
    readings = sensors(model, simulate(model, ...))        # {"gyro": (t, 3), "acc": (t, 3), "foot": (t, 1)}
    Gyro(imu).at(model, t, state)                          # in one state, for a controller

Sensors of the state read it at the saved times; sensors of forces read means over the intervals between them.
"""

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
