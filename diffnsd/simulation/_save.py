"""What a simulation keeps."""

import equinox as eqx


class SaveAt(eqx.Module):
    """Which times of a simulation are saved.

    **Arguments:** `steps`: save after every `steps`-th step; `None` saves the end only. `t0`: save
    the initial state too (not with `steps=None`).
    """

    steps: int | None = eqx.field(default=1, static=True)
    t0: bool = eqx.field(default=True, static=True)

    def __check_init__(self):
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"SaveAt(steps=...) must be at least 1, got {self.steps}.")

    @staticmethod
    def end() -> "SaveAt":
        """Only the final state."""
        return SaveAt(steps=None, t0=False)
