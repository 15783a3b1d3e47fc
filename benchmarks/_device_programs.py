"""The programs that `gpu.py` lowers and counts: workload, method and way, for one lane each.

What is compiled for a device is the batched program, `jax.vmap` of a lane, without the chunks of
`diffnsd.rollout`, which on an accelerator takes a batch at once.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from _peers import BALL, CUBE
from _workloads import ball_lanes, cube_lanes, cube_model, cube_scheme
from diffnsd import io, models
from diffnsd.laws import CoulombFriction, GapStabilized

Lane = dict[str, Any]
Run = Callable[[Lane, nsd.integrators.AbstractIntegrator], Any]

HOPPER = """
<mujoco model="hopper">
  <compiler angle="degree" inertiafromgeom="true"/>
  <default>
    <joint armature="1" damping="1" limited="true"/>
    <geom conaffinity="0" friction="0.9"/>
  </default>
  <option timestep="0.002"/>
  <worldbody>
    <geom name="floor" conaffinity="1" size="20 20 .125" type="plane"/>
    <body name="torso" pos="0 0 1.25">
      <joint armature="0" axis="1 0 0" damping="0" limited="false" name="rootx" pos="0 0 -1.25" type="slide"/>
      <joint armature="0" axis="0 0 1" damping="0" limited="false" name="rootz" pos="0 0 -1.25" type="slide"/>
      <joint armature="0" axis="0 1 0" damping="0" limited="false" name="rooty" type="hinge"/>
      <geom size="0.05 0.2" type="capsule"/>
      <body name="thigh" pos="0 0 -0.2">
        <joint axis="0 -1 0" name="thigh" range="-150 0" type="hinge"/>
        <geom pos="0 0 -0.225" size="0.05 0.225" type="capsule"/>
        <body name="leg" pos="0 0 -0.7">
          <joint axis="0 -1 0" name="leg" pos="0 0 0.25" range="-150 0" type="hinge"/>
          <geom size="0.04 0.25" type="capsule"/>
          <body name="foot" pos="0.13 0 -0.35">
            <joint axis="0 -1 0" name="foot" pos="-0.13 0 0.1" range="-45 45" type="hinge"/>
            <geom friction="2" pos="-0.065 0 0.1" quat="1 0 -1 0" size="0.06 0.195" type="capsule"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor ctrllimited="true" ctrlrange="-1 1" gear="200" joint="thigh"/>
    <motor ctrllimited="true" ctrlrange="-1 1" gear="200" joint="leg"/>
    <motor ctrllimited="true" ctrlrange="-1 1" gear="200" joint="foot"/>
  </actuator>
</mujoco>
"""
"""A planar leg on a floor: 6 velocities, 8 contacts of capsules, 3 limits. Sizes as in gymnasium's Hopper."""


def _ant() -> str:
    """A sphere on four legs of two hinges: 14 velocities. Sizes as in gymnasium's Ant."""
    legs, motors = [], []
    for k, (x, y) in enumerate(((1, 1), (-1, 1), (-1, -1), (1, -1))):
        hinge = f'axis="{-y} {x} 0" range="{"30 70" if y == x == 1 or x == -y == 1 else "-70 -30"}"'
        near, far = f"{0.2 * x} {0.2 * y} 0", f"{0.4 * x} {0.4 * y} 0"
        capsule = '<geom fromto="0 0 0 {}" size="0.08" type="capsule"/>'
        legs.append(
            f'<body>{capsule.format(near)}<body pos="{near}">'
            f'<joint axis="0 0 1" name="hip{k}" range="-30 30" type="hinge"/>{capsule.format(near)}'
            f'<body pos="{near}"><joint name="ankle{k}" type="hinge" {hinge}/>{capsule.format(far)}'
            "</body></body></body>"
        )
        motors += [f'<motor gear="150" joint="{name}{k}"/>' for name in ("hip", "ankle")]
    return (
        '<mujoco model="ant"><compiler angle="degree" inertiafromgeom="true"/><option timestep="0.01"/>'
        '<default><joint armature="1" damping="1" limited="true"/>'
        '<geom conaffinity="0" density="5" friction="1"/></default><worldbody>'
        '<geom conaffinity="1" name="floor" size="40 40 40" type="plane"/><body pos="0 0 0.75">'
        '<geom size="0.25" type="sphere"/><joint armature="0" damping="0" limited="false" type="free"/>'
        f"{''.join(legs)}</body></worldbody><actuator>{''.join(motors)}</actuator></mujoco>"
    )


ANT = _ant()
STEPS = {"cube": CUBE.steps, "ball": BALL.steps, "hopper": 200, "ant": 200, "circuit": 500}
"""Steps of a lane; a solver batch has none."""
METHODS = {"plain": lambda x: x, "Located": nsd.Located, "Corrected": nsd.Corrected}
WAYS = ("forward", "gradient")


class Workload(NamedTuple):
    """`lanes(batch, dtype)`; `run(lane, wrapper)`: a number, and what else a lane returns; its steps."""

    lanes: Callable[[int, str], Lane]
    run: Callable[[Lane, Callable], tuple[Any, Any]]
    steps: int


def _simulated(model, scheme, steps, dt, state, args=None):
    options = {"saveat": nsd.SaveAt.end(), "throw": False, "start_tolerance": np.inf}
    return nsd.simulate(model, scheme, 0.0, steps * dt, dt, state, args, **options)


def _outcome(solution):
    return solution.states, solution.stats.residual, solution.stats.failed_step, solution.gaps


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
def _walker(text: str, dtype: str):
    model, elements, start = io.load_mjcf(text, law=_stabilized, max_active=8)
    cast = functools.partial(jax.tree.map, lambda x: _cast(x, dtype))
    return cast(model), elements.timestep, cast(start)


def _cast(x, dtype: str):
    floating = isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(dtype) if floating else x


def _walking(text: str) -> Workload:
    """Tumbles from its reference with random velocities and constant controls."""

    def lanes(batch, dtype):
        model, _, start = _walker(text, dtype)
        rng, moved = np.random.default_rng(0), len(start.v)
        controls = 3 if text is HOPPER else 8
        return {
            "v": rng.normal(size=(batch, moved)).astype(dtype) / 10,
            "controls": np.zeros((batch, controls), dtype),
        }

    def run(lane, wrapper):
        model, dt, start = _walker(text, str(lane["v"].dtype))
        scheme = wrapper(nsd.MoreauJean(theta=1.0))
        state = nsd.State(start.q, lane["v"])
        solution = _simulated(model, scheme, STEPS["hopper"], dt, state, lane["controls"])
        return jnp.sum(solution.states.v**2) / 2, _outcome(solution)

    return Workload(lanes, run, STEPS["hopper"])


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
    solution = _simulated(model, scheme, STEPS["circuit"], 1e-6, state)
    return jnp.sum(solution.states.v**2) / 2, _outcome(solution)


def _solver_lanes(batch, dtype):
    """Four contacts with friction of a random body; `W` has rank 6."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(batch, 12, 6))
    W = rows @ np.swapaxes(rows, 1, 2) / 6
    return {"W": W.astype(dtype), "q": rng.normal(size=(batch, 12)).astype(dtype)}


def _solver(lane, wrapper):
    del wrapper
    law = CoulombFriction(jnp.full(4, 0.3, lane["q"].dtype))
    problem = nsd.ComplementarityProblem(lane["W"], lane["q"], ((law, (4, 3)),))
    solution = nsd.solve_complementarity(problem, throw=False)
    failed = solution.result != nsd.RESULTS.successful
    return jnp.sum(solution.w**2) / 2, (solution.z, solution.residual, failed)


WORKLOADS = {
    "cube": Workload(cube_lanes, _cube, CUBE.steps),
    "ball": Workload(ball_lanes, _ball, BALL.steps),
    "hopper": _walking(HOPPER),
    "ant": _walking(ANT),
    "circuit": Workload(_circuit_lanes, _circuit, STEPS["circuit"]),
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
    """Kernels of a step of a program as the compiler of the CPU fuses it."""
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
