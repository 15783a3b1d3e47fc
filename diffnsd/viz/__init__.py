"""Pages to look at: a report of an identification and a 3D replay, each one HTML file; pictures.

All need the extra `viz`: `pip install "diffnsd[viz]"`. What they show is passed as NumPy arrays.
"""

from .gradient import gradient_figure as gradient_figure
from .invariants import invariants_figure as invariants_figure
from .replay import write_replay as write_replay
from .report import (
    ParameterRow as ParameterRow,
    PoseErrors as PoseErrors,
    RunFigures as RunFigures,
    TossComparison as TossComparison,
    write_report as write_report,
)
