"""The protocol of the solvers, and step lengths that several of them use."""

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._arguments import AbstractChecked
from ..problem._dense import DenseProblem, Statistics
from ..problem._problem import MixedProblem
from ..step._newton import least_norm
from ..step._point import StepOptions
from ._drive import solve_step


class AbstractSolver(AbstractChecked):
    """A solver of contact problems: a method, or a chain of methods.

    Success has one definition for all solvers: the residual of the best point is at most
    `accept_tolerance_for(dtype)`. Methods have no criterion of their own.
    """

    @property
    @abstractmethod
    def links(self) -> tuple["AbstractContactSolver", ...]:
        """The methods in their order; `solved_by = i` of a solution is `links[i - 1]`."""

    @property
    def fallback(self) -> tuple["AbstractContactSolver", ...]:
        """Methods for residuals above the accept tolerance, tried in order after the links."""
        return ()

    @property
    def repeats(self) -> int:
        """How often the whole fallback is tried."""
        return 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names for the index `solved_by`: 0 is the start, then the links and the fallback.

        A kind that comes again is numbered: `Newton`, `Newton 2`.
        """
        kinds = [type(link).__name__ for link in (*self.links, *self.fallback)]
        again = [kinds[: i + 1].count(kind) for i, kind in enumerate(kinds)]
        return "start", *(k if n == 1 else f"{k} {n}" for k, n in zip(kinds, again, strict=True))

    def tolerance_for(self, dtype) -> float:
        """The residual to aim at: `tolerance`, or 1e-9 in float64 and 1e-5 in float32.

        Never less than 64 times the machine epsilon.
        """
        default = 1e-9 if jnp.finfo(dtype).bits >= 64 else 1e-5
        given = getattr(self, "tolerance", None)
        return max(default if given is None else given, 64 * float(jnp.finfo(dtype).eps))

    def accept_tolerance_for(self, dtype) -> float:
        """The residual accepted as success: `tolerance`, unless a solver has an `accept_tolerance`."""
        return self.tolerance_for(dtype)

    def refuses(self, contacts) -> str | None:
        """Why this solver cannot solve problems with these laws, or `None`.

        **Arguments:** `contacts`: anything with `law` and `shape = (c, k)` for every law.
        """
        sentences = [link.refuses(contacts) for link in self.links]
        return None if None in sentences else sentences[0]

    def by_products(self) -> "AbstractSolver | None":
        """The solver to use instead where only products with W are available, or `None`."""
        return None

    def by_bodies(self) -> "AbstractSolver | None":
        """The solver to use instead for steps of many free bodies, without W, or `None`."""
        return self.by_products()

    def __call__(
        self, problem: MixedProblem, z0: tuple[Array, ...]
    ) -> tuple[Array, tuple[Array, ...], Statistics, tuple]:
        """Solves the problem of a step.

        **Returns:** `v`, `z`, `Statistics`, and `(v, z)` of the tilted problem, which decides on which
        side of a kink a contact is (`step`).
        """
        v, z, stats = solve_step(self, problem, z0)
        dtype = v.dtype
        double = jnp.finfo(dtype).bits >= 64
        options = StepOptions(
            tolerance=self.tolerance_for(dtype),
            accept_tolerance=self.accept_tolerance_for(dtype),
            proximal=1e-8 if double else 1e-5,
        )
        return least_norm(problem, v, z, stats, options)


class AbstractContactSolver(AbstractSolver):
    """A method: its initial state, its step, and the problems it can no longer improve.

    One driver (`_drive`) runs all methods: it computes the residual of the point after every step, keeps
    the best point, and counts iterations. `init`, `step` and `terminate` are pure functions on the
    problems of a batch; the state is any module with the point `z`, shape `(m, l)`.

    **Arguments:** `tolerance`: residual to reach; `steps`: largest number of iterations.
    """

    explores: ClassVar[bool] = False
    """Whether it searches from the best point, resumes where it stopped when its turn comes again, and
    passes its last point on. Other methods are local: they start from the last point passed on."""

    resumes: ClassVar[bool] = True
    """Whether a method that explores resumes; otherwise it begins anew from the best point at every turn."""

    block: ClassVar[int] = 1
    """Iterations of one step."""

    settings: ClassVar[tuple[str, ...]] = ()
    """Numeric fields read only by `init`: methods that differ only in these compile once."""

    counted: ClassVar[tuple[str, ...]] = ("steps", "tolerance")
    """Fields that only the driver reads: methods that differ in no other are compiled once."""

    leaves_few: ClassVar[bool] = False
    """Whether it leaves almost no problem of a batch unsolved."""

    def __check_init__(self):
        check_counts(steps=getattr(self, "steps", 0))

    @property
    def max_iterations(self) -> int:
        """Largest number of iterations: the field `steps`, or a single step."""
        return getattr(self, "steps", self.block)

    @property
    def links(self) -> tuple["AbstractContactSolver", ...]:
        return (self,)

    @abstractmethod
    def init(self, problem: DenseProblem, z0: Array) -> Any:
        """The state at `z0`, shape `(m, l)`."""

    @abstractmethod
    def step(self, problem: DenseProblem, state: Any) -> Any:
        """The state after one step."""

    def terminate(self, problem: DenseProblem, state: Any) -> Array:
        """Which problems the method can no longer improve, shape `(l,)`."""
        del state
        return jnp.zeros(problem.q.shape[1:], bool)

    def suits(self, problem: DenseProblem) -> bool:
        """Whether a chain should try it on a batch of this size."""
        del problem
        return True

    def iterations(self, state: Any) -> Any:
        """Iterations of the last step."""
        del state
        return self.block

    def direction(self, before: Any, after: Any) -> Array:
        """The direction of the last step: where iterates diverge, a candidate for a certificate."""
        return after.z - before.z

    def refuses(self, contacts) -> str | None:
        del contacts
        return None


def check_tolerance(tolerance) -> None:
    """Raises if a tolerance is not positive."""
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}.")


def check_counts(**counts: int) -> None:
    """Raises if a number of iterations or rounds is negative."""
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} must be at least 0, got {count}.")


LADDER = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
"""Step lengths that are tried together, the full step first."""


def ladder(function, z: Array, w: Array, dz: Array, dw: Array) -> Array:
    """`function(z + t dz, w + t dw)` for all step lengths `t` of `LADDER`, shape `(7, l)`."""
    steps = jnp.asarray(LADDER, z.dtype)
    values = jax.vmap(lambda t: function(z + t * dz, w + t * dw))(steps)
    return jnp.where(jnp.isfinite(values), values, jnp.inf)


def shortest(values: Array) -> tuple[Array, Array]:
    """The least value of a ladder and its step length, both of shape `(l,)`."""
    return jnp.min(values, axis=0), jnp.asarray(LADDER, values.dtype)[jnp.argmin(values, axis=0)]
