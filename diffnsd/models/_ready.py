"""The ready models by name, each with a start, an integrator and times that show it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .._types import State
from ..integrators import AbstractIntegrator, MoreauJean
from ..model import Model
from ._bouncing_ball import ball_state, bouncing_ball
from ._pendulum_wall import pendulum_state, pendulum_wall
from ._sliding_block import block_state, sliding_block
from ._tossed_cube import cube_state, tossed_cube


@dataclass(frozen=True)
class ReadyModel:
    """A model with everything that a simulation of it needs.

    **Arguments:** `summary`: what one sees, one line; `model`; `state0`; `integrator`; `t1`, `dt`:
    end and step [s], from 0; `coordinates`: names of the entries of `v`, with units.
    """

    summary: str
    model: Model
    state0: State
    integrator: AbstractIntegrator
    t1: float
    dt: float
    coordinates: tuple[str, ...]


def _bouncing_ball() -> ReadyModel:
    return ReadyModel(
        "a ball dropped from 1 m that bounces with restitution 0.8",
        bouncing_ball(e=0.8),
        ball_state(0.0, height=1.0),
        MoreauJean(),
        3.0,
        1e-3,
        ("height [m/s]",),
    )


def _sliding_block() -> ReadyModel:
    return ReadyModel(
        "a block with 2 m/s that dry friction of 0.3 stops after 0.68 m",
        sliding_block(mu=0.3),
        block_state(0.0, speed=2.0),
        MoreauJean(),
        1.0,
        1e-3,
        ("x [m/s]", "y [m/s]", "z [m/s]"),
    )


def _pendulum_wall() -> ReadyModel:
    return ReadyModel(
        "a pendulum released at 60 degrees that strikes a wall below its pivot",
        pendulum_wall(e=0.8),
        pendulum_state(math.pi / 3),
        MoreauJean(),
        4.0,
        1e-3,
        ("angle [rad/s]",),
    )


def _tossed_cube() -> ReadyModel:
    return ReadyModel(
        "a cube of 10 cm that is tossed on a table, tumbles and comes to rest",
        tossed_cube(mu=0.18),
        cube_state((0.0, 0.0, 0.25), (1.0, 0.0, 0.0, 0.0), (1.2, 0.3, 0.5), (3.0, 9.0, 2.0)),
        MoreauJean(theta=1.0),
        1.5,
        1 / 592,
        ("x [m/s]", "y [m/s]", "z [m/s]", "spin 1 [rad/s]", "spin 2 [rad/s]", "spin 3 [rad/s]"),
    )


READY: dict[str, Callable[[], ReadyModel]] = {
    "bouncing_ball": _bouncing_ball,
    "sliding_block": _sliding_block,
    "pendulum_wall": _pendulum_wall,
    "tossed_cube": _tossed_cube,
}
"""What `diffnsd simulate NAME` runs. A call makes the arrays, in the precision set by then."""
