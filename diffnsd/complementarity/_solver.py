"""The default solver."""

import equinox as eqx
import jax.numpy as jnp

from .._expects import refuse_below
from .problem._problem import MixedProblem
from .solvers._anderson import AndersonGradient
from .solvers._base import AbstractContactSolver, AbstractSolver, check_counts, check_tolerance
from .solvers._chain import Chain
from .solvers._coloured import ColouredGaussSeidel
from .solvers._first_order import AcceleratedProjectedGradient, ProjectedGaussSeidel
from .solvers._interior_point import InteriorPoint
from .solvers._pivoting import Enumeration, Lemke
from .solvers._regularised import RegularisedNewton
from .solvers._semismooth import LevenbergMarquardt, Newton
from .solvers._splitting import Splitting
from .step._closed_form import one_unknown
from .step._newton import solve_step_problem
from .step._point import StepOptions


class Auto(AbstractSolver):
    """The default solver: a chain of methods, from the fastest to the most robust.

    It prints as its `Chain`. In steps the first link, `RegularisedNewton`, and splitting between its
    rounds work without forming `W`, and no other link is needed; see `Auto.__call__`.

    In steps Newton's matrix is regularised by `eps = max(proximal, damping * residual)`: far from the
    solution this is a proximal-point step, near it Newton's method. The few problems of a batch that
    need more than `newton_steps` iterations are gathered and solved separately, so that slow problems
    do not delay the rest.

    **Arguments:**

    - `tolerance`: relative natural-map residual to aim at; `None` is 1e-9 in float64 and 1e-5 in
      float32. Never less than 64 times the machine epsilon.
    - `newton_steps`: Newton iterations for all problems. `hard_steps`: further iterations for the
      unsolved problems, before `splitting_steps` iterations of operator splitting; at most 12 of them in
      the first round where contacts may be redundant.
    - `rounds`: largest number of such rounds for a problem, of which later ones start in turn from splitting
      and from impulses changed at random; with 0 there are only the first Newton iterations.
    - `proximal`, `damping`: the regularisation; `None` is 1e-8 (float64) or 1e-5 (float32).
    - `relaxation`, `penalty`: over-relaxation of the splitting, and its penalty relative to the
      local step of the natural map.
    - `accept_tolerance`: residual accepted as success, at least `tolerance`. `None` is `tolerance` where
      that is given, else 1e-8 in float64 and 1e-5 in float32.

    `solve_complementarity` uses the tolerances, `newton_steps`, `hard_steps` and `rounds`; the other
    arguments apply only to steps.
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    newton_steps: int = eqx.field(default=5, static=True)
    hard_steps: int = eqx.field(default=25, static=True)
    splitting_steps: int = eqx.field(default=50, static=True)
    rounds: int = eqx.field(default=20, static=True)
    proximal: float | None = eqx.field(default=None, static=True)
    damping: float = eqx.field(default=0.1, static=True)
    relaxation: float = eqx.field(default=1.6, static=True)
    penalty: float = eqx.field(default=1.0, static=True)
    accept_tolerance: float | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)
        check_tolerance(self.accept_tolerance)
        check_counts(
            newton_steps=self.newton_steps,
            hard_steps=self.hard_steps,
            splitting_steps=self.splitting_steps,
            rounds=self.rounds,
        )
        refuse_below("proximal", 0.0 if self.proximal is None else self.proximal, 0)
        refuse_below("damping", self.damping, 0)
        refuse_below("penalty", self.penalty, 0, strictly=True)
        if not 0 < self.relaxation < 2:
            raise ValueError(f"relaxation must lie in (0, 2), got {self.relaxation}.")

    @property
    def chain(self) -> Chain:
        """The same solver as a `Chain`."""
        first = (
            RegularisedNewton(2 * self.newton_steps, self.hard_steps, tolerance=self.tolerance),
            Newton(self.newton_steps, 1e-6),
        )
        tolerances = {
            "tolerance": self.tolerance,
            "accept_tolerance": self.accept_tolerance_for(jnp.result_type(float)),
        }
        if self.rounds == 0:
            return Chain(first[1:], **tolerances)
        search = (
            Newton(self.hard_steps),
            InteriorPoint(100, cones=False),
            Lemke(most=300),
            *(Splitting(200), Newton(40), Splitting(200), LevenbergMarquardt(40)),
            Enumeration(most=4096),
        )
        hard = (
            *(Splitting(200), Newton(40), ProjectedGaussSeidel(1000), Newton(80)),
            *(Splitting(200), LevenbergMarquardt(40), ProjectedGaussSeidel(1000), Newton(80)),
        )
        repeats = min(max(self.rounds - 1, 0) // 2, 3)
        return Chain((*first, *search), hard if repeats else (), repeats, **tolerances)

    @property
    def links(self) -> tuple[AbstractContactSolver, ...]:
        return self.chain.links

    @property
    def fallback(self) -> tuple[AbstractContactSolver, ...]:
        return self.chain.fallback

    @property
    def repeats(self) -> int:
        return self.chain.repeats

    def __repr__(self) -> str:
        return repr(self.chain)

    def accept_tolerance_for(self, dtype) -> float:
        """Ten times the tolerance, 1e-8 in float64, unless a tolerance is given."""
        tolerance = self.tolerance_for(dtype)
        if self.accept_tolerance is not None:
            return max(tolerance, self.accept_tolerance)
        by_default = self.tolerance is None and jnp.finfo(dtype).bits >= 64
        return 10 * tolerance if by_default else tolerance

    def proximal_for(self, dtype) -> float:
        """The least regularisation of Newton's matrix in steps."""
        default = 1e-8 if jnp.finfo(dtype).bits >= 64 else 1e-5
        return default if self.proximal is None else self.proximal

    def by_products(self) -> AbstractSolver:
        """The chain for problems that are used through products alone, with the same tolerances."""
        turns = AcceleratedProjectedGradient(1000), AndersonGradient(1000)
        accept = self.accept_tolerance_for(jnp.result_type(float))
        return Chain(turns, turns, 9, tolerance=self.tolerance, accept_tolerance=accept)

    def by_bodies(self) -> AbstractSolver:
        """The chain for steps of many free bodies, with the same tolerances."""
        # Sweeps that are interrupted lose more than the gradients gain.
        sweeps = ColouredGaussSeidel(10_000)
        gradients = AcceleratedProjectedGradient(500), AndersonGradient(500)
        accept = self.accept_tolerance_for(jnp.result_type(float))
        return Chain((sweeps,), gradients, 3, tolerance=self.tolerance, accept_tolerance=accept)

    def __call__(self, problem: MixedProblem, z0):
        """Solves the step problems of a batch; see `AbstractSolver.__call__`.

        A single row of a single contact has a closed form. `solved_by` is `Splitting` where splitting, or a
        restart after it, was needed.
        """
        dtype, names = problem.rhs.dtype, self.names
        options = StepOptions(
            tolerance=self.tolerance_for(dtype),
            accept_tolerance=self.accept_tolerance_for(dtype),
            proximal=self.proximal_for(dtype),
            damping=self.damping,
            newton_steps=self.newton_steps,
            hard_steps=self.hard_steps,
            splitting_steps=self.splitting_steps,
            rounds=self.rounds,
            relaxation=self.relaxation,
            penalty=self.penalty,
            splitting=names.index("Splitting") if "Splitting" in names else 1,
        )
        if len(problem.blocks) == 1 and problem.blocks[0].offset.shape[:2] == (1, 1):
            point = one_unknown(problem, options.accept_tolerance)
            return *point, point[:2]
        return solve_step_problem(problem, z0, options)
