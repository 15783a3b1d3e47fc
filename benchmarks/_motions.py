"""Motions known to thirty digits, recognised by the keys of their files.

Each kind builds, from the arrays of a file, a model, its start, what to compare along the solution, and
the right-hand side for a general-purpose solver. A new kind is one entry of `KINDS`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from diffnsd import groups, models, systems
from diffnsd._numerics import cross, dot


@dataclasses.dataclass(frozen=True)
class Motion:
    """One file, ready to run: `fields(states)` and `exact` have equal keys and a leading time axis."""

    name: str
    kind: str
    model: nsd.Model
    state0: nsd.State
    t: np.ndarray
    exact: Mapping[str, np.ndarray]
    fields: Callable[[nsd.State], Mapping[str, Any]]
    invariants: Callable[[nsd.State], Any]
    base: int  # steps between two times of the file at which a fourth-order method is asymptotic
    mechanical: "Motion | None" = None  # the same with positions and velocities, if it has any

    @property
    def interval(self) -> float:
        """Time between two checkpoints."""
        return float(self.t[1] - self.t[0])

    def field(self, t, state, args):
        """The right-hand side `state'` of the same motion in ambient coordinates, for diffrax."""
        del args
        system = self.model.system
        rate = system.flow_rate(t, state, None)
        group = system.flow_group
        return jax.jvp(
            lambda x: system.flow_apply(group.exp_near(x), state), (jnp.zeros_like(rate),), (rate,)
        )[1]


def _quaternion(r) -> jax.Array:
    return groups.quaternion_from_matrix(jnp.asarray(r))


def _matrices(q):
    return jax.vmap(groups.rotation_matrix)(q)


def _rigid_body(d):
    model = models.free_rigid_body(d["p_I"])
    state = models.rigid_body_state(d["pi"][0], _quaternion(d["R"][0]))

    def fields(s):
        return {"pi": s.q[0], "R": _matrices(s.q[1])}

    def invariants(s):
        spatial = jax.vmap(groups.rotate)(s.q[1], s.q[0])
        norm = jnp.sqrt(jnp.sum(s.q[0] ** 2, axis=1))
        return jnp.concatenate([spatial, norm[:, None]], axis=1)

    return model, state, fields, invariants, 4


def _spinning(potential):
    """The same body with its attitude as position and its angular velocity, turning in a field."""

    def build(d):
        inertia = jnp.asarray(d["p_I"])
        system = systems.LagrangianSystem(
            jnp.diag(inertia), potential_energy=potential(d), space=groups.SO3()
        )
        state = nsd.State(_quaternion(d["R"][0]), jnp.asarray(d["pi"][0]) / inertia)

        def fields(s):
            return {"pi": s.v * inertia, "R": _matrices(s.q)}

        def invariants(s):
            spatial = jax.vmap(groups.rotate)(s.q, s.v * inertia)
            return spatial if potential(d) is None else spatial[:, 2]

        return nsd.Model(system), state, fields, invariants

    return build


def _weight(d):
    lever = jnp.asarray(d["p_mgl_chi"])
    return lambda q: dot(lever, groups.rotate(groups.SO3().inverse(q), jnp.array([0.0, 0.0, 1.0])))


def _heavy_top(d):
    model = models.heavy_top(d["p_I"], d["p_mgl_chi"])
    state = models.heavy_top_state(d["pi"][0], _quaternion(d["R"][0]))

    def fields(s):
        return {"pi": s.q[0][:, 3:], "R": _matrices(s.q[1][1])}

    def invariants(s):
        return jax.vmap(lambda m: nsd.diagnostics.casimirs(groups.SE3(), m))(s.q[0])

    return model, state, fields, invariants, 8


def _kirchhoff(d):
    model = models.kirchhoff_body(d["p_I"], d["p_M"])
    state = models.kirchhoff_state(d["pi"][0], d["p"][0], d["x"][0], _quaternion(d["R"][0]))

    def fields(s):
        return {"p": s.q[0][:, :3], "pi": s.q[0][:, 3:], "x": s.q[1][0], "R": _matrices(s.q[1][1])}

    def invariants(s):
        spatial = nsd.diagnostics.spatial_momentum
        return jax.vmap(lambda g, m: spatial(groups.SE3(), g, m))(s.q[1], s.q[0])

    return model, state, fields, invariants, 4


class _CentralField(eqx.Module):
    mu: jax.Array
    inertia: jax.Array
    mass: jax.Array

    def __call__(self, t, state, args):
        del t, args
        x, q = state.q.position[0], state.q.orientation[0]
        body = groups.rotate(groups.SO3().inverse(q), x)
        square = dot(x, x)
        fifth = self.mu * square**-2.5
        turned = self.inertia * body
        pull = self.mass * square + 1.5 * (self.inertia[0] + self.inertia[1] + self.inertia[2])
        force = -fifth * (pull - 7.5 * dot(body, turned) / square) * x
        force = force - 3 * fifth * groups.rotate(q, turned)
        return jnp.concatenate([force, 3 * fifth * cross(body, turned)])[None]


def _gravity_gradient(d):
    inertia, mass = jnp.asarray(d["p_I"]), jnp.asarray(float(d["p_m"]))
    wrench = _CentralField(jnp.asarray(float(d["p_mu"])), inertia, mass)
    model = nsd.Model(systems.NewtonEulerSystem(mass, inertia, wrench, gravity=(0.0, 0.0, 0.0)))
    pose = nsd.Pose(jnp.asarray(d["x"][:1]), _quaternion(d["R"][0])[None])
    v = jnp.concatenate([jnp.asarray(d["v"][0]), jnp.asarray(d["pi"][0]) / inertia])

    def fields(s):
        pi = s.v[:, 3:] * inertia
        r = _matrices(s.q.orientation[:, 0])
        return {"x": s.q.position[:, 0], "v": s.v[:, :3], "pi": pi, "R": r}

    def invariants(s):
        spin = jax.vmap(groups.rotate)(s.q.orientation[:, 0], s.v[:, 3:] * inertia)
        return mass * jnp.cross(s.q.position[:, 0], s.v[:, :3]) + spin

    return model, nsd.State(pose, v), fields, invariants, 16


def _mechanical(potential, d, base):
    n = d["q"].shape[1]
    model = nsd.Model(systems.LagrangianSystem(jnp.eye(n), potential_energy=potential))
    state = nsd.State(jnp.asarray(d["q"][0]), jnp.asarray(d["p"][0]))

    def invariants(s):
        kinetic = jnp.sum(s.v**2, axis=1) / 2
        return kinetic + jax.vmap(potential)(s.q)

    return model, state, lambda s: {"q": s.q, "p": s.v}, invariants, base


def _kepler(d):
    mu = float(d["p_mu"])
    # Steps by the time that the fastest point takes, the pericentre, at the distance a (1 - e).
    scale = (float(d["p_a"]) * (1 - float(d["p_e"]))) ** 1.5 / mu**0.5
    base = max(1, round(float(d["t"][1] - d["t"][0]) / (0.04 * scale)))
    return _mechanical(lambda q: -mu / jnp.sqrt(q[0] ** 2 + q[1] ** 2), d, base)


def _henon_heiles(d):
    def potential(q):
        return (q[0] ** 2 + q[1] ** 2) / 2 + q[0] ** 2 * q[1] - q[1] ** 3 / 3

    return _mechanical(potential, d, 10)


def _toda(d):
    def potential(q):
        return jnp.exp(q[0] - q[1]) + jnp.exp(q[1] - q[2]) + jnp.exp(q[2] - q[0])

    return _mechanical(potential, d, 10)


def _double_pendulum(d):
    m1, m2, l1, l2, g = (float(d[f"p_{k}"]) for k in ("m1", "m2", "l1", "l2", "g"))

    def lagrangian(q, v):
        kinetic = (m1 + m2) * l1**2 * v[0] ** 2 / 2 + m2 * l2**2 * v[1] ** 2 / 2
        kinetic = kinetic + m2 * l1 * l2 * v[0] * v[1] * jnp.cos(q[0] - q[1])
        return kinetic + (m1 + m2) * g * l1 * jnp.cos(q[0]) + m2 * g * l2 * jnp.cos(q[1])

    system = systems.LagrangianSystem.from_lagrangian(lagrangian, n=2)
    model = nsd.Model(system)
    state = nsd.State(jnp.asarray(d["theta"][0]), jnp.asarray(d["omega"][0]))

    def invariants(s):
        zero = jnp.zeros(())
        return jax.vmap(lambda x: model.energy(zero, x).total)(s)

    return model, state, lambda s: {"theta": s.q, "omega": s.v}, invariants, 10


def _spherical_pendulum(d):
    k = float(d["p_g_over_l"])

    def field(t, y, args):  # q' = w x q, w' = q x (-k e3)
        del t, args
        q, w = y
        zero = jnp.zeros_like(q[0])
        return jnp.concatenate([w, jnp.stack([-k * q[1], k * q[0], zero])])

    sphere = groups.SphereAction()
    rates = groups.LeftTranslation(groups.Euclidean(3))
    flow = systems.LieFlow(field, groups.ProductAction((sphere, rates)))
    q, v = jnp.asarray(d["q"][0]), jnp.asarray(d["v"][0])

    def fields(s):
        return {"q": s.q[0], "v": jnp.cross(s.q[1], s.q[0])}

    def invariants(s):
        return jnp.stack([jnp.sum(s.q[0] ** 2, axis=1), s.q[1][:, 2]], axis=1)

    return nsd.Model(flow), flow.state((q, jnp.cross(q, v))), fields, invariants, 8


def _columns(count: int) -> Callable:
    return lambda d: d["q"].shape[1] == count


# kind: keys of its files, a further test, how it is built; the first that fits is taken.
KINDS: dict[str, tuple[set[str], Callable, Callable]] = {
    "gravity_gradient": ({"x", "v", "pi", "R", "p_mu"}, lambda d: True, _gravity_gradient),
    "kirchhoff": ({"pi", "p", "x", "R", "p_I", "p_M"}, lambda d: True, _kirchhoff),
    "heavy_top": ({"pi", "R", "p_I", "p_mgl_chi"}, lambda d: True, _heavy_top),
    "rigid_body": ({"pi", "R", "p_I"}, lambda d: True, _rigid_body),
    "double_pendulum": ({"theta", "omega", "p_l1"}, lambda d: True, _double_pendulum),
    "spherical_pendulum": ({"q", "v", "p_g_over_l"}, lambda d: True, _spherical_pendulum),
    "kepler": ({"q", "p", "p_e", "p_a", "p_mu"}, lambda d: True, _kepler),
    "toda": ({"q", "p", "p_y0"}, _columns(3), _toda),
    "henon_heiles": ({"q", "p", "p_y0"}, _columns(2), _henon_heiles),
}


# Positions and velocities of the motions that are flows above; the others have them already.
SPINNING = {"rigid_body": _spinning(lambda d: None), "heavy_top": _spinning(_weight)}


def load(path) -> Motion:
    """The motion of a file, recognised by its keys."""
    with np.load(path, allow_pickle=False) as file:
        d = {key: file[key] for key in file.files}
    fitting = [k for k, (keys, fits, _) in KINDS.items() if keys <= d.keys() and fits(d)]
    if not fitting:
        raise ValueError(f"{path} has keys {sorted(d)}, which are those of no known kind of motion")
    kind = fitting[0]
    model, state0, fields, invariants, base = KINDS[kind][2](d)
    t = d["t"]
    if not np.allclose(np.diff(t), t[1] - t[0], rtol=0, atol=1e-12):
        raise ValueError(f"the times of {path} are not equidistant")
    exact = {name: d[name] for name in fields(jax.tree.map(lambda x: x[None], state0))}
    motion = Motion(path.stem, kind, model, state0, t, exact, fields, invariants, base)
    if kind in SPINNING:
        names = ("model", "state0", "fields", "invariants")
        same = dataclasses.replace(motion, **dict(zip(names, SPINNING[kind](d), strict=True)))
        return dataclasses.replace(motion, mechanical=same)
    has_velocities = model.system.velocities > 0
    return dataclasses.replace(motion, mechanical=motion) if has_velocities else motion
