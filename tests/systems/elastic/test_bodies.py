"""Elastic bodies at rest and in motion against closed forms; boundary conditions; bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.linalg

import diffnsd as nsd
from diffnsd import State, linear
from diffnsd.systems import elastic as el

EA, EI, RHO_A, LENGTH = 4.0e5, 30.0, 2.0, 1.5


def cantilever(n, **others):
    line = el.bar(LENGTH, n, 2)
    rotary = 1e-6  # a slender beam: the closed form has no rotary inertia
    beams = el.PlanarBeams(line.cells, EA, EI, RHO_A, rotary)
    return el.Elastic(line, beams, prescribed=el.Prescribed(0), **others)


@eqx.filter_jit
def matrices(body):
    return body.stiffness(0.0, body.rest).as_matrix(), body.mass(0.0, body.rest)


def frequencies(n, mass_model):
    stiffness, mass = (np.asarray(x) for x in matrices(cantilever(n, mass_model=mass_model)))
    # Bending only: the axial motion is not coupled to it.
    bending = np.arange(len(mass)) % 3 != 0
    values = scipy.linalg.eigh(
        stiffness[np.ix_(bending, bending)], mass[np.ix_(bending, bending)], eigvals_only=True
    )
    return np.sqrt(values[:5])


@pytest.mark.parametrize("mass_model", [el.Lumped(), el.Consistent()])
def test_frequencies_of_a_cantilever(mass_model):
    """The first five converge at second order to Euler and Bernoulli's, cos x cosh x = −1."""
    roots = np.array([1.8751040687, 4.6940911330, 7.8547574382, 10.9955407349, 14.1371683910])
    exact = roots**2 * np.sqrt(EI / (RHO_A * LENGTH**4))
    errors = [np.abs(frequencies(n, mass_model) / exact - 1) for n in (12, 24, 48)]
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(np.abs(orders[1] - 2) < 0.1), (orders, errors)
    assert errors[2].max() < 1.2e-2


def test_deflection_of_a_cantilever():
    """A small force at the tip: `F L³/(3 EI)` and `F L²/(2 EI)` whatever the elements."""
    n, force = 6, 1e-3
    body = cantilever(n, loads=el.NodalForce(n, [0.0, force]))
    found = el.equilibrium(body)
    tip = np.asarray(found.q[-2:])
    exact = force * LENGTH**3 / (3 * EI), force * LENGTH**2 / (2 * EI)
    np.testing.assert_allclose(tip, exact, rtol=1e-7)
    # The support holds the force and its moment.
    np.testing.assert_allclose(found.reactions[0], [0, -force, -force * LENGTH], atol=1e-9)


def test_a_beam_is_wound_up():
    """A moment of 2π EI/L at the tip closes the beam: to a polygon, for any number of elements."""
    body, q = cantilever(8, loads=el.NodalForce(8, lambda t, args: args)), None
    for part in np.linspace(0.1, 1, 10):
        moment = jnp.asarray([0.0, 0.0, part * 2 * np.pi * EI / LENGTH])
        q = el.equilibrium(body, moment, guess=body.rest if q is None else q, tolerance=1e-9).q
    assert q[-1] == pytest.approx(2 * np.pi, rel=1e-9)
    assert jnp.hypot(q[-3], q[-2]) < 1e-7


def block(**others):
    mesh = el.block((1.0, 0.5, 0.5), (4, 2, 2))
    left = el.Prescribed(mesh.where(lambda x: x[0] == 0))
    return mesh, el.Elastic(
        mesh, el.Tetrahedra(mesh.cells, el.NeoHookean(2e5, 0.3), 1e3), prescribed=left, **others
    )


def test_reactions_carry_weight_and_pressure():
    """The support carries all loads: their sum, and their moment about the origin."""
    mesh, _ = block()
    top = [f for f in mesh.boundary() if np.all(np.asarray(mesh.points)[f, 2] == 0.5)]
    _, body = block(
        gravity=[0.0, 0, -9.81],
        loads=[
            el.Pressure(np.array(top), lambda t, args: args),
            el.NodalForce(mesh.where(lambda x: x[0] == 1), [3.0, 0, 0]),
        ],
    )
    found = el.equilibrium(body, 200.0)
    x = np.asarray(body.positions(0.0, found.q))
    state = State(found.q, jnp.zeros_like(found.q))
    loads = np.asarray(body._weight(jnp.asarray(x)))
    loads = loads + sum(np.asarray(load.force(0.0, jnp.asarray(x), 200.0)) for load in body.loads)
    held = np.asarray(body.reactions(0.0, state, 200.0))
    assert loads[:, 2].sum() == pytest.approx(-9.81 * 250 - 200 * 0.5, rel=0.03)
    np.testing.assert_allclose((held + loads).sum(axis=0), 0, atol=1e-6)  # of 2.5e3
    np.testing.assert_allclose(np.cross(x, held + loads).sum(axis=0), 0, atol=1e-6)
    # The exact derivative, pressure that turns with the surface included.
    w = jnp.asarray(np.random.default_rng(1).standard_normal(found.q.shape))

    @eqx.filter_jit
    def products(body, q, w):
        _, along = jax.jvp(lambda q: body.force(0.0, body.state(q), jnp.asarray(2e4)), (q,), (w,))
        return body.stiffness(0.0, q, jnp.asarray(2e4)).mv(w), -along

    product, exact = products(body, found.q, w)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-12 * float(jnp.max(jnp.abs(exact))))


def test_derivative_of_an_equilibrium():
    """Tip of a loaded block by one modulus per element, against central differences."""
    mesh = el.block((1.0, 0.5, 0.5), (2, 1, 1))
    held = el.Prescribed(mesh.where(lambda x: x[0] == 0))
    direction = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, len(mesh.cells)))

    def tip(young):
        material = el.NeoHookean(young, 0.3)
        own = el.Elastic(
            mesh,
            el.Tetrahedra(mesh.cells, material, 1e3),
            gravity=[0.0, 0, -9.81],
            prescribed=held,
        )
        return el.equilibrium(own, tolerance=1e-12, throw=False).q[-1]

    young = jnp.full(len(mesh.cells), 2e5)
    slope = jnp.sum(eqx.filter_jit(jax.grad(tip))(young) * direction)
    tip = eqx.filter_jit(tip)
    step = 200.0
    wide = (tip(young + step * direction) - tip(young - step * direction)) / (2 * step)
    assert slope == pytest.approx(float(wide), rel=1e-5)


def two_springs(angle=0.0, **others):
    """A weight between two springs, which lie in one line at rest."""
    return el.Elastic(
        jnp.asarray([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]),
        [el.Springs([[0, 1], [1, 2]], 10.0), el.Masses([0, 1, 2], 1.0)],
        prescribed=el.Prescribed([0, 2]),
        gravity=[0.0, -1.0],
        **others,
    )


def test_solvers_of_an_equilibrium():
    """A stiffness that is singular at rest is said, and carried as a result; from a guess with tension both a
    dense and a sparse solver find the closed form `20 (1 − 1/sqrt(1 + y²)) y = 1`. Measured 2e-16.
    """
    body = two_springs()
    with pytest.raises(RuntimeError, match=r"in iteration 1 .* two springs in one line, .*`guess`"):
        el.equilibrium(body)
    found = el.equilibrium(body, throw=False)
    assert not found.solved and not found.converged
    np.testing.assert_array_equal(found.q, body.rest)
    with pytest.raises(ValueError, match="of a batch take one"):
        _ = jax.tree.map(lambda x: jnp.stack([x, x]), found).message
    for solver in (lx.LU(), linear.SparseLU()):
        found = el.equilibrium(body, guess=jnp.array([1.0, -0.3]), linear_solver=solver)
        y = float(found.q[1])
        assert found.message == ""
        assert 20 * (1 - 1 / np.sqrt(1 + y**2)) * y == pytest.approx(-1.0, abs=1e-12)


def test_an_equilibrium_inside_out():
    """Hooke's law of small strains under a weight that turns the element inside out."""
    body = el.Elastic(
        jnp.asarray(CORNERS),
        el.Tetrahedra([[0, 1, 2, 3]], el.LinearElastic(1e3, 0.3), 1000.0),
        prescribed=el.Prescribed([0, 1, 2]),
        gravity=[0.0, 0, -20.0],
    )
    with pytest.raises(RuntimeError, match="elements 0 of Tetrahedra are inside out"):
        el.equilibrium(body)
    found = el.equilibrium(body, throw=False)
    assert bool(found.converged) and float(found.q[2]) < 0


def test_an_equilibrium_that_is_not_found_has_no_derivative():
    """Two springs in one line, of which the middle moves aside without resistance."""
    body = el.Elastic(
        jnp.asarray([[0.0, 0], [1, 0], [2, 0]]),
        [el.Springs([[0, 1], [1, 2]], 10.0), el.Masses([0, 1, 2], 1.0)],
        prescribed=el.Prescribed([0, 2]),
        gravity=[0.0, -1.0],
    )

    def sag(weight):
        heavier = eqx.tree_at(lambda b: b.gravity, body, weight * body.gravity)
        return el.equilibrium(heavier).q[1]

    with pytest.raises(RuntimeError, match="an equilibrium was not found"):
        jax.jit(jax.grad(sag))(1.0)


def test_prescribed_motion_in_time():
    """A bar whose end is moved sinusoidally, against the closed form of one mass on a spring."""
    k, m, amplitude, omega = 40.0, 1.0, 0.1, 3.0

    def motion(t):
        return amplitude * jnp.sin(omega * t)

    body = el.Elastic(
        jnp.asarray([[0.0], [1.0]]),
        [el.Springs([[0, 1]], k), el.Masses([0, 1], m)],
        prescribed=el.Prescribed(0, displacement=motion),
    )
    assert body.rest.shape == (1,)
    run = nsd.simulate(nsd.Model(body), nsd.MoreauJean(), 0.0, 1.0, 1e-3, body.state())
    w2, t = k / m, run.ts
    forced = amplitude * w2 / (w2 - omega**2)
    x = 1 + forced * (jnp.sin(omega * t) - omega / np.sqrt(w2) * jnp.sin(np.sqrt(w2) * t))
    assert jnp.max(jnp.abs(run.states.q[:, 0] - x)) < 2e-6
    # The reaction at the moved end: its inertia and the spring.
    held = body.reactions(t[-1], State(run.states.q[-1], run.states.v[-1]))
    base = amplitude * np.sin(omega)
    expected = -m * omega**2 * base - k * (run.states.q[-1, 0] - base - 1)
    assert held[0, 0] == pytest.approx(float(expected), rel=1e-12)


CORNERS = [[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


def tetrahedron(nodes=((0, 1, 2, 3),), points=None, **others):
    corners = CORNERS if points is None else points
    density = others.pop("density", 1.0)
    young = others.pop("young", 1e3)
    return el.Elastic(
        jnp.asarray(corners),
        el.Tetrahedra(nodes, el.NeoHookean(young, 0.3), density),
        **others,
    )


SINGLE = el.Mesh(CORNERS, [[0, 1, 2, 3]])
SHEET = el.sheet((1.0, 1.0), (1, 1))
FLAT = [[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0.3, 0.3, 0]]
WRONG = {
    "elements 0 of Tetrahedra are inverted at rest": lambda: tetrahedron([[0, 2, 1, 3]]),
    "elements 0 of Tetrahedra have no volume": lambda: tetrahedron(points=FLAT),
    "nodes 4 belong to no element": lambda: tetrahedron(points=[*FLAT[:3], [0, 0, 1.0], [2, 2, 2]]),
    "has the numbers 7": lambda: tetrahedron([[0, 1, 2, 7]]),
    "did you pass the transpose": lambda: tetrahedron(np.zeros((4, 9), int)),
    "nodes 1 are prescribed twice along the same axis, by prescribed 0 and 1": lambda: tetrahedron(
        prescribed=[el.Prescribed([0, 1]), el.Prescribed([1, 2], axes=2)]
    ),
    "nodes 1 are listed twice": lambda: tetrahedron(prescribed=el.Prescribed([0, 1, 1])),
    "every coordinate is prescribed": lambda: tetrahedron(prescribed=el.Prescribed([0, 1, 2, 3])),
    "has shape (3,): give one value": lambda: tetrahedron(young=jnp.ones(3)),
    "no node fulfils": lambda: el.Prescribed(np.zeros(3, bool)),
    "guess must have shape (3,), one number for every coordinate": lambda: el.equilibrium(
        tetrahedron(prescribed=el.Prescribed([0, 1, 2])), guess=jnp.zeros(12)
    ),
    "poisson of NeoHookean must be above -1": lambda: el.equilibrium(
        el.Elastic(jnp.asarray(CORNERS), el.Tetrahedra([[0, 1, 2, 3]], el.NeoHookean(1.0, 0.5)))
    ),
    "can still move as a rigid body": lambda: el.equilibrium(
        tetrahedron(prescribed=el.Prescribed([0, 1]), gravity=[0, 0, -1.0])
    ),
    "axes of Prescribed are (0, 0); name each one once": lambda: el.Prescribed([0], axes=[0, 0]),
    "axes of prescribed 0 are 3, but": lambda: tetrahedron(prescribed=el.Prescribed([0], axes=3)),
    "elements 0 of Hinges lie at a triangle without area": lambda: el.Elastic(
        jnp.asarray([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0.5, 0, 0]]),
        el.Hinges([[0, 1, 2, 3]], 1.0),
    ),
    "elements 0 of Springs have no length at rest": lambda: el.Elastic(
        jnp.zeros((2, 2)), el.Springs([[0, 1]], 1.0)
    ),
    "elements 1 of Springs connect a node with itself": lambda: el.Elastic(
        jnp.asarray([[0.0, 0.0], [1.0, 0.0]]), el.Springs([[0, 1], [1, 1]], 1.0, 0.5)
    ),
    "facets of Pressure have 2 nodes each, and a body in 3 dimensions has triangles": lambda: (
        tetrahedron(loads=el.Pressure([[0, 1]], 1.0))
    ),
    "facets of Pressure have 3 nodes each, and a body in 2 dimensions has edges": lambda: (
        el.Elastic(
            SHEET,
            el.Triangles(SHEET.cells, el.NeoHookean(1e3, 0.3)),
            loads=el.Pressure(SHEET.cells, 1.0),
        )
    ),
    "pressure of Pressure must be one number or one for each of its 4 facets": lambda: tetrahedron(
        loads=el.Pressure(SINGLE.boundary(), jnp.ones(3))
    ).force(0.0, State(jnp.zeros(12), jnp.zeros(12)), None),
    "Hyperelastic must return an energy density, one real number; it returned shape (3,)": lambda: (
        el.Hyperelastic(lambda F, p, s: F[0]).energy(jnp.eye(3))
    ),
    "cells of 2 nodes have no facets": lambda: el.bar(1.0, 3).boundary(),
    "hinges() are edges between triangles": lambda: SINGLE.hinges(),
    "n must be finite and at least 1": lambda: el.bar(1.0, 0),
    "dimension must be from 1 to 3, got 0": lambda: el.bar(1.0, 2, 0),
    "dimension must be from 2 to 3, got 1": lambda: el.sheet((1.0, 1.0), (1, 1), dimension=1),
    "need points in 2 dimensions": lambda: el.Elastic(
        jnp.zeros((3, 3)), el.Triangles([[0, 1, 2]], el.NeoHookean(1e3, 0.3))
    ),
}
AT_START = {
    "nodes 0, 1, 2, 3 have a coordinate without mass": lambda: (tetrahedron(density=0.0), None),
    "young of NeoHookean must be positive": lambda: (tetrahedron(young=-1.0), None),
    "mass of Rayleigh must be finite and not negative": lambda: (
        tetrahedron(damping=el.Rayleigh(-1.0)),
        None,
    ),
    "angles of nodes 0, 1 have no inertia; give their PlanarBeams a `rotary`": lambda: (
        el.Elastic(el.bar(1.0, 1, 2), el.PlanarBeams([[0, 1]], 1e3, 1.0, 1.0)),
        None,
    ),
    "at the start elements 0 of Tetrahedra are inside out": lambda: (
        tetrahedron(),
        -tetrahedron().rest,
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_bad_input(sentence):
    with pytest.raises(ValueError) as error:
        WRONG[sentence]()
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("given", "takes"),
    [
        (lambda: el.Hyperelastic(lambda F: F[0, 0]), "(F, parameters, shared)"),
        (lambda: el.Prescribed([0], displacement=lambda t, args: 0.0), "(t)"),
        (lambda: el.NodalForce([0], lambda t: jnp.zeros(3)), "(t, args)"),
        (lambda: el.Pressure([[0, 1, 2]], lambda t: 1.0), "(t, args)"),
    ],
)
def test_functions_of_the_user_take_what_they_are_given(given, takes):
    with pytest.raises(TypeError) as error:
        given()
    assert f"a function of {takes}" in str(error.value)


@pytest.mark.parametrize("sentence", AT_START)
def test_bad_input_at_the_start(sentence):
    body, q = AT_START[sentence]()
    with pytest.raises(ValueError) as error:
        nsd.simulate(nsd.Model(body), nsd.BackwardEuler(), 0.0, 0.1, 0.1, body.state(q))
    assert sentence in str(error.value)


def test_an_element_turns_inside_out():
    """The step and the element are named in the message of a run that an event ends there, and of a batch."""
    body = tetrahedron(young=10.0)
    model, stop = nsd.Model(body), nsd.Event(body.inside_out)

    @eqx.filter_jit
    def runs(v):
        def one(v):
            start = body.state(v=v)
            return nsd.simulate(
                model, nsd.BackwardEuler(), 0.0, 0.2, 0.01, start, event=stop, throw=False
            )

        return jax.vmap(one)(v)

    v = jnp.zeros(12).at[11].set(-20.0)
    batch = runs(jnp.stack([0 * v, v]))
    still, run = (jax.tree.map(lambda x, i=i: x[i], batch) for i in (0, 1))
    assert still.message == ""
    step = int(run.stats.event_step)
    assert f"at the end of step {step}, t =" in run.message
    assert body.inversion(0.0, run.states.q[step]) is None
    said = "elements 0 of Tetrahedra are inside out; take a smaller"
    assert said in body.inversion(0.0, run.states.q[step + 1])
    assert f"; at the end of step {step} {said}" in run.message
    first = "in 1 of 2 simulations, first the one at index 1"
    assert f"{first}, at the end of step {step} {said}" in batch.message
    # Of a batch with a failed run too: that of the first.
    fails = jnp.array([False, True])
    ends = nsd.RESULTS.contact_overflow, batch.result
    result = jax.tree.map(lambda a, b: jnp.where(fails, a, b), *ends)
    broken = eqx.tree_at(lambda b: b.result, batch, result)
    assert "1 of 2 simulations failed, first the one at index 1" in broken.message
    assert f"; at the end of step {step} {said}" in broken.message


def test_the_system_of_an_element_is_named_where_several_have_some():
    """In a product beside a circuit or the integrals of a simulation a body is called as it is alone."""
    body = tetrahedron(young=10.0)
    circuit = nsd.FirstOrderSystem.linear(-jnp.eye(2))
    (alone,) = body.flaws(0.0, body.rest)
    beside = nsd.SystemProduct((circuit, body))
    assert list(beside.flaws(0.0, (jnp.zeros(2), body.rest))) == [alone]
    both = nsd.SystemProduct((body, body)).flaws(0.0, (body.rest, body.rest))
    assert list(both) == [f"of system {i}, {alone}" for i in (0, 1)]


def test_mesh_files(tmp_path):
    """A round trip through a file; other cells than asked for; nodes without cells are dropped."""
    meshio = pytest.importorskip("meshio")
    mesh = el.block((1.0, 1.0, 1.0), (1, 1, 1))
    points = np.concatenate([np.asarray(mesh.points), [[9.0, 9, 9]]])
    cells = np.asarray(mesh.cells)[:, [1, 0, 2, 3]]  # inverted
    meshio.write(tmp_path / "a.vtk", meshio.Mesh(points, [("tetra", cells)]))
    read = el.read_mesh(tmp_path / "a.vtk")
    assert read.points.shape == (8, 3)
    body = el.Elastic(read, el.Tetrahedra(read.cells, el.LinearElastic(1.0, 0.2), 3.0))
    assert float(body.mass_times(jnp.ones((8, 3))).sum()) == pytest.approx(9.0)
    with pytest.raises(ValueError, match="no cells of type triangle, but 6 of type tetra"):
        el.read_mesh(tmp_path / "a.vtk", "triangle")
    with pytest.raises(ValueError, match="dimension must be from 1 to 3, got 5"):
        el.read_mesh(tmp_path / "a.vtk", dimension=5)
    (tmp_path / "a.msh").write_text("hello")
    with pytest.raises(ValueError, match=r"cannot be read as a mesh \(meshio has no reader"):
        el.read_mesh(tmp_path / "a.msh")


def test_meshes():
    """Volumes, boundaries that close, and edges between triangles."""
    mesh = el.block((1.0, 0.5, 0.25), (3, 2, 2))
    points, facets = np.asarray(mesh.points), mesh.boundary()
    assert len(facets) == 4 * (6 + 6 + 4)
    areas = (
        np.cross(
            points[facets[:, 1]] - points[facets[:, 0]], points[facets[:, 2]] - points[facets[:, 0]]
        )
        / 2
    )
    np.testing.assert_allclose(areas.sum(axis=0), 0, atol=1e-15)
    centre = points[facets].mean(axis=1) - points.mean(axis=0)
    assert np.all(np.sum(areas * centre, axis=1) > 0)
    assert np.sum(areas * points[facets].mean(axis=1)) / 3 == pytest.approx(0.125)
    flat = el.sheet((2.0, 1.0), (3, 2))
    hinges, p = flat.hinges(), np.asarray(flat.points)
    assert len(hinges) == 6 + 2 * 2 + 3  # diagonals, inner sides along each axis
    turns = p[flat.boundary()]
    along = turns[:, 1] - turns[:, 0]
    assert np.sum(turns[:, 0, 0] * along[:, 1]) == pytest.approx(2.0)  # around, counter-clockwise
