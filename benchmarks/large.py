"""Large and stiff systems: a chain of springs and the impacting bar, a step and a gradient.

    python benchmarks/large.py --json large.json
    python benchmarks/large.py --quick

Peers of the chain, on equal equations and in the same process: a backward Euler step written by hand in
JAX with Thomas' algorithm as two scans, the same with `jax.lax.linalg.tridiagonal_solve`, and diffrax's
`ImplicitEuler` with its dense Newton. Turns of all callables alternate; ratios are taken turn by turn.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import _harness
import diffnsd as nsd
from diffnsd.relations import NodesHalfSpace
from diffnsd.systems import SpringChain

jax.config.update("jax_enable_x64", True)

H, STIFFNESS = 1e-3, 1e8  # the fastest mode turns by 20 rad in a step


def chain_start(n: int):
    x = jnp.linspace(0, 1, n)
    return 0.1 * jnp.sin(3 * x), jnp.cos(5 * x)


def ours(n: int, steps: int) -> Callable:
    """End positions and velocities by the stiffness of every spring."""
    q, v = chain_start(n)

    def end(k):
        model, method = nsd.Model(SpringChain(jnp.ones(n), k)), nsd.BackwardEuler()
        start, ends = nsd.State(q, v), nsd.SaveAt.end()
        run = nsd.simulate(model, method, 0.0, steps * H, H, start, saveat=ends, throw=False)
        return run.states.q, run.states.v

    return end


def by_hand(n: int, steps: int, solve: Callable) -> Callable:
    """The same by a scan over steps with a tridiagonal `solve(lower, own, upper, right)`."""

    def end(k):
        def step(state, _):
            q, v = state
            tension, s = k * (q[1:] - q[:-1]), H * H * k
            force = jnp.pad(tension, (0, 1)) - jnp.pad(tension, (1, 0))
            own = 1 + jnp.pad(s, (0, 1)) + jnp.pad(s, (1, 0))
            v = solve(jnp.pad(-s, (1, 0)), own, jnp.pad(-s, (0, 1)), v + H * force)
            return (q + H * v, v), None

        return jax.lax.scan(step, chain_start(n), None, length=steps)[0]

    return end


def thomas(lower, own, upper, right):
    def down(carry, row):
        above, load = carry
        a, b, c, r = row
        w = 1 / (b - a * above)
        new = c * w, (r - a * load) * w
        return new, new

    def up(after, row):
        c, r = row
        x = r - c * after
        return x, x

    _, rows = jax.lax.scan(down, (jnp.zeros(()), jnp.zeros(())), (lower, own, upper, right))
    return jax.lax.scan(up, jnp.zeros(()), rows, reverse=True)[1]


def lapack(lower, own, upper, right):
    return jax.lax.linalg.tridiagonal_solve(lower, own, upper, right[:, None])[:, 0]


def by_diffrax(n: int, steps: int) -> Callable:
    """diffrax's implicit Euler on `(q, v)`, with Newton's method on a dense Jacobian."""
    import diffrax
    import optimistix as optx

    def rate(t, y, k):
        q, v = y
        tension = k * (q[1:] - q[:-1])
        return v, jnp.pad(tension, (0, 1)) - jnp.pad(tension, (1, 0))

    def end(k):
        newton = optx.Newton(rtol=1e-10, atol=1e-10)
        solver = diffrax.ImplicitEuler(root_finder=newton)
        done = diffrax.diffeqsolve(
            diffrax.ODETerm(rate), solver, 0.0, steps * H, H, chain_start(n), args=k
        )
        assert done.ys is not None
        return done.ys[0][-1], done.ys[1][-1]

    return end


def bar(nodes: int, steps: int) -> Callable:
    """The impacting bar of the reference system, refined: end state, impulses, energies.

    The step shrinks with the elements, and the bar is in contact from the second step on.
    """
    h = 2e-6 * 99 / (nodes - 1)
    contact = nsd.Interaction(NodesHalfSpace([[0]], [1.0]), nsd.NewtonImpact(0.0))
    start = nsd.State(jnp.full(nodes, 0.0), jnp.full(nodes, -0.1))

    def end(young):
        model = nsd.Model(SpringChain.bar(nodes - 1, young=young), contact)
        method, ends = nsd.MoreauJean(gamma=0.0), nsd.SaveAt.end()
        run = nsd.simulate(model, method, 0.0, steps * h, h, start, saveat=ends, throw=False)
        state = run.states
        q, v = state.q, state.v
        energy = model.system.potential(jnp.zeros(()), q) + model.system.kinetic(
            jnp.zeros(()), state
        )
        return q[0], v[0], energy, run.result == nsd.RESULTS.successful

    return end


def row(engine, workload, timing, steps, **checks) -> _harness.Row:
    median, least, most = timing.us(steps)
    return _harness.Row(
        engine=engine,
        workload=workload,
        batch=1,
        dtype="float64",
        us_per_step=median,
        us_per_step_min=least,
        us_per_step_max=most,
        repetitions=len(timing.seconds),
        checks=checks,
    )


def compiled(function: Callable, *arguments) -> Callable[[int], float]:
    program = jax.jit(function)
    return lambda calls: _harness.timed(lambda: program(*arguments), calls)


def chains(sizes, steps: int, with_diffrax: bool) -> list[_harness.Row]:
    rows = []
    for n in sizes:
        k = jnp.full(n - 1, STIFFNESS)
        engines = {
            "diffnsd": ours(n, steps),
            "Thomas in JAX": by_hand(n, steps, thomas),
            "tridiagonal_solve in JAX": by_hand(n, steps, lapack),
        }
        expected = jax.jit(engines["Thomas in JAX"])(k)
        found = jax.jit(engines["diffnsd"])(k)
        error = max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(expected, found, strict=True))

        def loss(k, end=engines["diffnsd"]):
            q, v = end(k)
            return jnp.sum(q**2) + jnp.sum(v**2) / 100

        measures = {name: compiled(f, k) for name, f in engines.items()}
        measures["gradient"] = compiled(jax.grad(loss), k)
        times = _harness.alternate(measures)
        for name in engines:
            fast = _harness.ratio(times["diffnsd"], times[name])
            checks = {"diffnsd_over_this": fast.median, "difference": error}
            rows.append(row(name, f"chain {n}", times[name], steps, **checks))
        fast = _harness.ratio(times["gradient"], times["diffnsd"])
        turn = k * jnp.asarray(np.random.default_rng(0).uniform(-1, 1, n - 1))
        value, e = jax.jit(loss), 1e-4
        wide = (value(k + e * turn) - value(k - e * turn)) / (2 * e)
        exact = jnp.sum(jax.jit(jax.grad(loss))(k) * turn)
        checks = {"forwards": fast.median, "against_differences": float(abs(exact / wide - 1))}
        rows.append(row("diffnsd, gradient", f"chain {n}", times["gradient"], steps, **checks))
    if with_diffrax:
        n = 1000
        k = jnp.full(n - 1, STIFFNESS)
        slow = compiled(by_diffrax(n, 2), k)
        times = _harness.alternate(
            {"diffrax": slow, "diffnsd": compiled(ours(n, steps), k)}, slow_after_s=1.0
        )
        factor = times["diffrax"].median / 2 / (times["diffnsd"].median / steps)
        rows.append(row("diffrax", f"chain {n}", times["diffrax"], 2, this_over_diffnsd=factor))
    return rows


def bars(sizes, steps: int) -> list[_harness.Row]:
    young = jnp.asarray(210e9)
    times = _harness.alternate({str(n): compiled(bar(n, steps), young) for n in sizes})
    rows, first = [], sizes[0]
    for n in sizes:
        _, _, energy, good = jax.jit(bar(n, steps))(young)
        mass = 7800 * 3.14e-4 * 1.0
        growth = times[str(n)].median / times[str(first)].median / (n / first)
        checks = {
            "growth_over_linear": growth,
            "energy_over_initial": float(energy) / (mass * 0.1**2 / 2),
            "succeeded": bool(good),
        }
        rows.append(row("diffnsd", f"bar {n}", times[str(n)], steps, **checks))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes, without diffrax")
    options = parser.parse_args()
    facts = _harness.header()
    _harness.print_header("Large and stiff systems", facts)
    sizes, steps = ((100, 200), 20) if options.quick else ((1000, 10_000, 100_000), 50)
    nodes = (100, 200) if options.quick else (100, 1000, 10_000)
    rows = chains(sizes, steps, not options.quick) + bars(nodes, 2 * steps)
    _harness.print_rows(rows)
    for entry in rows:
        shown = ", ".join(f"{name} {value:.3g}" for name, value in entry.checks.items())
        print(f"{entry.workload}, {entry.engine}: {entry.us_per_step:.3g} µs a step; {shown}")
    if options.json:
        _harness.write_json(rows, options.json, facts)


if __name__ == "__main__":
    main()
