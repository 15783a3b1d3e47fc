"""What a file describes, without its numbers."""

import dataclasses

Rows = tuple[tuple, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The elements of a file by name, and how they are connected; bodies are numbered without the world.

    **Arguments:**

    - `bodies`: `(name, parent)`, `None` for the world.
    - `joints`: `(name, body, type, entry of q, entry of v)` with the type of MuJoCo.
    - `geoms`: `(name, type, body)`.
    - `pairs`: `(geom1, geom2, dimensions, name)`: of contacts that are possible; dimensions (condim) 1 is
      without friction, 4 and 6 with that of spinning and rolling, and the name is that of the element whose
      friction counts, `None` for the larger one.
    - `sites`: `(name, body)`.
    - `tendons`: `(name, ((joint, coefficient), ...), ((site, site, divisor), ...), ((site, site, divisor,
      geom, side site), ...))`: a fixed one has joints, a spatial one straight segments, and segments that
      may wrap around a geom; without a side site its number is −1.
    - `actuators`: `(name, type of transmission, joint or tendon)`.
    - `activations`: `(actuator, type of dynamics, entry of act, limited)`.
    - `equalities`: `(name, type, first, second)`, bodies, joints or tendons by the type.
    - `limited`, `rubbing`: names of joints and tendons with limits, and with dry friction.
    - `sensors`: `(name, what makes it, ...)`, see `sensor_plan`.
    - `is_in_fluid`: whether a medium resists the motion; `carries_weight`: whether the weight of a body is
      compensated.
    """

    bodies: Rows = ()
    joints: Rows = ()
    geoms: Rows = ()
    pairs: Rows = ()
    sites: Rows = ()
    tendons: Rows = ()
    actuators: Rows = ()
    activations: Rows = ()
    equalities: Rows = ()
    limited: tuple[str, ...] = ()
    rubbing: tuple[str, ...] = ()
    is_in_fluid: bool = False
    carries_weight: bool = False
    sensors: Rows = ()
