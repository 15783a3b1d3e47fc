"""The reference cases of mechanics: for each a model, the scheme of the reference, and its columns.

Each case is described in full in the `case.md` beside its data; what is said here are the choices
that reproduce it. Columns are those that the case compares, in its order.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from _cases import Case, Setup
from diffnsd.integrators import (
    AtIterate,
    AtPrediction,
    CombinedProjection,
    D1MinusLinear,
    Projected,
    SchatzmanPaoli,
)
from diffnsd.laws import CoulombFriction, Equality, NewtonImpact, RollingFriction
from diffnsd.relations import (
    ContactFrame,
    GapRelation,
    Harmonic,
    PrescribedVelocity,
    ball_joint,
)
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

EXACT = nsd.Auto(tolerance=1e-13)


def _state(q, v):
    return nsd.State(jnp.asarray(q, float), jnp.asarray(v, float))


def _stack(*columns):
    return np.stack([np.asarray(c) for c in columns], axis=1)


def _flat(x):
    return list(np.asarray(x).T)


# ----------------------------------------------------------------------------------------
# Balls


def _height(t, q):
    del t
    return q[:1]


def _ball(law=None, n=1):
    mass = jnp.diag(jnp.array([1.0, 1.0, 0.4 * 0.01])[:n])
    system = LagrangianSystem(mass, f_ext=jnp.array([-9.81, 0.0, 0.0])[:n])
    return nsd.Model(system, nsd.Interaction(GapRelation(_height), NewtonImpact(0.9)))


def bouncing_ball_ts():
    start = _state([1.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    return Setup(_ball(n=3), nsd.MoreauJean(), 0.0, 10.0, 5e-3, start)


def _impulse_columns(s):
    p = s.impulses[0][:, 0, 0]
    return _stack(s.ts, s.states.q[:, 0], s.states.v[:, 0], p, p)


def bouncing_ball_direct_projection():
    method = Projected(nsd.MoreauJean(), tolerance=1e-8, passes=1)
    return Setup(_ball(), method, 0.0, 10.0, 5e-3, _state([1.0], [0.0]))


def bouncing_ball_combined_projection():
    method = CombinedProjection(nsd.MoreauJean(), tolerance=1e-10, passes=1)
    return Setup(_ball(), method, 0.0, 10.0, 5e-3, _state([1.0], [0.0]))


def _projection_columns(s):
    correction = s.details[0][:, 0]
    return np.concatenate([_impulse_columns(s), _stack(correction, correction)], axis=1)


def bouncing_ball_d1minus():
    return Setup(_ball(), D1MinusLinear(), 0.0, 10.0, 5e-4, _state([1.0], [0.0]))


def _d1_columns(s):
    p, force = s.details.impact[0][:, 0, 0], s.details.end[0][:, 0, 0]
    return _stack(s.ts, s.states.q[:, 0], s.states.v[:, 0], p, p, force, force)


def bouncing_ball_schatzman_paoli():
    return Setup(_ball(), SchatzmanPaoli(), 0.0, 10.0, 5e-3, _state([1.0], [0.0]))


def _position_columns(s):
    # The reference's multiplier is one of positions, [kg m].
    p = s.impulses[0][:, 0, 0] * 5e-3
    return _stack(s.ts, s.states.q[:, 0], s.states.v[:, 0], p, p)


class _AboveTable(eqx.Module):
    radius: float = 0.1
    amplitude: float = 0.05
    omega: float = 20.0

    def __call__(self, t, q):
        return q - self.radius - self.amplitude * jnp.sin(self.omega * t)


def ball_on_vibrating_table():
    ball = LagrangianSystem([[2.0]], f_ext=[-2 * 9.81])
    contact = nsd.Interaction(GapRelation(_AboveTable()), NewtonImpact(0.7))
    return Setup(nsd.Model(ball, contact), nsd.MoreauJean(), 0.0, 5.0, 1e-3, _state([0.5], [0.0]))


def _table_columns(s):
    return _impulse_columns(s)[:, :4]


def _above_plane(t, q):
    del t
    return q[:1] - q[3:4]


def ball_on_moving_plane():
    masses = jnp.array([1.0, 1.0, 0.4 * 0.01] * 2)
    system = LagrangianSystem(jnp.diag(masses), f_ext=jnp.zeros(6).at[0].set(-9.81))
    contact = nsd.Interaction(GapRelation(_above_plane), NewtonImpact(0.9))
    drive = PrescribedVelocity(3, Harmonic(2.0, 1.0, math.pi / 2))
    model = nsd.Model(system, contact, prescribed=drive)
    start = _state([1.0, 0, 0, 0, 0, 0], np.zeros(6))
    return Setup(model, nsd.MoreauJean(solver=EXACT), 0.0, 10.0, 5e-3, start)


def _plane_columns(s):
    p = s.impulses[0][:, 0, 0]
    q, v = s.states.q, s.states.v
    return _stack(s.ts, q[:, 0], v[:, 0], p, p, q[:, 3], v[:, 3])


def _bead_gaps(t, q):
    del t
    return jnp.concatenate([q[:1] - 0.1, q[1:] - q[:-1] - 0.2])


def column_of_beads():
    n = 10
    system = LagrangianSystem(jnp.eye(n), f_ext=jnp.full(n, -9.81))
    model = nsd.Model(system, nsd.Interaction(GapRelation(_bead_gaps), NewtonImpact(0.9)))
    start = _state(1 + 0.25 * np.arange(n), np.zeros(n))
    return Setup(model, nsd.MoreauJean(solver=EXACT), 0.0, 2.0, 5e-4, start)


def _bead_columns(s):
    q, v = np.asarray(s.states.q), np.asarray(s.states.v)
    pairs = [x for i in range(q.shape[1]) for x in (q[:, i], v[:, i])]
    return _stack(s.ts, *pairs)


# ----------------------------------------------------------------------------------------
# Generalised coordinates


def _double_pendulum_mass(q):
    c = jnp.cos(q[0] - q[1])
    return jnp.stack([jnp.stack([2 * jnp.ones_like(c), c]), jnp.stack([c, jnp.ones_like(c)])])


def _double_pendulum_force(t, q, v):
    del t
    s = jnp.sin(q[0] - q[1])
    return jnp.stack([v[1] ** 2 * s + 20 * jnp.sin(q[0]), -(v[0] ** 2) * s + 10 * jnp.sin(q[1])])


def _walls(t, q):
    del t
    return jnp.stack([jnp.sin(q[0]), jnp.sin(q[0]) + jnp.sin(q[1])])


def double_pendulum_walls():
    system = LagrangianSystem(_double_pendulum_mass, f_int=_double_pendulum_force, n=2)
    walls = nsd.Interaction(GapRelation(_walls), NewtonImpact(jnp.array([1.0, 0.0])))
    method = nsd.MoreauJean(
        theta=0.500001,
        newton=nsd.Newton(max_iterations=20, tolerance=1e-6),
        contacts_at=AtIterate(),
        mass_at=AtIterate(),
        solver=EXACT,
    )
    return Setup(nsd.Model(system, walls), method, 0.0, 5.0, 5e-4, _state([0.1, 0.2], [0.0, 0.0]))


def _pendulum_columns(s):
    q, v = s.states.q, s.states.v
    return _stack(s.ts, q[:, 0], v[:, 0], q[:, 1], v[:, 1])


def _stick_end(t, q):
    del t
    return jnp.stack([q[1] - 0.5 * jnp.cos(q[2]), -q[0] - 0.5 * jnp.sin(q[2])])[None]


def impacting_stick():
    system = LagrangianSystem(jnp.diag(jnp.array([1.0, 1.0, 1 / 12])), f_ext=[0.0, -10.0, 0.0])
    law = CoulombFriction(mu=0.01, e=1.0)
    model = nsd.Model(system, nsd.Interaction(GapRelation(_stick_end, 2), law))
    turn = math.pi / 4
    start = _state([0.5 * math.sin(turn), 0.5 * math.cos(turn) + 0.01, turn], [-0.5, 0.1, 0.1])
    return Setup(model, nsd.MoreauJean(solver=EXACT), 0.0, 0.2, 1e-4, start)


def _stick_columns(s):
    q, v, p = s.states.q, s.states.v, s.impulses[0][:, 0]
    return _stack(s.ts, *_flat(q), *_flat(v), -p[:, 1], s.gaps[0][:, 0], p[:, 0], p[:, 1])


def _corners(t, q):
    del t
    s, c = 0.1 * jnp.sin(q[2]), 0.05 * jnp.cos(q[2])
    return jnp.stack([q[1] - s - c, q[1] + s - c])


def rocking_block():
    inertia = (1.5**2 + 1.0**2) / 12
    system = LagrangianSystem(jnp.diag(jnp.array([1.0, 1.0, inertia])), f_ext=[0.0, -9.81, 0.0])
    model = nsd.Model(system, nsd.Interaction(GapRelation(_corners), NewtonImpact(0.5)))
    method = nsd.MoreauJean(theta=0.50001, contacts_at=AtPrediction(), solver=EXACT)
    return Setup(model, method, 0.0, 1.99, 0.01, _state([0.0, 1.0, 0.2], np.zeros(3)))


def _block_columns(s):
    weight = 9.81 * (s.states.q[:, 1] - 0.75)
    return _stack(s.ts, *_flat(s.states.q), *_flat(s.states.v), s.energy.kinetic, weight)


N_BAR, STEEL, SECTION, DENSITY = 100, 210e9, 3.14e-4, 7800.0


class _Bar(eqx.Module):
    """Internal force of linear elements, from their elongations: exactly zero where these are."""

    stiffness: float = STEEL * SECTION * N_BAR

    def __call__(self, t, q, v):
        del t, v
        tension = self.stiffness * (q[1:] - q[:-1])
        return jnp.concatenate([-tension[:1], tension[:-1] - tension[1:], tension[-1:]])


def impacting_bar_fem():
    ends = np.eye(N_BAR)
    ends[1:-1, 1:-1] *= 2
    beside = np.eye(N_BAR, k=1) + np.eye(N_BAR, k=-1)
    mass = DENSITY * SECTION / N_BAR * (ends / 3 + beside / 6)
    system = LagrangianSystem(mass, f_int=_Bar())
    model = nsd.Model(system, nsd.Interaction(GapRelation(_height), NewtonImpact(0.0)))
    start = _state(np.full(N_BAR, 5e-5), np.full(N_BAR, -0.1))
    return Setup(model, nsd.MoreauJean(gamma=0.0), 1e-8, 1e-8 + 748 * 2e-6, 2e-6, start)


def _bar_columns(s):
    q, v, p = np.asarray(s.states.q), np.asarray(s.states.v), np.asarray(s.impulses[0][:, 0, 0])
    work = p * (v[:, 0] + np.concatenate([v[:1, 0], v[:-1, 0]])) / 2
    strain = STEEL * SECTION * N_BAR * np.sum(np.diff(q, axis=1) ** 2, axis=1)
    motion = 2 * np.asarray(s.energy.kinetic)
    ends = q[:, 99], v[:, 99], q[:, 50], v[:, 50]
    return _stack(s.ts, q[:, 0], v[:, 0], p / 2e-6, p, strain, motion, *ends, work)


# ----------------------------------------------------------------------------------------
# Rigid bodies


def _pose(position, orientation=(1.0, 0.0, 0.0, 0.0)):
    return nsd.Pose(jnp.asarray(position, float)[None], jnp.asarray(orientation, float)[None])


def free_rigid_body_tumbling():
    system = NewtonEulerSystem(2.0, [1.0, 2.0, 3.0])
    start = nsd.State(_pose([0.0, 0.0, 0.0]), jnp.array([0.3, -0.2, 0.1, 0.1, 5.0, 0.2]))
    newton = nsd.Newton(max_iterations=20, tolerance=1e-13)
    return Setup(nsd.Model(system), nsd.MoreauJean(newton=newton), 0.0, 5.0, 1e-2, start)


def _pose_columns(s):
    q = s.states.q
    position, orientation = q.position[:, 0], q.orientation[:, 0]
    return _stack(s.ts, *_flat(position), *_flat(orientation), *_flat(s.states.v))


RADIUS, UP = 0.1, jnp.array([1.0, 0.0, 0.0])


def _on_ground(t, q):
    """Contact of the sphere with the plane `x = 0`."""
    del t
    up = UP.astype(q.position.dtype)
    below = q.position - RADIUS * up[None]
    return below, below * (1 - up[None]), up[None]


def _sphere(mass, law, rolling):
    system = NewtonEulerSystem(mass, 0.4 * mass * RADIUS**2, gravity=(-9.81, 0.0, 0.0))
    return nsd.Model(system, nsd.Interaction(ContactFrame(_on_ground, rolling=rolling), law))


def sphere_spin_friction_3d():
    model = _sphere(1.5, CoulombFriction(mu=0.2, e=0.7), False)
    start = nsd.State(_pose([0.6, 0.0, 0.0]), jnp.array([0.0, 1.0, -0.5, 3.0, -8.0, 12.0]))
    method = nsd.MoreauJean(contacts_at=AtPrediction(), solver=EXACT)
    return Setup(model, method, 0.0, 3.0, 1e-3, start)


def sphere_rolling_friction():
    model = _sphere(1.0, RollingFriction(mu=0.3, mu_r=0.004), True)
    start = nsd.State(_pose([0.1 - 1e-6, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.5, 0.0, 0.0, 0.0]))
    method = nsd.MoreauJean(contacts_at=AtPrediction(), solver=EXACT)
    return Setup(model, method, 0.0, 2.0, 1e-3, start)


def _sphere_columns(s):
    # The reference's tangents are (−e_y, −e_z), ours (−e_z, e_y).
    p = np.asarray(s.impulses[0][:, 0])
    turned = [p[:, 0]]
    for i in range(1, p.shape[1], 2):
        turned += [-p[:, i + 1], p[:, i]]
    return np.concatenate([_pose_columns(s), np.stack(turned, axis=1)], axis=1)


BEAM_ANGLE = math.pi / 8


def _beam_pose():
    half = 0.5 / math.sqrt(2)
    return _pose([half, 0.0, -half], [math.cos(BEAM_ANGLE), 0.0, math.sin(BEAM_ANGLE), 0.0])


def spherical_joint_pendulum():
    inertia = [[0.1, 0.1, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]]
    q = _beam_pose()
    joint = nsd.Interaction(GapRelation(ball_joint(q, [0.0, 0.0, 0.0])), Equality())
    model = nsd.Model(NewtonEulerSystem(1.0, inertia), joint)
    method = nsd.MoreauJean(
        theta=1.0,
        newton=nsd.Newton(max_iterations=30, tolerance=1e-6),
        joints_at=AtIterate(),
        solver=EXACT,
    )
    start = nsd.State(q, jnp.array([0.0, 0.0, 0.0, 1.0, 3.0, -2.0]))
    return Setup(model, method, 0.0, 10.0, 1e-2, start)


def _joint_columns(s):
    # The reference leaves the initial state out.
    error = np.linalg.norm(np.asarray(s.gaps[0]), axis=1)
    return np.concatenate([_pose_columns(s)[:, :8], error[:, None]], axis=1)[1:]


CASES = [
    Case("ball_on_moving_plane", ball_on_moving_plane, _plane_columns),
    Case("ball_on_vibrating_table", ball_on_vibrating_table, _table_columns),
    Case(
        "bouncing_ball_combined_projection", bouncing_ball_combined_projection, _projection_columns
    ),
    Case("bouncing_ball_d1minus", bouncing_ball_d1minus, _d1_columns),
    Case("bouncing_ball_direct_projection", bouncing_ball_direct_projection, _projection_columns),
    Case("bouncing_ball_schatzman_paoli", bouncing_ball_schatzman_paoli, _position_columns),
    Case("bouncing_ball_ts", bouncing_ball_ts, _impulse_columns),
    Case("column_of_beads", column_of_beads, _bead_columns),
    Case("double_pendulum_walls", double_pendulum_walls, _pendulum_columns),
    Case("free_rigid_body_tumbling", free_rigid_body_tumbling, _pose_columns),
    Case("impacting_bar_fem", impacting_bar_fem, _bar_columns),
    Case("impacting_stick", impacting_stick, _stick_columns),
    Case("rocking_block", rocking_block, _block_columns),
    Case("sphere_rolling_friction", sphere_rolling_friction, _sphere_columns),
    Case("sphere_spin_friction_3d", sphere_spin_friction_3d, _sphere_columns),
    Case("spherical_joint_pendulum", spherical_joint_pendulum, _joint_columns),
]
