"""Trees of joints against MuJoCo, a Lagrangian by hand, a free body, a rotor and a closed loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import laws, models
from diffnsd.groups import rotation_matrix
from diffnsd.relations import (
    BodyPointsPlane,
    Coordinates,
    GapRelation,
    JointLimits,
    OnPart,
    PrescribedVelocity,
    RateRelation,
    ball_joint,
    disk_on_line,
    hinge,
    sphere_on_plane,
    sphere_on_sphere,
)
from diffnsd.systems import (
    AbstractSystem,
    Ball,
    Body,
    Fixed,
    Free,
    Hinge,
    LagrangianSystem,
    Multibody,
    Slide,
    SystemProduct,
)

ZERO = jnp.zeros(())
IMPLICIT = nsd.MoreauJean(newton=nsd.Newton(10))
TREE = """<mujoco><option gravity="0.3 -0.2 -9.81"/><worldbody>
 <body pos="0 0 1"><freejoint/><geom type="box" size=".1 .2 .3" pos=".1 0 .05" euler="10 20 30"/>
  <body pos=".2 .1 0" euler="20 0 10"><joint type="ball" pos="0 .05 .1" stiffness="3" damping=".2"
    armature=".01"/><geom type="capsule" size=".05 .2" pos="0 .1 0"/>
   <body pos="0 .3 0"><joint type="hinge" axis="1 .2 0" pos=".01 .02 .03" damping=".1" ref="20"/>
     <joint type="slide" axis="0 1 1" stiffness="4" springref=".2"/><joint axis="0 0 1" armature=".02"/>
     <geom size=".1"/>
    <body pos=".1 0 0"><geom size=".05" pos="0 0 .2"/></body></body></body>
  <body pos="-.2 0 0"><joint axis="0 1 0"/><geom type="box" size=".1 .05 .05"/></body>
 </body>
 <body pos="1 0 0" euler="0 30 0"><joint type="ball"/><geom size=".1" pos="0 0 -.4"/>
  <body pos="0 0 -.8"><joint axis="0 1 0"/><geom type="box" size=".1 .1 .2"/></body></body>
</worldbody></mujoco>"""


def tree_of(m: mujoco.MjModel) -> Multibody:
    """The tree of a compiled MJCF model, without its contacts."""
    bodies = []
    for b in range(1, m.nbody):
        joints = []
        for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
            at, dof = m.jnt_qposadr[j], m.jnt_dofadr[j]
            kind = (Free, Ball, Slide, Hinge)[m.jnt_type[j]]
            options = {
                "stiffness": m.jnt_stiffness[j],
                "damping": m.dof_damping[dof],
                "armature": m.dof_armature[dof],
                "rest": m.qpos_spring[at : at + kind.coordinates],
            }
            if kind in (Ball, Hinge):
                options["point"] = m.jnt_pos[j]
            if kind in (Slide, Hinge):
                options |= {"axis": m.jnt_axis[j], "reference": m.qpos0[at]}
            joints.append(kind(**options))
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, m.body_iquat[b])
        turn = turn.reshape(3, 3)
        inertia = turn @ np.diag(m.body_inertia[b]) @ turn.T
        parent = int(m.body_parentid[b]) - 1
        bodies.append(
            Body(
                m.body_mass[b],
                inertia,
                joints,
                None if parent < 0 else parent,
                position=m.body_pos[b],
                orientation=m.body_quat[b],
                centre=m.body_ipos[b],
            )
        )
    return Multibody(bodies, gravity=m.opt.gravity)


def random_tree(seed: int) -> str:
    """An MJCF text: a tree of nine bodies with joints, axes and places at random."""
    rng = np.random.default_rng(seed)

    def numbers(size=3):
        return " ".join(f"{x:.3f}" for x in rng.normal(size=size))

    texts: list[list[str]] = [[] for _ in range(10)]
    children: list[list[int]] = [[] for _ in range(10)]
    for b in range(1, 10):
        parent = int(rng.integers(0, b))
        children[parent].append(b)
        kinds = ["hinge", "slide", "ball", "hinge slide", "slide slide hinge", ""]
        chosen = str(rng.choice(["free", *kinds] if parent == 0 else kinds))
        chosen = chosen or ("hinge" if parent == 0 else "")
        for kind in chosen.split():
            place = "" if kind == "free" else f'axis="{numbers()}" pos="{numbers()}"'
            texts[b].append(f'<joint type="{kind}" {place}/>')

    def element(b):
        inside = "".join(texts[b]) + f'<geom type="box" size=".1 .2 .3" pos="{numbers()}"/>'
        inside += "".join(map(element, children[b]))
        return f'<body pos="{numbers()}" quat="{numbers(4)}">{inside}</body>'

    return f"<mujoco><worldbody>{''.join(map(element, children[0]))}</worldbody></mujoco>"


@pytest.mark.slow
@pytest.mark.parametrize("text", [TREE, random_tree(0), random_tree(1)], ids=["by hand", "0", "1"])
def test_masses_forces_frames_and_energies_are_those_of_mujoco(text):
    m = mujoco.MjModel.from_xml_string(text)
    m.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    m.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    d, system, rng = mujoco.MjData(m), tree_of(m), np.random.default_rng(0)

    @eqx.filter_jit
    def ours(q, v):
        state = nsd.State(q, v)
        moved = system.frames(q)
        parts = system.inertia_force(ZERO, state), AbstractSystem.inertia_force(system, ZERO, state)
        return (
            system.mass(ZERO, q),
            system.force(ZERO, state, None),
            moved.position,
            rotation_matrix(moved.orientation.T),
            system.jacobian(q),
            system.potential(ZERO, q) + system.kinetic(ZERO, state),
            parts[0] + system.applied(ZERO, state, None),
            system.momentum(ZERO, state),
        ), parts

    assert system.group.dim == m.nv and len(system.rest) == m.nq
    np.testing.assert_allclose(system.state().q, m.qpos0, atol=1e-15)
    for _ in range(20):
        q, v = m.qpos0.copy(), rng.normal(size=m.nv)
        mujoco.mj_integratePos(m, q, rng.normal(size=m.nv), 1.0)
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mj_forward(m, d)
        mass, jacobian = np.zeros((m.nv, m.nv)), []
        mujoco.mj_fullM(m, d, mass)
        for b in range(1, m.nbody):
            linear, angular = np.zeros((2, 3, m.nv))
            mujoco.mj_jacBody(m, d, linear, angular, b)
            jacobian += [linear, d.xmat[b].reshape(3, 3).T @ angular]
        force = d.qfrc_passive - d.qfrc_bias
        turns = np.moveaxis(d.xmat[1:].reshape(-1, 3, 3), 0, -1)
        rows = np.concatenate(jacobian)
        theirs = mass, force, d.xpos[1:], turns, rows, d.energy.sum(), force, mass @ v
        found, (inertia, by_energy) = ours(q, v)
        for mine, other in zip(found, theirs, strict=True):
            # Measured: 5e-15.
            np.testing.assert_allclose(mine, other, atol=1e-12 * np.max(np.abs(other)))
        # The recursion against the derivatives of the kinetic energy; measured: 5e-15.
        np.testing.assert_allclose(inertia, by_energy, atol=1e-12 * np.max(np.abs(inertia)))


def two_rods(**options) -> Multibody:
    """A double pendulum in the x-z plane, 1 kg and 1 m each, points at the ends of massless rods."""
    end = {"inertia": 0.0, "centre": (0.0, 0.0, -1.0)}
    return Multibody(
        [
            Body(1.0, joints=Hinge((0, -1, 0)), **end),
            Body(1.0, joints=Hinge((0, -1, 0)), parent=0, position=(0.0, 0.0, -1.0), **end),
        ],
        **options,
    )


@pytest.mark.nightly
def test_a_double_pendulum_moves_as_its_lagrangian_says():
    """In value and in the derivative by masses: the joints measure the second angle from the first rod."""

    def tree(masses):
        system = eqx.tree_at(lambda s: s.masses, two_rods(), masses)
        return nsd.Model(system), system.state(jnp.array([1.0, 0.5]))

    def by_hand(masses):
        return models.double_pendulum(masses), nsd.State(jnp.array([1.0, 1.5]), jnp.zeros(2))

    def end(make):
        def run(masses):
            model, start = make(masses)
            ends = nsd.SaveAt.end()
            q = nsd.simulate(model, nsd.RKMK(), 0.0, 0.5, 1e-2, start, saveat=ends).states.q
            return q, q

        return eqx.filter_jit(jax.jacfwd(run, has_aux=True))

    masses = jnp.array([1.0, 0.7])
    mine, other = (end(make)(masses) for make in (tree, by_hand))
    for a, b in zip(mine, other, strict=True):
        absolute = jnp.stack([a[0], a[0] + a[1]])
        # Fourth order in steps of 1e-2, the two sets of angles are not stepped alike; measured: 4e-8.
        np.testing.assert_allclose(absolute, b, atol=4e-7)


@pytest.mark.nightly
def test_a_free_body_is_a_free_body():
    """The cube of the README as a tree of one body: motion and derivative by friction."""
    cube = models.tossed_cube(0.2, 0.1)
    body = cube.system
    tree = Multibody([Body(body.masses[0], body.inertia[0], Free())], gravity=body.gravity)
    attitude = jnp.array([1.0, 0.1, 0.0, 0.0])
    start = models.cube_state(
        jnp.array([0.0, 0.0, 0.1]),
        attitude / jnp.linalg.norm(attitude),
        jnp.array([1.0, 0.0, 0.0]),
        jnp.ones(3),
    )
    flat = tree.state(jnp.concatenate([start.q.position[0], start.q.orientation[0]]), start.v)

    method = nsd.MoreauJean(theta=1.0, newton=nsd.Newton(10))

    def places(mu, system, state):
        model = nsd.Model(system, models.tossed_cube(mu, 0.1).interactions)
        run = nsd.simulate(model, method, 0.0, 0.5, 1e-2, state)
        q = run.states.q
        return q[:, :3] if state is flat else q.position[:, 0]

    def both(system, state):
        def along(mu):
            return jax.jvp(lambda m: places(m, system, state), (mu,), (jnp.ones_like(mu),))

        return eqx.filter_jit(along)(jnp.asarray(0.2))

    (free, by_mu), (tree_free, tree_by_mu) = both(body, start), both(tree, flat)
    assert float(jnp.max(jnp.abs(by_mu))) > 1e-3
    np.testing.assert_allclose(tree_free, free, atol=1e-10)  # measured: 5e-15
    np.testing.assert_allclose(tree_by_mu, by_mu, atol=1e-8)  # measured: 1e-12


def stopped(system, method, seconds=1.0):
    """The angle of a rod that falls on a stop, with friction in its bearing, by restitution."""

    def run(e):
        stop = GapRelation(JointLimits(Coordinates(0), -2.0, 0.8))
        parts = (
            nsd.Interaction(stop, laws.NewtonImpact(e)),
            nsd.Interaction(PrescribedVelocity(0), laws.DryFriction(0.05)),
        )
        start, ends = nsd.State(jnp.zeros(1), jnp.zeros(1)), nsd.SaveAt.end()
        model = nsd.Model(system, parts)
        return nsd.simulate(model, method, 0.0, seconds, 1e-2, start, saveat=ends).states.q[0]

    return run


def by_restitution(run):
    """The value at e = 0.3 and its derivative."""
    return eqx.filter_jit(lambda e: jax.jvp(run, (e,), (jnp.ones_like(e),)))(jnp.asarray(0.3))


def fall(t, state, args):
    return 9.81 * 0.5 * jnp.cos(state.q)


ROD = Multibody([Body(1.0, (1e-3, 1 / 12, 1 / 12), Hinge((0, 1, 0)), centre=(0.5, 0.0, 0.0))])
ROTOR = LagrangianSystem([[1 / 12 + 1 / 4]], forcing=fall)


@pytest.mark.nightly
def test_a_hinge_with_a_stop_and_friction_is_a_rotor():
    """Against a system of one angle, in value and derivative."""
    rod, rotor = (by_restitution(stopped(system, IMPLICIT)) for system in (ROD, ROTOR))
    np.testing.assert_allclose(rod, rotor, rtol=1e-9)  # measured: 1e-13


@pytest.mark.nightly
def test_impacts_of_joints_are_located():
    """Phases and events of the tree and of the rotor, and the impact in the step of the tree."""

    def derivative(system, method):
        return by_restitution(stopped(system, method, 0.5))

    exact = derivative(ROTOR, nsd.EventDriven())
    np.testing.assert_allclose(derivative(ROD, nsd.EventDriven()), exact, rtol=1e-8)
    located = derivative(ROD, nsd.Located(nsd.MoreauJean()))
    np.testing.assert_allclose(located, exact, rtol=1e-3)  # measured: 5e-6 and 1.7e-4


@pytest.mark.nightly
def test_a_loop_is_closed_by_a_joint_between_frames():
    """A four-bar linkage falls: the loop stays closed, and the energy is kept to the order of the step."""

    def bar(length, **where):
        moment = length**3 / 12
        return Body(
            length, (1e-3, moment, moment), Hinge((0, 1, 0)), centre=(length / 2, 0, 0), **where
        )

    bars = Multibody(
        [
            bar(1.0),
            bar(1.5, parent=0, position=(1.0, 0, 0)),
            bar(1.2, parent=1, position=(1.5, 0, 0)),
        ]
    )
    # The third bar ends at (1.5, 0, 0), found by scipy.optimize.fsolve.
    q0 = jnp.array([-1.0, 0.839647204438107, 2.1803165529785034])
    pin = ball_joint(bars.frames(q0), point=(1.5, 0.0, 0.0), body1=2)
    model = nsd.Model(bars, nsd.Interaction(GapRelation(pin), laws.Equality()))
    run = nsd.simulate(model, nsd.Projected(nsd.MoreauJean()), 0.0, 1.0, 2e-3, bars.state(q0))
    opening = jax.vmap(lambda q: pin(ZERO, bars.frames(q)))(run.states.q)
    assert float(jnp.max(jnp.abs(opening))) < 1e-8  # measured: 8e-10
    energy = jax.vmap(lambda state: model.energy(ZERO, state).total)(run.states)
    assert float(jnp.max(jnp.abs(energy - energy[0]))) < 0.05 * float(jnp.ptp(run.states.v))


@pytest.mark.nightly
def test_relations_between_bodies_follow_the_joints():
    """Rates of gaps and angles are those of the functions themselves, along the motion of the joints."""
    pair = chain(2)
    q0 = jnp.array([0.3, 0.4])
    pin = hinge(pair.frames(q0), (0.0, 0.0, -1.0), (0, 1, 0), body1=1, body2=0)
    state = nsd.State(jnp.array([0.5, 1.1]), jnp.array([0.7, -0.2]))
    np.testing.assert_allclose(pin.angle(ZERO, pair.frames(state.q)), 1.1 - 0.4, atol=1e-14)
    for relation in (
        RateRelation(pin.angle),
        GapRelation(pin.limits(pin.angle, -1.0, 2.0)),
        sphere_on_plane(0.1, offset=-3.0, body=np.array([0, 1])),
        sphere_on_sphere(0.1, 0.2, np.array([1]), np.array([0])),
        BodyPointsPlane([[0.1, 0.2, -0.3]], offset=-3.0, body=1),
        OnPart(SystemProduct((pair,)), 0, sphere_on_plane(0.1, body=1)),
    ):
        system = SystemProduct((pair,)) if isinstance(relation, OnPart) else pair
        q = (state.q,) if isinstance(relation, OnPart) else state.q
        placed = relation.on(system)
        seen = placed.observe(system.group, ZERO, q)
        read = (
            placed.gap
            if placed.gap(ZERO, q) is not None
            else lambda t, q: pin.angle(t, pair.frames(q))
        )
        moving = (state.v,) if isinstance(q, tuple) else state.v
        _, rate = jax.jvp(lambda q, read=read: read(ZERO, q), (q,), (moving,))
        np.testing.assert_allclose(seen.velocity(state.v)[0], jnp.atleast_1d(rate), atol=1e-14)
        output = placed.output(system.group, ZERO, nsd.State(q, state.v), None)
        np.testing.assert_allclose(output[:, 0], seen.velocity(state.v)[0], atol=1e-14)
        assert placed.count(system.group, ZERO, q) == len(output)
        assert placed.check(system.group) is None
    with pytest.raises(ValueError, match="has 2, but q has the entries 0 to 1"):
        Coordinates([0, 2])(ZERO, q0)
    assert "bodies 0 to 1" in str(sphere_on_plane(0.1, body=2).on(pair).check(pair.group))


def chain(count: int) -> Multibody:
    return Multibody(
        [
            Body(
                1.0,
                0.1,
                Hinge((0, 1, 0)),
                None if i == 0 else i - 1,
                position=(0.0, 0.0, -1.0),
            )
            for i in range(count)
        ]
    )


@pytest.mark.nightly
def test_a_step_that_is_linearised_without_derivatives_keeps_its_order():
    """Three links with a spring and a damper against a Runge-Kutta method; halved steps."""
    spring = {"stiffness": 3.0, "damping": 0.2, "rest": 0.3}
    system = Multibody(
        [
            Body(
                1.0,
                0.1,
                Hinge(axis, **spring),
                None if i == 0 else i - 1,
                position=(0.1, 0.0, -1.0),
            )
            for i, axis in enumerate([(0, 1, 0), (1, 1, 0), (0, 0, 1)])
        ],
        forcing=lambda t, state, args: jnp.sin(3 * t) - 0.5 * state.v,
    )
    model, start = nsd.Model(system), system.state(jnp.array([1.0, 0.5, 0.2]), jnp.ones(3))

    def end(method, h):
        run = nsd.simulate(model, method, 0.0, 0.6, h, start, saveat=nsd.SaveAt.end(), max_steps=60)
        return run.states.v

    exact = end(nsd.RKMK(), 1e-2)
    errors = [float(jnp.max(jnp.abs(end(nsd.MoreauJean(), h) - exact))) for h in (2e-2, 1e-2)]
    assert 3.5 < errors[0] / errors[1] < 4.5 and errors[1] < 2e-3, errors
    errors = [float(jnp.max(jnp.abs(end(nsd.BackwardEuler(), h) - exact))) for h in (2e-2, 1e-2)]
    assert 1.7 < errors[0] / errors[1] < 2.3, errors


def test_the_program_does_not_grow_with_the_number_of_bodies():
    def operations(count):
        system = chain(count)
        start = system.state(jnp.full(count, 0.1), jnp.ones(count))
        lowered = jax.jit(lambda s: (system.force(ZERO, s, None), system.mass(ZERO, s.q))).lower(
            start
        )
        return sum(" = " in line for line in lowered.as_text().splitlines())

    # Measured: 1,400 and 1,600; one more round of composition for each doubling of the depth.
    assert operations(64) < 1.25 * operations(16)


def test_single_precision_works():
    system = jax.tree.map(lambda x: x.astype(jnp.float32), chain(3))
    start = jax.tree.map(
        lambda x: x.astype(jnp.float32), chain(3).state(jnp.full(3, 0.1), jnp.ones(3))
    )
    force = system.force(jnp.zeros((), jnp.float32), start, None)
    assert force.dtype == jnp.float32
    exact = chain(3).force(ZERO, chain(3).state(jnp.full(3, 0.1), jnp.ones(3)), None)
    np.testing.assert_allclose(force, exact, atol=1e-5)  # measured: 1e-6 of 3.6
    # Thin rods and points have moments of zero, which rounding makes negative.
    for turn in np.linalg.qr(np.random.default_rng(0).normal(size=(50, 3, 3)))[0]:
        for moments in ((0.0, 1.0, 1.0), (0.0, 0.0, 1.0), (1.0, 1.0, 2.0)):
            inertia = jnp.asarray(turn @ np.diag(moments) @ turn.T, jnp.float32)
            problem = Multibody([Body(1.0, inertia, Hinge((0, 1, 0)))]).check()
            assert (problem is None) == (moments != (0.0, 0.0, 1.0)), problem


def test_a_free_body_is_sprung_to_where_it_was_defined():
    body = Body(1.0, 1.0, Free(stiffness=2.0), position=(0.0, 0.0, 2.0))
    system = Multibody([body], gravity=(0.0, 0.0, 0.0))
    at_rest = system.force(ZERO, system.state(), None)
    np.testing.assert_allclose(at_rest, np.zeros(6), atol=1e-15)
    with pytest.raises(ValueError, match=r"q must have shape \(7,\), got \(6,\)"):
        system.frames(jnp.zeros(6))
    with pytest.raises(ValueError, match="for a Multibody use sphere_on_plane"):
        disk_on_line(0.1).on(system)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Body(1.0, 1.0, Ball), ["joints is the class Ball", "Ball(...)"]),
        (lambda: Body(1.0, (1.0, 1.0), Ball()), ["inertia", "(2,)"]),
        (lambda: Hinge((0, 0, 0)), ["axis", "zero"]),
        (lambda: Hinge((0, 1)), ["axis", "(2,)"]),
        (lambda: Hinge((0, 1, 0), rest=(1.0, 2.0)), ["rest", "(2,)"]),
        (lambda: Hinge(None), ["axis", "numbers"]),
        (lambda: Body(1.0, 1.0, Ball(), parent=0.0), ["parent", "whole number"]),
        (lambda: Body(1.0, 1.0, Ball(), parent=True), ["parent", "whole number"]),
        (lambda: Multibody([]), ["at least one", "moves"]),
        (lambda: Multibody([Body(1.0, 1.0, Fixed())]), ["at least one", "moves"]),
        (lambda: Multibody([Ball()]), ["bodies must be a Body or a sequence"]),
        (lambda: Multibody([Body(1.0, 1.0, Ball(), parent=0)]), ["body 0 has parent 0", "be None"]),
        (
            lambda: Multibody([Body(1.0, 1.0, Ball()), Body(1.0, 1.0, Free(), parent=0)]),
            ["body 1 is Free", "no parent"],
        ),
        (lambda: two_rods().state(jnp.zeros(3)), ["(2,)", "2 joints", "(3,)"]),
    ],
)
def test_bad_trees_are_refused_when_they_are_made(make, words):
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (Body(0.0, 0.0, Hinge((0, 1, 0))), ["moves no mass", "armature"]),
        (Body(-1.0, 1.0, Hinge((0, 1, 0))), ["masses", "negative"]),
        (Body(1.0, 1.0, Hinge((0, 1, 0), damping=-1.0)), ["damping", "negative"]),
        (Body(1.0, 1.0, Ball(rest=(2.0, 0.0, 0.0, 0.0))), ["rest", "norm 2"]),
        (Body(1.0, (1.0, 1.0, 3.0), Hinge((0, 1, 0))), ["inertia of body 0", "principal moments"]),
        (
            Body(1.0, 1.0, Hinge((0, 1, 0)), orientation=(1.0, 1.0, 0.0, 0.0)),
            ["orientation of body 0", "1.41"],
        ),
    ],
)
def test_bad_bodies_are_refused_before_a_simulation(body, words):
    system = Multibody([body])
    with pytest.raises(ValueError) as refused:
        nsd.simulate(nsd.Model(system), nsd.MoreauJean(), 0.0, 1.0, 0.1, system.state())
    for word in words:
        assert word in str(refused.value)


def test_what_a_joint_does_not_have_is_refused():
    with pytest.raises(TypeError, match="Ball joint has no axis"):
        Ball(axis=(0, 1, 0))
    with pytest.raises(TypeError, match="Free joint has no point"):
        Free(point=(0, 1, 0))
    with pytest.raises(
        TypeError, match="Hinge joint has no dampng; its options are axis, .*damping"
    ):
        Hinge((0, 1, 0), dampng=0.1)


@pytest.mark.slow
def test_a_fixed_body_moves_with_its_parent():
    pair = Multibody(
        [
            Body(1.0, 0.1, Hinge((0, 1, 0)), centre=(0.5, 0, 0)),
            Body(1.0, 0.0, Fixed(), parent=0, position=(1.0, 0, 0)),
        ]
    )
    # One body of 2 kg: 0.1 + 1/4 + 1 about the hinge.
    np.testing.assert_allclose(pair.mass(ZERO, jnp.zeros(1)), [[1.35]], rtol=1e-14)
