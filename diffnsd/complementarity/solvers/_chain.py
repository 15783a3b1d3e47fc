"""A chain of solvers: one method after the other, until the residual is small."""

import equinox as eqx

from ..._expects import expects
from ._base import AbstractContactSolver, AbstractSolver, check_tolerance


class Chain(AbstractSolver):
    """Methods run in order, each from the best point of those before it.

        Chain((Newton(5), Splitting(200), Newton(40)))

    A chain moves to its next method when a method has used its `steps` or terminates, and ends when the
    residual is at most `tolerance`. Methods that cannot solve the sets of a problem are left out.
    The result names the link that solved it: `solved_by = i` is `names[i]`, 0 the start; a second `Newton`
    in the chain is named `Newton 2`.

    **Arguments:**

    - `methods`: solvers in order; a chain among them is replaced by its methods, including its fallback.
    - `then`: further solvers, used only for residuals above `accept_tolerance`; the whole list is tried
      `repeats` times.
    - `tolerance`: relative residual to aim at; `None` is 1e-9 in float64 and 1e-5 in float32.
    - `accept_tolerance`: residual accepted as success, at least `tolerance`, which is the default.

    **Raises:** `TypeError` if a method is no solver. `ValueError` if there is none, or a tolerance is not
    positive.
    """

    methods: tuple[AbstractSolver, ...] = eqx.field(static=True, converter=tuple)
    then: tuple[AbstractSolver, ...] = eqx.field(static=True, converter=tuple, default=())
    repeats: int = eqx.field(static=True, default=1)
    tolerance: float | None = eqx.field(static=True, default=None)
    accept_tolerance: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_tolerance(self.tolerance)
        check_tolerance(self.accept_tolerance)
        for method in (*self.methods, *self.then):
            what = "a solver of complementarity.solvers, as in Chain((Newton(5), Splitting(200)))"
            expects("a method in `methods` of a chain", method, AbstractSolver, what)
        if not self.methods:
            raise ValueError("a chain needs a method at least, such as Chain((Newton(5),)).")

    @property
    def links(self) -> tuple[AbstractContactSolver, ...]:
        return tuple(link for method in self.methods for link in _spliced(method))

    @property
    def fallback(self) -> tuple[AbstractContactSolver, ...]:
        return tuple(link for method in self.then for link in _spliced(method))

    def by_products(self) -> AbstractSolver | None:
        able = (link.by_products() is link for link in (*self.links, *self.fallback))
        return self if all(able) else None

    def by_bodies(self) -> AbstractSolver | None:
        able = (link.by_bodies() is link for link in (*self.links, *self.fallback))
        return self if all(able) else None

    def accept_tolerance_for(self, dtype) -> float:
        return max(self.tolerance_for(dtype), self.accept_tolerance or 0.0)


def _spliced(method: AbstractSolver) -> tuple[AbstractContactSolver, ...]:
    """The links of a method and its fallback, in the order in which they run."""
    return (*method.links, *(method.fallback * method.repeats))
