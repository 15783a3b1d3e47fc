"""Schemes that locate impacts: inside a step, for its derivative only, or between smooth phases."""

from ._corrected import Corrected as Corrected
from ._event_driven import EventDriven as EventDriven
from ._located import Located as Located
