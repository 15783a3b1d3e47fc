"""Explains a gradient: which contact contributes in which step, and whether it can be trusted."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._arguments import Number, checked_arguments
from .._types import Args, State
from ..integrators import AbstractIntegrator
from ..integrators._base import NEAR_EDGE
from ..integrators._impact import approach
from ..model import Model
from ..simulation._struck import Turns

GROWTH = 1e4
"""Warn if sensitivities grow by more than this factor: four digits of the start are then lost."""


NOT_TRUE = {
    "missed": (
        "impacts or turns of friction were not located",
        "the gradient has no derivative of their times. Raise max_impacts, or take shorter steps",
    ),
    "slow": (
        "slow impacts were left to the scheme as if at rest",
        "the gradient has no derivative of their times. If they matter take shorter steps",
    ),
    "merged": (
        "contacts struck together with another one",
        "the gradient is that of striking together. Compare with a start that is moved a little",
    ),
    "turned": (
        "turns of sliding friction had no derivative of their times",
        "the gradient is wrong in what moves them. Use Located(...) or Corrected(...), and friction "
        "with one row, or CoulombFriction in space",
    ),
    "drifted": (
        "steps ended with the values of Corrected far from the motion of its derivatives",
        "the gradient is that of another motion. Take shorter steps, or use Located(...)",
    ),
    "curved": (
        "steps of contacts lasted on curved surfaces",
        "the gradient has only first order after them. Use contacts_at=HalfExplicit() of the method inside, "
        "or shorter steps",
    ),
}
"""What a step counts that makes derivatives wrong or inaccurate, and what follows from it."""


class GradientExplanation(eqx.Module):
    """The contributions to a gradient; `str` gives a report. `p` parameters, `s` steps, `c` contacts.

    **Arguments:**

    - `gradient`: of the loss, like the parameters. `names`: names of its entries, `(p,)`.
    - `ts`: the start of each step [s], `(s,)`.
    - `through`: contribution of each contact in each step, `(s, c, p)`: to first order, the gradient
      minus the gradient with that contact switched off in that step alone.
    - `touched`: which contacts carried an impulse, `(s, c)`. `struck`: which of them struck.
    - `growth`: sensitivity of the loss to the state at the end of each step, relative to that to
      the last, `(s,)`. `margins`: relative distance to a change of mode, `(s,)`.
    - `missed`, `slow`, `merged`, `drifted`, `curved`: what makes derivatives wrong or inaccurate, as in
      `Solution.stats`, `(s,)`. `turned`: contacts whose sliding reversed, its time without derivative,
      `(s, c)`.
    - `times_kept`: whether the method differentiates impact times.
    """

    gradient: PyTree[Array]
    ts: Float[Array, " s"]
    through: Float[Array, "s c p"]
    touched: Bool[Array, "s c"]
    struck: Bool[Array, "s c"]
    growth: Float[Array, " s"]
    margins: Float[Array, " s"]
    missed: Int[Array, " s"]
    slow: Int[Array, " s"]
    merged: Int[Array, " s"]
    drifted: Int[Array, " s"]
    curved: Int[Array, " s"]
    turned: Bool[Array, "s c"]
    duration: float = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    times_kept: bool = eqx.field(static=True)

    @property
    def lyapunov_time(self) -> float:
        """Average time [s] in which sensitivities grow by a factor e; infinite if they do not grow."""
        rate = np.log(max(float(np.max(np.asarray(self.growth))), 1e-300))
        return self.duration / rate if rate > 0 else float("inf")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to trust the gradient, each with its remedy."""
        found, at = [], np.asarray(self.ts)
        values = np.asarray(ravel_pytree(self.gradient)[0])
        touched, struck = np.asarray(self.touched), np.asarray(self.struck)
        margins, growth = np.asarray(self.margins), float(np.max(np.asarray(self.growth)))
        if not np.all(np.isfinite(values)):
            found.append(
                "The gradient is not finite: look at the step where `growth` overflows, shorten the "
                "horizon, and check parameters at the edge of their range."
            )
        if np.any(struck) and not self.times_kept:
            first = int(np.argmax(np.any(struck, axis=1)))
            found.append(
                f"Contacts struck {int(np.sum(struck))} times, first in step {first}, and this "
                "method loses the derivative of impact times: the gradient is wrong however short "
                "the steps. Use Located(...) or Corrected(...) around it."
            )
        for name, (what, remedy) in NOT_TRUE.items():
            counts = np.asarray(getattr(self, name))
            by_contact = counts if counts.ndim == 2 else struck
            counts = counts.reshape(len(at), -1).sum(axis=1)
            if np.any(counts):
                first = int(np.argmax(counts > 0))
                which = ", ".join(map(str, np.flatnonzero(by_contact[first])))
                contacts = f", contact {which}" if which else ""
                found.append(
                    f"{int(np.sum(counts))} {what}, first in step {first} (t = {at[first]:.4g} s"
                    f"{contacts}): {remedy}."
                )
        zero = [name for name, value in zip(self.names, values, strict=True) if value == 0]
        if zero:
            why = (
                "contacts act, but not so that these count (a contact that sticks, or a loss of "
                "what they do not move)"
                if np.any(touched)
                else "no contact was reached"
            )
            found.append(
                f"The gradient is exactly zero for {', '.join(zero)}: {why}. Start nearer to the "
                "contact, run longer, or use SmoothedAdjoint(...) with GapStabilized laws, or "
                "bundled_gradient."
            )
        nearest = int(np.argmin(margins))
        if margins[nearest] < NEAR_EDGE:
            found.append(
                f"Step {nearest} is on the edge between two modes (margin {margins[nearest]:.1e}): "
                "the derivative is set-valued there, and one element of the set was taken. Compare "
                "with a start that is moved a little, or use bundled_gradient."
            )
        if growth > GROWTH:
            found.append(
                f"Sensitivities grow {growth:.1e} times over {self.duration:g} s (Lyapunov time "
                f"{self.lyapunov_time:.2g} s): the gradient is right only very near, and useless "
                "for steps of an optimiser. Shorten the horizon to a few Lyapunov times, or use "
                "multiple shooting (identification)."
            )
        return tuple(found)

    def largest(self, count: int = 5) -> list[tuple[int, int, int, float]]:
        """The largest contributions: (step, contact, parameter, value)."""
        values = np.asarray(self.through)
        order = np.argsort(-np.abs(values), axis=None)[:count]
        places = (np.unravel_index(i, values.shape) for i in order)
        return [(int(s), int(c), int(p), float(values[s, c, p])) for s, c, p in places]

    def __str__(self) -> str:
        values, _ = ravel_pytree(self.gradient)
        lines = [f"{n}: {float(v):.6g}" for n, v in zip(self.names, values, strict=True)]
        lines = ["Gradient", *("  " + line for line in lines), "Through contacts"]
        for s, c, p, value in self.largest():
            if value != 0:
                lines.append(
                    f"  step {s} (t = {float(self.ts[s]):.4g} s), contact {c}: {value:+.6g} of "
                    f"{self.names[p]}"
                )
        lines += ["Warnings", *("  " + w for w in self.warnings)] if self.warnings else []
        return "\n".join(lines)


@checked_arguments
def explain_gradient(
    loss: Annotated[Callable[[State], Array], "(states)"],
    parameters: PyTree[Array],
    build: Annotated[Callable[[PyTree[Array]], tuple[Model, State]], "(parameters)"],
    integrator: AbstractIntegrator,
    t0: Number,
    t1: Number,
    dt: Number,
    args: Args = None,
) -> GradientExplanation:
    """Computes the contribution of each contact in each step to the gradient of a loss.

    With the adjoint state `λ` and the tangent `dx` of the motion with respect to a parameter, contact
    `i` contributes

        λ(t + h) · (D Φ − D Φ without i) (dx, dp)

    in a step `Φ`. It costs a forward and a reverse pass and, for every contact and parameter, another
    forward pass. Use it for inspection, with few contacts and parameters, not for optimisation.

    **Arguments:**

    - `loss(states) -> ()`: a function of the states after every step, with a leading axis `(s,)`.
    - `parameters`: pytree of arrays. `build(parameters) -> (model, state0)`.
    - `integrator`, `t0`, `t1` [s], `dt` [s], `args`: as in `simulate`.

    **Returns:** a `GradientExplanation`.

    **Raises:** `ValueError` if the integrator cannot step the model, or the model has no positions
    or no contacts.
    """
    if not dt > 0 or t1 - t0 < 0.5 * dt:
        raise ValueError(
            f"dt must be positive, and t1 at least one step after t0; got t0={t0:g}, t1={t1:g}, dt={dt:g}."
        )
    steps = round((t1 - t0) / dt)
    _check_parameters(parameters)
    flat, unravel = ravel_pytree(parameters)
    try:
        model, state = build(parameters)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"build(parameters) ended in {type(error).__name__}: {error}. parameters must be what "
            "build takes, and build return (model, state0)."
        ) from error
    problem = integrator.supports(model) or model.check(state)
    if problem is None and (state.q is None or not model.interactions):
        problem = (
            "it is made for mechanical systems with contacts; for relays that are crossed take "
            "Located(...) or Corrected(...)"
        )
    if problem is not None:
        raise ValueError(f"cannot explain the gradient: {problem}.")
    h = jnp.asarray((t1 - t0) / max(steps, 1), state.v.dtype)
    ts = jnp.asarray(t0, h.dtype) + jnp.arange(steps).astype(h.dtype) * h
    explain = eqx.filter_jit(_explain)
    found = explain(loss, flat, unravel, build, integrator, ts, h, args)
    return GradientExplanation(
        unravel(found.pop("gradient")),
        ts,
        **found,
        duration=float(t1 - t0),
        names=_names(parameters),
        times_kept=integrator.keeps_impact_times,
    )


def _check_parameters(parameters) -> None:
    leaves = jax.tree.leaves(parameters)
    if leaves and all(eqx.is_inexact_array(leaf) or isinstance(leaf, float) for leaf in leaves):
        return
    raise TypeError(
        "parameters must be real numbers, or a pytree of arrays of them, such as {'e': 0.8}."
    )


def _explain(loss, flat, unravel, build, integrator, ts, h, args) -> dict[str, Array]:
    def advance(flat, t, state, carry, on):
        model = build(unravel(flat))[0].masked(t, state.q, on)
        return integrator.step(model, t, h, state, carry, args)

    model, start = build(unravel(flat))
    count = sum(model.contacts(ts[0], start.q))
    everything = jnp.ones(count, bool)

    def run(flat, taps):
        model, state = build(unravel(flat))

        def body(run, this):
            state, carry = run
            t, tap = this
            end, info, new, _ = advance(flat, t, state, carry, everything)
            end = jax.tree.map(jnp.add, end, tap)
            return (end, new), (state, carry, end, info)

        carry = integrator.init(model, ts[0], state, args)
        return jax.lax.scan(body, (state, carry), (ts, taps))[1]

    taps = jax.tree.map(lambda x: jnp.zeros((len(ts), *x.shape), x.dtype), start)

    def total(flat, taps):
        begins, carries, ends, info = run(flat, taps)
        return loss(ends), (begins, carries, info)

    both = jax.grad(total, argnums=(0, 1), has_aux=True)
    (gradient, adjoints), (begins, carries, info) = both(flat, taps)
    directions = jnp.eye(flat.shape[0], dtype=flat.dtype)

    def tangents(direction):
        return jax.jvp(lambda p: run(p, taps)[:2], (flat,), (direction,))[1]

    moved = jax.vmap(tangents, out_axes=1)(directions)  # (s, p, ...)
    masks = jnp.concatenate([everything[None], ~jnp.eye(count, dtype=bool)])

    def one(step):
        t, state, carry, tangent, adjoint = step

        def effect(on, change, direction):
            def end(flat, state, carry):
                return advance(flat, t, state, carry, on)[0]

            out = jax.jvp(end, (flat, state, carry), (direction, *change))[1]
            parts = jax.tree.map(lambda a, b: jnp.sum(a * b), adjoint, out)
            return jnp.sum(jnp.stack(jax.tree.leaves(parts)))

        each = jax.vmap(effect, (None, 0, 0))
        effects = jax.vmap(each, (0, None, None))(masks, tangent, directions)
        striking = approach(model, t, h, state, args, 4.0)
        hits = striking.strikes & (striking.gap <= 1.5 * h * striking.fastest)
        return effects[:1] - effects[1:], hits

    through, hits = jax.lax.map(one, (ts, begins, carries, moved, adjoints))
    touched = jnp.concatenate([jnp.any(p != 0, axis=2) for p in info.impulses], axis=1)

    turns, turned = Turns.of(model, integrator, ts[0], start), jnp.zeros_like(touched)
    if turns is not None:
        turned = jax.lax.scan(lambda turns, info: turns.then(model, h, info), turns, info)[1]

    squares = [jnp.sum(x.reshape(len(ts), -1) ** 2, axis=1) for x in jax.tree.leaves(adjoints)]
    sizes = jnp.sqrt(sum(squares))
    last = jnp.max(jnp.where(sizes > 0, jnp.arange(len(ts)), 0))
    return {
        "gradient": gradient,
        "through": through,
        "touched": touched,
        "struck": touched & hits,
        "growth": sizes / jnp.where(sizes[last] > 0, sizes[last], 1),
        "margins": info.margin,
        **{name: getattr(info, name) for name in NOT_TRUE if name != "turned"},
        "turned": turned,
    }


def _names(parameters) -> tuple[str, ...]:
    """One name for each number in a pytree."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        size = np.size(leaf)
        names += [name] if np.ndim(leaf) == 0 else [f"{name}[{i}]" for i in range(size)]
    return tuple(names)
