"""Elements and materials against closed forms and scikit-fem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import State
from diffnsd.systems import elastic as el

YOUNG, POISSON = 3.0e4, 0.3
MATERIALS = {
    "linear": el.LinearElastic(YOUNG, POISSON),
    "green": el.SaintVenantKirchhoff(YOUNG, POISSON),
    "stable": el.NeoHookean(YOUNG, POISSON),
    "corotational": el.Corotational(YOUNG, POISSON),
}
rng = np.random.default_rng(0)


def squares(F, parameters, shared):
    """A made-up energy with the invariants of a fibre along the first axis."""
    fibre = jnp.sum(F[:, 0] ** 2)
    return parameters["k"] / 2 * (jnp.sum(F * F) - 3) + shared[0] * (fibre - 1) ** 2


def solids(material, **others):
    mesh = el.block((1.0, 0.6, 0.5), (2, 1, 1))
    return el.Elastic(mesh, el.Tetrahedra(mesh.cells, material, 7.0), **others)


def cloth(material, **others):
    mesh = el.sheet((1.0, 0.6), (2, 2), dimension=3)
    parts = el.Membranes(mesh.cells, material, 7.0, 0.01), el.Hinges(mesh.hinges(), 2.0)
    return el.Elastic(mesh, parts, **others)


def plate(material, plane, **others):
    mesh = el.sheet((1.0, 0.6), (2, 2))
    return el.Elastic(mesh, el.Triangles(mesh.cells, material, 7.0, 0.1, plane), **others)


def frame(**others):
    points = np.array([[0.0, 0.0], [0.7, 0.1], [1.1, 0.8], [0.2, 0.9]])
    beams = el.PlanarBeams([[0, 1], [1, 2], [2, 3]], 5e3, 40.0, 2.0, 0.1)
    parts = (
        beams,
        el.Bars([[0, 2]], 3e3, 1.0),
        el.Springs([[0, 3]], 50.0, 0.5),
        el.Masses([3], 0.4),
    )
    return el.Elastic(points, parts, **others)


BODIES = {
    **{name: solids(material) for name, material in MATERIALS.items()},
    "own energy": solids(el.Hyperelastic(squares, {"k": jnp.full(12, 40.0)}, jnp.ones(1))),
    "cloth": cloth(MATERIALS["stable"]),
    "plane stress": plate(MATERIALS["stable"], el.PlaneStress()),
    "plane strain": plate(MATERIALS["green"], el.PlaneStrain()),
    "frame": frame(),
}


@eqx.filter_jit
def evaluate(body, q, w):
    state = body.state(q, w)
    values = body.elastic_energy(0.0, q), body.force(0.0, state, None)
    products = (
        body.stiffness(0.0, q).mv(w),
        jax.jvp(lambda q: -body.force(0.0, body.state(q, w), None), (q,), (w,))[1],
    )
    return values, products, body.kinetic(0.0, state), body.momentum(0.0, state)


@pytest.mark.parametrize("name", BODIES)
def test_forces_and_stiffness(name):
    """Forces are central differences of the energy, and products those of the forces."""
    body = BODIES[name]
    q = body.rest + 0.02 * rng.standard_normal(body.rest.shape)
    w = jnp.asarray(rng.standard_normal(q.shape))
    (_, force), (product, exact), _, momentum = evaluate(body, q, w)
    eps = 1e-4
    (up, above), *_ = evaluate(body, q + eps * w, w)
    (down, below), *_ = evaluate(body, q - eps * w, w)
    scale = float(jnp.sum(jnp.abs(force * w)))
    assert abs(up - down + 2 * eps * jnp.sum(force * w)) < 1e-5 * 2 * eps * scale
    np.testing.assert_allclose(
        below - above,
        2 * eps * product,
        rtol=0,
        atol=1e-5 * float(jnp.max(jnp.abs(2 * eps * product))),
    )
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-12 * float(jnp.max(jnp.abs(exact))))
    assert jnp.sum(momentum * w) > 0


@pytest.mark.parametrize("name", [name for name in BODIES if name not in ("linear", "own energy")])
def test_rigid_motion_is_free(name):
    """No force and no energy after a finite turn; a linear material is not invariant by definition."""
    body = BODIES[name]
    d = body.points.shape[1]
    angle, c, s = 2.4, np.cos(2.4), np.sin(2.4)
    turn = np.eye(d)
    turn[:2, :2] = [[c, -s], [s, c]]
    x = np.asarray(body.rest_nodes).copy()
    x[:, :d] = x[:, :d] @ turn.T + 0.3
    x[:, d:] += angle + 4 * np.pi
    springs = sum(isinstance(part, el.Springs) for part in body.elements)
    (energy, force), *_ = evaluate(body, jnp.asarray(x.reshape(-1)), jnp.ones(x.size))
    (rest, pull), (product, _), *_ = evaluate(body, body.rest, jnp.arange(x.size, dtype=float))
    scale = float(jnp.max(jnp.abs(product)))
    np.testing.assert_allclose(energy, rest, atol=1e-12 * scale)
    turned = np.asarray(pull).reshape(-1, body.unknown.shape[1])
    turned = np.concatenate([turned[:, :d] @ turn.T, turned[:, d:]], axis=1).reshape(-1)
    np.testing.assert_allclose(force, turned, atol=1e-12 * scale)
    assert springs or energy < 1e-12 * scale


def test_small_strains_are_hookes():
    """All materials have the stiffness of the linear one at rest."""
    w = jnp.asarray(rng.standard_normal(BODIES["linear"].rest.shape))
    products = [evaluate(BODIES[name], BODIES[name].rest, w)[1][0] for name in MATERIALS]
    scale = float(jnp.max(jnp.abs(products[0])))
    for product in products[1:]:
        np.testing.assert_allclose(product, products[0], rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("mass_model", [el.Lumped(), el.Consistent()])
def test_mass(mass_model):
    """Total mass, and the kinetic energy of a rotation about an axis (exact for a consistent mass)."""
    body = solids(MATERIALS["stable"], mass_model=mass_model)
    whole = 7.0 * 1.0 * 0.6 * 0.5

    @eqx.filter_jit
    def run(body, v):
        return body.kinetic(0.0, body.state(v=v)), body.momentum(0.0, body.state(v=v))

    along = jnp.tile(jnp.asarray([2.0, 0, 0]), 12)
    assert float(run(body, along)[0]) == pytest.approx(2 * whole, rel=1e-14)
    x = np.asarray(body.points) - [0.5, 0.3, 0.25]
    v = jnp.asarray(np.stack([-x[:, 1], x[:, 0], 0 * x[:, 0]], axis=1).reshape(-1))
    inertia = whole * (1.0 + 0.36) / 12
    energy, momentum = run(body, v)
    energy = float(energy)
    if isinstance(mass_model, el.Consistent):
        assert energy == pytest.approx(inertia / 2, rel=1e-13)
    else:
        assert energy > inertia / 2
    matrix = eqx.filter_jit(body.mass)(0.0, body.rest)
    np.testing.assert_allclose(matrix @ v, momentum, rtol=0, atol=1e-14)


def test_stiffness_of_scikit_fem():
    """Stiffness and consistent mass of linear elasticity, assembled by another code."""
    fem = pytest.importorskip("skfem")
    helpers = pytest.importorskip("skfem.models.elasticity")
    body = solids(MATERIALS["linear"], mass_model=el.Consistent())
    mesh = fem.MeshTet(np.asarray(body.points).T, np.asarray(body.elements[0].nodes).T)
    basis = fem.Basis(mesh, fem.ElementVector(fem.ElementTetP1()))
    lame = helpers.lame_parameters(YOUNG, POISSON)
    stiffness = fem.asm(helpers.linear_elasticity(*lame), basis).toarray()

    @fem.BilinearForm
    def mass(u, v, w):
        return 7.0 * sum(u[i] * v[i] for i in range(3))

    own, own_mass = eqx.filter_jit(
        lambda b: (b.stiffness(0.0, b.rest).as_matrix(), b.mass(0.0, b.rest))
    )(body)
    for ours, theirs in (
        (np.asarray(own), stiffness),
        (np.asarray(own_mass), fem.asm(mass, basis).toarray()),
    ):
        order = np.array([basis.nodal_dofs[axis, node] for node in range(12) for axis in range(3)])
        theirs = theirs[np.ix_(order, order)]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


@pytest.mark.parametrize("name", ["linear", "green", "stable", "corotational"])
def test_patch(name):
    """A homogeneous deformation is in equilibrium at inner nodes of an irregular mesh."""
    mesh = el.block((1.0, 1.0, 1.0), (2, 2, 2))
    points = np.asarray(mesh.points).copy()
    inner = np.all((points > 0) & (points < 1), axis=1)
    points[inner] += [0.07, -0.05, 0.09]
    body = el.Elastic(points, el.Tetrahedra(mesh.cells, MATERIALS[name], 1.0))
    F = np.array([[1.1, 0.2, 0.0], [0.0, 0.9, -0.1], [0.1, 0.0, 1.2]])
    q = jnp.asarray((points @ F.T).reshape(-1))
    (_, force), *_ = evaluate(body, q, q)
    force = np.asarray(force).reshape(-1, 3)
    assert np.abs(force[inner]).max() < 1e-13 * np.abs(force).max()


def test_uniaxial_neo_hookean():
    """Traction of one stretched cube: `dψ/d(stretch)` of the published energy, sides free."""
    from scipy.optimize import brentq

    lam = YOUNG * POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
    mu = YOUNG / (2 * (1 + POISSON))
    lam, mu = lam + 5 / 6 * mu, 4 / 3 * mu
    alpha, stretch = 1 + 3 / 4 * mu / lam, 1.4

    def slope(side):  # dψ/d(side)/2
        invariant, volume = stretch**2 + 2 * side**2, stretch * side**2
        return mu * side * (1 - 1 / (invariant + 1)) + lam * (volume - alpha) * stretch * side

    side = brentq(slope, 0.5, 1.2, xtol=1e-15)
    invariant, volume = stretch**2 + 2 * side**2, stretch * side**2
    traction = mu * stretch * (1 - 1 / (invariant + 1)) + lam * (volume - alpha) * side**2
    mesh = el.block((1.0, 1.0, 1.0), (1, 1, 1))
    body = el.Elastic(mesh, el.Tetrahedra(mesh.cells, MATERIALS["stable"], 1.0))
    q = (mesh.points * jnp.asarray([[stretch, side, side]])).reshape(-1)
    (_, force), *_ = evaluate(body, q, q)
    force = np.asarray(force).reshape(-1, 3)
    end = np.asarray(mesh.points)[:, 0] == 1
    assert -force[end, 0].sum() == pytest.approx(traction, rel=1e-12)
    assert np.abs(force[:, 1:]).max() < 1e-11 * traction
    # The same with a thickness that is found: a sheet under plane stress in one direction.
    flat = el.sheet((1.0, 1.0), (1, 1))
    thin = el.Elastic(
        flat, el.Triangles(flat.cells, MATERIALS["stable"], 1.0, 1.0, el.PlaneStress())
    )
    q = (flat.points * jnp.asarray([[stretch, side]])).reshape(-1)
    force = np.asarray(eqx.filter_jit(thin.force)(0.0, thin.state(q), None)).reshape(-1, 2)
    assert -force[np.asarray(flat.points)[:, 0] == 1, 0].sum() == pytest.approx(traction, rel=1e-12)


def test_plate_rolled_to_a_cylinder():
    """Bending of hinges along a strip: energy `k κ²/2` per area."""
    errors = []
    for n in (8, 32):
        mesh = el.sheet((1.0, 1.0 / n), (n, 1), dimension=3)
        body = el.Elastic(mesh, el.Hinges(mesh.hinges(), 2.0))
        x, curvature = np.asarray(mesh.points), 0.5
        rolled = np.stack(
            [
                np.sin(curvature * x[:, 0]) / curvature,
                x[:, 1],
                (1 - np.cos(curvature * x[:, 0])) / curvature,
            ],
            axis=1,
        )
        exact = 2.0 / 2 * curvature**2 / n
        (energy, _), *_ = evaluate(body, jnp.asarray(rolled.reshape(-1)), body.rest)
        errors.append(float(energy) / exact)
    assert errors == pytest.approx([7 / 8, 31 / 32], rel=1e-3)  # no hinge at the two ends


def test_damping():
    """Rayleigh's damping: power `−v (α M + β K) v`; its matrices are the exact derivatives."""
    body = solids(MATERIALS["stable"], damping=el.Rayleigh(0.7, 0.02))
    q = body.rest + 0.02 * jnp.asarray(rng.standard_normal(body.rest.shape))
    v, w = jnp.asarray(rng.standard_normal((2, q.size)))

    @eqx.filter_jit
    def run(body, q, v, w):
        def force(q, v):
            return body.force(0.0, State(q, v), None)

        damped = force(q, v) - force(q, jnp.zeros_like(v))
        mass = body.momentum(0.0, State(q, v))
        product = body.step_operator(0.0, State(q, v), None, 0.3, 0.2).mv(w)
        _, along = jax.jvp(force, (q, v), (0.2 * w, 0.3 * w))
        return damped, mass, product, body.momentum(0.0, State(q, w)) - along

    damped, mass, product, exact = map(np.asarray, run(body, q, v, w))
    undamped = solids(MATERIALS["stable"])
    by_hand = evaluate(undamped, q, v)[1][0]
    np.testing.assert_allclose(damped, -(0.7 * mass + 0.02 * by_hand), rtol=0, atol=1e-9)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-12 * np.abs(exact).max())
