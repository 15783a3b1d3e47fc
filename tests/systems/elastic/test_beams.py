"""Beams in space: invariance, small and large deflections, frequencies and tumbling against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from marks import nightly, slow
from scipy.spatial.transform import Rotation

import diffnsd as nsd
from diffnsd import State
from diffnsd.systems import AbstractSystem, elastic as el

YOUNG, SHEAR, AREA, MOMENT_Y, MOMENT_Z, TORSION, DENSITY = (
    7e10,
    2.6e10,
    1e-4,
    2e-10,
    1e-10,
    2.5e-10,
    2700.0,
)
LENGTH = 1.5
rng = np.random.default_rng(0)


def given(t, args):
    return args


def cantilever(n, moment_y=MOMENT_Y, moment_z=MOMENT_Z):
    line = el.bar(LENGTH, n, 3)
    beams = el.Beams(line.cells, YOUNG, SHEAR, AREA, moment_y, moment_z, TORSION, DENSITY)
    return el.Elastic(line, beams, prescribed=el.Prescribed(0), loads=el.NodalForce(n, given))


def frame():
    """Beams that meet at a node, with axes of their own, and one node that is held."""
    points = np.array([[0.0, 0.0, 0.1], [0.7, 0.1, -0.2], [1.1, 0.8, 0.3], [0.2, 0.9, 1.0]])
    cells, near = [[0, 1], [1, 2], [1, 3]], [[0.2, 1.0, 0.1], [0.0, 0.3, 1.0], [1.0, 0.0, 0.4]]
    young = jnp.asarray([5e3, 4e3, 6e3])
    beams = el.Beams(cells, young, 2e3, 0.9, 0.03, 0.07, 0.05, 3.0, near)
    damping = el.Rayleigh(0.3, 0.02)
    return el.Elastic(points, beams, prescribed=el.Prescribed(3), damping=damping)


@eqx.filter_jit
def evaluate(body, q, v, w, h):
    """Energy, force, and the matrix of an implicit step beside the derivative of its equations."""
    group, v0 = body.group, jnp.ones_like(v)

    def residual(v):
        end = State(group.compose(q, group.exp(h * v)), v)
        return body.momentum(0.0, State(q, v - v0)) - h * body.force(0.0, end, None)

    end = State(group.compose(q, group.exp(h * v)), v)
    matrix = body.step_operator(0.0, end, None, h, h * h)
    state = State(q, v)
    slope = jax.grad(lambda w: body.elastic_energy(0.0, group.compose(q, group.exp(w))))
    return {
        "energy": body.elastic_energy(0.0, q),
        "force": body.force(0.0, State(q, 0 * v), None),
        "slope": slope(0 * v),
        "product": matrix.mv(w),
        "exact": jax.jvp(residual, (v,), (w,))[1],
        "inertia": body.inertia_force(0.0, state),
        "general": AbstractSystem.inertia_force(body, 0.0, state),
    }


@pytest.mark.nightly
def test_forces_and_matrices():
    """Forces are the slope of the energy, gyroscopic moments those of the general formula, and the matrix
    of a step the derivative of its equations, where nodes turn by a radian in the step."""
    body = frame()
    q = body.rest + 0.2 * jnp.asarray(rng.standard_normal(body.rest.shape))
    v, w = jnp.asarray(rng.standard_normal((2, q.size)))
    out = evaluate(body, q, v, w, 0.6)
    for one, other in (("force", "slope"), ("product", "exact"), ("inertia", "general")):
        sign, scale = -1 if one == "force" else 1, float(jnp.max(jnp.abs(out[other])))
        np.testing.assert_allclose(out[one], sign * out[other], rtol=0, atol=1e-12 * scale)
    assert jnp.max(jnp.abs(out["inertia"])) > 0.01


@eqx.filter_jit
def forces(body, q):
    energy = body.elastic_energy(0.0, q)
    return {"energy": energy, "force": body.force(0.0, body.state(q), None)}


def test_rigid_motion_is_free():
    """No force and no energy after a turn by 2.9 rad; forces turn with the body, moments are in its frame."""
    body, turn = frame(), Rotation.from_rotvec([1.3, -2.2, 1.4])
    body = el.Elastic(body.points, body.elements)

    def turned(q):
        x = np.array(q).reshape(-1, 6)
        spins = (turn * Rotation.from_rotvec(x[:, 3:])).as_rotvec()
        return jnp.asarray(np.concatenate([turn.apply(x[:, :3]) + 0.3, spins], axis=1).reshape(-1))

    q = body.rest + 0.2 * jnp.asarray(rng.standard_normal(body.rest.shape))
    moved, still, rigid = (forces(body, x) for x in (turned(q), q, turned(body.rest)))
    scale = float(jnp.max(jnp.abs(still["force"])))
    assert rigid["energy"] < 1e-12 * still["energy"]
    np.testing.assert_allclose(rigid["force"], 0, atol=1e-12 * scale)
    np.testing.assert_allclose(moved["energy"], still["energy"], rtol=1e-12)
    one, other = (np.array(x["force"]).reshape(-1, 6) for x in (moved, still))
    np.testing.assert_allclose(one[:, :3], turn.apply(other[:, :3]), atol=1e-12 * scale)
    np.testing.assert_allclose(one[:, 3:], other[:, 3:], atol=1e-12 * scale)


def test_in_a_plane_they_are_planar_beams():
    points, cells = np.array([[0.0, 0.0], [0.7, 0.1], [1.1, 0.8]]), [[0, 1], [1, 2]]
    flat = el.Elastic(points, el.PlanarBeams(cells, 5e3 * 0.9, 5e3 * 0.07))
    upright = jnp.asarray([0.0, 0.0, 1.0])
    space = el.Elastic(
        np.pad(points, ((0, 0), (0, 1))),
        el.Beams(cells, 5e3, 2e3, 0.9, 0.07, 0.03, orientation=upright),
    )
    x = np.asarray(flat.rest).reshape(3, 3) + 0.3 * rng.standard_normal((3, 3))
    where = np.array([0, 1, 5])
    y = np.zeros((3, 6))
    y[:, where] = x
    one, other = forces(flat, jnp.ravel(x)), forces(space, jnp.ravel(y))
    np.testing.assert_allclose(other["energy"], one["energy"], rtol=1e-13)
    force, full = one["force"], other["force"]
    full, scale = np.asarray(full).reshape(3, 6), float(jnp.max(jnp.abs(force)))
    np.testing.assert_allclose(full[:, where].reshape(-1), force, atol=1e-12 * scale)
    np.testing.assert_allclose(full[:, [2, 3, 4]], 0, atol=1e-12 * scale)


@eqx.filter_jit
def equilibrium(body, load, guess):
    return el.equilibrium(body, load, guess=guess, tolerance=1e-9, throw=False)


def loaded(body, load, parts=1):
    """The equilibrium under a load on the tip that grows in equal parts."""
    q = body.rest
    for part in np.arange(1, parts + 1) / parts:
        found = equilibrium(body, part * jnp.asarray(load), q)
        assert found.converged
        q = found.q
    return found


@pytest.mark.nightly
def test_small_deflections():
    """`F L³/(3 E I)`, `F L²/(2 E I)`, `T L/(G J)`, whatever the elements, about both axes of the section."""
    force, torque = 1e-4, 1e-5
    found = loaded(cantilever(8), [0.0, force, 2 * force, 0.0, 0.0, 0.0])
    twisted = loaded(cantilever(8), [0.0, 0.0, 0.0, torque, 0.0, 0.0])
    y, z = force / (YOUNG * MOMENT_Z), 2 * force / (YOUNG * MOMENT_Y)
    twist = torque * LENGTH / (SHEAR * TORSION)
    bent = [y * LENGTH**3 / 3, z * LENGTH**3 / 3, 0, -z * LENGTH**2 / 2, y * LENGTH**2 / 2]
    np.testing.assert_allclose(found.q[-5:], bent, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(twisted.q[-3:], [twist, 0, 0], rtol=1e-9, atol=1e-12)
    held = [0, -force, -2 * force, 0, 2 * force * LENGTH, -force * LENGTH]
    np.testing.assert_allclose(found.reactions[0], held, atol=1e-4 * force)


@pytest.mark.slow
@pytest.mark.parametrize("moments", [nightly((0.0, 1.0)), (0.6, -0.8)])
def test_a_beam_is_rolled_to_a_circle(moments):
    """A moment of 2π EI/L across the tip closes a beam with a round section, whatever the elements."""
    body, size = cantilever(8, MOMENT_Y, MOMENT_Y), 2 * np.pi * YOUNG * MOMENT_Y / LENGTH
    load = [0.0, 0.0, 0.0, 0.0, *(size * m for m in moments)]
    q = loaded(body, load, 16).q
    # Measured: up to 4.9e-8, by where Newton's iterations end, which differs between processors.
    np.testing.assert_allclose(q[-6:], 0, atol=2e-7)  # the place and the frame of the clamp
    middle = np.asarray(q).reshape(-1, 6)[3]  # the fourth of eight corners, opposite to the clamp
    chord = LENGTH / 8 / np.sin(np.pi / 8)
    np.testing.assert_allclose(
        middle[:3], chord * np.array([0, moments[1], -moments[0]]), atol=2e-7
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "bounds"), [(8, (0.055, 0.065)), slow(16, (0.0135, 0.016))])
def test_a_beam_is_wound_to_a_helix(n, bounds):
    """A moment that is constant in space: of second order to the closed form, `exp(s m/EI) exp(s c e1)`."""
    bending, twisting = YOUNG * MOMENT_Y, SHEAR * TORSION
    m = np.array([0.8, 1.0, 1.5]) * 2.5 * bending / LENGTH
    spin = (1 / twisting - 1 / bending) * m[0] * LENGTH * np.array([1.0, 0, 0])
    end = Rotation.from_rotvec(m * LENGTH / bending) * Rotation.from_rotvec(spin)
    s = np.linspace(0, LENGTH, 2001)
    tangents = Rotation.from_rotvec(np.outer(s, m / bending)).apply([1.0, 0, 0])
    tip = scipy.integrate.simpson(tangents, x=s, axis=0)
    q = loaded(
        cantilever(n, MOMENT_Y, MOMENT_Y), np.concatenate([np.zeros(3), end.inv().apply(m)]), 16
    ).q
    turned = Rotation.from_rotvec(np.array(q[-3:])) * end.inv()
    errors = [np.linalg.norm(q[-6:-3] - tip), turned.magnitude()]
    assert np.all(np.array(errors) < bounds), errors


@eqx.filter_jit
def matrices(body):
    load = jnp.zeros(6)
    mass = jax.vmap(lambda v: body.momentum(0.0, State(body.rest, v)))(jnp.eye(body.rest.size))
    return body.stiffness(0.0, body.rest, load).as_matrix(), mass


@pytest.mark.nightly
def test_frequencies_of_a_cantilever():
    """The first five about each axis of the section and in torsion, of second order to the closed forms."""
    roots = np.array([1.8751040687, 4.6940911330, 7.8547574382, 10.9955407349, 14.1371683910])
    flexible = roots**2 * np.sqrt(YOUNG / (DENSITY * AREA * LENGTH**4))
    polar = (np.arange(5) + 0.5) * np.pi / LENGTH
    polar = polar * np.sqrt(SHEAR * TORSION / (DENSITY * (MOMENT_Y + MOMENT_Z)))
    exact = flexible * np.sqrt(MOMENT_Z), flexible * np.sqrt(MOMENT_Y), polar
    coordinates = [1, 5], [2, 4], [3]
    errors = []
    for n in (12, 24, 48):
        stiffness, mass = map(np.asarray, matrices(cantilever(n)))
        for axes, known in zip(coordinates, exact, strict=True):
            own = np.isin(np.arange(len(mass)) % 6, axes)
            pair = (x[np.ix_(own, own)] for x in (stiffness, mass))
            squares = scipy.linalg.eigh(*pair, eigvals_only=True)[:5]
            errors.append(np.abs(np.sqrt(squares) / known - 1))
    errors = np.array(errors).reshape(3, 3, 5)
    orders = np.log2(errors[:-1] / errors[1:])
    # The closed forms of bending have no rotary inertia: 1e-6 to 5e-5 of them.
    assert np.all(np.abs(orders[1] - 2) < 0.1), orders
    assert errors[2].max() < 4e-3


SPIN, SHORT = np.array([3.0, 2.0, 4.0]), el.bar(1.0, 1, 3)


def tumbling(young, moment_y=2e-3, moment_z=5e-3):
    """A free beam and the state in which it turns like a rigid body."""
    beams = el.Beams(SHORT.cells, young, young / 2, 0.05, moment_y, moment_z, density=1.0)
    body, x = el.Elastic(SHORT, beams), np.asarray(SHORT.points) - [0.5, 0, 0]
    v = np.concatenate([np.cross(SPIN, x), np.tile(SPIN, (2, 1))], axis=1)
    return body, body.state(v=jnp.asarray(v.reshape(-1)))


@pytest.mark.nightly
def test_tumbling_beam():
    """A stiff free beam against Euler's equations: 2e-5 rad after 0.2 s measured."""
    body, start = tumbling(1e6)
    h, steps = 2e-3, 100
    run = nsd.simulate(nsd.Model(body), nsd.MoreauJean(), 0.0, h * steps, h, start)
    # Half the mass at each end, and the rotary inertias of the section.
    inertia = np.array([7e-3, 2e-3, 5e-3]) + 0.05 / 4 * np.array([0, 1, 1])

    def rate(t, y):
        w = y[9:]
        turn = y[:9].reshape(3, 3) @ np.cross(np.eye(3), w)
        return np.concatenate([turn.reshape(-1), np.cross(inertia * w, w) / inertia])

    start = np.concatenate([np.eye(3).reshape(-1), SPIN])
    known = scipy.integrate.solve_ivp(rate, (0, h * steps), start, rtol=1e-9, atol=1e-10).y[:, -1]
    found = Rotation.from_rotvec(np.array(run.states.q[-1, 3:6]))
    error = (found * Rotation.from_matrix(known[:9].reshape(3, 3)).inv()).magnitude()
    assert error < 1e-4, error
    # The beam vibrates, as it starts without the strains of its rotation: 5e-3 rad/s measured.
    np.testing.assert_allclose(run.states.v[-1, 3:6], known[9:], atol=1e-2)


@pytest.mark.nightly
def test_derivative_of_a_motion():
    """Ten steps of backward Euler by the modulus, against wide differences; nodes turn by 0.1 rad a step."""

    @eqx.filter_jit
    def end(young, change):
        def run(young):
            body, start = tumbling(young)
            known = nsd.Model(body), nsd.BackwardEuler(), 0.0, 0.2, 0.02, start
            return nsd.simulate(*known, saveat=nsd.SaveAt.end(), throw=False).states.q

        return jax.jvp(run, (young,), (change,))

    young, step = jnp.asarray(30.0), 1e-3
    (up, _), (down, _), (_, slope) = (end(young + x, jnp.ones(())) for x in (step, -step, 0.0))
    scale = float(jnp.max(jnp.abs(slope)))
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=0, atol=1e-6 * scale)


@pytest.mark.slow
def test_bad_input():
    with pytest.raises(ValueError, match="elements 0 of Beams are parallel to their orientation"):
        el.Elastic(
            el.bar(1.0, 1, 3), el.Beams([[0, 1]], 1.0, 1.0, 1.0, 1.0, orientation=[1.0, 0, 0])
        )
    with pytest.raises(ValueError, match="of the rotation of nodes 0 some axes are prescribed"):
        el.Elastic(
            el.bar(1.0, 1, 3),
            el.Beams([[0, 1]], 1.0, 1.0, 1.0, 1.0),
            prescribed=el.Prescribed(0, axes=[0, 1, 2, 3]),
        )
