"""Control with a state estimated from outputs."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import Numbers
from .._jax import eval_now
from .._numerics import as_float, hold, matvec
from .._result import RESULTS
from .._types import Scalar, Vector
from ._base import AbstractController, Memory


class Luenberger(AbstractController):
    """A controller acting on the state estimate of a Luenberger observer of the output `y = C x`.

        x^' = A x^ + B u + L (y − C x^)     with `u` and `y` held over a sampling period

    The inner controller receives the estimate at each sample. The estimate is then advanced to the
    next sample by the exact solution, with this control and measurement.

    **Arguments:** `controller`: receives the estimate `(n,)` and returns `u (p,)`; `A`, `B`, `C`:
    `(n, n)`, `(n, p)`, `(m, n)`; `L`: gain, `(n, m)`; `x0`: first estimate, `(n,)`, default zero.

    **Raises:** `ValueError` for shapes that do not match.

    Reference: D. Luenberger, An introduction to observers (1971), doi:10.1109/TAC.1971.1099826.
    """

    controller: AbstractController
    A: Float[Array, "n n"]
    B: Float[Array, "n p"]
    C: Float[Array, "m n"]
    L: Float[Array, "n m"]
    x0: Vector

    def __init__(
        self,
        controller: AbstractController,
        A: Numbers,
        B: Numbers,
        C: Numbers,
        L: Numbers,
        x0: Numbers = None,
    ):
        self.controller = controller
        self.A, self.B, self.C, self.L = (eval_now(as_float, x) for x in (A, B, C, L))
        if any(x.ndim != 2 for x in (self.A, self.B, self.C, self.L)):
            raise ValueError("A, B, C and L must be matrices, such as [[1.0]].")
        n = self.A.shape[0]
        self.x0 = jnp.zeros(n, self.A.dtype) if x0 is None else as_float(x0)
        shapes = self.A.shape, self.B.shape[:1], self.C.shape[1:], self.L.shape, self.x0.shape
        if shapes != ((n, n), (n,), (n,), (n, self.C.shape[0]), (n,)):
            raise ValueError(
                "A, B, C, L and x0 must have shapes (n, n), (n, p), (m, n), (n, m) and (n,), got "
                f"{self.A.shape}, {self.B.shape}, {self.C.shape}, {self.L.shape} and "
                f"{self.x0.shape}."
            )

    def init(self, t: Scalar, y: Vector) -> Memory:
        del y
        return self.x0, self.controller.init(t, self.x0)

    def result(self, memory: Memory) -> RESULTS:
        return self.controller.result(memory[1])

    def __call__(self, t: Scalar, y: Vector, memory: Memory, period: Scalar) -> tuple[Any, Memory]:
        estimate, inner = memory
        u, inner = self.controller(t, estimate, inner, period)
        error = y - matvec(self.C, estimate)
        rate = matvec(self.A, estimate) + matvec(self.B, u) + matvec(self.L, error)
        # y is held, C x^ moves: the exact flow is that of A − L C.
        moved = estimate + matvec(hold(self.A - self.L @ self.C, period), rate)
        return u, (moved, inner)
