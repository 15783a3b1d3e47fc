"""Mechanisms from files: MJCF and URDF."""

from ._elements import Elements as Elements
from ._forces import SampledControls as SampledControls
from ._load import load_mjcf as load_mjcf, save_mjcf as save_mjcf
