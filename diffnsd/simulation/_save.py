"""What a simulation keeps."""

import equinox as eqx


class SaveAt(eqx.Module):
    """Which times of a simulation are saved. The end of the run always is.

    **Arguments:**

    - `steps`: save after every `steps`-th step, and the end also where `steps` does not divide the
      number of steps; `None` saves nothing between.
    - `t0`: save the initial state too.

    `SaveAt(steps=None, t0=False)`, for short `SaveAt.end()`, saves one state, and then the solution
    has no time axis.

    **Raises:** `ValueError` if `steps` is not a whole number of at least 1.
    """

    steps: int | None = eqx.field(default=1, static=True)
    t0: bool = eqx.field(default=True, static=True)

    def __check_init__(self):
        if self.steps is not None and (self.steps < 1 or self.steps != int(self.steps)):
            raise ValueError(
                f"SaveAt(steps=...) must be a whole number of at least 1, got {self.steps}."
            )

    @staticmethod
    def end() -> "SaveAt":
        """Only the final state."""
        return SaveAt(steps=None, t0=False)

    @property
    def has_axis(self) -> bool:
        """Whether the solution has a time axis."""
        return self.t0 or self.steps is not None
