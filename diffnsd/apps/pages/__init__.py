"""HTML pages: a report of an identification and a 3D replay, one file each.

Data are passed as NumPy arrays.
"""

from ._replay import write_replay as write_replay
from ._report import (
    ParameterRow as ParameterRow,
    PoseErrors as PoseErrors,
    RunFigures as RunFigures,
    TossComparison as TossComparison,
    write_report as write_report,
)
