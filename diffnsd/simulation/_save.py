"""What a simulation keeps."""

import equinox as eqx


class SaveAt(eqx.Module):
    """Which times of a simulation are saved. The end of the run always is.

    **Arguments:**

    - `steps`: save after every `steps`-th step, and the end also where `steps` does not divide the
      number of steps; `None` saves nothing between.
    - `t0`: save the initial state too.
    - `impacts`: how many times of impacts are kept in `Solution.impact_times`, those of the first ones
      that the integrator locates (`Located`, `Corrected`, `EventDriven`, `ElasticImpact`).

    `SaveAt(steps=None, t0=False)`, for short `SaveAt.end()`, saves one state, and then the solution
    has no time axis.

    **Raises:** `ValueError` if `steps` is not a whole number of at least 1.
    """

    steps: int | None = eqx.field(default=1, static=True)
    t0: bool = eqx.field(default=True, static=True)
    impacts: int = eqx.field(default=0, static=True)

    def __check_init__(self):
        for name, least, count in (("steps", 1, self.steps), ("impacts", 0, self.impacts)):
            if count is not None and (count < least or count != int(count)):
                raise ValueError(
                    f"SaveAt({name}=...) must be a whole number of at least {least}, got {count}."
                )

    @staticmethod
    def end(impacts: int = 0) -> "SaveAt":
        """Only the final state, and the times of so many impacts."""
        return SaveAt(steps=None, t0=False, impacts=impacts)

    @property
    def has_axis(self) -> bool:
        """Whether the solution has a time axis."""
        return self.t0 or self.steps is not None
