"""Valid calls of what models are made of, beside `_calls.py` and `_more_calls.py`: groups to sensors."""

import jax.numpy as jnp
import lineax
import numpy as np

import diffnsd as nsd
from diffnsd import groups, linear, relations, sensors, sets, shapes, systems
from diffnsd.systems import elastic

UNIT = (1.0, 0.0, 0.0, 0.0)


def _field(t, y, args):
    return jnp.zeros(3)


def _wrench(t, state, args):
    return jnp.zeros((1, 6))


def _energy(F, parameters, shared):
    return jnp.sum(F**2)


def _force(t, state, args):
    return jnp.zeros(2)


def _output(t, x):
    return x[:1]


def _fed_through(t, x, lam):
    return x[:1] + lam


def _input(t, lam):
    return lam[:, 0]


def _coordinate(t, q):
    return q


def part_calls() -> dict:
    """Name, function, positional and keyword arguments."""
    ball = nsd.LagrangianSystem(np.eye(1), f_ext=[-9.81])
    circuit = nsd.FirstOrderSystem.linear(-np.eye(2))
    both = nsd.SystemProduct((ball, circuit))
    gap = nsd.GapRelation(lambda t, q: q)
    site, rotation, translation = (
        sensors.Site(0),
        groups.SO3(),
        groups.LeftTranslation(groups.SE2()),
    )
    unit, x = jnp.asarray(UNIT), jnp.asarray([1.0, 2.0, 3.0])
    edge, corners, steel = (
        np.array([[0, 1]]),
        np.array([[0, 1, 2, 3]]),
        elastic.LinearElastic(1e5, 0.3),
    )
    triangle, start = np.array([[0, 1, 2]]), ball.state(np.ones(1))
    nodes = elastic.block((1.0, 1.0, 1.0), (1, 1, 1))
    body = elastic.Elastic(
        nodes,
        elastic.Tetrahedra(nodes.cells, steel, density=1.0),
        prescribed=(elastic.Prescribed(nodes.where(lambda x: x[0] == 0)),),
    )
    positive = lineax.MatrixLinearOperator(jnp.eye(2), lineax.positive_semidefinite_tag)
    return {
        # groups
        "quaternion_product": (groups.quaternion_product, (unit, unit), {}),
        "quaternion_log": (groups.quaternion_log, (unit,), {}),
        "quaternion_from_matrix": (groups.quaternion_from_matrix, (jnp.eye(3),), {}),
        "rotate": (groups.rotate, (unit, x), {}),
        "rotation_matrix": (groups.rotation_matrix, (unit,), {}),
        "matrix_log": (groups.matrix_log, (jnp.eye(2),), {}),
        "truncation": (groups.truncation, (4,), {}),
        "dexpinv_series": (groups.dexpinv_series, (rotation, x, x, 2), {}),
        "CoadjointAction": (groups.CoadjointAction, (rotation,), {}),
        "LeftTranslation": (groups.LeftTranslation, (rotation,), {}),
        "RightTranslation": (groups.RightTranslation, (rotation,), {}),
        "Diagonal": (groups.Diagonal, ((translation, translation),), {}),
        "ProductAction": (groups.ProductAction, ((translation, translation),), {}),
        "GL": (groups.GL, (2,), {}),
        "SL": (groups.SL, (2,), {}),
        "IsospectralAction": (groups.IsospectralAction, (2,), {}),
        "StiefelAction": (groups.StiefelAction, (3, 2), {}),
        # sets and shapes
        "RollingCone": (sets.RollingCone, (jnp.asarray(0.3), jnp.asarray(0.1)), {}),
        "SlidingCone": (sets.SlidingCone, (jnp.asarray(0.3), (jnp.ones(()), jnp.zeros(()))), {}),
        "is_supported": (shapes.is_supported, (shapes.Sphere, shapes.HalfSpace), {}),
        # linear algebra
        "Banded": (linear.Banded, (np.ones((4, 3)),), {}),
        "BiCGStab": (
            linear.BiCGStab, (), dict(preconditioner=linear.Jacobi(), rtol=1e-9, max_steps=100),
        ),
        "MINRES": (
            linear.MINRES, (), dict(preconditioner=linear.Jacobi(), rtol=1e-9, max_steps=100),
        ),
        "BlockJacobi": (linear.BlockJacobi, (3,), {}),
        "ByStructure": (
            linear.ByStructure,
            (),
            dict(diagonal=lineax.Diagonal(), positive=linear.ConjugateGradients(), dense=lineax.LU()),
        ),
        "DirectSum": (linear.DirectSum, ([positive, positive],), {}),
        "PartByPart": (linear.PartByPart, (lineax.LU(),), {}),
        "Factored": (linear.Factored, (positive, lineax.Cholesky()), {}),
        # systems
        "LieFlow": (nsd.LieFlow, (_field, groups.LeftTranslation(rotation)), dict(hamiltonian=None)),
        "LinearField": (
            systems.LinearField, (-np.eye(2),), dict(b=np.zeros(2), inputs=np.ones((2, 1))),
        ),
        "Wrenches": (systems.Wrenches, ((_wrench, _wrench),), {}),
        "systems.Free": (systems.Free, (), dict(stiffness=1.0, damping=1.0, rest=np.zeros(7))),
        "state_rate": (systems.state_rate, (ball, 0.0, start), dict(p=jnp.ones(1))),
        "state_rate_jacobian": (systems.state_rate_jacobian, (ball, 0.0, start), dict(p=jnp.ones(1))),
        "velocity_after": (systems.velocity_after, (ball, 0.0, start, jnp.ones(1)), {}),
        # elastic bodies
        "Beams": (
            elastic.Beams,
            (edge, 1.0, 1.0, 1.0, 1.0),
            dict(moment_z=1.0, torsion=1.0, density=1.0, orientation=(0.0, 1.0, 0.0)),
        ),
        "PlanarBeams": (elastic.PlanarBeams, (edge, 1.0, 1.0), dict(line_density=1.0, rotary=0.1)),
        "Hinges": (elastic.Hinges, (corners, 1.0), {}),
        "Masses": (elastic.Masses, (np.array([0, 1]), 1.0), {}),
        "Membranes": (
            elastic.Membranes,
            (triangle, steel),
            dict(density=1.0, thickness=0.1, plane=elastic.PlaneStress()),
        ),
        "Triangles": (
            elastic.Triangles,
            (triangle, steel),
            dict(density=1.0, thickness=0.1, plane=elastic.PlaneStrain()),
        ),
        "PlaneStress": (elastic.PlaneStress, (6,), {}),
        "Hyperelastic": (elastic.Hyperelastic, (_energy,), {}),
        "Corotational": (elastic.Corotational, (1e5, 0.3), {}),
        "SaintVenantKirchhoff": (elastic.SaintVenantKirchhoff, (1e5, 0.3), {}),
        "NodalForce": (elastic.NodalForce, ([0, 1], (0.0, 0.0, 1.0)), {}),
        "Pressure": (elastic.Pressure, (triangle, 1.0), {}),
        "Prescribed": (elastic.Prescribed, ([0, 1],), dict(axes=(0, 1), displacement=np.zeros(2))),
        "equilibrium": (
            elastic.equilibrium, (body,), dict(t=0.0, tolerance=1e-9, max_iterations=5, throw=False),
        ),
        # relations
        "OnPart": (nsd.OnPart, (both, 0, gap), {}),
        "NodesHalfSpace": (
            relations.NodesHalfSpace,
            (np.array([[0, 1]]), (0.0, 1.0)),
            dict(offset=0.0, rest=np.zeros((1, 2))),
        ),
        "NodesShapes": (
            relations.NodesShapes,
            (
                nsd.SystemProduct((body, nsd.NewtonEulerSystem(1.0, 0.1))),
                [4, 5],
                relations.Geom(shapes.Sphere(0.1), body=0),
            ),
            dict(soft=0, rigid=1, radius=0.01),
        ),
        "Coordinates": (relations.Coordinates, ([0, 1],), {}),
        "FirstOrderType1": (
            relations.FirstOrderType1, (_output, _input), dict(contacts=1, rows_per_contact=1),
        ),
        "FirstOrderType2": (
            relations.FirstOrderType2, (_fed_through, _input), dict(contacts=1, rows_per_contact=1),
        ),
        "tangents": (relations.tangents, (jnp.asarray([0.0, 0.0, 1.0]),), {}),
        # sensors
        "ActuatorForce": (sensors.ActuatorForce, (_force, [0, 1]), {}),
        "AngularMomentum": (sensors.AngularMomentum, (), dict(bodies=(0,))),
        "CentreOfMassVelocity": (sensors.CentreOfMassVelocity, (), dict(bodies=(0,))),
        "Coordinate": (sensors.Coordinate, (_coordinate,), {}),
        "CoordinateRate": (sensors.CoordinateRate, (_coordinate,), {}),
        "Force": (sensors.Force, (site,), dict(bodies=(0,))),
        "Torque": (sensors.Torque, (site,), dict(bodies=(0,))),
        "FrameAngularVelocity": (sensors.FrameAngularVelocity, (site,), dict(reference=site)),
        "FrameLinearVelocity": (sensors.FrameLinearVelocity, (site,), dict(reference=site)),
        "FrameOrientation": (sensors.FrameOrientation, (site,), dict(reference=site)),
        "Velocimeter": (sensors.Velocimeter, (site,), {}),
    }  # fmt: skip
