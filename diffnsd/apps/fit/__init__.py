"""Weighted nonlinear least squares on whole measured motions, in rounds; any model that simulates them."""

from ._draws import Bands as Bands, Spread as Spread, banded_runs as banded_runs, bands as bands
from ._errors import moved_by as moved_by
from ._fit import Identified as Identified, identify as identify
from ._job import (
    Job as Job,
    Quantity as Quantity,
    Simulated as Simulated,
    padded_frames as padded_frames,
    weights as weights,
)
from ._outputs import (
    fit_and_show as fit_and_show,
    print_notes as print_notes,
    write_fit_report as write_fit_report,
    write_result as write_result,
)
from ._posterior import draw_and_show as draw_and_show, posterior_of as posterior_of
from ._verdict import about_predictions as about_predictions
