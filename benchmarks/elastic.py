"""A block of tetrahedra: time to compile and to step, the gradient by all moduli, and scikit-fem beside it.

Usage: python benchmarks/elastic.py [--cells N] [--steps N] [--dt H] [--directions N] [--landing | --ball]

The gradient is compared with central differences in random directions, of fourth order (two widths), through
motions whose steps are solved to 1e-13: an end that is known to 1e-10 only would show in them.

With `--landing` the block falls on a plane with friction, and steps are counted that are not certified.
With `--ball` a ball strikes it, free and with friction, beside the same block that strikes a fixed ball.
Without contact: the same backward Euler steps by scikit-fem (assembly) and SuperLU (every Newton step).
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
import skfem

import diffnsd as nsd
from diffnsd.integrators import Newton
from diffnsd.relations import Geom, NodesHalfSpace, NodesShapes
from diffnsd.shapes import Sphere
from diffnsd.systems import elastic as el

YOUNG, POISSON, DENSITY, SIZE = 2e5, 0.4, 1000.0, 0.15


def make(cells: int):
    """Mesh, `model(moduli)`, and a start that is stretched and moves."""
    mesh = el.block((SIZE,) * 3, (cells,) * 3)

    def model(moduli):
        solid = el.Tetrahedra(mesh.cells, el.NeoHookean(moduli, POISSON), DENSITY)
        return nsd.Model(nsd.Elastic(mesh, solid, gravity=[0.0, 0.0, -9.81]))

    x = np.asarray(mesh.points)
    q = jnp.asarray((x * (1 + 0.02 * np.sin(20 * x))).reshape(-1))
    v = jnp.tile(jnp.asarray([0.3, 0.0, -0.2]), len(x))
    return mesh, model, nsd.State(q, v)


def peer(mesh, start, dt: float, steps: int, tolerance: float = 1e-10):
    """The same equations, written with scikit-fem's forms; its sparse matrix is factorised by SuperLU."""
    lam = YOUNG * POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
    mu = YOUNG / (2 * (1 + POISSON))
    lam, mu = lam + 5 / 6 * mu, 4 / 3 * mu
    alpha = 1 + 3 / 4 * mu / lam
    points, cells = np.asarray(mesh.points), np.asarray(mesh.cells)
    basis = skfem.Basis(
        skfem.MeshTet(points.T, cells.T), skfem.ElementVector(skfem.ElementTetP1()), intorder=1
    )
    order = basis.nodal_dofs.T.reshape(-1)  # node by node
    volume = np.linalg.det(points[cells[:, 1:]] - points[cells[:, :1]]) / 6
    mass = np.zeros(len(points))
    np.add.at(mass, cells, DENSITY * volume[:, None] / 4)
    mass = np.repeat(mass, 3)
    weight = mass * np.tile([0.0, 0.0, -9.81], len(points))

    def parts(w):
        F = np.array(w["u"].grad)
        F[0, 0] += 1
        F[1, 1] += 1
        F[2, 2] += 1
        cofactor = np.cross(F[[1, 2, 0]], F[[2, 0, 1]], axis=1)
        return F, cofactor, np.sum(F[0] * cofactor[0], axis=0), np.sum(F * F, axis=(0, 1)) + 1

    @skfem.LinearForm
    def stress(v, w):
        F, cofactor, volume, size = parts(w)
        P = mu * F * (1 - 1 / size) + lam * (volume - alpha) * cofactor
        return np.sum(P * v.grad, axis=(0, 1))

    @skfem.BilinearForm
    def moduli(u, v, w):
        F, cofactor, volume, size = parts(w)
        A, B = u.grad, v.grad
        along = np.sum(F * A, axis=(0, 1))
        turned = np.cross(A[[1, 2, 0]], F[[2, 0, 1]], axis=1)
        turned = turned + np.cross(F[[1, 2, 0]], A[[2, 0, 1]], axis=1)
        P = mu * (A * (1 - 1 / size) + F * (2 * along / size**2))
        P = P + lam * (np.sum(cofactor * A, axis=(0, 1)) * cofactor + (volume - alpha) * turned)
        return np.sum(P * B, axis=(0, 1))

    def field(x):
        full = np.zeros(basis.N)
        full[order] = x - points.reshape(-1)
        return basis.interpolate(full)

    q, v = np.asarray(start.q), np.asarray(start.v)
    for _ in range(steps):
        new = v.copy()
        for _ in range(20):
            u = field(q + dt * new)
            force = weight - skfem.asm(stress, basis, u=u)[order]
            residual = mass * (new - v) - dt * force
            if np.abs(residual).max() < tolerance * dt * np.abs(weight).max():
                break
            K = skfem.asm(moduli, basis, u=u)[order][:, order]
            matrix = sparse.diags(mass) + dt**2 * K
            new = new - sparse.linalg.splu(matrix.tocsc()).solve(residual)
        q, v = q + dt * new, new
    return q


def land(cells: int, dt: float, steps: int) -> None:
    """The block strikes a plane, slides and rebounds: every step timed on its own."""
    mesh, model, _ = make(cells)
    bottom = np.flatnonzero(np.asarray(mesh.points)[:, 2] == 0)
    body = model(jnp.asarray(YOUNG)).system
    plane = NodesHalfSpace(body.unknowns_of(bottom), [0.0, 0.0, 1.0])
    falling = nsd.Model(body, nsd.Interaction(plane, nsd.CoulombFriction(0.5)))
    method = nsd.BackwardEuler()
    v = jnp.tile(jnp.asarray([1.0, 0.0, -0.3]), len(mesh.points))
    state = body.state(body.rest + jnp.tile(jnp.asarray([0.0, 0.0, 1e-3]), len(mesh.points)), v)
    carry = method.init(falling, jnp.zeros(()), state, None)

    @eqx.filter_jit
    def advance(model, state, carry):
        return method.step(model, jnp.zeros(()), jnp.asarray(dt), state, carry, None)

    begin = time.perf_counter()
    program = advance.lower(falling, state, carry).compile()
    print(f"{len(mesh.cells)} tetrahedra, {len(bottom)} nodes can touch; steps of {dt:g} s")
    print(f"compile: {time.perf_counter() - begin:.1f} s")
    seconds, processor, worst, failed = [], [], 0.0, 0
    for _ in range(steps):
        own = time.process_time()
        (state, info, carry, result), wall = timed(program, falling, state, carry)
        seconds.append(wall)
        processor.append(time.process_time() - own)
        worst = max(worst, float(info.residual))
        failed += int(result != nsd.RESULTS.successful)
    print(f"wall: median {np.median(seconds):.2f} s a step, largest {max(seconds):.2f} s")
    print(f"processor: median {np.median(processor):.2f} s a step, largest {max(processor):.2f} s")
    print(f"{failed} of {steps} steps not certified; largest residual of the laws {worst:.1e}")


def strike(cells: int, dt: float, steps: int) -> None:
    """A ball of 1 kg and the block run into each other; the momentum of both, and processor time."""
    mesh, model, _ = make(cells)
    body, nodes = model(jnp.asarray(YOUNG)).system, np.unique(mesh.boundary())
    body = eqx.tree_at(lambda b: b.gravity, body, jnp.zeros(3))
    radius, place, speed = 0.05, (0.09, 0.07, SIZE + 0.052), (0.3, 0.0, -1.0)
    ball = nsd.NewtonEulerSystem(1.0, 0.4 * radius**2, gravity=(0.0, 0.0, 0.0))
    both = nsd.SystemProduct((body, ball))
    runs = {
        "free": (
            both,
            Geom(Sphere(radius), body=0),
            both.state(body.state(), ball.state(place, velocity=speed)),
        ),
        "fixed": (
            body,
            Geom(Sphere(radius), position=place),
            body.state(v=-jnp.tile(jnp.asarray(speed), len(mesh.points))),
        ),
    }
    mass = body.mass_times(jnp.ones_like(body.rest_nodes))
    for name, (system, geom, start) in runs.items():
        contact = nsd.Interaction(NodesShapes(system, nodes, geom), nsd.CoulombFriction(0.3))
        given = nsd.Model(system, contact), nsd.BackwardEuler(), 0.0, steps * dt, dt, start
        for _ in range(2):  # the first call compiles
            begin = time.process_time()
            run = jax.block_until_ready(nsd.simulate(*given, throw=False))
            spent = time.process_time() - begin
        touching = np.sum(np.asarray(run.impulses[0])[..., 0] > 0, axis=1)
        print(
            f"{len(mesh.cells)} tetrahedra, a {name} ball, {len(nodes)} nodes, steps of {dt:g} s:"
        )
        print(f"  processor: {1e3 * spent / steps:.1f} ms a step; {run.result}")
        print(
            f"  up to {touching.max()} nodes touch; up to {run.stats.iterations.max()} iterations"
        )
        if name == "free":
            v = np.asarray(run.states.v)
            own = np.einsum("ni,tni->ti", mass, v[:, :-6].reshape(len(v), -1, 3))
            change = np.abs(own + v[:, -6:-3] - v[:1, -6:-3]).max()
            print(f"  momentum changes by {change:.1e} N s of 1")


def timed(function, *args):
    """The result and the seconds of a call."""
    begin = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return result, time.perf_counter() - begin


def differences(motion, moduli, direction, width: float = 5e-4):
    """The derivative of `motion` along a direction, by differences of two widths, `O(width^4)`."""

    def central(x):
        aside = x * YOUNG * direction
        return (motion(moduli + aside) - motion(moduli - aside)) / (2 * x * YOUNG)

    return (4 * central(width / 2) - central(width)) / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cells", type=int, default=15, help="cells along each edge, 6 tetrahedra each"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dt", type=float, default=1e-3)
    parser.add_argument("--directions", type=int, default=2, help="of central differences")
    parser.add_argument("--landing", action="store_true", help="on a plane with friction, alone")
    parser.add_argument("--ball", action="store_true", help="struck by a ball, alone")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if given.landing:
        land(given.cells, given.dt, given.steps)
        return
    if given.ball:
        strike(given.cells, given.dt, given.steps)
        return
    mesh, model, start = make(given.cells)
    moduli = jnp.full(len(mesh.cells), YOUNG)
    until = given.steps * given.dt

    def motion(moduli, method):
        run = nsd.simulate(
            model(moduli), method, 0.0, until, given.dt, start, saveat=nsd.SaveAt.end()
        )
        return run.states.q

    begin = time.perf_counter()
    method = nsd.BackwardEuler()
    forward = eqx.filter_jit(motion).lower(moduli, method).compile()
    print(f"{len(mesh.cells)} tetrahedra, {start.q.size} unknowns, steps of {given.dt:g} s")
    print(f"compile: {time.perf_counter() - begin:.1f} s")
    q, seconds = timed(forward, moduli, method)
    print(f"diffnsd: {seconds / given.steps:.3f} s a step")
    slope = eqx.filter_jit(jax.grad(lambda m: motion(m, method)[-1])).lower(moduli).compile()
    gradient, back = timed(slope, moduli)
    print(f"gradient by {moduli.size} moduli: {back / seconds:.2f} forwards")
    precise = nsd.BackwardEuler(newton=Newton(max_iterations=30, tolerance=1e-13))
    end = eqx.filter_jit(lambda m: motion(m, precise)[-1])
    apart = []
    for seed in range(given.directions):
        direction = jax.random.normal(jax.random.key(seed), moduli.shape)
        apart.append(float(differences(end, moduli, direction) / (gradient @ direction) - 1))
    apart = np.abs(apart)
    print(
        f"  in {len(apart)} random directions, relative to central differences: median "
        f"{np.median(apart):.1e}, largest {apart.max():.1e}"
    )
    theirs, seconds = timed(peer, mesh, start, given.dt, given.steps)
    print(f"scikit-fem and SuperLU: {seconds / given.steps:.3f} s a step")
    print(f"largest difference of coordinates: {np.abs(theirs - np.asarray(q)).max():.1e} m")


if __name__ == "__main__":
    main()
