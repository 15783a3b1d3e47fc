"""The driver of all solvers, which also divides batches among them.

It runs one method after the other, computes the residual of the point after every step, keeps the best
point and counts iterations. In a batch the problems that the first method leaves unsolved are gathered,
a few at a time, so that slow problems do not delay the rest.

A table holds the order of the methods, and a single loop works through it: a method is compiled once
however often it occurs, and the residual is compiled once for all methods.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._numerics import matrix_inverse, matvec
from ..problem._dense import Contacts, DenseProblem, Statistics, norm
from ..problem._problem import MixedProblem, join, moved, split

FEW = 16
"""Largest batch whose problems go through all methods together."""
CAPACITY = 8
"""The fewest problems that are gathered at once."""
PARTS, PARTS_OF_FEW = 8, 32
"""The part of a batch that is gathered at once, an eighth; less after a method that leaves few unsolved."""


class Best(eqx.Module):
    """The best point so far, for every problem of a batch.

    **Arguments:** `z`: shape `(m, l)`; `residual`: its `DenseProblem.residual`; `passes`:
    iterations; `ray`: the direction in which iterates last moved, `(m, l)`: where they diverge it
    is a candidate for a certificate; `link`: index of the method that found `z`, 0 for the start.
    """

    z: Array
    residual: Array
    passes: Array
    ray: Array
    link: Array

    def keep_if_better(self, z: Array, residual: Array, tolerance, link: Any = 0) -> "Best":
        """Keeps `z` where it is better; a point that has converged is final."""
        better = (residual < self.residual) & (self.residual > tolerance)
        return eqx.tree_at(
            lambda b: (b.z, b.residual, b.link),
            self,
            (
                jnp.where(better[None], z, self.z),
                jnp.where(better, residual, self.residual),
                jnp.where(better, link, self.link),
            ),
        )

    def count(self, tolerance, more: Any = 1) -> "Best":
        """Adds `more` iterations for the problems that have not converged."""
        passes = self.passes + jnp.where(self.residual > tolerance, more, 0)
        return eqx.tree_at(lambda b: b.passes, self, passes)

    def record_direction(self, step: Array) -> "Best":
        """Records the direction of a move, normalised."""
        size = norm(step)
        ray = jnp.where(size[None] > 0, step / jnp.where(size > 0, size, 1)[None], 0)
        return eqx.tree_at(lambda b: b.ray, self, ray)


def start(problem: DenseProblem, z0: Array) -> Best:
    """The better of the warm start, projected on the sets, and the solution for a diagonal `W`."""
    first, second = problem.project(z0), problem.project(-problem.steps() * problem.q)
    points = jnp.stack([first, second])
    residuals = jax.vmap(lambda z: problem.residual(z, problem.velocity(z)))(points)
    better = residuals[1] < residuals[0]
    zero = jnp.zeros(z0.shape[1:], jnp.int32)
    z = jnp.where(better[None], second, first)
    return Best(z, jnp.min(residuals, axis=0), zero, jnp.zeros_like(z), zero)


def solve_batch(solver: Any, problem: DenseProblem, z0: Array) -> Best:
    """Solves all problems of a batch; see this module's docstring."""
    problem = problem.prepared()
    best = start(problem, z0)
    entries = _table(solver, problem)
    if not entries:
        return best
    lanes = z0.shape[1]
    limits = solver.tolerance_for(z0.dtype), solver.accept_tolerance_for(z0.dtype)
    if lanes <= FEW or len(entries) == 1:
        return _go_through(problem, best, entries, limits)
    best = _go_through(problem, best, entries[:1], limits)
    capacity = max(CAPACITY, lanes // (PARTS_OF_FEW if entries[0].link.leaves_few else PARTS))

    def body(carry):
        best, waiting = carry
        _, index = jax.lax.top_k(waiting.astype(jnp.int32), capacity)
        some = jax.tree.map(lambda x: x[..., index], best)
        some = _go_through(problem.take(index), some, entries[1:], limits)
        best = jax.tree.map(lambda x, y: x.at[..., index].set(y), best, some)
        return best, waiting.at[index].set(False)

    waiting = best.residual > limits[0]
    return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), body, (best, waiting))[0]


class _Entry(NamedTuple):
    """An entry of the table: a method, its index in the solver's `names`, and whether it is a fallback."""

    link: Any
    index: int
    late: bool


def _table(solver: Any, problem: DenseProblem) -> list[_Entry]:
    """The methods in order, without those that cannot solve this problem."""
    links = [_Entry(link, i, False) for i, link in enumerate(solver.links, 1)]
    fallback = [_Entry(x, i, True) for i, x in enumerate(solver.fallback, 1 + len(links))]
    able = [
        entry
        for entry in [*links, *(fallback * solver.repeats)]
        if entry.link.max_iterations > 0 and entry.link.refuses(problem.contacts) is None
    ]
    # If no method suits the batch, all that can solve it are tried.
    return [entry for entry in able if entry.link.suits(problem)] or able


class _Run(eqx.Module):
    """State of the loop over the table.

    **Arguments:** `best`; `guess`: where local methods start; `states`: one for every method; `begun`:
    which methods have a state; `at`: current entry of the table; `count`: steps taken in this entry.
    """

    best: Best
    guess: Array
    states: tuple
    begun: Array
    at: Array
    count: Array


def _go_through(problem: DenseProblem, best: Best, entries: list[_Entry], limits) -> Best:
    """Runs the methods one after the other until all problems are solved or no method is left."""
    tolerance, accept = limits
    methods = list({_method(e.link): e.link for e in entries}.items())
    keys = [key for key, _ in methods]
    dtype = best.z.dtype
    kinds = jnp.asarray([keys.index(_method(e.link)) for e in entries], jnp.int32)
    steps = jnp.asarray([-(-e.link.max_iterations // e.link.block) for e in entries], jnp.int32)
    names = jnp.asarray([e.index for e in entries], jnp.int32)
    goals = jnp.asarray([accept if e.late else tolerance for e in entries], dtype)
    settings = [
        {name: jnp.asarray(_column(name, entries, key), dtype) for name in type(x).settings}
        for key, x in methods
    ]

    def advance(k):
        """Returns a step of method `k`; the first step of a turn starts from a new state."""

        def of_run(run):
            values = {name: x[run.at] for name, x in settings[k].items()}
            link = _with_settings(methods[k][1], values)
            fresh = (run.count == 0) & ~(run.begun[k] & (link.explores and link.resumes))
            z0 = run.best.z if link.explores else run.guess
            old = jax.lax.cond(fresh, lambda: link.init(problem, z0), lambda: run.states[k])
            new = link.step(problem, old)
            states = (*run.states[:k], new, *run.states[k + 1 :])
            more = jnp.broadcast_to(jnp.asarray(link.iterations(new), jnp.int32), best.link.shape)
            guess = new.z if link.explores else run.guess
            ended = link.terminate(problem, new)
            return states, new.z, guess, link.direction(old, new), more, ended

        return of_run

    branches = [advance(k) for k in range(len(methods))]

    def proceed(run):
        at = jnp.minimum(run.at, len(entries) - 1)
        return (run.at < len(entries)) & jnp.any(run.best.residual > goals[at])

    def body(run):
        at = run.at
        states, z, guess, move, more, ended = jax.lax.switch(kinds[at], branches, run)
        residual = problem.residual(z, problem.velocity(z))
        best = run.best.count(tolerance, more).keep_if_better(z, residual, tolerance, names[at])
        best = best.record_direction(move)
        over = (run.count + 1 >= steps[at]) | jnp.all(ended | (best.residual <= tolerance))
        begun = run.begun | (jnp.arange(len(methods), dtype=jnp.int32) == kinds[at])
        count = jnp.where(over, 0, run.count + 1)
        return _Run(best, guess, states, begun, at + over.astype(at.dtype), count)

    states = []
    for _, link in methods:
        shapes = jax.eval_shape(lambda link=link: link.init(problem, best.z))
        states.append(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
    zero = jnp.zeros((), jnp.int32)
    run = _Run(best, best.z, tuple(states), jnp.zeros(len(methods), bool), zero, zero)
    return jax.lax.while_loop(proceed, body, run).best


def _method(link: Any) -> tuple:
    """Key of the program of a method: its type, and all fields except those that are only numbers."""
    others = [
        (field.name, getattr(link, field.name))
        for field in dataclasses.fields(link)
        if field.name not in (*type(link).counted, *type(link).settings)
    ]
    return type(link), *others


def _column(name: str, entries: list[_Entry], key: tuple) -> list[float]:
    """A numeric field of one method for every entry of the table; zero in entries of other methods."""
    return [getattr(e.link, name) if _method(e.link) == key else 0.0 for e in entries]


def _with_settings(link, values: dict[str, Array]):
    """The same method with some of its numbers read from the table, where they are not constants.

    It bypasses the constructor, whose checks need concrete numbers.
    """
    if not values:
        return link
    new = object.__new__(type(link))
    for field in dataclasses.fields(link):
        object.__setattr__(new, field.name, values.get(field.name, getattr(link, field.name)))
    return new


def solve_step(solver: Any, problem: MixedProblem, z0: tuple[Array, ...]):
    """Solves the problem of a step by eliminating its velocity: `W = H A^-1 B`, `q = H A^-1 b`.

    Velocities are scaled by one over the size of W, so that the residual does not depend on units.

    **Returns:** `v`, `z`, `Statistics`.

    **Raises:** `ValueError` if the solver cannot solve the laws.
    """
    lanes, mobility = problem.rhs.shape[1:], None
    if problem.matrix is not None:
        mobility = matrix_inverse(problem.matrix)
    free, columns = moved(mobility, problem.rhs), problem.loads()
    if mobility is not None:
        columns = jax.vmap(lambda x: matvec(mobility, x), 1, 1)(columns)
    contacts = _contacts(problem)
    refusal = solver.refuses(contacts)
    if refusal is not None:
        raise ValueError(f"cannot solve the contacts of a step: {refusal}.")
    apart = jax.vmap(lambda x: join([block.local(x) for block in problem.blocks]), 1, 1)
    W, q = apart(columns), join(problem.local(free))
    active = join([jnp.broadcast_to(b.active[None], b.offset.shape) for b in problem.blocks])
    W = jnp.where(active[:, None] & active[None], W, 0).reshape((*W.shape[:2], -1))
    q = jnp.where(active, q, 0).reshape((len(q), -1))
    size = norm(W.reshape((-1, *W.shape[2:]))) / math.sqrt(len(q))
    scale = 1 / jnp.where(size > 0, size, 1)
    dense = DenseProblem(jnp.moveaxis(W * scale[None, None], 2, 0), q * scale[None], contacts)
    best = solve_batch(solver, dense, join(z0).reshape(q.shape))
    z = best.z.reshape(active.shape)
    v = free + jnp.einsum("nj...,j...->n...", columns, z)
    statistics = judge(solver, dense, best)
    return v, split(dense.shapes, z), jax.tree.map(lambda x: x.reshape(lanes), statistics)


def given(problem: MixedProblem) -> DenseProblem:
    """Converts a problem with unit matrices to the form that methods use, with the batch on one axis."""
    W = problem.loads()
    q = join([block.offset for block in problem.blocks]).reshape((len(W), -1))
    W = jnp.moveaxis(W.reshape((*W.shape[:2], -1)), 2, 0)
    return DenseProblem(W, q, _contacts(problem))


def _contacts(problem: MixedProblem) -> tuple[Contacts, ...]:
    """The laws of all blocks, with the batch on one axis."""
    out = []
    for block in problem.blocks:
        k, c = block.offset.shape[:2]
        law, active = jax.tree.map(lambda x: x.reshape((x.shape[0], -1)), (block.law, block.active))
        out.append(Contacts(law, active, (c, k)))
    return tuple(out)


def judge(solver: Any, problem: DenseProblem, best: Best) -> Statistics:
    """Statistics of the best point."""
    w = problem.velocity(best.z)
    return Statistics(
        residual=best.residual,
        violation=problem.violation(best.z, w),
        iterations=best.passes,
        margin=problem.margin(best.z, w, problem.steps()),
        solved_by=best.link,
        converged=best.residual <= solver.accept_tolerance_for(best.z.dtype),
        wedged=jnp.zeros_like(best.passes),
    )
