"""Random models for a given time: every disagreement is printed with the seed that makes it again.

    python benchmarks/soak.py --minutes 120
    python benchmarks/soak.py --only circuit --seed 17 --rounds 1

Each round draws a model of one kind and compares with what does not share its code:

- `mechanism`: masses on a line, or arms, with stops, springs, belts and dry friction; ends and derivatives
  against the oracle of the tests that goes from event to event.
- `circuit`: a resonator with one diode or a bridge, random components; against SciPy between the switches.
- `tree`: random trees of joints with capsules over a plane; mass matrix and bias forces against MuJoCo (C).
- `toss`: a box with random sizes, friction and restitution; its impulses against the law of contact.

All of them: a batch against one after the other, reverse against forward derivatives, and that no run is
called successful with a residual above its tolerance or with NaN in it. Ends with status 1 if anything
disagrees.

    PYTHONPATH=LAST python benchmarks/soak.py --rounds 40 --save last.npz
    python benchmarks/soak.py --minutes 120 --last last.npz

also compares with an earlier version, whose checkout is in `LAST`: ends and derivatives of the same seeds.
"""

import argparse
import functools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate

import diffnsd as nsd
from diffnsd import io, models
from diffnsd.laws import CoulombFriction, GapStabilized
from random_mechanisms import FAMILIES, compared, draws

LANES = 4
TOLERANCE = 1e-8
"""Residual that a run in double precision promises."""

SHARE = np.finfo(float).eps / 1e-6
"""How well redundant contacts know their share of a load, relative to it, in a step.

It is chosen by velocities that a compliance of 1e-6 makes, and velocities are rounded to `eps`. Where a face
slides its motion depends on the share, so that forward and reverse, two programs that round differently,
follow derivatives that differ by so much per step. At the same state they agree to 3e-13.
"""

Found = Iterator[tuple[str, float, float]]
"""What was compared, how far it is off, and how far it may be."""
Kept = dict[str, np.ndarray]
"""Ends and derivatives of the runs of a round, which another version may be compared with."""


def off(found, exact) -> float:
    """The largest difference, relative to the largest entry or 1."""
    found, exact = np.asarray(found, float), np.asarray(exact, float)
    return float(
        np.max(np.abs(found - exact), initial=0) / max(1.0, np.max(np.abs(exact), initial=0))
    )


def honest(outcome) -> Found:
    """No success with a residual above the tolerance, or with NaN."""
    end, residual, succeeded = (np.asarray(x) for x in outcome)
    yield "residual of a success", float(np.max(residual, where=succeeded, initial=0)), TOLERANCE
    broken = np.any(~np.isfinite(end), axis=-1)
    yield "NaN in a success", float(np.any(broken & succeeded)), 0.5


def directions(seed: int, x, size: int):
    """Random weights of an end of `size` entries, and a direction of the parameters `x` of a lane."""
    rng = np.random.default_rng(seed)
    u = jnp.asarray(rng.normal(size=size))
    return u, jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape[1:])), x)


def both_ways(run, x, seed: int, kept: Kept, rounding=0.0) -> Found:
    """Batched as single; reverse as forward along a random direction. `run(x)`: end, and its outcome.

    Lanes are independent: a derivative that is not finite in both ways is no disagreement of the two.
    `rounding`: by how much rounding may change the derivative of a lane, beyond 1e-7 of it.
    """
    together = eqx.filter_jit(jax.vmap(run))(x)
    one = eqx.filter_jit(run)
    alone = [one(jax.tree.map(lambda leaf, i=i: leaf[i], x)) for i in range(LANES)]
    yield "batched and single", off(together[0], np.stack([end for end, _ in alone])), 1e-8
    yield from honest(together[1])
    u, d = directions(seed, x, together[0].shape[-1])

    def forward(x):
        return u @ jax.jvp(lambda y: run(y)[0], (x,), (d,))[1]

    def reverse(x):
        slope = jax.grad(lambda y: u @ run(y)[0])(x)
        return sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (slope, d)), strict=True))

    a, b = (np.asarray(eqx.filter_jit(jax.vmap(f))(x)) for f in (forward, reverse))
    kept |= {"ends": np.asarray(together[0]), "derivatives": a}
    size = np.maximum(1, np.abs(a)) + rounding / 1e-7
    yield "forward and reverse", off(b / size, a / size), 1e-7


def outcome(solution, end):
    """End of a run, and what `honest` looks at."""
    return end, (end, solution.stats.residual, solution.result == nsd.RESULTS.successful)


def flat(state: nsd.State):
    q = jax.tree.leaves(state.q)
    return jnp.concatenate([*(x.reshape(-1) for x in q), state.v])


# ------------------------------------------------------------------------------------------


def mechanism(seed: int, kept: Kept) -> Found:
    name = ("line", "arm")[seed % 2]
    p, ends, slopes, _ = (
        np.stack(x) if k < 3 else x
        for k, x in enumerate(zip(*draws(FAMILIES[name], LANES, seed), strict=True))
    )
    found = compared(name, p, ends, slopes)
    yield "ends of mechanisms", float(found.ends.max()), 2e-3
    # The median of what is said to be complete: single ones may be near a stick-slip edge.
    complete = found.slopes[~found.said]
    yield "derivatives of mechanisms", float(np.median(complete)) if len(complete) else 0, 0.05
    yield from both_ways(functools.partial(_mechanism_run, name), jnp.asarray(p), seed, kept)


def _mechanism_run(name, p):
    model, start = FAMILIES[name].build(p)
    scheme = nsd.Located(nsd.MoreauJean())
    run = nsd.simulate(model, scheme, 0.0, 1.0, 2e-3, start, saveat=nsd.SaveAt.end(), throw=False)
    return outcome(run, flat(run.states))


def circuit(seed: int, kept: Kept) -> Found:
    rng = np.random.default_rng(seed)
    scales = {"resistance": 1e3, "inductance": 1e-2, "capacitance": 1e-6}
    lanes = {n: jnp.asarray(s * rng.uniform(0.5, 2, LANES)) for n, s in scales.items()}
    lanes["x"] = jnp.asarray(rng.uniform(-1, 1, (LANES, 2)) * [10.0, 0.1])
    make = (models.rlc_diode, models.diode_bridge)[seed % 2]
    steps, end = 4000, 1e-3

    def run(lane):
        model = make(lane["resistance"], lane["inductance"], lane["capacitance"])
        start = nsd.State(None, lane["x"])
        method = nsd.EulerMoreau(theta=0.5, gamma=0.5)
        found = nsd.simulate(
            model, method, 0.0, end, end / steps, start, saveat=nsd.SaveAt.end(), throw=False
        )
        return outcome(found, found.states.v * jnp.array([0.1, 10.0]))

    def field(t, x, r, ind, c):
        v, i = x
        through = max(v, 0.0) / r if seed % 2 == 0 else v / r
        return [-(i + through) / c, v / ind]

    ends = np.asarray(eqx.filter_jit(jax.vmap(run))(lanes)[0])
    for k in range(LANES):
        p = [float(lanes[n][k]) for n in scales]
        known = scipy.integrate.solve_ivp(
            field,
            (0, end),
            np.asarray(lanes["x"][k]),
            args=p,
            rtol=1e-9,
            atol=1e-12,
            max_step=end / 500,
        )
        yield "circuit and SciPy", off(ends[k], known.y[:, -1] * [0.1, 10.0]), 2e-3
    yield from both_ways(run, lanes, seed, kept)


def _tree_text(rng: np.random.Generator) -> str:
    """A chain or a bush of up to five bodies with capsules."""
    free = rng.random() < 0.5
    root = "<freejoint/>" if free else '<joint type="slide" axis="0 0 1"/>'

    def body(depth: int) -> str:
        axis = " ".join(f"{x:.3f}" for x in rng.normal(size=3))
        place = " ".join(f"{x:.3f}" for x in rng.uniform(-0.3, 0.3, 3))
        joint = f'<joint type="{rng.choice(["hinge", "slide"])}" axis="{axis}" damping="{rng.random():.2f}"/>'
        inner = "".join(body(depth + 1) for _ in range(rng.integers(0, 3 - depth)))
        geom = f'<geom type="capsule" size="0.04 0.1" pos="0 0 {rng.uniform(-0.1, 0.1):.3f}"/>'
        return f'<body pos="{place}">{joint}{geom}{inner}</body>'

    inner = "".join(body(1) for _ in range(rng.integers(1, 3)))
    return (
        '<mujoco><option timestep="0.002"/><default><geom conaffinity="0" friction="0.5"/></default>'
        '<worldbody><geom conaffinity="1" type="plane" size="9 9 1"/>'
        f'<body pos="0 0 0.5">{root}<geom type="sphere" size="0.1"/>{inner}</body></worldbody></mujoco>'
    )


def tree(seed: int, kept: Kept) -> Found:
    import mujoco

    rng = np.random.default_rng(seed)
    text = _tree_text(rng)
    model, _, start = io.load_mjcf(
        text, law=lambda mu, e: GapStabilized(CoulombFriction(mu, e)), max_active=6
    )
    m = mujoco.MjModel.from_xml_string(text)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    d, zero = mujoco.MjData(m), jnp.zeros(())
    for _ in range(4):
        q = m.qpos0.copy()
        mujoco.mj_integratePos(m, q, rng.normal(size=m.nv), 1.0)
        d.qpos[:], d.qvel[:] = q, rng.normal(size=m.nv)
        mujoco.mj_forward(m, d)
        mass = np.zeros((m.nv, m.nv))
        mujoco.mj_fullM(m, d, mass)
        state = nsd.State(jnp.asarray(q), jnp.asarray(d.qvel))
        yield "mass matrix and MuJoCo", off(model.system.mass(zero, state.q), mass), 1e-9
        force = model.system.force(zero, state, None)
        yield "forces and MuJoCo", off(force, d.qfrc_passive - d.qfrc_bias), 1e-9

    def run(v):
        begin = nsd.State(start.q, v)
        found = nsd.simulate(
            model, nsd.MoreauJean(theta=1.0), 0.0, 0.4, 2e-3, begin,
            saveat=nsd.SaveAt.end(), throw=False, start_tolerance=np.inf,
        )  # fmt: skip
        return outcome(found, flat(found.states))

    yield from both_ways(run, jnp.asarray(rng.normal(size=(LANES, m.nv))), seed, kept)


def toss(seed: int, kept: Kept) -> Found:
    rng = np.random.default_rng(seed)
    n = LANES
    lanes = {
        "mu": rng.uniform(0, 1, n), "e": rng.uniform(0, 0.9, n), "mass": 10 ** rng.uniform(-2, 2, n),
        "half": rng.uniform(0.02, 0.2, n), "place": rng.uniform(0.2, 0.4, n),
        "turn": rng.normal(size=(n, 4)), "v": rng.normal(size=(n, 3)), "omega": 5 * rng.normal(size=(n, 3)),
    }  # fmt: skip
    lanes = {name: jnp.asarray(x) for name, x in lanes.items()}

    def solved(lane, saveat):
        inertia = lane["mass"] * lane["half"] ** 2 * 2 / 3
        model = models.tossed_cube(lane["mu"], lane["e"], lane["mass"], inertia, lane["half"])
        turn = lane["turn"] / jnp.sqrt(jnp.sum(lane["turn"] ** 2))
        place = jnp.array([0.0, 0.0, 1.0]) * lane["place"]
        start = models.cube_state(place, turn, lane["v"], lane["omega"])
        method = nsd.MoreauJean(theta=1.0)
        return nsd.simulate(model, method, 0.0, 0.6, 4e-3, start, saveat=saveat, throw=False)

    def run(lane):
        found = solved(lane, nsd.SaveAt.end())
        return outcome(found, flat(found.states))

    u, d = directions(seed, lanes, 13)

    def moving(lane):
        found = solved(lane, nsd.SaveAt())
        return jax.vmap(flat)(found.states), found

    _, tangents, found = eqx.filter_jit(
        jax.vmap(lambda lane: jax.jvp(moving, (lane,), (d,), has_aux=True))
    )(lanes)
    p, mu = np.asarray(found.impulses[0]), np.asarray(lanes["mu"])[:, None, None]
    scale = np.max(np.abs(p))
    yield "a contact that pulls", float(np.max(-p[..., 0], initial=0) / scale), 1e-8
    over = np.sqrt(np.sum(p[..., 1:] ** 2, axis=-1)) - mu * p[..., 0]
    yield "friction beyond its cone", float(np.max(over, initial=0) / scale), 1e-8
    shared = np.sum(np.sum(p[..., 0] > 0, axis=-1) > 1, axis=-1)
    largest = np.max(np.linalg.norm(np.asarray(tangents), axis=-1), axis=-1)
    rounding = SHARE * shared * largest * np.linalg.norm(u)
    # Where the choice among impulses is near another one, the derivative is one of several.
    clear = np.min(np.asarray(found.stats.margin), axis=-1) > 1e-6
    yield from both_ways(run, lanes, seed, kept, np.where(clear, rounding, np.inf))


def versions(kept: Kept, last: Kept) -> Found:
    """This version against another one; in the median, since a run may be near a branch."""
    for what in kept.keys() & last.keys():
        far = [off(a, b) for a, b in zip(kept[what], last[what], strict=True)]
        yield f"{what} of this and of the last version", float(np.median(far)), 1e-6


KINDS = {"mechanism": mechanism, "circuit": circuit, "toss": toss, "tree": tree}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=10**9, help="end after so many rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; one more each")
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--save", type=Path, help="write ends and derivatives of all rounds")
    parser.add_argument("--last", type=Path, help="compare with what another version wrote")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"diffnsd of {Path(nsd.__file__).parents[1]}")

    saved: Kept = {}
    last = dict(np.load(options.last)) if options.last else {}
    begin, seed, wrong, made = time.monotonic(), options.seed, 0, Counter()
    while time.monotonic() - begin < 60 * options.minutes and sum(made.values()) < options.rounds:
        kind = options.only[sum(made.values()) % len(options.only)]
        made[kind] += 1
        worst: dict[str, tuple[float, float]] = {}
        before, kept, name = wrong, {}, f"{kind} {seed} "
        try:
            for what, far, may in KINDS[kind](seed, kept):
                worst[what] = max(worst.get(what, (0.0, may)), (far, may))
            earlier = {n.removeprefix(name): x for n, x in last.items() if n.startswith(name)}
            worst |= {what: (far, may) for what, far, may in versions(kept, earlier)}
        except Exception as error:
            wrong += 1
            print(f"{kind}, seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        for what, (far, may) in worst.items():
            if not far <= may:
                wrong += 1
                print(f"{kind}, seed {seed}: {what}: {far:.3g}, allowed {may:g}", flush=True)
        if wrong == before:
            figures = (f"{what} {far:.1g}" for what, (far, _) in worst.items())
            print(f"{kind}, seed {seed}: agrees ({', '.join(figures)})", flush=True)
        seed += 1
        saved |= {name + what: x for what, x in kept.items()}
        if options.save:
            np.savez(options.save, **saved)
        if sum(made.values()) % len(options.only) == 0:
            jax.clear_caches()  # every program maps pages of memory, and their number is limited
    rounds = ", ".join(f"{n} of {kind}" for kind, n in made.items())
    print(f"{rounds}; {wrong} disagreements")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
