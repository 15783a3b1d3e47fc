"""Motions whose sensitivities are known: the truth that gradients are measured against."""

from ._balls import (
    ball as ball,
    bounces_to_rest,
    column,
    landing_block,
    oblique,
    pair as pair,
    pair_at_once,
    slope,
    stack,
    thrown_ball,
)
from ._base import KnownMotion as KnownMotion, read as read, unchanged as unchanged
from ._bodies import (
    dropped_corner,
    dropped_rod,
    dropped_smooth_corner,
    oscillating_table,
    pendulum_at_wall,
    rod as rod,
    three_ball_billiard,
)
from ._joints import (
    four_bar as four_bar,
    four_bar_at_wall,
    four_bar_tree as four_bar_tree,
    slider,
    slider_tree,
    slider_with_stop,
)
from ._reversals import belt_turns_round, pendulum_with_friction
from ._switching import (
    block_that_stops,
    conduction_angle,
    relay_is_crossed,
    relay_of_degree_two,
    relay_switches,
    resonator_with_diode,
    stick_to_slip,
)

KNOWN_MOTIONS = {
    "ball, one impact": thrown_ball(0.8, 0.9),
    "ball, two impacts": thrown_ball(1.2, 0.8),
    "ball, four impacts": thrown_ball(1.9, 0.7),
    "ball, thirty impacts": thrown_ball(13.92, 0.95),
    "oblique, slips": oblique(0.1, 0.6),
    "oblique, sticks": oblique(0.9, 0.6),
    "oblique, slips on landing": landing_block(0.1),
    "oblique, sticks on landing": landing_block(0.9),
    "slope": slope(),
    "bounces to rest": bounces_to_rest(0.1, 0.5),
    "column": column(),
    "three in 1.2 ms": stack(),
    "two at once": pair_at_once(),
    "rod": dropped_rod(),
    "corner, slips": dropped_corner(0.15),
    "corner, sticks": dropped_corner(1.2),
    "corner, no friction": dropped_smooth_corner(),
    "oscillating table": oscillating_table(),
    "pendulum at a wall": pendulum_at_wall(),
    "three-ball billiard": three_ball_billiard(),
    "slider with a stop": slider_with_stop(slider),
    "slider with a stop, tree": slider_with_stop(slider_tree),
    "four-bar at a wall": four_bar_at_wall(four_bar),
    "four-bar at a wall, tree": four_bar_at_wall(four_bar_tree),
    "belt turns round": belt_turns_round(),
    "pendulum with friction": pendulum_with_friction(),
    "block that stops": block_that_stops(),
    "stick to slip": stick_to_slip(),
    "relay switches": relay_switches(),
    "relay is crossed": relay_is_crossed(),
    "relay of degree two": relay_of_degree_two(),
    "conduction angle": conduction_angle(),
    "resonator with diode": resonator_with_diode(),
}
"""Every known motion by name."""
