"""The programs that `gpu.py` times, lowers and counts: workload, method and way, for one lane each.

What is compiled for a device is the batched program, `jax.vmap` of a lane, without the chunks of
`diffnsd.rollout`, which on an accelerator takes a batch at once.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import _walkers
import diffnsd as nsd
from _checks import END_LIMITS, refuse
from _harness import Prepared, compile_timed, looked_at
from _peers import BALL, CUBE
from _workloads import ball_lanes, cube_lanes, cube_model, cube_scheme
from diffnsd import io, models
from diffnsd.laws import CoulombFriction, GapStabilized

Lane = dict[str, Any]
Run = Callable[[Lane, nsd.integrators.AbstractIntegrator], Any]

CIRCUIT_STEPS = 500
METHODS = {"plain": lambda x: x, "Located": nsd.Located, "Corrected": nsd.Corrected}
WAYS = ("forward", "gradient")


class Workload(NamedTuple):
    """`lanes(batch, dtype)`; `run(lane, wrapper)`: a number to differentiate, and the outcome; its steps."""

    lanes: Callable[[int, str], Lane]
    run: Callable[[Lane, Callable], tuple[Any, "Outcome"]]
    steps: int


def _simulated(model, scheme, steps, dt, state, args=None):
    options = {"saveat": nsd.SaveAt.end(), "throw": False, "start_tolerance": np.inf}
    return nsd.simulate(model, scheme, 0.0, steps * dt, dt, state, args, **options)


class Outcome(NamedTuple):
    """What a lane ends with: its state, its largest residual, whether it failed, and its gaps."""

    end: Any
    residual: Any
    failed: Any
    gaps: Any


def _outcome(solution) -> Outcome:
    stats = solution.stats
    return Outcome(solution.states, stats.residual, stats.failed_step >= 0, solution.gaps)


def _cube(lane, wrapper):
    model, state = cube_model(lane)
    solution = _simulated(model, wrapper(cube_scheme()), CUBE.steps, CUBE.dt, state)
    return jnp.sum(solution.states.q.position**2) / 2, _outcome(solution)


def _ball(lane, wrapper):
    model = models.bouncing_ball(lane["restitution"], BALL.gravity, lane["mass"])
    state = nsd.State(lane["gap"], lane["speed"])
    solution = _simulated(model, wrapper(nsd.MoreauJean()), BALL.steps, BALL.dt, state)
    return jnp.sum(solution.states.q**2) / 2, _outcome(solution)


def _stabilized(mu, e):
    return GapStabilized(CoulombFriction(mu, e))


@functools.cache
def _walker(name: str, dtype: str):
    model, elements, start = io.load_mjcf(_walkers.WALKERS[name], law=_stabilized, max_active=8)
    cast = functools.partial(jax.tree.map, lambda x: _cast(x, dtype))
    return cast(model), elements.timestep, cast(start)


def _cast(x, dtype: str):
    floating = isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(dtype) if floating else x


def _walking(name: str) -> Workload:
    """Tumbles from its reference with random velocities and constant controls."""

    def lanes(batch, dtype):
        _walker(name, dtype)  # its arrays are made here, outside of the trace that reads them
        controls = np.zeros((batch, _walkers.CONTROLS[name]))
        found = {"v": _walkers.velocities(name, batch), "controls": controls}
        return {n: x.astype(dtype) for n, x in found.items()}

    def run(lane, wrapper):
        model, dt, start = _walker(name, str(lane["v"].dtype))
        scheme = wrapper(nsd.MoreauJean(theta=1.0))
        state = nsd.State(start.q, lane["v"])
        solution = _simulated(model, scheme, _walkers.STEPS, dt, state, lane["controls"])
        return jnp.sum(solution.states.v**2) / 2, _outcome(solution)

    return Workload(lanes, run, _walkers.STEPS)


def _circuit_lanes(batch, dtype):
    rng = np.random.default_rng(0)
    names = {"resistance": 1e3, "inductance": 1e-2, "capacitance": 1e-6}
    lanes = {n: x * rng.uniform(0.9, 1.1, batch) for n, x in names.items()}
    lanes["x"] = np.stack([rng.uniform(5.0, 15.0, batch), np.zeros(batch)], axis=1)
    return {n: x.astype(dtype) for n, x in lanes.items()}


def _circuit(lane, wrapper):
    model = models.diode_bridge(lane["resistance"], lane["inductance"], lane["capacitance"])
    scheme = wrapper(nsd.EulerMoreau(theta=0.5, gamma=0.5))
    state = nsd.State(None, lane["x"])
    solution = _simulated(model, scheme, CIRCUIT_STEPS, 1e-6, state)
    return jnp.sum(solution.states.v**2) / 2, _outcome(solution)


def _solver_lanes(batch, dtype):
    """Four contacts with friction of a random body that moves at random; `W` has rank 6."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(batch, 12, 6))
    W = rows @ np.swapaxes(rows, 1, 2) / 6
    q = (rows @ rng.normal(size=(batch, 6, 1)))[..., 0]
    return {"W": W.astype(dtype), "q": q.astype(dtype)}


def _solver(lane, wrapper):
    del wrapper
    law = CoulombFriction(jnp.full(4, 0.3, lane["q"].dtype))
    problem = nsd.ComplementarityProblem(lane["W"], lane["q"], ((law, (4, 3)),))
    solution = nsd.solve_complementarity(problem, throw=False)
    failed = solution.result != nsd.RESULTS.successful
    return jnp.sum(solution.w**2) / 2, Outcome(solution.z, solution.residual, failed, ())


WORKLOADS = {
    "cube": Workload(cube_lanes, _cube, CUBE.steps),
    "ball": Workload(ball_lanes, _ball, BALL.steps),
    "hopper": _walking("hopper"),
    "ant": _walking("ant"),
    "circuit": Workload(_circuit_lanes, _circuit, CIRCUIT_STEPS),
    "solver": Workload(_solver_lanes, _solver, 1),
}


def names() -> list[tuple[str, str]]:
    """Workload and method of every program; a problem of contacts has no method."""
    return [(w, m) for w in WORKLOADS for m in METHODS if w != "solver" or m == "plain"]


def program(workload: str, method: str, way: str) -> Callable[[Lane], Any]:
    """The batched program, not yet compiled."""
    task = WORKLOADS[workload]

    def lane(x):
        return task.run(x, METHODS[method])

    return jax.jit(jax.vmap(lane if way == "forward" else jax.grad(lane, has_aux=True)))


def shapes(workload: str, dtype: str, batch: int) -> Lane:
    """Shapes and dtypes of the arguments of a program."""
    lanes = WORKLOADS[workload].lanes(1, dtype)
    return {n: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for n, x in lanes.items()}


def prepare(
    workload: str, method: str, batch: int, dtype: str, ways: Sequence[str] = WAYS
) -> Prepared:
    """For `Worker`: the programs of a workload, compiled; the first results of each are looked at.

    They run first when they are timed, alone on the device, while other workers may compile. Their first
    call raises `BrokenRun` if a result that is not reported as failed cannot be trusted.
    """
    jax.config.update("jax_enable_x64", dtype == "float64")
    lanes = jax.device_put(WORKLOADS[workload].lanes(batch, dtype))
    checks: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    seconds: dict[str, float] = {}
    for way in ways:
        run, seconds[way] = compile_timed(program(workload, method, way), lanes)
        look = functools.partial(_look, way=way, dtype=dtype, checks=checks)
        calls[way] = looked_at(functools.partial(run, lanes), look)
    if "gradient" in ways:
        checks["gradient"] = "reverse mode, by " + ", ".join(lanes)
    return Prepared(
        calls["forward"],
        calls.get("gradient"),
        seconds["forward"],
        seconds.get("gradient"),
        checks,
    )


def _look(value: Any, way: str, dtype: str, checks: dict[str, Any]) -> None:
    """Adds what is seen in a result to `checks`."""
    facts = facts_of(*value, way)
    refuse(facts, LIMITS[dtype])
    checks.update(facts)


LIMITS = {
    dtype: {n: x for n, x in limits.items() if n != "failed"}
    for dtype, limits in END_LIMITS.items()
}
"""Runs may fall in a way that ends in a failure, as long as it is reported; the share is in the row."""


def facts_of(value: Any, outcome: Outcome, way: str) -> dict[str, Any]:
    """Facts about a batch, for `refuse`: all but `failed` are of the lanes that did not fail.

    `value`: what the program of this way returns beside the outcome, a number or its gradient.
    """
    failed = np.asarray(outcome.failed).reshape(-1)

    def finite(tree: Any) -> bool:
        leaves = [np.asarray(x)[~failed] for x in jax.tree.leaves(tree)]
        return all(bool(np.isfinite(x).all()) for x in leaves)

    gradient = {"gradient_finite": finite(value)} if way == "gradient" else {}
    return gradient | {
        "finite": finite(outcome.end) and finite(value),
        "residual": float(np.max(np.asarray(outcome.residual)[~failed], initial=0.0)),
        "failed": float(failed.mean()),
    }


# ------------------------------------------------------------------------------------------
# What a program consists of


class Lowered(NamedTuple):
    """Of a module lowered for CUDA: its operations, its calls out of XLA, and those to the host."""

    operations: int
    calls: tuple[str, ...]
    host: tuple[str, ...]


def lower_for_cuda(workload: str, method: str, way: str, dtype: str, batch: int = 64) -> Lowered:
    """Lowers a program for CUDA; no GPU and no compiler for one is needed."""
    exported = jax.export.export(program(workload, method, way), platforms=["cuda"])
    text = exported(shapes(workload, dtype, batch)).mlir_module()
    calls = sorted(set(re.findall(r"custom_call @([\w.$]+)", text)))
    host = [c for c in calls if "callback" in c] + re.findall(
        r"\b(?:infeed|outfeed|send|recv)\b", text
    )
    return Lowered(text.count(" = stablehlo."), tuple(calls), tuple(host))


class Kernels(NamedTuple):
    """Kernels of the step that the optimised program runs in turn, outside and inside of its inner loops."""

    step: int
    inner: int


FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call",
        "partition-id", "after-all", "opt-barrier"}  # fmt: skip
"""Instructions that launch nothing themselves."""


def kernels(workload: str, method: str, way: str, dtype: str, batch: int = 64) -> Kernels:
    """Kernels of a step of a program as the compiler of this machine's device fuses it."""
    lowered = program(workload, method, way).lower(shapes(workload, dtype, batch))
    return kernels_of_a_step(lowered.compile().as_text())


def kernels_of_a_step(text: str) -> Kernels:
    """Counts kernels in the body of the loop over steps of an optimised HLO module.

    **Arguments:** `text`: `compiled.as_text()`. A kernel is an instruction that launches something: a fusion,
    a product, a copy, a call of a library. The loop over steps is the outermost loop with the most of them.
    """
    bodies: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in text.splitlines():
        if found := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = found[2]
            bodies[name] = []
            entry = name if found[1] else entry
        elif " = " in line:
            bodies[name].append(line)

    def called(line: str, *kinds: str) -> list[str]:
        return re.findall(rf"(?:{'|'.join(kinds)})=%?([\w.\-]+)", line)

    def count(computation: str) -> Kernels:
        step = inner = 0
        for line in bodies[computation]:
            operation = re.search(r" = (?:\([^=]*\)|\S+) ([\w\-]+)\(", line)
            step += operation is not None and operation[1] not in FREE
            if " while(" in line:
                inner += sum(map(sum, map(count, called(line, "body", "condition"))))
            elif " call(" in line or " conditional(" in line:
                branches = re.findall(r"branch_computations=\{([^}]*)\}", line)
                names = [n.strip().lstrip("%") for b in branches for n in b.split(",")]
                names += called(line, "to_apply", "true_computation", "false_computation")
                parts = [count(n) for n in names]
                step += sum(p.step for p in parts)
                inner += sum(p.inner for p in parts)
        return Kernels(step, inner)

    def loops(computation: str) -> list[str]:
        found = []
        for line in bodies[computation]:
            if " while(" in line:
                found += called(line, "body")
            elif " call(" in line:
                for name in called(line, "to_apply"):
                    found += loops(name)
        return found

    outermost = [count(body) for body in loops(entry)]
    return max(outermost, key=sum, default=count(entry))
