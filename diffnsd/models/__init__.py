"""Ready-made models and their closed-form solutions, shared by tests, benchmarks and notebooks.

Functions that return a `Model`; in parentheses states to start from, and closed forms:

- impacts: `bouncing_ball` (`ball_state`, `ball_impact_times`), `pendulum_wall` (`pendulum_state`,
  `pendulum_wall_angle`, `pendulum_small_impact_time`, `pendulum_rebound_angle`, `pendulum_impact_rate`),
  `ball_on_vibrating_table`, `column_of_beads`, `impacting_bar`, `rocking_block`
- friction: `sliding_block` (`block_state`, `block_stop_time`, `block_stop_distance`), `tossed_cube`
  (`cube_state`), `tippe_top` (`tippe_top_state`, `tippe_top_axis`, `tippe_top_jellett`), `woodpecker`
  (`woodpecker_state`), `slider_crank` (`slider_crank_state`)
- circuits, relays: `rlc_diode`, `diode_bridge` (`diode_bridge_state`), `buck_converter`, `relay_oscillator`,
  `gene_network`
- smooth motion: `double_pendulum`, `spherical_pendulum`, `gravity_gradient`, `kepler` (`kepler_state`),
  `free_rigid_body` (`rigid_body_state`), `heavy_top` (`heavy_top_state`), `kirchhoff_body`
  (`kirchhoff_state`)

`READY` has those that `diffnsd simulate NAME` runs, as `ReadyModel`s with a start and a method.
"""

from ._bouncing_ball import (
    ball_impact_times as ball_impact_times,
    ball_state as ball_state,
    bouncing_ball as bouncing_ball,
)
from ._circuits import (
    buck_converter as buck_converter,
    diode_bridge as diode_bridge,
    diode_bridge_state as diode_bridge_state,
    rlc_diode as rlc_diode,
)
from ._impacting import (
    ball_on_vibrating_table as ball_on_vibrating_table,
    column_of_beads as column_of_beads,
    impacting_bar as impacting_bar,
    rocking_block as rocking_block,
)
from ._pendulum_wall import (
    pendulum_impact_rate as pendulum_impact_rate,
    pendulum_rebound_angle as pendulum_rebound_angle,
    pendulum_small_impact_time as pendulum_small_impact_time,
    pendulum_state as pendulum_state,
    pendulum_wall as pendulum_wall,
    pendulum_wall_angle as pendulum_wall_angle,
)
from ._ready import READY as READY, ReadyModel as ReadyModel
from ._relays import gene_network as gene_network, relay_oscillator as relay_oscillator
from ._slider_crank import (
    slider_crank as slider_crank,
    slider_crank_state as slider_crank_state,
)
from ._sliding_block import (
    block_state as block_state,
    block_stop_distance as block_stop_distance,
    block_stop_time as block_stop_time,
    sliding_block as sliding_block,
)
from ._tippe_top import (
    tippe_top as tippe_top,
    tippe_top_axis as tippe_top_axis,
    tippe_top_jellett as tippe_top_jellett,
    tippe_top_state as tippe_top_state,
)
from ._tossed_cube import cube_state as cube_state, tossed_cube as tossed_cube
from ._woodpecker import woodpecker as woodpecker, woodpecker_state as woodpecker_state
from .smooth._gravity_gradient import gravity_gradient as gravity_gradient
from .smooth._kepler import kepler as kepler, kepler_state as kepler_state
from .smooth._lie_poisson import (
    free_rigid_body as free_rigid_body,
    heavy_top as heavy_top,
    heavy_top_state as heavy_top_state,
    kirchhoff_body as kirchhoff_body,
    kirchhoff_state as kirchhoff_state,
    rigid_body_state as rigid_body_state,
)
from .smooth._pendulums import (
    double_pendulum as double_pendulum,
    spherical_pendulum as spherical_pendulum,
)
