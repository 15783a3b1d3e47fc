"""The ready-made models by name, each with an initial state, an integrator and suitable times."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp

from .._types import State
from ..integrators import (
    AbstractIntegrator,
    AtIterate,
    AtPrediction,
    EulerMoreau,
    MoreauJean,
    Newton,
)
from ..model import Model
from ._bouncing_ball import ball_state, bouncing_ball
from ._circuits import buck_converter, diode_bridge, rlc_diode
from ._impacting import (
    ball_on_vibrating_table,
    column_of_beads,
    impacting_bar,
    rocking_block,
)
from ._pendulum_wall import pendulum_state, pendulum_wall
from ._relays import gene_network, relay_oscillator
from ._slider_crank import slider_crank, slider_crank_state
from ._sliding_block import block_state, sliding_block
from ._tossed_cube import cube_state, tossed_cube
from ._woodpecker import woodpecker, woodpecker_state


@dataclass(frozen=True)
class ReadyModel:
    """A model with everything that a simulation of it needs.

    **Arguments:** `summary`: the visible motion, in one line; `model`; `state0`; `integrator`; `t1`, `dt`:
    end and step [s], from 0; `coordinates`: names of the entries of `v`, with units if they
    have any.
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


def _woodpecker() -> ReadyModel:
    return ReadyModel(
        "a toy woodpecker that climbs down its pole by knocking and jamming",
        woodpecker(),
        woodpecker_state(),
        MoreauJean(),
        0.5,
        1e-4,
        ("height [m/s]", "sleeve [rad/s]", "bird [rad/s]"),
    )


def _slider_crank() -> ReadyModel:
    return ReadyModel(
        "a slider-crank whose slider has a clearance of 1 mm in its guide",
        slider_crank(),
        slider_crank_state(),
        MoreauJean(contacts_at=AtIterate(), newton=Newton(20)),
        0.1,
        1e-5,
        ("crank [rad/s]", "rod [rad/s]", "slider [rad/s]"),
    )


def _rocking_block() -> ReadyModel:
    return ReadyModel(
        "a block released on one corner that rocks until it rests",
        rocking_block(),
        State(jnp.array([0.0, 1.15, 0.2]), jnp.zeros(3)),
        MoreauJean(contacts_at=AtPrediction()),
        3.0,
        1e-3,
        ("x [m/s]", "y [m/s]", "angle [rad/s]"),
    )


def _column_of_beads() -> ReadyModel:
    return ReadyModel(
        "five beads that fall on each other and on the ground",
        column_of_beads(5),
        State(0.5 + 0.25 * jnp.arange(5.0), jnp.zeros(5)),
        MoreauJean(),
        2.0,
        1e-3,
        tuple(f"bead {i} [m/s]" for i in range(5)),
    )


def _impacting_bar() -> ReadyModel:
    return ReadyModel(
        "a steel bar that strikes a wall and rebounds by its own waves",
        impacting_bar(20),
        State(jnp.full(21, 5e-5), jnp.full(21, -0.1)),
        MoreauJean(gamma=0.0),
        2e-3,
        2e-6,
        tuple(f"node {i} [m/s]" for i in range(21)),
    )


def _vibrating_table() -> ReadyModel:
    return ReadyModel(
        "a ball on a table that shakes it",
        ball_on_vibrating_table(),
        State(jnp.array([0.4]), jnp.zeros(1)),
        MoreauJean(),
        5.0,
        1e-3,
        ("height [m/s]",),
    )


def _first_order(summary, model, start, t1, dt, coordinates, integrator=None) -> ReadyModel:
    """A first-order model: `coordinates` are those of its state `x`."""
    integrator = EulerMoreau() if integrator is None else integrator
    state = State(None, jnp.asarray(start, float))
    return ReadyModel(summary, model, state, integrator, t1, dt, coordinates)


VOLTAGE_AND_CURRENT = ("voltage [V]", "current [A]")


def _rlc_diode() -> ReadyModel:
    return _first_order(
        "a resonator whose every other half wave a diode leads to a resistance",
        rlc_diode(),
        (10.0, 0.0),
        5e-3,
        1e-6,
        VOLTAGE_AND_CURRENT,
    )


def _diode_bridge() -> ReadyModel:
    return _first_order(
        "a resonator that feeds a resistance through a bridge of four diodes",
        diode_bridge(),
        (10.0, 0.0),
        5e-3,
        1e-6,
        VOLTAGE_AND_CURRENT,
    )


def _buck_converter() -> ReadyModel:
    return _first_order(
        "a converter that lowers 20 V to about 10 V, from rest",
        buck_converter(),
        (0.0, 0.0),
        2e-3,
        5e-7,
        VOLTAGE_AND_CURRENT,
        EulerMoreau(theta=1.0),
    )


def _relay_oscillator() -> ReadyModel:
    return _first_order(
        "relay feedback on a chain of three, which settles on a limit cycle",
        relay_oscillator(),
        (0.0, 0.675, 0.0),
        50.0,
        1e-2,
        ("x1", "x2", "x3"),
    )


def _gene_network() -> ReadyModel:
    return _first_order(
        "two genes that switch each other, and slide along a threshold",
        gene_network(),
        (1.0, 6.0),
        3.0,
        1e-3,
        ("gene 1", "gene 2"),
    )


READY: dict[str, Callable[[], ReadyModel]] = {
    "bouncing_ball": _bouncing_ball,
    "sliding_block": _sliding_block,
    "pendulum_wall": _pendulum_wall,
    "tossed_cube": _tossed_cube,
    "woodpecker": _woodpecker,
    "slider_crank": _slider_crank,
    "rocking_block": _rocking_block,
    "column_of_beads": _column_of_beads,
    "impacting_bar": _impacting_bar,
    "ball_on_vibrating_table": _vibrating_table,
    "rlc_diode": _rlc_diode,
    "diode_bridge": _diode_bridge,
    "buck_converter": _buck_converter,
    "relay_oscillator": _relay_oscillator,
    "gene_network": _gene_network,
}
"""The models of `diffnsd simulate NAME`. A call makes the arrays, in the precision set at that time."""
