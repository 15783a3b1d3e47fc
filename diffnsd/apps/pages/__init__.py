"""HTML pages: a report of an identification and a 3D replay, one file each.

Data are passed as NumPy arrays.
"""

from ._bodies import (
    Motion as Motion,
    Solid as Solid,
    add_bodies as add_bodies,
    draw_forces as draw_forces,
    place as place,
    write_motion as write_motion,
)
from ._hulls import (
    CORNERS as CORNERS,
    ball_points as ball_points,
    hull_mesh as hull_mesh,
    ring_points as ring_points,
)
from ._learned import (
    LearnedCurve as LearnedCurve,
    LearnedMap as LearnedMap,
    Scores as Scores,
    write_learned as write_learned,
)
from ._page import SIMULATED as SIMULATED
from ._replay import write_replay as write_replay
from ._report import (
    PoseErrors as PoseErrors,
    PosteriorDraws as PosteriorDraws,
    RunFigures as RunFigures,
    TossComparison as TossComparison,
    write_posterior as write_posterior,
    write_report as write_report,
)
from ._scene import quiet_viser as quiet_viser, set_stage as set_stage
from ._tables import ParameterRow as ParameterRow
from ._template import filled_page as filled_page
