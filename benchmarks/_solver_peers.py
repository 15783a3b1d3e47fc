"""Times of batches of random LCP and friction problems, ours and those of other packages."""

import importlib.util
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import Auto, ComplementarityProblem, solve_complementarity
from diffnsd.laws import CoulombFriction
from diffnsd.sets import HalfLine

CASES = (
    ("LCP", 10, 1),
    ("LCP", 10, 256),
    ("LCP", 50, 1),
    ("LCP", 50, 256),
    ("stack", 15, 1),
    ("stack", 15, 1024),
    ("body", 15, 1),
    ("body", 15, 1024),
)


def positive(random, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Well-conditioned symmetric matrices and loads of either sign."""
    root = random.normal(size=(batch, n, n))
    return root @ np.swapaxes(root, 1, 2) / n + 0.1 * np.eye(n), random.normal(size=(batch, n))


def corners(random, batch: int, c: int) -> np.ndarray:
    """Velocities of `c` points of a rigid body, fixed frames: shape `(batch, c, 3, 6)`."""
    points = random.uniform(-1, 1, size=(batch, c, 3))
    axes = np.roll(np.eye(3), 1, axis=0)
    arms = np.cross(points[:, :, None], axes[None, None])
    return np.concatenate([np.broadcast_to(axes, (batch, c, 3, 3)), arms], axis=-1)


WEIGHT = np.array([1, 1, 1, 2.5, 2.5, 2.5])
"""The inverse masses of a body."""


def velocities(random, shape) -> np.ndarray:
    """Of bodies that fall on their contacts."""
    return random.normal(size=(*shape, 6)) * [1, 1, 1, 0.3, 0.3, 0.3] - [0, 0, 1, 0, 0, 0]


def one_body(random, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A rigid body on `n / 3` corners: W has rank 6, impulses are not unique."""
    H = corners(random, batch, n // 3).reshape(batch, n, 6)
    velocity = velocities(random, (batch,))
    return np.einsum("bij,j,bkj->bik", H, WEIGHT, H), np.einsum("bij,bj->bi", H, velocity)


def stack(random, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A stack of `n / 3` bodies, each on the one below at one point: W is regular."""
    c = n // 3
    H = np.zeros((batch, c, 3, c, 6))
    upper, lower = corners(random, batch, c), corners(random, batch, c)
    for i in range(c):
        H[:, i, :, i] = upper[:, i]
        if i:
            H[:, i, :, i - 1] = -lower[:, i]
    H = H.reshape(batch, n, 6 * c)
    velocity = velocities(random, (batch, c)).reshape(batch, -1)
    W = np.einsum("bij,j,bkj->bik", H, np.tile(WEIGHT, c), H)
    return W, np.einsum("bij,bj->bi", H, velocity)


MAKERS = {"LCP": positive, "stack": stack, "body": one_body, "random cones": positive}


def law(kind: str, n: int):
    return ((HalfLine(), (n, 1)),) if kind == "LCP" else ((CoulombFriction(0.5), (n // 3, 3)),)


def ours(kind: str, W: np.ndarray, q: np.ndarray) -> tuple[dict, np.ndarray]:
    """The default method on a batch, to 1e-8. **Returns:** its row, and the passes of every lane."""
    laws, solver = law(kind, W.shape[-1]), Auto(tolerance=1e-8)

    @eqx.filter_jit
    @eqx.filter_vmap
    def run(W, q):
        out = solve_complementarity(ComplementarityProblem(W, q, laws), solver, throw=False)
        return out.z, out.residual, out.iterations

    given = jnp.asarray(W), jnp.asarray(q)
    _, residual, passes = jax.block_until_ready(run(*given))
    seconds = []
    for _ in range(9):
        begin = time.perf_counter()
        jax.block_until_ready(run(*given))
        seconds.append(time.perf_counter() - begin)
    share = float(np.mean(np.asarray(residual) <= 1e-8))
    spent = 1e6 * float(np.median(seconds)) / len(W)
    return {"us": spent, "solved": share}, np.asarray(passes)


def nonnegative_least_squares(W: np.ndarray, q: np.ndarray) -> dict:
    """SciPy: an LCP with a symmetric matrix as nonnegative least squares, one after the other."""
    from scipy.optimize import nnls

    factors = np.linalg.cholesky(W)
    loads = -np.linalg.solve(factors, q[..., None])[..., 0]
    begin = time.perf_counter()
    worst = 0.0
    for L, b, matrix, load in zip(factors, loads, W, q, strict=True):
        z, _ = nnls(L.T, b)
        worst = max(worst, float(np.max(np.abs(np.minimum(z, matrix @ z + load)))))
    return {"us": 1e6 * (time.perf_counter() - begin) / len(W), "worst": worst}


def qpax_batch(W: np.ndarray, q: np.ndarray) -> dict:
    """qpax: the same as a quadratic program."""
    import qpax

    n = W.shape[-1]
    none = jnp.zeros((0, n)), jnp.zeros(0)

    @jax.jit
    @jax.vmap
    def run(W, q):
        return qpax.solve_qp_primal(W, q, *none, -jnp.eye(n), jnp.zeros(n), solver_tol=1e-8)

    given = jnp.asarray(W), jnp.asarray(q)
    jax.block_until_ready(run(*given))
    begin = time.perf_counter()
    jax.block_until_ready(run(*given))
    return {"us": 1e6 * (time.perf_counter() - begin) / len(W)}


def jaxopt_batch(W: np.ndarray, q: np.ndarray) -> dict:
    """jaxopt: coordinate descent on the quadratic program."""
    import jaxopt

    solver = jaxopt.BoxCDQP(tol=1e-8, maxiter=2000)

    @jax.jit
    @jax.vmap
    def run(W, q):
        ends = jnp.zeros_like(q), jnp.full_like(q, jnp.inf)
        return solver.run(jnp.zeros_like(q), params_obj=(W, q), params_ineq=ends).params

    given = jnp.asarray(W), jnp.asarray(q)
    z = jax.block_until_ready(run(*given))
    begin = time.perf_counter()
    jax.block_until_ready(run(*given))
    spent = time.perf_counter() - begin
    return {"us": 1e6 * spent / len(W), "worst": natural_map(W, q, np.asarray(z))}


def proxsuite_loop(W: np.ndarray, q: np.ndarray) -> dict:
    """proxsuite: the quadratic program, one after the other."""
    from proxsuite import proxqp

    n = W.shape[-1]
    spent, z = 0.0, np.zeros_like(q)
    for i, (matrix, load) in enumerate(zip(W, q, strict=True)):
        solver = proxqp.dense.QP(n, 0, n)
        solver.settings.eps_abs, solver.settings.eps_rel = 1e-8, 0.0
        begin = time.perf_counter()
        solver.init(matrix, load, None, None, np.eye(n), np.zeros(n), np.full(n, 1e20))
        solver.solve()
        spent += time.perf_counter() - begin
        z[i] = solver.results.x
    return {"us": 1e6 * spent / len(W), "worst": natural_map(W, q, z)}


def natural_map(W: np.ndarray, q: np.ndarray, z: np.ndarray) -> float:
    """The largest `|min(z, w)|` of a batch."""
    return float(np.max(np.abs(np.minimum(z, np.einsum("bij,bj->bi", W, z) + q))))


PEERS = {
    "scipy": nonnegative_least_squares,
    "qpax": qpax_batch,
    "jaxopt": jaxopt_batch,
    "proxsuite": proxsuite_loop,
}
SHARES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


def batches() -> list[dict]:
    """All cases, ours beside the peers that are installed."""
    rows = []
    for kind, n, batch in CASES:
        W, q = MAKERS[kind](np.random.default_rng(0), batch, n)
        row = {"kind": kind, "n": n, "batch": batch, "diffnsd": ours(kind, W, q)[0]}
        for name, peer in PEERS.items():
            if kind == "LCP" and importlib.util.find_spec(name):
                row[name] = peer(W, q)
        rows.append(row)
        print(row, flush=True)
    return rows


def hard_lanes(kind: str = "body", n: int = 15, batch: int = 1024) -> list[dict]:
    """The cost of a batch against its share of hard lanes.

    Hard are the tenth of a pool with most passes, easy the half with fewest; `proportional` is what
    the batch would cost if every lane paid its own share, from the batches of one sort alone.
    """
    W, q = MAKERS[kind](np.random.default_rng(1), 4 * batch, n)
    order = np.argsort(ours(kind, W, q)[1], kind="stable")
    easy, hard = order[: 2 * batch], order[-(4 * batch) // 10 :]
    rows = []
    random = np.random.default_rng(2)
    for share in SHARES:
        count = round(share * batch)
        lanes = np.concatenate([random.choice(hard, count), random.choice(easy, batch - count)])
        lanes = random.permutation(lanes)
        out, _ = ours(kind, W[lanes], q[lanes])
        rows.append({"kind": kind, "n": n, "batch": batch, "hard": share, **out})
    first, last = rows[0]["us"], rows[-1]["us"]
    for row in rows:
        row["proportional"] = first + row["hard"] * (last - first)
        print(row, flush=True)
    return rows
