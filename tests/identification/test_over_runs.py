"""Fits whose runs are spread over devices and processes: the same estimates, one reduction a step."""

import json
import socket

import jax
import numpy as np
import pytest
from forced_devices import answers, interrupted, python
from marks import nightly

from diffnsd import identification

# Heights of 13 balls that bounce, with noise; restitution and gravity are sought.
COMMON = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, optax
from functools import partial
import diffnsd as nsd
from diffnsd import identification as idn
from forced_devices import collectives

def error(params, run):
    model = nsd.models.bouncing_ball(params["e"], params["g"])
    start = nsd.State(run["height"][None], jnp.zeros(1))
    found = nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.6, 0.02, start, throw=False)
    gap = found.states.q[::3, 0] - run["seen"]
    return {"early": gap[:5], "late": gap[5:]}

def loss(params, run):
    return sum(jnp.sum(x**2) for x in error(params, run).values()) / 2

heights = np.linspace(0.5, 1.0, 13)
times = 0.06 * np.arange(11)
falls = heights[:, None] - 9.81 * times**2 / 2
hit = np.sqrt(2 * heights / 9.81)[:, None]
speed = 0.8 * 9.81 * hit  # after the only impact
after = speed * (times - hit) - 9.81 * (times - hit) ** 2 / 2
noise = 1e-3 * np.random.default_rng(0).normal(size=after.shape)
runs = {"height": heights, "seen": np.where(times < hit, falls, after) + noise}
start = {"e": np.array(0.7), "g": np.array(9.0)}

def listed(params):
    return [float(params[k]) for k in ("e", "g")]
"""

DEVICES = """
mesh = jax.sharding.Mesh(jax.devices(), ("run",))
there, start = jax.tree.map(jnp.asarray, (runs, start))

def exchanges(programs):
    texts = [program.compiled.as_text() for *_, program in programs._known]
    return [(collectives(text), collectives(text, in_loops=True)) for text in texts]

def everywhere(function):
    return lambda p: jax.vmap(partial(function, p))(there)

found = {}
spread = idn.ResidualOverRuns(error, runs, mesh)
mask = {"early": jnp.ones((13, 5), bool).at[3, 2].set(False), "late": jnp.ones(13, bool)}
options = {"mask": mask, "robust": idn.Huber(1e-3)}
known = idn.Programs()
one = idn.least_squares(everywhere(error), start, **options)
many = idn.least_squares(spread, start, programs=known, **options)
rows = [x.linearisation.residual for x in (one, many)]
slopes = [x.linearisation.jacobian for x in (one, many)]
found["least_squares"] = [listed(one.params), listed(many.params), exchanges(known)]
found["rows"] = max(float(jnp.max(jnp.abs(a - b))) for a, b in (rows, slopes))
known = idn.Programs()
one = idn.fit(lambda p: jnp.sum(everywhere(loss)(p)), start, optax.adam(0.02), max_steps=12)
total = idn.SumOverRuns(loss, runs, mesh)
many = idn.fit(total, start, optax.adam(0.02), max_steps=12, programs=known)
found["fit"] = [listed(one.params), listed(many.params), exchanges(known)]
sampler, key = idn.Laplace(draws=20), jax.random.key(1)
log = idn.SumOverRuns(lambda p, run: -loss(p, run) / 1e-6, runs, mesh)
alone = lambda p: -jnp.sum(everywhere(loss)(p)) / 1e-6
drawn = [idn.posterior(f, start, sampler=sampler, key=key).samples for f in (log, alone)]
found["posterior"] = [x.reshape(-1).tolist() for x in drawn]
print(json.dumps(found))
"""

LONG = """
def told(step, progress):
    if progress.stage is idn.Stage.RUNNING and step == 1:
        print("ready", flush=True)

def error(params, run):
    block, begin = nsd.models.sliding_block(params["mu"]), nsd.models.block_state(0.0, run["speed"])
    scheme, end = nsd.MoreauJean(), nsd.SaveAt.end()
    return nsd.simulate(block, scheme, 0.0, 0.3, 1e-4, begin, saveat=end, throw=False).states.q[0] - 0.1

mesh = jax.sharding.Mesh(jax.devices(), ("run",))
runs, start = {"speed": np.linspace(1.0, 2.0, 64)}, {"mu": np.array(0.3)}
common = {"max_steps": 100_000, "rtol": 0.0, "callback": told}
if sys.argv[1] == "fit":
    loss = idn.SumOverRuns(lambda p, run: error(p, run) ** 2, runs, mesh)
    found = idn.fit(loss, start, optax.adam(1e-3), patience=100_000, **common)
else:
    found = idn.least_squares(idn.ResidualOverRuns(error, runs, mesh), start, **common)
losses = found.history.loss.tolist()
print(json.dumps([found.message, float(found.params["mu"]), found.loss, losses]))
"""

# Tosses of a cube, made here with friction 0.2 and restitution 0.3, with noise.
PROCESS = """
import sys, json
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.experimental.multihost_utils import process_allgather

if sys.argv[1:]:  # one of two; before JAX looks for its devices
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60)
    assert len(jax.devices()) == 2 and len(jax.local_devices()) == 1

import diffnsd as nsd
from diffnsd import identification as idn

def path(params, run):
    model = nsd.models.tossed_cube(params["mu"], params["e"])
    start = nsd.models.cube_state(*(run[k] for k in ("place", "turn", "speed", "spin")))
    scheme, saveat = nsd.MoreauJean(theta=1.0), nsd.SaveAt(steps=5)
    return nsd.simulate(model, scheme, 0.0, 0.5, 0.005, start, saveat=saveat, throw=False).states.q.position

def error(params, run):
    return path(params, run) - run["seen"]

rng = np.random.default_rng(0)
runs = {"place": [0.0, 0.0, 0.2] + rng.uniform(0, 0.1, (9, 3)), "turn": rng.normal(size=(9, 4)),
        "speed": rng.normal(size=(9, 3)), "spin": 3 * rng.normal(size=(9, 3))}
runs["turn"] /= np.linalg.norm(runs["turn"], axis=1, keepdims=True)
true, start = ({"mu": jnp.asarray(mu), "e": jnp.asarray(e)} for mu, e in ((0.2, 0.3), (0.15, 0.2)))
seen = np.asarray(jax.jit(jax.vmap(partial(path, true)))(runs))
runs["seen"] = seen + 1e-3 * rng.normal(size=seen.shape)

mesh, residual = None, lambda p: jax.vmap(partial(error, p))(jax.tree.map(jnp.asarray, runs))
if sys.argv[1:]:
    mesh = jax.sharding.Mesh(jax.devices(), ("run",))
    residual = idn.ResidualOverRuns(error, runs, mesh)
rolled = nsd.rollout(partial(path, true), runs, mesh=mesh, chunk=2)
rolled = process_allgather(rolled, tiled=True) if mesh else np.asarray(rolled)
found = idn.least_squares(residual, start)
print(json.dumps({"ends": rolled.tolist(), "params": [float(found.params[k]) for k in ("mu", "e")]}))
"""


@pytest.mark.slow
def test_on_eight_devices():
    """13 runs on 8 devices, masked and robust: the same numbers, and one reduction in what a step runs."""
    (found,) = answers(python(COMMON + DEVICES, devices=8))
    for name in ("least_squares", "fit"):
        one, many, exchanges = found[name]
        np.testing.assert_allclose(many, one, rtol=1e-12)  # measured 0
        everywhere, in_loops = np.transpose(exchanges)
        assert np.sum(everywhere) == 1 and np.sum(in_loops) == 0
    assert found["rows"] < 1e-11  # measured 0
    drawn, alone = found["posterior"]
    np.testing.assert_allclose(drawn, alone, rtol=1e-10)  # measured 2e-16


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fit", nightly("least_squares")])
def test_ctrl_c_ends_a_fit_on_eight_devices_with_the_best_so_far(method):
    code, out, errors, seconds = interrupted(COMMON + LONG, method, devices=8)
    assert code == 0, errors
    message, mu, loss, losses = json.loads(out.splitlines()[-1])
    assert "interrupted; the best iterate so far is returned" in message
    assert loss == min(losses) and 0 < len(losses) < 1000 and 0 < mu < 2
    assert seconds < 20  # measured 1 to 3: an evaluation that runs is not cut off


@pytest.mark.slow
def test_in_two_processes():
    """Tosses in two processes that know each other by `jax.distributed` give the estimate of one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    first, second, alone = answers(
        python(PROCESS, address, "0"), python(PROCESS, address, "1"), python(PROCESS)
    )
    # The program on a mesh is another one: a processor may round so that a step's solve ends an iteration
    # earlier. Measured 0 on one machine, 1e-12 m on another.
    for found in (first, second):
        np.testing.assert_allclose(found["ends"], alone["ends"], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found["params"], alone["params"], rtol=1e-8)
    np.testing.assert_allclose(alone["params"], (0.2, 0.3), atol=0.02)


def mesh():
    return jax.make_mesh((1,), ("run",), axis_types=(jax.sharding.AxisType.Auto,))


def test_refused():
    def number(params, run):
        return params * run

    with pytest.raises(ValueError, match="share one leading axis"):
        identification.SumOverRuns(number, {"a": np.ones(2), "b": np.ones(3)}, mesh())
    with pytest.raises(ValueError, match="mesh must have one axis"):
        two = jax.make_mesh((1, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        identification.SumOverRuns(number, np.ones(2), two)
    with pytest.raises(TypeError, match=r"function must be a function of \(params, run\)"):
        identification.SumOverRuns(lambda params: params, np.ones(2), mesh())
    with pytest.raises(ValueError, match="must return one number"):
        total = identification.SumOverRuns(lambda p, run: p * run, np.ones((2, 3)), mesh())
        jax.eval_shape(total, np.float64(1.0))
    with pytest.raises(ValueError, match="one number for all residuals"):
        residual = identification.ResidualOverRuns(number, np.ones(2), mesh())
        robust = identification.Huber(np.ones(2))
        identification.least_squares(residual, jax.numpy.ones(()), robust=robust)
