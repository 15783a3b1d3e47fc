"""Piles of rigid bodies that settle in a bin, beside MuJoCo (C, soft contact) on the same pile.

They start a little apart, in pockets of each other (`packed`: a regular packing between walls, whose
contacts all close at once), or scattered about places above each other (`loose`: an irregular pile), and
come to rest. A row has the time of a step, averaged over the last tenth of the run, and of its checks: the
steps that did not reach the tolerance, the largest residual, the deepest penetration [m], in the run and in
its last tenth, and the greatest speed at the end [m/s].

    python benchmarks/piles.py --bodies 200 1000 --start loose --steps 600 --json piles.json
"""

import argparse
import json
import math
import time
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import _harness
import _peers
import diffnsd as nsd
from diffnsd.complementarity import Auto
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.relations import Geom, neighbour_contacts
from diffnsd.shapes import AbstractShape, Box, Capsule, ConvexHull, HalfSpace, Sphere
from diffnsd.systems import NewtonEulerSystem

RADIUS, DENSITY, MU, DT, APART = 0.05, 1000.0, 0.5, 2e-3, 1.01
TOLERANCE = 1e-6


class Kind(NamedTuple):
    """What a pile is made of, all within spheres of `RADIUS`; bodies have the shapes in turn.

    `mass`, `inertia`: of one body; `rest_speed`: at which penetrations are pushed out [m/s]; `reach`: of the
    lists of contacts; `among`, `on_walls`: how many pairs and contacts these hold, per body and per
    `n^(2/3)`, about a half more than are used (a list that is too short ends a run); `per_cell`: bodies in a
    cell; `tumbled`: whether they start turned at random; `mujoco`: attributes of a geom of each shape.
    """

    shapes: tuple[AbstractShape, ...]
    mass: float
    inertia: float
    rest_speed: float
    reach: float
    among: tuple[int, int | None]
    on_walls: tuple[int, int | None]
    per_cell: int
    tumbled: bool
    mujoco: tuple[str, ...]


def spheres() -> Kind:
    mass = DENSITY * 4 / 3 * np.pi * RADIUS**3
    # The tolerance of a step leaves 1e-8 m of penetration. To push that out in the next step would take
    # many times the load in a jammed packing.
    lists = 1e-6, 0.01, (6, None), (8, None), 8
    return Kind(
        (Sphere(RADIUS),), mass, 0.4 * mass * RADIUS**2, *lists, False, (f'size="{RADIUS}"',)
    )


def boxes() -> Kind:
    """Cubes, whose corners are on the spheres."""
    half = RADIUS / np.sqrt(3)
    mass = DENSITY * (2 * half) ** 3
    # Where one lands, a corner may touch that was not the nearest: by 1 mm at 3 m/s, pushed out later.
    lists = 0.02, 0.03, (8, 18), (9, 20), 16
    size = f'type="box" size="{half} {half} {half}"'
    return Kind((Box((half,) * 3),), mass, mass * (2 * half) ** 2 / 6, *lists, True, (size,))


CORNERS = np.random.default_rng(2).normal(size=(12, 3))
CORNERS *= RADIUS / np.linalg.norm(CORNERS, axis=1, keepdims=True)


def capsules_and_hulls() -> Kind:
    """Capsules twice as long as thick and hulls with twelve corners, with one mass and inertia."""
    half, mass = RADIUS / 2, DENSITY * RADIUS**3
    lists = 0.02, 0.02, (6, 10), (8, 40), 16
    shapes = Capsule(half, half), ConvexHull(CORNERS)
    mujoco = f'type="capsule" size="{half} {half}"', 'type="mesh" mesh="hull"'
    return Kind(shapes, mass, 0.3 * mass * RADIUS**2, *lists, True, mujoco)


KINDS = {"sphere": spheres, "box": boxes, "capsules and hulls": capsules_and_hulls}


def turned(n: int, kind: Kind) -> np.ndarray:
    """Orientations, `(n, 4)`."""
    if not kind.tumbled:
        return np.tile([1.0, 0.0, 0.0, 0.0], (n, 1))
    turns = np.random.default_rng(1).normal(size=(n, 4))
    return turns / np.linalg.norm(turns, axis=1, keepdims=True)


def loose(n: int) -> tuple[np.ndarray, float]:
    """Scattered centres `(n, 3)` and half the width of the bin."""
    apart, per_side = 1.12, max(3, round((n * 0.8) ** (1 / 3)))
    spacing, k = 2 * RADIUS * apart, np.arange(n)
    side = (np.arange(per_side) - (per_side - 1) / 2) * spacing
    layer, place = np.divmod(k, per_side**2)
    x, y = side[place % per_side], side[place // per_side]
    z = RADIUS * apart + 1e-3 + layer * spacing
    scatter = np.random.default_rng(0).uniform(-1, 1, (n, 3)) * RADIUS * (apart - 1) * 0.95
    return np.stack([x, y, z], axis=1) + scatter, per_side * spacing / 2


def packed(n: int) -> tuple[np.ndarray, float]:
    """Centres `(n, 3)` in pockets of each other and half the width of the bin: as high as it is wide."""
    per_side = max(3, round((n * 0.8) ** (1 / 3)))
    spacing = 2 * RADIUS * APART
    height = np.sqrt(spacing**2 - spacing**2 / 2)
    layers, z = [], RADIUS + 1e-4
    while sum(map(len, layers)) < n:
        count = per_side - len(layers) % 2
        side = (np.arange(count) - (count - 1) / 2) * spacing
        x, y = np.meshgrid(side, side)
        layers.append(np.stack([x.ravel(), y.ravel(), np.full(x.size, z)], axis=1))
        z += height
    jitter = np.random.default_rng(0).uniform(-2e-4, 2e-4, (n, 3))
    jitter[:, 2] += 2e-4
    return np.concatenate(layers)[:n] + jitter, per_side * spacing / 2


STARTS = {"packed": packed, "loose": loose}


def walls(half: float) -> list[Geom]:
    """The floor and four walls, whose planes look inwards."""
    out = [Geom(HalfSpace())]
    for axis in (0, 1):
        for side in (1.0, -1.0):
            normal = np.zeros(3)
            normal[axis] = side
            turn = np.array([1.0, *np.cross([0, 0, 1.0], normal)]) / np.sqrt(2)
            out.append(Geom(HalfSpace(), position=-half * normal, orientation=turn))
    return out


def pile(n: int, start=packed, kind: Kind | None = None) -> tuple[nsd.Model, nsd.State]:
    """The model and its start."""
    kind = kind or spheres()
    x, half = start(n)
    count = len(kind.shapes)
    each = [[Geom(s, body=i) for i in range(k, n, count)] for k, s in enumerate(kind.shapes)]
    law = GapStabilized(CoulombFriction(MU), kind.rest_speed)
    outside = math.ceil(n ** (2 / 3))
    lists = [(one, None, n, *kind.among) for one in each]
    lists += [(one, two, n, *kind.among) for one, two in combinations(each, 2)]
    lists += [(one, walls(half), outside, *kind.on_walls) for one in each]
    relations = [
        neighbour_contacts(
            geoms,
            others,
            reach=kind.reach,
            capacity=pairs * size,
            contacts=None if contacts is None else contacts * size,
            per_cell=kind.per_cell,
        )
        for geoms, others, size, pairs, contacts in lists
    ]
    system = NewtonEulerSystem(np.full(n, kind.mass), np.full((n, 3), kind.inertia))
    state = system.state(x, turned(n, kind))
    return nsd.Model(system, [nsd.Interaction(r, law) for r in relations]), state


def ours(n: int, steps: int, start, kind: Kind) -> dict:
    """A row of this package."""
    model, state = pile(n, start, kind)
    scheme = nsd.MoreauJean(theta=1.0, solver=Auto(tolerance=TOLERANCE))

    def one(carry):
        state, memory = carry
        end, info, memory, result = scheme.step(model, 0.0, DT, state, memory, None)
        good = result == nsd.RESULTS.successful
        return (end, memory), info.residual, info.iterations, good

    @jax.jit
    def least_gap(q):
        return jnp.min(jnp.stack([jnp.min(i.relation.gap(0.0, q)) for i in model.interactions]))

    carry = state, scheme.init(model, 0.0, state, None)
    before = time.perf_counter()
    program = jax.jit(one).lower(carry).compile()
    compile_s = time.perf_counter() - before
    seconds, residuals, counts, gaps, goods = [], [], [], [], []
    for _ in range(steps):
        before = time.perf_counter()
        carry, residual, iterations, good = jax.block_until_ready(program(carry))
        seconds.append(time.perf_counter() - before)
        residuals.append(float(residual))
        counts.append(int(iterations))
        gaps.append(float(least_gap(carry[0].q)))
        goods.append(bool(good))
    last = max(1, steps // 10)
    return {
        "engine": "diffnsd",
        "bodies": n,
        "steps": steps,
        "compile_s": compile_s,
        "ms_per_step_at_rest": 1e3 * float(np.mean(seconds[-last:])),
        "ms_per_step": 1e3 * float(np.mean(seconds)),
        "iterations": float(np.mean(counts)),
        "steps_not_certified": steps - sum(goods),
        "largest_residual": max(residuals),
        "deepest_penetration_m": max(0.0, -min(gaps)),
        "penetration_at_rest_m": max(0.0, -min(gaps[-last:])),
        "speed_at_end": float(jnp.abs(carry[0].v.reshape(-1, 6)[:, :3]).max()),
    }


def mujoco_row(n: int, steps: int, start, kind: Kind) -> dict:
    """A row of MuJoCo with its default contacts and elliptic cones."""
    import mujoco

    x, half = start(n)
    bodies = "".join(
        f'<body pos="{_numbers(at)}" quat="{_numbers(turn)}"><freejoint/>'
        f'<geom {kind.mujoco[k % len(kind.mujoco)]} mass="{kind.mass}"/></body>'
        for k, (at, turn) in enumerate(zip(x, turned(n, kind), strict=True))
    )
    frames = ("0 0 1", "1 0 0", "-1 0 0", "0 1 0", "0 -1 0")
    planes = "".join(
        f'<geom type="plane" size="5 5 1" zaxis="{z}" pos="{_place(z, half)}"/>' for z in frames
    )
    text = (
        f'<mujoco><size memory="500M"/><option timestep="{DT}" cone="elliptic"/><default>'
        f'<geom friction="{MU} 0 0" condim="3"/></default><asset><mesh name="hull" '
        f'vertex="{_numbers(CORNERS.ravel())}"/></asset><worldbody>{planes}{bodies}'
        "</worldbody></mujoco>"
    )
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    seconds, depths = [], []
    for _ in range(steps):
        before = time.perf_counter()
        mujoco.mj_step(model, data)
        seconds.append(time.perf_counter() - before)
        depths.append(-float(np.min(data.contact.dist[: data.ncon], initial=0)))
    last = max(1, steps // 10)
    return {
        "engine": "mujoco",
        "bodies": n,
        "steps": steps,
        "ms_per_step_at_rest": 1e3 * float(np.mean(seconds[-last:])),
        "ms_per_step": 1e3 * float(np.mean(seconds)),
        "deepest_penetration_m": max(0.0, *depths),
        "penetration_at_rest_m": max(0.0, *depths[-last:]),
        "speed_at_end": float(np.abs(data.qvel.reshape(-1, 6)[:, :3]).max()),
    }


def _numbers(x) -> str:
    return " ".join(map(str, x))


def _place(axis: str, half: float) -> str:
    """A point of the plane with this normal: the floor at zero, walls at the width."""
    normal = np.array(axis.split(), float)
    return "0 0 0" if normal[2] else _numbers(-half * normal)


def main(arguments: list[str] | None = None) -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, nargs="+", default=(100, 200))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--start", choices=STARTS, default="packed")
    parser.add_argument("--kind", choices=KINDS, default="sphere")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    engines = [ours, *([mujoco_row] if "mujoco" in _peers.installed() else [])]
    facts, rows = _harness.header(), []
    _harness.print_header(f"Piles, {options.kind}, steps of {DT * 1e3:g} ms", facts)
    for n in options.bodies:
        for engine in engines:
            rows.append(engine(n, options.steps, STARTS[options.start], KINDS[options.kind]()))
            shown = (
                f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()
            )
            print("  " + "  ".join(shown), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"header": facts, "rows": rows}, indent=1, default=str))


if __name__ == "__main__":
    main()
