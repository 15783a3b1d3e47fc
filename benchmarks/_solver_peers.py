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
    ("FC3D", 15, 1),
    ("FC3D", 15, 1024),
)


def positive(random, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Well-conditioned symmetric matrices and loads of either sign."""
    root = random.normal(size=(batch, n, n))
    return root @ np.swapaxes(root, 1, 2) / n + 0.1 * np.eye(n), random.normal(size=(batch, n))


def contacts(random, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The Delassus operator of a rigid body of mass 1 with `n / 3` corners, and its velocities."""
    c = n // 3
    corners = random.uniform(-1, 1, size=(batch, c, 3))
    axes = np.roll(np.eye(3), 1, axis=0)
    arms = np.cross(corners[:, :, None], axes[None, None])
    H = np.concatenate([np.broadcast_to(axes, (batch, c, 3, 3)), arms], axis=-1).reshape(
        batch, n, 6
    )
    velocity = random.normal(size=(batch, 6)) * [1, 1, 1, 0.3, 0.3, 0.3] - [0, 0, 1, 0, 0, 0]
    weight = np.array([1, 1, 1, 2.5, 2.5, 2.5])
    return np.einsum("bij,j,bkj->bik", H, weight, H), np.einsum("bij,bj->bi", H, velocity)


def law(kind: str, n: int):
    return ((HalfLine(), (n, 1)),) if kind == "LCP" else ((CoulombFriction(0.5), (n // 3, 3)),)


def ours(kind: str, W: np.ndarray, q: np.ndarray) -> dict:
    """The default method on a batch, to 1e-8."""
    laws, solver = law(kind, W.shape[-1]), Auto(tolerance=1e-8)

    @eqx.filter_jit
    @eqx.filter_vmap
    def run(W, q):
        out = solve_complementarity(ComplementarityProblem(W, q, laws), solver, throw=False)
        return out.z, out.residual

    given = jnp.asarray(W), jnp.asarray(q)
    _, residual = jax.block_until_ready(run(*given))
    seconds = []
    for _ in range(9):
        begin = time.perf_counter()
        jax.block_until_ready(run(*given))
        seconds.append(time.perf_counter() - begin)
    share = float(np.mean(np.asarray(residual) <= 1e-8))
    return {"us": 1e6 * float(np.median(seconds)) / len(W), "solved": share}


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


PEERS = {"scipy": nonnegative_least_squares, "qpax": qpax_batch}


def batches() -> list[dict]:
    """All cases, and the cost against the share of hard lanes."""
    rows = []
    for kind, n, batch in CASES:
        make = positive if kind == "LCP" else contacts
        W, q = make(np.random.default_rng(0), batch, n)
        row = {"kind": kind, "n": n, "batch": batch, "diffnsd": ours(kind, W, q)}
        for name, peer in PEERS.items():
            if kind == "LCP" and importlib.util.find_spec(name):
                row[name] = peer(W, q)
        rows.append(row)
        print(row, flush=True)
    W, q = positive(np.random.default_rng(1), 256, 10)
    for share in (0.0, 0.05, 0.25, 1.0):
        hard = np.arange(256) < share * 256
        loads = np.where(hard[:, None], q, np.abs(q))  # a load that opens everything is easy
        rows.append(
            {"kind": "LCP", "n": 10, "batch": 256, "hard": share, "diffnsd": ours("LCP", W, loads)}
        )
        print(rows[-1], flush=True)
    return rows
