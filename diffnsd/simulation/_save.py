"""Which results of a simulation are saved."""

import equinox as eqx
import numpy as np


class SaveAt(eqx.Module):
    """Which times of a simulation are saved. The end of the run is always saved.

    **Arguments:**

    - `steps`: save after every `steps`-th step, and at the end even if `steps` does not divide the
      number of steps; `None` saves nothing in between.
    - `t0`: save the initial state too.
    - `impacts`: how many impact times to keep in `Solution.impact_times`: those of the first impacts
      that the integrator locates (`Located`, `Corrected`, `EventDriven`, `ElasticImpact`).

    `SaveAt(steps=None, t0=False)`, or `SaveAt.end()` for short, saves a single state; the solution
    then has no time axis.

    **Raises:** `ValueError` if `steps` is not a whole number of at least 1, or `impacts` not one of at
    least 0. `TypeError` if `t0` is not True or False.
    """

    steps: int | None = eqx.field(default=1, static=True)
    t0: bool = eqx.field(default=True, static=True)
    impacts: int = eqx.field(default=0, static=True)

    def __check_init__(self):
        if not isinstance(self.t0, bool | np.bool_):
            raise TypeError(f"SaveAt(t0=...) must be True or False, got {self.t0!r}.")
        for name, least, count in (("steps", 1, self.steps), ("impacts", 0, self.impacts)):
            if count is None:
                continue
            if isinstance(count, list | tuple) or np.ndim(count):
                raise ValueError(
                    f"SaveAt({name}=...) is a number, not an array of times: what is saved are steps. "
                    "Choose dt, and SaveAt(steps=10) for every tenth step."
                )
            if not isinstance(count, int | np.integer) or count < least:
                raise ValueError(
                    f"SaveAt({name}=...) must be a whole number of at least {least}, got {count}."
                )

    @staticmethod
    def end(impacts: int = 0) -> "SaveAt":
        """Saves only the final state, and the first `impacts` impact times."""
        return SaveAt(steps=None, t0=False, impacts=impacts)

    @property
    def has_axis(self) -> bool:
        """Whether the solution has a time axis."""
        return self.t0 or self.steps is not None
