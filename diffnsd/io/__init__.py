"""Mechanisms from files: MJCF and URDF."""

from ._elements import Elements as Elements
from ._forces import SampledControls as SampledControls
from ._load import load_mjcf as load_mjcf
from ._save import save_mjcf as save_mjcf
