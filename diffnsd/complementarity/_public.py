"""Complementarity problems on their own: `w = W z + q` with a product of laws."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._expects import booleans, expects, shown
from .._jax import concrete, is_traced
from .._numerics import as_float
from .._result import RESULTS
from ..laws._base import AbstractLaw
from ..sets import AbstractSet
from ._condensed import Condensed, Outcome, solve_condensed
from ._solver import Auto
from .derivatives._adjoint import AbstractAdjoint, ImplicitAdjoint
from .problem._dense import Contacts, DenseProblem
from .problem._operators import DENSE_LIMIT, Products, without_derivative
from .problem._problem import broadcast_law
from .solvers._base import AbstractSolver
from .solvers._drive import judge, solve_batch


class Unbiased(AbstractLaw):
    """The law `K* ∋ w ⟂ z ∈ K` of a set alone."""

    admissible: AbstractSet

    @property
    def rows(self) -> int | None:
        return None

    def refuses(self, rows: int) -> str | None:
        return self.admissible.refuses(rows)

    def set(self) -> AbstractSet:
        return self.admissible

    def check(self) -> str | None:
        return self.admissible.check()


Laws = tuple[tuple[AbstractLaw | AbstractSet, tuple[int, int]], ...]


def stated(laws: Laws) -> tuple[tuple[AbstractLaw, tuple[int, int]], ...]:
    """The same pairs with a law in place of every set."""
    return tuple(
        (Unbiased(law) if isinstance(law, AbstractSet) else law, shape) for law, shape in laws
    )


def _as_array(x):
    """Converts lists and arrays to arrays of real numbers; returns operators unchanged."""
    if not isinstance(x, list | tuple | np.ndarray | jax.Array):
        return x
    try:
        if jnp.iscomplexobj(x):
            raise TypeError
        return as_float(x)
    except (TypeError, ValueError):
        raise TypeError(f"W and q must be arrays of real numbers, got {shown(x)}.") from None


def _as_active(active):
    return None if active is None else booleans("active", active)


class ComplementarityProblem(eqx.Module):
    """`w = W z + q`,  `K* ∋ w + lift(w) e_N ⟂ z ∈ K`, `K` a product over contacts.

    **Arguments:**

    - `W`: matrix `(m, m)`, not necessarily symmetric; or a `Delassus` operator, a sparse matrix of
      `jax.experimental.sparse`, or an operator of `lineax`. Operators of more than 4000 unknowns are
      used only through products, by `AcceleratedProjectedGradient`, and are not differentiated.
    - `q`: shape `(m,)`.
    - `laws`: pairs `(law, rows)`: consecutive unknowns, `c` contacts of `k` rows each given as
      `(law, (c, k))`; the unknowns are ordered contact by contact, normal first. A law is a set
      and a bias; without a bias the set itself is enough: `(HalfLine(), (m, 1))` is the LCP,
      `Free()` its equalities, `Box(lower, upper)` a relay, `CoulombFriction(mu)` friction.
    - `active`: which contacts take part, one boolean per contact of all laws in their order, shape
      `(sum of c,)`; the others have `z = w = 0` and no derivative, whatever is in their rows. Default: all.

    **Raises:** `ValueError` if the shapes of `W`, `q` and `active` and the unknowns of the laws do
    not match, or `active` holds other numbers than booleans.
    """

    W: Any = eqx.field(converter=_as_array)
    q: Float[Array, " m"] = eqx.field(converter=_as_array)
    laws: Laws
    active: Bool[Array, " contacts"] | None = eqx.field(default=None, converter=_as_active)

    def __check_init__(self):
        m = np.shape(self.q)[0] if np.ndim(self.q) == 1 else -1
        if _shape(self.W) != (m, m):
            raise ValueError(
                f"W has shape {_shape(self.W)} and q has shape {np.shape(self.q)}; "
                "W must be square and q as long as its side."
            )
        check_layout(self.laws, m, self.active)


def check_layout(laws: Laws, m: int, active, of: str = "q") -> None:
    """Raises if the laws do not cover `m` unknowns, or `active` does not have one entry per contact."""
    for entry in laws if isinstance(laws, tuple | list) else (laws,):
        if not _is_entry(entry):
            raise ValueError(
                f"laws must be pairs (law or set, (c, k)) with c contacts of k rows, such as "
                f"((HalfLine(), (m, 1)),), got {entry!r}."
            )
    total = sum(c * k for _, (c, k) in laws)
    if total != m:
        raise ValueError(f"the laws cover {total} unknowns, but {of} has {m}.")
    contacts = sum(c for _, (c, _) in laws)
    if active is not None and np.shape(active) != (contacts,):
        raise ValueError(
            f"active has shape {np.shape(active)}, but the laws have {contacts} contacts: "
            f"expected ({contacts},)."
        )


def _is_entry(entry) -> bool:
    """Whether `entry` is a law or a set with its numbers of contacts and rows."""
    pair = isinstance(entry, tuple | list) and len(entry) == 2
    if not (pair and isinstance(entry[0], AbstractLaw | AbstractSet)):
        return False
    shape = entry[1]
    counts = isinstance(shape, tuple | list) and len(shape) == 2
    return counts and all(isinstance(x, int | np.integer) and x >= 0 for x in shape)


class ComplementaritySolution(eqx.Module):
    """Solution of a `ComplementarityProblem`.

    **Arguments:**

    - `z`, `w`: shape `(m,)`.
    - `residual`: decides success, which requires that it is at most the solver's accept tolerance. It is
      the natural map at step 1, relative to the largest of `|q|`, `|z|` and `|w|`, or a hundredth of
      `velocity_residual` where that is larger.
    - `velocity_residual`: the natural map at step `s = sqrt(m)/|W|`, divided by `s` and relative to the
      larger of `|q|` and `|w|`: an error of `w`, independent of the units of z.
    - `violation`: the largest `|z · (w + lift e_N)|` of a contact, relative to `|z| max(|w|, |q|)`.
    - `iterations`: Newton and splitting iterations, sweeps and pivots together.
    - `solved_by`: index of the method that found `z`, 0 for the start, before any iteration. `solver` is
      its name, outside of `jit`.
    - `margin`: distance to the nearest change of mode, relative to the size of the problem: below
      about 1e-6 the derivative is that of one side only.
    - `certificate`: a direction that proves that there is no solution, shape `(m,)`, or zero, which proves
      nothing; for an LCP `d >= 0`, `W^T d <= 0` and `q · d < 0`.
    - `result`: how the solve ended.
    - `names`: the names that `solved_by` indexes.
    """

    z: Float[Array, " m"]
    w: Float[Array, " m"]
    residual: Array
    velocity_residual: Array
    violation: Array
    iterations: Array
    margin: Array
    solved_by: Array
    certificate: Float[Array, " m"]
    result: RESULTS
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def solver(self):
        """The name of the method that found `z`; for a batch an array of names."""
        return np.asarray(self.names)[np.asarray(self.solved_by)]


def solve_complementarity(
    problem: ComplementarityProblem,
    solver: AbstractSolver | None = None,
    *,
    warm_start: Float[Array, " m"] | None = None,
    adjoint: AbstractAdjoint = ImplicitAdjoint(),  # noqa: B008 (an immutable constant)
    throw: bool = True,
) -> ComplementaritySolution:
    """Solves a complementarity problem to a certified residual, differentiably.

    **Arguments:** `problem`; `solver` (default `Auto()`; the others are in
    `complementarity.solvers`, with a table of when to use which); `warm_start`: a guess of `z`,
    shape `(m,)`; `adjoint`: how the solution is differentiated; `throw`: raise if the tolerance
    is not reached (otherwise see `result`).

    **Returns:** a `ComplementaritySolution`, differentiable in `W`, `q` and the laws' parameters.

    **Raises:** `TypeError` if the problem or the solver is something else. `ValueError` before compiling if
    a law's parameters are out of range, a law does not fit its rows, entries are known not to be finite,
    the solver does not support the laws, or the warm start has the wrong shape; a runtime error naming
    the remedy if the residual stays above the tolerance. Inside `jit` and `vmap` values cannot be checked
    beforehand: ensure `mu >= 0` and `lower <= upper` there yourself.

    With `throw=False`, compare `result` with `RESULTS.successful`. If it differs, `z` is the best point
    found; it need not be admissible, and its derivative is meaningless. For a batch use `jax.vmap` with
    `jax.jit` around it: every new shape or set of laws takes a few seconds to compile.
    """
    check_kinds(problem, ComplementarityProblem, "(W, q, laws=((law, (c, k)),))", solver)
    guess = jnp.zeros_like(problem.q) if warm_start is None else warm_start
    _check(problem, guess)
    if problem.q.shape[0] == 0:
        return empty(problem.q)
    contacts = contacts_of(problem.laws, problem.active, problem.q.dtype)
    if problem.q.shape[0] > DENSE_LIMIT and not isinstance(problem.W, jax.Array | np.ndarray):
        return _by_products(problem, contacts, guess, solver, throw)
    solver = Auto() if solver is None else solver
    W = as_array(problem.W)
    dtype = jnp.promote_types(W.dtype, problem.q.dtype)
    condensed = _taking_part(Condensed(W.astype(dtype), problem.q.astype(dtype), contacts), problem)
    refusal = solver.refuses(condensed.contacts)
    if refusal is not None:
        raise ValueError(f"cannot solve: {refusal}.")
    z, outcome = solve_condensed(condensed, guess.astype(dtype), solver, adjoint)
    return report(condensed, z, outcome, solver, throw)


def _taking_part(condensed: Condensed, problem: ComplementarityProblem) -> Condensed:
    """Replaces the rows and columns of inactive contacts by zeros, whatever they contain."""
    if problem.active is None:
        return condensed
    rows = np.concatenate([np.full(c, k) for _, (c, k) in problem.laws])
    here = jnp.asarray(problem.active, bool)[np.repeat(np.arange(len(rows)), rows)]
    W = jnp.where(here[:, None] & here[None], condensed.W, 0)
    return Condensed(W, jnp.where(here, condensed.q, 0), condensed.contacts)


def contacts_of(laws: Laws, active, dtype) -> tuple[Contacts, ...]:
    """The laws, with one entry of their parameters and of `active` for every contact."""
    out, at = [], 0
    for law, (c, k) in stated(laws):
        mask = jnp.ones(c, bool) if active is None else jnp.asarray(active)[at : at + c]
        out.append(Contacts(broadcast_law(law, c, dtype), mask, (c, k)))
        at += c
    return tuple(out)


def report(problem: Condensed, z: Array, outcome: Outcome, solver: AbstractSolver, throw: bool):
    """The solution with its residuals and its result."""
    stats = outcome.statistics
    finite = jnp.all(jnp.isfinite(problem.W)) & jnp.all(jnp.isfinite(problem.q))
    infeasible = jnp.any(outcome.certificate != 0)
    result = RESULTS.where(infeasible, RESULTS.infeasible, RESULTS.not_converged)
    result = RESULTS.where(finite, result, RESULTS.nonfinite_problem)
    result = RESULTS.where(stats.converged, RESULTS.successful, result)
    if throw:
        z = result.error_if(z, result != RESULTS.successful)
    return ComplementaritySolution(
        z=z,
        w=problem.apply(z) + problem.q,
        residual=stats.residual,
        velocity_residual=outcome.velocity_residual,
        violation=stats.violation,
        iterations=stats.iterations,
        margin=stats.margin,
        solved_by=stats.solved_by,
        certificate=outcome.certificate,
        result=result,
        names=solver.names,
    )


def _by_products(problem, contacts, guess, solver, throw: bool) -> ComplementaritySolution:
    """Solves a problem with a large operator through its products, without a derivative."""
    given = Auto() if solver is None else solver
    solver = given.by_products()
    if solver is None:
        raise ValueError(
            f"cannot solve: {type(given).__name__} needs W as a matrix, and an operator of more than "
            f"{DENSE_LIMIT} unknowns is only multiplied; use AcceleratedProjectedGradient()."
        )
    W, q, contacts = without_derivative((problem.W, problem.q, contacts))
    lane = jax.tree.map(lambda x: x[..., None], contacts)
    order = Condensed(W, q, contacts).order
    back = np.argsort(order)
    dense = DenseProblem(Products(W, order), q[order, None], lane)
    best = solve_batch(solver, dense, guess[order, None])
    w = dense.velocity(best.z)
    stats = jax.tree.map(lambda x: x[0], judge(solver, dense.prepared(), best))
    result = RESULTS.where(stats.converged, RESULTS.successful, RESULTS.not_converged)
    z = best.z[back, 0]
    if throw:
        z = result.error_if(z, result != RESULTS.successful)
    return ComplementaritySolution(
        z=z,
        w=w[back, 0],
        residual=stats.residual,
        velocity_residual=dense.residuals(best.z, w)[1][0],
        violation=stats.violation,
        iterations=stats.iterations,
        margin=stats.margin,
        solved_by=stats.solved_by,
        certificate=jnp.zeros_like(z),
        result=result,
        names=solver.names,
    )


def empty(q: Array) -> ComplementaritySolution:
    zero, none = jnp.zeros((), q.dtype), jnp.zeros((), jnp.int32)
    return ComplementaritySolution(
        z=q,
        w=q,
        residual=zero,
        velocity_residual=zero,
        violation=zero,
        iterations=none,
        margin=zero + jnp.inf,
        solved_by=none,
        certificate=q,
        result=RESULTS.successful,
        names=("start",),
    )


def _shape(W) -> tuple[Any, ...]:
    """Shape of a matrix or of an operator."""
    sizes = getattr(W, "out_size", None), getattr(W, "in_size", None)
    if callable(sizes[0]) and callable(sizes[1]):
        return sizes[0](), sizes[1]()
    shape = getattr(W, "shape", None)
    return shape if isinstance(shape, tuple) else np.shape(W)


def as_array(W) -> Array:
    """Converts a matrix or an operator to an array."""
    for name in ("as_matrix", "todense"):
        convert = getattr(W, name, None)
        if convert is not None:
            return convert()
    return jnp.asarray(W)


def _check(problem: ComplementarityProblem, guess) -> None:
    """Raises errors that can be found before anything is compiled."""
    if np.shape(guess) != np.shape(problem.q):
        raise ValueError(
            f"warm_start has shape {np.shape(guess)}, expected that of q, {np.shape(problem.q)}."
        )
    check_laws(problem.laws)
    for name, value in (("W", problem.W), ("q", problem.q)):
        for leaf in jax.tree.leaves(concrete(eqx.filter(value, eqx.is_inexact_array))):
            if not is_traced(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
                raise ValueError(f"cannot solve: {name} has entries that are not finite.")


def check_kinds(problem, kind: type, arguments: str, solver) -> None:
    """Raises `TypeError` if a problem or a solver is something else."""
    expects("problem", problem, kind, f"a {kind.__name__}{arguments}")
    expects("solver", solver, AbstractSolver | None, "a solver, such as Auto() or solvers.Lemke()")


def check_laws(laws: Laws) -> None:
    """Raises if a law does not fit its rows, or its parameters are known to be out of range."""
    for law, (_, k) in stated(laws):
        message = law.refuses(k) or concrete(law).check()
        if message is None and law.rows is not None and k != law.rows:
            message = (
                f"{type(law).__name__} acts on {law.rows} row per contact, got {k}; "
                f"for c such rows give (c, {law.rows})"
            )
        if message is not None:
            raise ValueError(f"cannot solve: {message}.")
