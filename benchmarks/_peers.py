"""The workloads of the benchmarks, and the same in MuJoCo (C) and MJX.

All engines start from the same states, drawn with NumPy from a seed. A configuration is `qpos`
(B, 7): position [m] and unit quaternion, scalar first, body to world. A velocity is `qvel` (B, 6):
linear in the world frame [m/s], angular in the body frame [rad/s]. MuJoCo's free joint means the
same by these.

MuJoCo's contact is soft and regularised: it is compared for speed and for what its gradients are
worth, not for equal trajectories. Its own defaults are kept where nothing else is said: Newton
solver, tolerance 1e-8, semi-implicit Euler, warm start, solref 0.02 1. The friction cone is
elliptic in C, the nearest to Coulomb's. In MJX it is pyramidal: there (3.17.0) the elliptic one is
about six times slower, and every derivative is NaN once a contact has closed.
"""

import contextlib
import dataclasses
import importlib.util
import io
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from _harness import Prepared, Worker, compile_timed, looked_at, one_core
from _walkers import STEPS as WALKER_STEPS, WALKERS, velocities

# MJX did not come to an end on two cores from this batch on (mujoco-mjx 3.17.0, CPU).
MJX_HANGS_FROM = 1024


@dataclasses.dataclass(frozen=True)
class Cube:
    """A cube tossed onto a plane. SI units; the values of the measured tosses' parameter file."""

    half_width: float = 0.0524
    mass: float = 0.37
    inertia: float = 8.1e-4
    gravity: float = 9.81
    friction: float = 0.18
    dt: float = 1 / 148
    steps: int = 150


@dataclasses.dataclass(frozen=True)
class Ball:
    """A ball dropped onto a plane, moving in height only; its coordinate is its gap. SI units."""

    radius: float = 0.1
    mass: float = 1.0
    gravity: float = 9.81
    restitution: float = 0.9
    dt: float = 5e-3
    steps: int = 2000


CUBE = Cube()
BALL = Ball()


# ------------------------------------------------------------------------------------------
# Initial states


def tosses(batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random tosses: 0.2 to 0.4 m high, about 1.2 m/s, spin up to 6 rad/s, any orientation.

    **Returns:** `qpos` (batch, 7), `qvel` (batch, 6); a row does not depend on the batch size.
    """
    qpos, qvel = np.empty((batch, 7)), np.empty((batch, 6))
    for row, random in enumerate(_streams(batch, seed)):
        qpos[row, :2] = 0.0
        qpos[row, 2] = random.uniform(0.2, 0.4)
        qpos[row, 3:] = _unit(random.standard_normal(4))
        heading = random.uniform(-math.pi, math.pi)
        slope = random.uniform(-0.5, 0.2)  # mostly forward and down
        speed = random.normal(1.2, 0.05)
        level = speed * math.cos(slope)
        qvel[row, :3] = (
            level * math.cos(heading),
            level * math.sin(heading),
            speed * math.sin(slope),
        )
        qvel[row, 3:] = random.uniform(0.0, 6.0) * _unit(random.standard_normal(3))
    return qpos, qvel


def slides(
    batch: int, seed: int = 0, cube: Cube = CUBE, speeds: tuple[float, float] = (1.5, 1.75)
) -> tuple[np.ndarray, np.ndarray]:
    """A cube flat on the plane, sliding along x so fast that it just stops within 150 steps.

    A scheme of first order is wrong by up to one step in the number of steps that the slide takes:
    slower starts, say 0.8 to 1.2 m/s, are shorter and show more of it.
    """
    qpos = np.tile([0.0, 0.0, cube.half_width, 1.0, 0.0, 0.0, 0.0], (batch, 1))
    qvel = np.zeros((batch, 6))
    qvel[:, 0] = [random.uniform(*speeds) for random in _streams(batch, seed)]
    return qpos, qvel


def drops(batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Balls at rest, 0.8 to 1.2 m above the plane: gap (batch, 1), speed (batch, 1)."""
    gap = np.array([[random.uniform(0.8, 1.2)] for random in _streams(batch, seed)])
    return gap, np.zeros_like(gap)


def _streams(batch: int, seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, row)) for row in range(batch)]


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


# ------------------------------------------------------------------------------------------
# Closed forms and checks


def slide_distance(speed: np.ndarray, cube: Cube = CUBE) -> tuple[np.ndarray, ...]:
    """Distance of the rigid slide v²/(2 μ g), and its derivatives by speed and by friction."""
    slowing = cube.friction * cube.gravity
    distance = speed**2 / (2 * slowing)
    return distance, speed / slowing, -distance / cube.friction


def final_loss(qpos: Any) -> Any:
    """Half the squared distance of the cube from the origin, the loss of all gradient runs.

    Written with operators only, so that it serves NumPy and JAX. `qpos`: (..., 7).
    """
    return 0.5 * (qpos[..., 0] ** 2 + qpos[..., 1] ** 2 + qpos[..., 2] ** 2)


def lowest_corner(qpos: np.ndarray, half_width: float = CUBE.half_width) -> np.ndarray:
    """Height of the cube's lowest corner above the plane [m]; negative is penetration. (..., 7)."""
    w, x, y, z = np.moveaxis(np.asarray(qpos[..., 3:]), -1, 0)
    third_row = (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
    return qpos[..., 2] - half_width * sum(np.abs(entry) for entry in third_row)


def trajectory_checks(qpos: np.ndarray, cube: Cube = CUBE) -> dict[str, Any]:
    """Facts about simulated tosses, `qpos` (B, steps, 7)."""
    return {
        "finite": bool(np.isfinite(qpos).all()),
        "penetration_mm": 1e3 * max(0.0, float(-lowest_corner(qpos, cube.half_width).min())),
        "quaternion_error": float(np.abs(np.linalg.norm(qpos[..., 3:], axis=-1) - 1).max()),
    }


def bounce_checks(gap: np.ndarray, ball: Ball = BALL) -> dict[str, Any]:
    """Facts about dropped balls, `gap` (B, steps): the restitution is that of the first rebound."""
    seen = []
    for height in gap:
        # Up to the first contact, and from there to the top of the first flight.
        landed = int(np.argmax(height < 0.0))
        left = landed + int(np.argmax(height[landed:] > 0.0))
        again = left + int(np.argmax(height[left:] < 0.0))
        seen.append(math.sqrt(max(height[left : max(again, left + 1)].max(), 0.0) / height[0]))
    return {
        "finite": bool(np.isfinite(gap).all()),
        "penetration_mm": 1e3 * max(0.0, float(-gap.min())),
        "restitution": float(np.mean(seen)),
        "restitution_asked": ball.restitution,
    }


# ------------------------------------------------------------------------------------------
# The same in MJCF


def cube_model(cube: Cube = CUBE, cone: str = "elliptic") -> Any:
    """The tossed cube as an `mujoco.MjModel`; `cone` is "elliptic" or "pyramidal"."""
    inertia = " ".join([repr(cube.inertia)] * 3)
    size = " ".join([repr(cube.half_width)] * 3)
    return _model(f"""
<mujoco>
  <option timestep="{cube.dt!r}" gravity="0 0 {-cube.gravity!r}" cone="{cone}"/>
  <default><geom friction="{cube.friction!r} 0.005 0.0001" solref="0.02 1" condim="3"/></default>
  <worldbody>
    <geom name="plane" type="plane" size="0 0 1"/>
    <body pos="0 0 1">
      <freejoint/>
      <inertial pos="0 0 0" mass="{cube.mass!r}" diaginertia="{inertia}"/>
      <geom type="box" size="{size}"/>
    </body>
  </worldbody>
</mujoco>""")


def ball_model(ball: Ball = BALL) -> Any:
    """The ball as an `mujoco.MjModel`: one slide joint, whose coordinate is the gap.

    A bounce of the soft contact is half a period of a damped oscillator. Its damping ratio follows
    from the restitution; its frequency is 100 rad/s, so that a contact lasts six steps of 5 ms.
    """
    decay = -math.log(ball.restitution)
    damping = decay / math.hypot(math.pi, decay)
    time_constant = 1 / (100.0 * damping)
    return _model(f"""
<mujoco>
  <option timestep="{ball.dt!r}" gravity="0 0 {-ball.gravity!r}"/>
  <default><geom solref="{time_constant!r} {damping!r}" condim="1"/></default>
  <worldbody>
    <geom type="plane" size="0 0 1"/>
    <body pos="0 0 {ball.radius!r}">
      <joint type="slide" axis="0 0 1"/>
      <geom type="sphere" size="{ball.radius!r}" mass="{ball.mass!r}"/>
    </body>
  </worldbody>
</mujoco>""")


def _model(text: str, cone: str | None = None) -> Any:
    import mujoco

    model = mujoco.MjModel.from_xml_string(text)
    if cone is not None:
        model.opt.cone = getattr(mujoco.mjtCone, f"mjCONE_{cone.upper()}").value
    return model


# ------------------------------------------------------------------------------------------
# MuJoCo, C


class MujocoRollout:
    """Many trajectories of one model by `mujoco.rollout`, on all cores.

    Its output array holds every step of every trajectory. It is made once and used again, for so
    many trajectories at a time that it stays under `buffer_mb`: a call measures no page faults.
    """

    def __init__(self, model: Any, steps: int, nthread: int | None = None, buffer_mb: float = 64.0):
        import mujoco
        import mujoco.rollout

        self.nthread = nthread if nthread is not None else os.cpu_count() or 1
        self._model, self._steps = model, steps
        self._data = [mujoco.MjData(model) for _ in range(self.nthread)]
        self._pool = mujoco.rollout.Rollout(nthread=self.nthread if self.nthread > 1 else 0)
        # The full physics state is time, qpos, qvel (neither model has activations or plugins).
        self._size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
        assert self._size == 1 + model.nq + model.nv
        self._chunk = max(self.nthread, int(buffer_mb * 1e6 / (8 * steps * self._size)))
        self._buffer = np.zeros((0, steps, self._size))

    def __call__(self, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Final `qpos` (B, nq) and `qvel` (B, nv)."""
        ends = [states[:, -1].copy() for states in self._run(qpos, qvel)]
        return self._split(np.concatenate(ends))

    def trajectory(self, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`qpos` (B, steps, nq) and `qvel` (B, steps, nv), after each step."""
        return self._split(np.concatenate([states.copy() for states in self._run(qpos, qvel)]))

    def _split(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return states[..., 1 : 1 + self._model.nq], states[..., 1 + self._model.nq :]

    def _run(self, qpos: np.ndarray, qvel: np.ndarray):
        initial = np.concatenate([np.zeros((len(qpos), 1)), qpos, qvel], axis=1)
        rows = min(self._chunk, len(initial))
        if len(self._buffer) < rows:
            self._buffer = np.zeros((rows, self._steps, self._size))
        for begin in range(0, len(initial), rows):
            part = initial[begin : begin + rows]
            states, _ = self._pool.rollout(
                self._model,
                self._data,
                part,
                nstep=self._steps,
                state=self._buffer[: len(part)],
            )
            yield states


class Task(NamedTuple):
    """A workload of MuJoCo and MJX."""

    model: Callable[[str], Any]
    """`mujoco.MjModel` with a cone, "elliptic" or "pyramidal"."""
    steps: int
    initial: Callable[[int, int], tuple[np.ndarray, np.ndarray]]
    """`qpos` and `qvel` of a batch, from a seed."""
    facts: Callable[[np.ndarray], dict[str, Any]]
    """What is true of trajectories of `qpos`, (B, steps, nq)."""
    slides: bool = True
    """Whether friction matters, so that the gradient may be by it."""


def _walker(name: str) -> Task:
    def initial(batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        qpos = _model(WALKERS[name]).qpos0
        return np.tile(qpos, (batch, 1)), velocities(name, batch, seed)

    def facts(qpos: np.ndarray) -> dict[str, Any]:
        return {"finite": bool(np.isfinite(qpos).all())}

    return Task(lambda cone: _model(WALKERS[name], cone), WALKER_STEPS, initial, facts)


TASKS = {
    "cube": Task(lambda cone: cube_model(CUBE, cone), CUBE.steps, tosses, trajectory_checks),
    "ball": Task(
        lambda cone: ball_model(),
        BALL.steps,
        drops,
        lambda qpos: bounce_checks(qpos[..., 0]),
        slides=False,
    ),
    **{name: _walker(name) for name in WALKERS},
}


def prepare_mujoco(workload: str, batch: int, seed: int = 0) -> Prepared:
    """For `Worker`: one of `TASKS` in MuJoCo on all cores; it has no gradient."""
    import mujoco

    task = TASKS[workload]
    rollout = MujocoRollout(task.model("elliptic"), task.steps)
    initial = task.initial(batch, seed)
    qpos, _ = rollout.trajectory(*(array[:64] for array in initial))
    checks = task.facts(qpos)
    checks |= {"version": mujoco.__version__, "threads": rollout.nthread}
    checks["gradient"] = "none: the engine offers finite differences only"
    return Prepared(lambda: rollout(*initial), checks=checks)


# ------------------------------------------------------------------------------------------
# MJX


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity: `jax.jit` asks for it
class MjxRollout:
    """Trajectories of one model in MJX, as pure functions to be compiled by the caller.

    Made by `mjx_rollout` and `mjx_ball`. `dtype` is float32 or float64, which needs `jax_enable_x64`.
    """

    model: Any
    data: Any
    steps: int
    dtype: Any

    def __call__(self, qpos: Any, qvel: Any) -> tuple[Any, Any]:
        """Final `qpos` (B, nq) and `qvel` (B, nv)."""
        import jax

        return jax.vmap(lambda q, v: self._final(self.model, q, v))(qpos, qvel)

    def trajectory(self, qpos: Any, qvel: Any) -> tuple[Any, Any]:
        """`qpos` (B, steps, nq) and `qvel` (B, steps, nv), after each step."""
        import jax

        return jax.vmap(lambda q, v: self._scan(self.model, q, v, keep=True)[1])(qpos, qvel)

    def gradient_friction(self, qpos: Any, qvel: Any) -> Any:
        """Derivative of `final_loss` of each trajectory by the friction coefficient, (B,).

        One forward-mode derivative: MJX's solver iterates in a `while_loop`, and JAX refuses
        reverse mode through that.
        """
        return self.derivative_friction(final_loss, qpos, qvel)

    def gradient_velocity(self, qpos: Any, qvel: Any) -> Any:
        """Derivative of `final_loss` of each trajectory by its initial velocity, (B, nv).

        As many forward-mode derivatives as there are velocities.
        """
        return self.derivative_velocity(final_loss, qpos, qvel)

    def derivative_friction(self, loss: Callable, qpos: Any, qvel: Any) -> Any:
        """As `gradient_friction`, of any function of one final `qpos`."""
        import jax

        def one(q, v, friction):
            table = self.model.geom_friction.at[:, 0].set(friction)
            return loss(self._final(self.model.replace(geom_friction=table), q, v)[0])

        friction = self.model.geom_friction[0, 0]
        return jax.vmap(jax.jacfwd(one, argnums=2), (0, 0, None))(qpos, qvel, friction)

    def derivative_velocity(self, loss: Callable, qpos: Any, qvel: Any) -> Any:
        """As `gradient_velocity`, of any function of one final `qpos`."""
        import jax

        def one(q, v):
            return loss(self._final(self.model, q, v)[0])

        return jax.vmap(jax.jacfwd(one, argnums=1))(qpos, qvel)

    def reverse_velocity(self, qpos: Any, qvel: Any) -> Any:
        """The gradient by the initial velocity in reverse mode: refused, see `reverse_refusal`."""
        import jax

        def one(q, v):
            return final_loss(self._final(self.model, q, v)[0])

        return jax.vmap(jax.grad(one, argnums=1))(qpos, qvel)

    def reverse_refusal(self, qpos: Any, qvel: Any) -> str:
        """What JAX says to reverse mode through the engine; "accepted" if it is traced."""
        import jax

        try:
            jax.eval_shape(self.reverse_velocity, qpos, qvel)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
        return "accepted"

    def _final(self, model: Any, q: Any, v: Any) -> tuple[Any, Any]:
        return self._scan(model, q, v, keep=False)[0]

    def _scan(self, model: Any, q: Any, v: Any, keep: bool) -> tuple[Any, Any]:
        import jax
        from mujoco import mjx

        def step(data, _):
            moved = mjx.step(model, data)
            # Under float64 some leaves, integers among them, come back wider than they went in.
            moved = jax.tree.map(lambda new, old: new.astype(old.dtype), moved, data)
            return moved, (moved.qpos, moved.qvel) if keep else None

        data = self.data.replace(qpos=q.astype(self.dtype), qvel=v.astype(self.dtype))
        data, trajectory = jax.lax.scan(step, data, None, length=self.steps)
        return (data.qpos, data.qvel), trajectory


def mjx_rollout(task: Task, dtype: Any = np.float64, cone: str = "pyramidal") -> MjxRollout:
    """A workload in MJX: `jax.jit(mjx_rollout(task))(qpos, qvel)` gives the final states."""
    return mjx_steps(task.model(cone), task.steps, dtype)


def mjx_ball(ball: Ball = BALL, dtype: Any = np.float64) -> MjxRollout:
    """Dropped balls in MJX: `jax.jit(mjx_ball())(gap, speed)` gives the final states."""
    return mjx_steps(ball_model(ball), ball.steps, dtype)


def mjx_steps(model: Any, steps: int, dtype: Any = np.float64) -> MjxRollout:
    """Steps of any model in MJX."""
    import jax
    import jax.numpy as jnp
    from mujoco import mjx

    if np.dtype(dtype) == np.float64 and not jax.config.jax_enable_x64:
        raise ValueError("float64 needs jax.config.update('jax_enable_x64', True) first")

    def cast(leaf):
        wide = isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if wide else leaf

    made = mjx.put_model(model, impl="jax")
    data = mjx.make_data(model, impl="jax")
    return MjxRollout(jax.tree.map(cast, made), jax.tree.map(cast, data), steps, np.dtype(dtype))


def prepare_mjx(
    workload: str,
    batch: int,
    dtype: str = "float64",
    seed: int = 0,
    cone: str = "pyramidal",
    gradient: str | None = "friction",
) -> Prepared:
    """For `Worker`: one of `TASKS` in MJX, and its gradient.

    It is by "friction" or by "velocity"; the ball's, which has no friction, by its speed. None: no gradient.
    """
    import jax
    import mujoco

    with contextlib.redirect_stdout(io.StringIO()):  # it says so where Warp is not installed
        import mujoco.mjx  # noqa: F401

    jax.config.update("jax_enable_x64", dtype == "float64")
    task = TASKS[workload]
    rollout = mjx_rollout(task, dtype, cone)
    by = "speed" if gradient and not task.slides else gradient
    initial = tuple(jax.device_put(array.astype(dtype)) for array in task.initial(batch, seed))
    derivatives = {
        "friction": rollout.gradient_friction,
        "velocity": rollout.gradient_velocity,
        "speed": lambda gap, speed: rollout.derivative_velocity(lambda q: q[0], gap, speed),
    }

    checks: dict[str, Any] = {"version": mujoco.__version__}
    checks |= {"gradient": f"by {by}, forward mode" if by else "not timed", "cone": cone}
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
        checks["cores"] = f"pinned to {len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    if batch <= 256:  # each of these compiles the engine once more
        few = tuple(array[:16] for array in initial)
        qpos = np.asarray(jax.jit(rollout.trajectory)(*few)[0], np.float64)
        checks |= task.facts(qpos)
        checks["reverse_mode"] = rollout.reverse_refusal(*few)

    forward, compile_s = compile_timed(rollout, *initial)
    backward, gradient_compile_s = None, None
    if by is not None:
        backward, gradient_compile_s = compile_timed(derivatives[by], *initial)

    def checked(call: Callable, name: str) -> Callable[[], Any]:
        def look(value: Any) -> None:
            leaves = [np.isfinite(np.asarray(leaf)) for leaf in jax.tree.leaves(value)]
            checks[name] = float(np.mean([leaf.mean() for leaf in leaves]))

        return looked_at(lambda: call(*initial), look)

    return Prepared(
        checked(forward, "share_finite"),
        checked(backward, "gradient_share_finite") if backward else None,
        compile_s,
        gradient_compile_s,
        checks,
    )


def mjx_worker(
    workload: str,
    batch: int,
    dtype: str = "float64",
    seed: int = 0,
    *,
    cone: str = "pyramidal",
    gradient: str | None = "friction",
    timeout_s: float = 900.0,
) -> Worker:
    """A `Worker` with MJX; pinned to one core at the batch sizes where it hangs on two."""
    import jax

    hangs = batch >= MJX_HANGS_FROM and jax.default_backend() == "cpu"
    return Worker(
        prepare_mjx,
        (workload, batch, dtype, seed, cone, gradient),
        cores=one_core() if hangs else None,
        timeout_s=timeout_s,
    )


def mujoco_worker(workload: str, batch: int, seed: int = 0, *, timeout_s: float = 900.0) -> Worker:
    """A `Worker` with MuJoCo on all cores, in float64."""
    return Worker(prepare_mujoco, (workload, batch, seed), timeout_s=timeout_s)


def slide_check(
    cube: Cube = CUBE, batch: int = 8, seed: int = 0, cone: str = "pyramidal"
) -> dict[str, float]:
    """Largest relative error of MJX on the rigid slide, against the closed form; NaN where it is.

    Of the distance itself, and of its derivatives by speed and by friction. Needs `jax_enable_x64`.
    """
    import jax

    rollout = mjx_steps(cube_model(cube, cone), cube.steps)
    qpos, qvel = slides(batch, seed, cube)

    def travelled(q):
        return q[0]

    @jax.jit
    def run(qpos, qvel):
        return (
            rollout(qpos, qvel)[0][:, 0],
            rollout.derivative_velocity(travelled, qpos, qvel)[:, 0],
            rollout.derivative_friction(travelled, qpos, qvel),
        )

    names = ("distance", "by_speed", "by_friction")
    exact = slide_distance(qvel[:, 0], cube)
    return {
        name: float(np.abs(np.asarray(got) / want - 1).max())
        for name, got, want in zip(names, run(qpos, qvel), exact, strict=True)
    }


def installed() -> list[str]:
    """Which peers there are here: "mujoco", "mujoco-mjx"."""
    if importlib.util.find_spec("mujoco") is None:
        return []
    modules = (("mujoco", "mujoco.rollout"), ("mujoco-mjx", "mujoco.mjx"))
    return [name for name, module in modules if importlib.util.find_spec(module) is not None]
