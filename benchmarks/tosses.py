"""Random tosses of a cube: is the motion the same however it is computed, and is its derivative true?

A cube that rests on a face has four redundant contacts: many shares of its load make the same motion, and
the motion that follows depends on which one a step takes. The tosses are those of
`tests/simulation/test_cube_derivatives.py`, with 150 steps of 1/148 s, until most cubes rest on a face.

- Motions. The reference has `max_active=4` and `Auto()` with a tolerance of 1e-13, all tosses in a batch.
  Beside it are other numbers of candidates, no warm start, every toss alone, the default tolerance, and other
  solvers with the tolerance of the reference, in a batch and alone. Two motions are equal where positions
  [m], quaternions, and velocities times 0.05 s agree to 1e-8.
- Derivatives of the reference, along a random direction of start, friction, restitution, mass and inertia:
  of the whole motion, and of every step by itself. They are true where they agree to 1e-5 with the nearest of
  central differences of second order, at widths of 1e-4, 5e-5, ... 1.5e-9, and of fourth order, which two
  neighbouring widths make: wide ones cross changes of contact, narrow ones end in rounding. Errors are
  relative to the norm of the derivative of the state, or to 1e-3 if that is larger. In the first three tosses
  friction or restitution is at a bound; both are not changed there.

A step is clear if its margin is at least 1e-6, and a toss if all of its steps are. The others are compared
too, and up to their first step that is not clear. Tosses with a step that is not solved are only counted.

    python benchmarks/tosses.py --json tosses.json
    python benchmarks/tosses.py --count 20 --only "6 candidates" derivatives

It takes ten to fifteen minutes on two cores. It ends with status 1 if anything is not finite.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _harness
from diffnsd import RESULTS, Auto, MoreauJean, simulate
from diffnsd.complementarity import solvers
from diffnsd.models import cube_state, tossed_cube

H, CLEAR, EQUAL, TRUE = 1 / 148, 1e-6, 1e-8, 1e-5
WIDTHS = 1e-4 * 2.0 ** -np.arange(17)
TIGHT = Auto(tolerance=1e-13, accept_tolerance=1e-9)


class Cold(MoreauJean):
    """Without warm start: every step begins from zero impulses."""

    def step(self, model, t0, h, state, carry, args):
        return super().step(model, t0, h, state, self.init(model, t0, state, args), args)


class Way(NamedTuple):
    """How motions are computed."""

    method: MoreauJean = MoreauJean(theta=1.0, solver=TIGHT)
    max_active: int | None = 4
    alone: bool = False


WAYS = {
    "6 candidates": Way(max_active=6),
    "all candidates": Way(max_active=None),
    "cold start": Way(Cold(theta=1.0, solver=TIGHT)),
    "alone": Way(alone=True),
    "default tolerance": Way(MoreauJean(theta=1.0)),
}
for _solver in (
    *(solvers.RegularisedNewton(), solvers.SemismoothNewton(), solvers.Newton()),
    *(solvers.LevenbergMarquardt(), solvers.InteriorPoint(), solvers.Splitting()),
    *(solvers.ProjectedGaussSeidel(), solvers.AcceleratedProjectedGradient()),
    solvers.AndersonGradient(),
):
    _chain = solvers.Chain((_solver,), tolerance=1e-13, accept_tolerance=1e-9)
    _way, _name = Way(MoreauJean(theta=1.0, solver=_chain)), type(_solver).__name__
    WAYS |= {_name: _way, f"{_name}, alone": _way._replace(alone=True)}


def draw(count: int):
    """Friction, restitution, mass, inertia `(count,)` and starts of random tosses."""
    random = np.random.default_rng(2)
    q = random.normal(size=(count, 4))
    turn = q / np.linalg.norm(q, axis=1, keepdims=True)
    velocity = random.normal(size=(count, 3)) * 0.7 + [0, 0, -1.0]
    place, spin = np.tile([0, 0, 0.08], (count, 1)), random.normal(size=(count, 3)) * 5
    start = jax.vmap(cube_state)(*map(jnp.asarray, (place, turn, velocity, spin)))
    mu, e = np.linspace(0.05, 0.6, count), np.linspace(0.0, 0.4, count)
    mu[1:2], e[2:3] = 0.0, 1.0
    return *map(jnp.asarray, (mu, e, np.full(count, 0.37), np.full(count, 8.1e-4))), start


def random_direction(tosses, seed: int):
    """A random change of every toss."""
    random = np.random.default_rng(seed)
    mu, e, mass, inertia, start = jax.tree.map(lambda x: random.normal(size=x.shape), tosses)
    inside = np.arange(len(mu)) >= 3
    return 0.3 * inside * mu, 0.3 * inside * e, 0.3 * mass, 8e-4 * inertia, start


def motion(way: Way, steps: int, toss):
    """What is compared `(steps + 1, 13)`; and the states, the margins, and whether all steps are solved."""
    *parameters, start = toss
    model = tossed_cube(*parameters, max_active=way.max_active)
    out = simulate(model, way.method, 0.0, steps * H, H, start, throw=False)
    q, v = out.states.q, out.states.v
    compared = jnp.concatenate([q.position[:, 0], q.orientation[:, 0], 0.05 * v], axis=1)
    return compared, (out.states, out.stats.margin, out.result == RESULTS.successful)


def motions(way: Way, steps: int, tosses):
    """As `motion`, of all tosses."""

    def one(toss):
        return motion(way, steps, toss)

    if not way.alone:
        return jax.tree.map(np.asarray, eqx.filter_jit(jax.vmap(one))(tosses))
    program, count = eqx.filter_jit(one), len(tosses[0])
    runs = [program(jax.tree.map(lambda x, i=i: x[i], tosses)) for i in range(count)]
    return jax.tree.map(lambda *x: np.stack(x), *runs)


def clear_steps(margins: np.ndarray) -> np.ndarray:
    """How many steps of every toss are clear before the first one that is not."""
    return np.sum(np.logical_and.accumulate(margins >= CLEAR, axis=1), axis=1)


def beside(name: str, way: Way, tosses, reference) -> dict:
    """Motions beside those of the reference, as a row."""
    expected, (_, margins, _) = reference
    steps = margins.shape[1]
    found, (_, _, solved) = motions(way, steps, tosses)
    apart, until = np.max(np.abs(found - expected), axis=2)[solved], clear_steps(margins)[solved]
    near, later = apart <= EQUAL, np.arange(steps + 1) > until[:, None]
    clear = until == steps
    return {
        "motions": name,
        "solved": len(apart),
        "equal": int(np.sum(np.all(near, axis=1))),
        "equal while clear": int(np.sum(np.all(near | later, axis=1))),
        "clear": int(np.sum(clear)),
        "of these equal": int(np.sum(np.all(near[clear], axis=1))),
        "worst": float(np.max(apart[clear], initial=0)),
        "steps": near[:, 1:].size,
        "steps equal": int(np.sum(near[:, 1:])),
        "finite": bool(np.all(np.isfinite(apart))),
    }


def errors_of_derivatives(steps: int) -> Callable:
    """`(tosses, seed) -> errors (n, steps), margins (n, steps)` of derivatives through `steps` steps."""

    def one(toss):
        return motion(Way(), steps, toss)

    run = eqx.filter_jit(jax.vmap(lambda toss: one(toss)[0]))
    push = eqx.filter_jit(jax.vmap(lambda p, d: jax.jvp(one, (p,), (d,), has_aux=True)[1:]))

    def errors(tosses, seed: int):
        direction = random_direction(tosses, seed)
        tangent, (_, margins, _) = jax.tree.map(np.asarray, push(tosses, direction))

        def at(w: float):
            return run(jax.tree.map(lambda x, d: x + w * d, tosses, direction))

        second = [np.asarray(at(w) - at(-w)) / (2 * w) for w in WIDTHS]
        fourth = [(4 * near - far) / 3 for far, near in itertools.pairwise(second)]
        off = [np.linalg.norm(x - tangent, axis=2) for x in (*second, *fourth)]
        size = np.maximum(np.linalg.norm(tangent, axis=2), 1e-3)
        return (np.fmin.reduce(off) / size)[:, 1:], margins

    return errors


def derivatives(tosses, reference) -> list[dict]:
    """Derivatives beside central differences, as rows."""
    states, margins, _ = reference[1]
    steps = margins.shape[1]
    errors, _ = errors_of_derivatives(steps)(tosses, 0)
    until = clear_steps(margins)
    whole = np.max(np.where(np.arange(steps) < until[:, None], errors, 0), axis=1)
    of_a_step, found = errors_of_derivatives(1), []
    for k in range(steps):
        start = jax.tree.map(lambda x, k=k: jnp.asarray(x[:, k]), states)
        found.append(of_a_step((*tosses[:4], start), k))
    single, margins = (np.concatenate(x, axis=1) for x in zip(*found, strict=True))
    clear = margins >= CLEAR
    rows = {
        "clear tosses": whole[until == steps],
        "all tosses, while clear": whole,
        "clear steps": single[clear],
        "other steps": single[~clear],
    }
    return [
        {
            "derivatives": name,
            "compared": len(x),
            "true": int(np.sum(x <= TRUE)),
            "worst": float(np.max(x, initial=0)),
            "finite": bool(np.all(np.isfinite(x))),
        }
        for name, x in rows.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="number of tosses")
    parser.add_argument("--steps", type=int, default=150)
    names = (*WAYS, "derivatives")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args(arguments)

    facts, tosses, steps = _harness.header(), draw(options.count), options.steps
    _harness.print_header(f"{options.count} tosses of a cube, {steps} steps of 1/148 s", facts)
    reference = motions(Way(), steps, tosses)
    _, margins, solved = reference[1]
    print(
        f"  reference: {np.sum(solved)} solved, {np.sum(clear_steps(margins) == steps)} clear; "
        f"{np.sum(margins < CLEAR)} of {margins.size} steps are not clear, "
        f"{np.sum(margins == 0)} have a margin of 0\n"
    )
    ways = {name: way for name, way in WAYS.items() if name in options.only}
    rows = [beside(name, way, tosses, reference) for name, way in ways.items()]
    slopes = derivatives(tosses, reference) if "derivatives" in options.only else []
    for table in filter(None, (rows, slopes)):
        cells = [
            [f"{x:.2g}" if type(x) is float else str(x) for x in row.values()] for row in table
        ]
        _harness.print_table(list(table[0]), cells)
        print()
    if options.json is not None:
        text = json.dumps({"facts": facts, "rows": rows + slopes}, indent=1)
        options.json.write_text(text + "\n")
    finite = all(row["finite"] for row in rows + slopes) and np.all(np.isfinite(reference[0]))
    return 0 if finite else 1


if __name__ == "__main__":
    sys.exit(main())
