"""Large linear systems: operators by their structure, solvers and preconditioners as objects."""

from ._operators import (
    AbstractLargeOperator as AbstractLargeOperator,
    Banded as Banded,
    BlockTridiagonal as BlockTridiagonal,
    ElementSum as ElementSum,
)
