"""Gradients beside the truth: sensitivities in closed form, and what every method makes of them.

Motions of `tests/oracles` are run with step lengths near 1e-2, 1e-3 and 1e-4 s, `--sizes` of each (25): one
length may be lucky, since events fall anywhere in its steps. For every parameter one row says how far the
derivative of the state at the end is from that of the motion:

    problem, parameter, engine, mode, h, exact, value, relative_error, worst_error, observed_order, note,
    silent

The error of one run is the largest of all entries over the largest exact entry (of any parameter, if
that is zero); `relative_error` is the median over the step lengths, `worst_error` the largest. `h`,
`exact` and `value` are those of the first length and of the entry of the state that depends most on the
parameter. `observed_order` compares with the step length before. `note` is what a run said of itself
(`Solution.message`). `silent` counts the runs that are more than 5 % off and said nothing: there must be
none, or the program ends with status 1. Differences and smoothed derivatives are biased by design, and
are not counted. Modes:

- `plain`: the derivative of the time-stepping scheme. Through an impact it is wrong at every step
  length. Where nothing jumps (dry friction, diodes, sliding relays) it is right.
- `differences 1e-6`, `differences 1e-2`: central differences of the values of the plain scheme,
  parameters changed by this part of themselves.
- `located`, `corrected`: the impact found inside the step; its derivative attached to the plain step.
- `event-driven`: contacts without friction, in one step: the reference.
- `smoothed`: the plain scheme, differentiated on the central path (biased by design).

MuJoCo MJX is asked for the ball with one impact, by height, speed and gravity. Its contact is soft and
lasts about 30 ms, so part of its error is that of the model. An error is a result: it is in `note`.

    python benchmarks/gradients.py --json gradients.json
    python benchmarks/gradients.py --problems "ball, one impact" --modes plain located
"""

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _harness
import _peers
from diffnsd import (
    Corrected,
    EulerMoreau,
    EventDriven,
    Located,
    MoreauJean,
    SaveAt,
    SmoothedAdjoint,
    simulate,
)

# The motions in closed form belong to the tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from oracles import KNOWN_MOTIONS, KnownMotion, read, unchanged

LENGTHS = (1e-2, 1e-3, 1e-4)
SMOOTHED = SmoothedAdjoint(1e-3)
MECHANICAL = {
    "plain": MoreauJean(),
    "located": Located(MoreauJean()),
    "corrected": Corrected(MoreauJean()),
    "smoothed": MoreauJean(adjoint=SMOOTHED),
    "event-driven": EventDriven(),
}
FIRST_ORDER = {
    "plain": EulerMoreau(),
    "located": Located(EulerMoreau()),
    "corrected": Corrected(EulerMoreau()),
    "smoothed": EulerMoreau(adjoint=SMOOTHED),
}
DIFFERENCES = {"differences 1e-6": 1e-6, "differences 1e-2": 1e-2}
TRUSTED = "plain", "located", "corrected", "event-driven"
"""Modes whose wrong derivatives must be said."""
BAR, WRONG = 1e-3, 0.05


@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter of one problem, by one mode of an engine at one step length; see above."""

    problem: str
    parameter: str
    engine: str
    mode: str
    h: float
    exact: float
    value: float | None
    relative_error: float | None
    worst_error: float | None = None
    observed_order: float | None = None
    note: str = ""
    silent: int = 0


@functools.cache
def built(build: Callable) -> Callable:
    """`x -> (model, state)`, compiled."""
    return eqx.filter_jit(lambda x: build(x, unchanged))


def run(motion: KnownMotion, integrator, x: np.ndarray, steps: int, most: int):
    """State at the end, its derivatives by `x`, and what the run says; a program for up to `most` steps."""

    def end(x):
        model, state = built(motion.build)(x)
        out = simulate(
            model,
            integrator,
            0.0,
            motion.end,
            motion.end / steps,
            state,
            saveat=SaveAt.end(),
            max_steps=most,
            throw=False,
        )
        return read(out.states), (read(out.states), out)

    slopes, (value, out) = jax.jacfwd(end, has_aux=True)(jnp.asarray(x))
    # A sentence on margins speaks of one step; it does not say that the derivative is wrong.
    out = eqx.tree_at(lambda o: o.stats.margin, out, jnp.full_like(out.stats.margin, jnp.inf))
    return np.asarray(value), np.asarray(slopes), out.message


def step_counts(motion: KnownMotion, h: float, sizes: int) -> list[int]:
    """Numbers of steps whose lengths are near `h`, by about 1 % from one to the next."""
    first = round(motion.end / h)
    return [first + k * max(1, round(0.01 * first)) for k in range(sizes)]


def sensitivities(
    motion: KnownMotion, integrator, steps: int, part: float | None = None, most: int | None = None
):
    """Derivatives `(m, p)` of the state at the end, by JAX or by differences of values; what the run says."""
    x = np.asarray(motion.x)

    def at(x):
        return run(motion, integrator, x, steps, steps if most is None else most)

    if part is None:
        _, slopes, note = at(x)
    else:
        widths = (part * np.abs(x) * np.eye(x.size))[: motion.free]
        ends = [(at(x + w), at(x - w), np.max(w)) for w in widths]
        slopes = np.stack([(a[0] - b[0]) / (2 * w) for a, b, w in ends], axis=1)
        note = next((end[2] for a, b, _ in ends for end in (a, b) if end[2]), "")
    return slopes[:, : motion.free], note


def ours(name: str, motion: KnownMotion, modes: list[str] | None, sizes: int) -> Iterator[Row]:
    """Rows of one motion by the modes of this package."""
    first_order = motion.build(jnp.asarray(motion.x), unchanged)[1].q is None
    methods = FIRST_ORDER if first_order else MECHANICAL
    wanted = [(mode, method, None) for mode, method in methods.items()]
    wanted += [(mode, methods["plain"], part) for mode, part in DIFFERENCES.items()]
    for mode, method, part in wanted:
        if modes is None or mode in modes:
            if method.supports(motion.build(jnp.asarray(motion.x), unchanged)[0]) is not None:
                continue
            counts = [step_counts(motion, h, sizes) for h in LENGTHS]
            counts = [[1]] if mode == "event-driven" else counts
            most = max(max(group) for group in counts)
            runs = {
                motion.end / group[0]: [sensitivities(motion, method, n, part, most) for n in group]
                for group in counts
            }
            yield from rows(name, motion, "diffnsd", mode, runs)


def rows(name, motion: KnownMotion, engine: str, mode: str, runs) -> Iterator[Row]:
    """Rows from `{h: [(sensitivities (m, p), note), ...]}`, of the first parameters."""
    _, known = motion.known()
    before: dict[int, tuple[float, float]] = {}
    for h, near in runs.items():
        note = next((note for _, note in near if note), "")
        for j in range(near[0][0].shape[1]):
            wanted = known[:, j]
            entry = int(np.argmax(np.abs(wanted)))
            # A parameter that does not matter (friction that sticks) is measured by the others.
            scale = np.max(np.abs(wanted)) or np.max(np.abs(known))
            errors = [float(np.max(np.abs(x[:, j] - wanted)) / scale) for x, _ in near]
            error, worst = float(np.median(errors)), float(np.max(errors))
            order = None
            if j in before and min(error, before[j][1]) > 1e-10:
                order = float(np.log(before[j][1] / error) / np.log(before[j][0] / h))
            before[j] = h, error
            wrong = [not e <= WRONG and not said for e, (_, said) in zip(errors, near, strict=True)]
            value = float(near[0][0][entry, j])
            fine = np.isfinite(value) and np.isfinite(worst)
            yield Row(
                name,
                motion.names[j],
                engine,
                mode,
                h,
                float(wanted[entry]),
                value if fine else None,
                error if fine else None,
                worst if fine else None,
                order if fine else None,
                note if fine else f"{note} not finite".strip(),
                sum(wrong) if engine == "diffnsd" and mode in TRUSTED else 0,
            )


def mjx(motion: KnownMotion, h: float) -> np.ndarray:
    """Sensitivities of MJX's ball by height, speed and gravity, in forward mode."""
    height, speed, e, g = motion.x
    steps = round(motion.end / h)
    ball = _peers.Ball(gravity=g, restitution=e, dt=motion.end / steps, steps=steps)
    rollout = _peers.mjx_ball(ball)

    def final(x):
        gravity = rollout.model.opt.gravity.at[2].set(-x[2])
        option = rollout.model.opt.replace(gravity=gravity)
        other = dataclasses.replace(rollout, model=rollout.model.replace(opt=option))
        q, v = other(x[None, :1], x[None, 1:2])
        return jnp.concatenate([q[0], v[0]])

    found = jax.jit(jax.jacfwd(final))(jnp.array([height, speed, g]))
    return np.asarray(found)


def peers(name: str, motion: KnownMotion, lengths) -> Iterator[Row]:
    """Rows of other engines, for the ball: what they can do, or the error that they raise."""
    by = (0, 1, 3)  # not the restitution, which is no parameter of theirs
    names = tuple(motion.names[j] for j in by)
    _, known = motion.known()
    part = dataclasses.replace(
        motion,
        names=names,
        x=tuple(motion.x[j] for j in by),
        exact=lambda y: motion.exact(jnp.stack([y[0], y[1], jnp.asarray(motion.x[2]), y[2]])),
    )
    if "mujoco-mjx" not in _peers.installed():
        print("  mujoco-mjx: not installed")
        return
    runs, notes = {}, {}
    for h in lengths:
        try:
            runs[motion.end / round(motion.end / h)] = [(mjx(motion, h), "")]
        except Exception as error:  # an error is a result
            notes[h] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    yield from rows(name, part, "mujoco-mjx", "forward", runs)
    for h, note in notes.items():
        for label, j in zip(names, by, strict=True):
            exact = float(known[np.argmax(np.abs(known[:, j])), j])
            yield Row(name, label, "mujoco-mjx", "forward", h, exact, None, None, note=note)


def summary(found: list[Row]) -> None:
    """For every problem and mode the errors of its worst parameter at each step length, with a verdict."""
    print(f"\n{'problem':28} {'engine':10} {'mode':17} relative error as h falls: median, worst")
    for key in dict.fromkeys((r.problem, r.engine, r.mode) for r in found):
        mine = [r for r in found if (r.problem, r.engine, r.mode) == key]
        lengths = sorted({r.h for r in mine}, reverse=True)

        def largest(name, h, mine=mine):
            values = [getattr(r, name) for r in mine if r.h == h]
            return max(np.inf if x is None else x for x in values)

        errors = [(largest("relative_error", h), largest("worst_error", h)) for h in lengths]
        verdict = "true" if errors[-1][0] < BAR else "NOT TRUE"
        said = "".join(dict.fromkeys(f"; {r.note:.60}" for r in mine if r.note))
        listed = "  ".join(f"{e:7.1e} {w:7.1e}" for e, w in errors)
        print(f"{key[0]:28} {key[1]:10} {key[2]:17} {listed}  {verdict}{said}")


def silent(found: list[Row]) -> int:
    """Prints the rows with runs that are wrong and say nothing, and returns how many there are."""
    rows = [row for row in found if row.silent]
    print(f"\nmore than {WRONG:.0%} off without a sentence: {len(rows)} of {len(found)} rows")
    for r in rows:
        worst = "not finite" if r.worst_error is None else f"{r.worst_error:.1e}"
        print(
            f"  {r.problem}, {r.parameter}, {r.mode}, h = {r.h:.0e}: {r.silent} runs, worst {worst}"
        )
    return len(rows)


def main(arguments: list[str] | None = None) -> int:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="only these problems")
    parser.add_argument("--modes", nargs="+", metavar="NAME", help="only these modes of diffnsd")
    parser.add_argument("--sizes", type=int, default=25, help="step lengths near each of the three")
    parser.add_argument("--without-peers", action="store_true", help="leave out other engines")
    options = parser.parse_args(arguments)
    names = list(KNOWN_MOTIONS) if options.problems is None else options.problems
    if unknown := [name for name in names if name not in KNOWN_MOTIONS]:
        parser.error(f"no problem {unknown[0]!r}; there are: {'; '.join(KNOWN_MOTIONS)}")

    facts = _harness.header()
    _harness.print_header("Gradients beside their closed forms", facts)
    found: list[Row] = []
    for name in names:
        print(f"  {name}", flush=True)
        found += ours(name, KNOWN_MOTIONS[name], options.modes, options.sizes)
        jax.clear_caches()  # A process holds only so many compiled programs.
    if not options.without_peers and "ball, one impact" in names:
        found += peers("ball, one impact", KNOWN_MOTIONS["ball, one impact"], LENGTHS)
    summary(found)
    if options.json is not None:
        listed = [dataclasses.asdict(row) for row in found]
        options.json.write_text(json.dumps({"facts": facts, "rows": listed}, indent=1) + "\n")
        print(f"\n{len(found)} rows in {options.json}")
    return 1 if silent(found) else 0


if __name__ == "__main__":
    sys.exit(main())
