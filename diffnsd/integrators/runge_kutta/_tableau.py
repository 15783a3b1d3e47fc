"""Coefficients of Runge-Kutta methods."""

from fractions import Fraction

import equinox as eqx
import numpy as np
from numpy.polynomial import legendre
from numpy.polynomial.polynomial import polyint, polyval

from ..._arguments import AbstractChecked, Numbers
from ..._scalar_kernels import lagrange

Row = tuple[float, ...]


class ButcherTableau(AbstractChecked):
    """Coefficients `a (s, s)`, `b (s,)`, `c (s,)` of a Runge-Kutta method of `s` stages.

    **Arguments:** `a`, `b`, `c`: as nested sequences; `order`: of convergence; `b_error`: `b` minus
    the weights of an embedded method, for error estimates, or `None`. Static methods
    return common tableaux; `from_diffrax` takes those of diffrax.

    **Raises:** `ValueError` if shapes do not match, if the rows of `a` do not sum to `c`, the weights
    `b` to 1 or those of `b_error` to 0, or if `order` is less than 1.

    Reference: E. Hairer, S. Norsett, G. Wanner, Solving Ordinary Differential Equations I (1993),
    doi:10.1007/978-3-540-78862-1.
    """

    a: tuple[Row, ...] = eqx.field(static=True)
    b: Row = eqx.field(static=True)
    c: Row = eqx.field(static=True)
    order: int = eqx.field(static=True)
    b_error: Row | None = eqx.field(static=True)

    def __init__(self, a: Numbers, b: Numbers, c: Numbers, order: int, b_error: Numbers = None):
        a, b, c = (np.asarray(x, float) for x in (a, b, c))
        s = b.size
        if b.ndim != 1 or a.shape != (s, s) or c.shape != (s,):
            raise ValueError(
                f"a has shape {a.shape}, b {b.shape} and c {c.shape}, expected ({s}, {s}), "
                f"({s},), ({s},)."
            )
        if b_error is not None and np.shape(b_error) != (s,):
            raise ValueError(f"b_error has shape {np.shape(b_error)}, expected ({s},).")
        if not np.allclose(a.sum(axis=1), c, rtol=0, atol=1e-10):
            raise ValueError(f"the rows of a must sum to c; they sum to {a.sum(axis=1)}, c is {c}.")
        if order < 1:
            raise ValueError(f"order must be at least 1, got {order}.")
        for name, weights, total in (("b", b, 1), ("b_error", b_error, 0)):
            found = total if weights is None else float(np.sum(weights))
            if abs(found - total) > 1e-9:
                raise ValueError(
                    f"the weights {name} must sum to {total}; they sum to {found:.10g}."
                )
        self.a = tuple(tuple(row) for row in a.tolist())
        self.b, self.c = tuple(b.tolist()), tuple(c.tolist())
        self.order = int(order)
        self.b_error = None if b_error is None else tuple(np.asarray(b_error, float).tolist())

    @property
    def stages(self) -> int:
        """Number of stages `s`."""
        return len(self.b)

    @property
    def is_explicit(self) -> bool:
        """Whether every stage depends on earlier ones only."""
        return not np.any(np.triu(np.asarray(self.a)))

    @property
    def product_order(self) -> int:
        """Order with products of exponentials, as in `CrouchGrossman`; checked up to 3, at most `order`.

        Beyond `sum b = 1`, `sum b c = 1/2`, `sum b c² = 1/3` and `sum b a c = 1/6`, order 3 needs
        `sum_i b_i² c_i + 2 sum_{i<j} b_i c_i b_j = 1/3`, because the factors do not commute.
        """
        a, b, c = (np.asarray(x) for x in (self.a, self.b, self.c))
        later = np.cumsum(b[::-1])[::-1] - b
        conditions = [
            [b.sum() - 1],
            [b @ c - 1 / 2],
            [b @ c**2 - 1 / 3, b @ a @ c - 1 / 6, (b * c) @ (b + 2 * later) - 1 / 3],
        ]
        holds = [max(map(abs, defects)) < 1e-10 for defects in conditions]
        return min(self.order, (*holds, False).index(False))

    @staticmethod
    def from_diffrax(solver) -> "ButcherTableau":
        """Coefficients of an explicit solver of diffrax, for example `diffrax.Dopri8()`.

        **Raises:** `ValueError` for solvers that are not explicit Runge-Kutta methods, and for a
        class in place of an instance.
        """
        if isinstance(solver, type):
            raise ValueError(
                f"{solver.__name__} is a class; give an instance, {solver.__name__}()."
            )
        tableau = getattr(solver, "tableau", None)
        lower = getattr(tableau, "a_lower", None)
        implicit = (
            getattr(tableau, "implicit", False) or getattr(tableau, "a_diagonal", None) is not None
        )
        if tableau is None or lower is None or implicit:
            raise ValueError(
                f"{type(solver).__name__} has no explicit Butcher tableau; use an explicit solver of "
                "diffrax (Euler, Heun, Tsit5, Dopri5, Dopri8, ...), or ButcherTableau.gauss(s) or "
                "ButcherTableau.radau(s) for an implicit one."
            )
        s = len(tableau.b_sol)
        a = np.zeros((s, s))
        for i, row in enumerate(lower):
            a[i + 1, : len(row)] = row
        c = np.concatenate([[0.0], tableau.c])
        return ButcherTableau(a, tableau.b_sol, c, solver.order(None), tableau.b_error)

    @staticmethod
    def euler() -> "ButcherTableau":
        """Explicit Euler, order 1."""
        return ButcherTableau([[0]], [1], [0], 1)

    @staticmethod
    def heun() -> "ButcherTableau":
        """Heun's method, order 2, with Euler embedded."""
        return ButcherTableau([[0, 0], [1, 0]], [0.5, 0.5], [0, 1], 2, [-0.5, 0.5])

    @staticmethod
    def midpoint() -> "ButcherTableau":
        """Explicit midpoint rule, order 2."""
        return ButcherTableau([[0, 0], [0.5, 0]], [0, 1], [0, 0.5], 2)

    @staticmethod
    def kutta3() -> "ButcherTableau":
        """Kutta's method of order 3."""
        a = [[0, 0, 0], [0.5, 0, 0], [-1, 2, 0]]
        return ButcherTableau(a, [1 / 6, 2 / 3, 1 / 6], [0, 0.5, 1], 3)

    @staticmethod
    def rk4() -> "ButcherTableau":
        """The classical method of order 4."""
        a = [[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]]
        return ButcherTableau(a, [1 / 6, 1 / 3, 1 / 3, 1 / 6], [0, 0.5, 0.5, 1], 4)

    @staticmethod
    def butcher6() -> "ButcherTableau":
        """Butcher's method of order 6 with 7 stages (1964), doi:10.1017/S1446788700023387."""
        a = np.zeros((7, 7))
        a[1, 0] = 1 / 3
        a[2, 1] = 2 / 3
        a[3, :3] = [1 / 12, 1 / 3, -1 / 12]
        a[4, :4] = [-1 / 16, 9 / 8, -3 / 16, -3 / 8]
        a[5, :5] = [0, 9 / 8, -3 / 8, -3 / 4, 1 / 2]
        a[6, :6] = [9 / 44, -9 / 11, 63 / 44, 18 / 11, 0, -16 / 11]
        b = [11 / 120, 0, 27 / 40, 27 / 40, -4 / 15, -4 / 15, 11 / 120]
        return ButcherTableau(a, b, [0, 1 / 3, 2 / 3, 1 / 3, 1 / 2, 1 / 2, 1], 6)

    @staticmethod
    def crouch_grossman3() -> "ButcherTableau":
        """A method that keeps order 3 with products of exponentials, for `CrouchGrossman`."""
        a = [[0, 0, 0], [3 / 4, 0, 0], [119 / 216, 17 / 108, 0]]
        return ButcherTableau(a, [13 / 51, -2 / 3, 24 / 17], [0, 3 / 4, 17 / 24], 3)

    @staticmethod
    def gauss(stages: int) -> "ButcherTableau":
        """Gauss collocation, implicit, order `2 s`."""
        _check_stages(stages)
        nodes, _ = legendre.leggauss(stages)
        return _collocation((nodes + 1) / 2, 2 * stages)

    @staticmethod
    def radau(stages: int) -> "ButcherTableau":
        """Radau IIA collocation, implicit, order `2 s - 1`, last node at the end of the step."""
        _check_stages(stages)
        difference = np.zeros(stages + 1)
        difference[-2:] = [1, -1]  # P_(s-1) - P_s
        nodes = np.sort(legendre.legroots(difference).real)
        nodes[-1] = 1.0
        return _collocation((nodes + 1) / 2, 2 * stages - 1)


def _check_stages(stages: int) -> None:
    if not 1 <= stages <= 8:
        raise ValueError(f"stages must be between 1 and 8, got {stages}.")


def _collocation(c: np.ndarray, order: int) -> ButcherTableau:
    """`a_ij = ∫_0^c_i l_j`, `b_j = ∫_0^1 l_j` with the Lagrange polynomials `l_j` of the nodes."""
    nodes = [Fraction(x) for x in c]
    integrals = [polyint(basis) for basis in lagrange(nodes)]
    *a, b = np.array([[polyval(t, x) for t in (*nodes, 1)] for x in integrals], float).T
    return ButcherTableau(a, b, c, order)
