"""Mechanisms from MJCF and URDF files: simulated, shown, and identified from measured motion."""

from ._data import Runs as Runs, load_runs as load_runs
from ._job import mechanism_job as mechanism_job
