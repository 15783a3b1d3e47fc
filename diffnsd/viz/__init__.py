"""Figures of a run: the contributions to a gradient, and the invariants of a motion.

They need the extra `viz`: `pip install "diffnsd[viz]"`. Data are passed as NumPy arrays.
"""

from .gradient import gradient_figure as gradient_figure
from .invariants import invariants_figure as invariants_figure
