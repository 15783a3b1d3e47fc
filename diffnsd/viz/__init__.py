"""Pictures of a run: where a gradient comes from, and what a motion keeps.

All need the extra `viz`: `pip install "diffnsd[viz]"`. What they show is passed as NumPy arrays.
"""

from .gradient import gradient_figure as gradient_figure
from .invariants import invariants_figure as invariants_figure
