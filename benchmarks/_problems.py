"""Complementarity problems from `.npz` files: LCP, MLCP, relay, friction, rolling, mixed, nonlinear.

The format is described beside the files (`FORMAT.md`). Global problems, `M v = H r + q`,
`u = H^T v + b`, are reduced to the contacts: `W = H^T M^-1 H`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from diffnsd.complementarity import ComplementarityProblem, NonlinearComplementarityProblem
from diffnsd.laws import CoulombFriction, RollingFriction
from diffnsd.sets import Box, Free, HalfLine

LARGE = 4000
"""Unknowns above which a sparse matrix stays sparse."""


class Loaded(NamedTuple):
    """A problem and what the file says of it; `start` is where a nonlinear one begins."""

    name: str
    kind: str
    size: int
    problem: Any
    start: np.ndarray | None
    facts: dict[str, Any]


def load(path: Path) -> Loaded:
    """Reads one file. **Raises:** `ValueError` if its kind is unknown."""
    with np.load(path, allow_pickle=False) as file:
        data = {key: value.item() if value.ndim == 0 else value for key, value in file.items()}
    kind = str(data["kind"])
    if kind == "ncp":
        start = np.asarray(data["z0"], float)
        problem = NonlinearComplementarityProblem(
            FORMULAS[str(data["formula"])], ((HalfLine(), (len(start), 1)),)
        )
        return Loaded(path.stem, kind, len(start), problem, start, data)
    W, q = local(data)
    if kind.lstrip("g") not in LAYOUTS and kind != "gmp":
        raise ValueError(f"{path} holds a problem of kind {kind}, which is unknown.")
    layout = mixed if kind == "gmp" else LAYOUTS[kind.lstrip("g")]
    W = jnp.asarray(W) if isinstance(W, np.ndarray) else BCOO.from_scipy_sparse(W)
    problem = ComplementarityProblem(W, jnp.asarray(q), layout(data, len(q)))
    return Loaded(path.stem, kind, len(q), problem, None, data)


def matrix(data, name: str):
    """A matrix of the file, dense or sparse."""
    if name in data:
        return data[name]
    import scipy.sparse

    parts = tuple(data[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    return scipy.sparse.csr_matrix(parts, shape=tuple(data[f"{name}_shape"]))


def local(data) -> tuple[np.ndarray, np.ndarray]:
    """`W` and `q` of the contacts."""
    M = matrix(data, "M")
    if not str(data["kind"]).startswith("g") or data["kind"] == "gmp":
        return (M.toarray() if M.shape[0] <= LARGE and not isinstance(M, np.ndarray) else M), data[
            "q"
        ]
    import scipy.sparse
    import scipy.sparse.linalg

    H = scipy.sparse.csc_matrix(matrix(data, "H"))
    factors = scipy.sparse.linalg.splu(scipy.sparse.csc_matrix(M))
    moved = factors.solve(H.toarray())
    return H.T @ moved, H.T @ factors.solve(data["q"]) + data["b"]


def mlcp(data, n: int):
    """Runs of equalities and of half lines."""
    unilateral = np.asarray(data["is_comp"], bool)
    cuts = [0, *(np.flatnonzero(np.diff(unilateral.astype(int))) + 1), n]
    return tuple(
        (HalfLine() if unilateral[a] else Free(), (int(b - a), 1))
        for a, b in zip(cuts[:-1], cuts[1:], strict=True)
    )


def relay(data, n: int):
    """Boxes, one row each."""
    lower, upper = (np.broadcast_to(np.asarray(data[x], float), (n,)) for x in ("lb", "ub"))
    return ((Box(jnp.asarray(lower), jnp.asarray(upper)), (n, 1)),)


def friction(data, n: int):
    """Contacts with Coulomb friction, planar or spatial."""
    k = int(data["dimension"])
    return ((CoulombFriction(jnp.asarray(np.atleast_1d(data["mu"]))), (n // k, k)),)


def rolling(data, n: int):
    """Contacts with rolling resistance."""
    mu, mu_r = (jnp.asarray(np.atleast_1d(data[x])) for x in ("mu", "mu_r"))
    return ((RollingFriction(mu, mu_r), (n // 5, 5)),)


def mixed(data, n: int):
    """Blocks of several kinds, one after the other."""
    del n
    laws, at = [], 0
    for end, kind, mu in zip(data["block_end"], data["block_type"], data["mu"], strict=True):
        rows = int(end) - at
        at = int(end)
        laws.append(
            {
                "equality": lambda rows=rows: (Free(), (rows, 1)),
                "lcp": lambda rows=rows: (HalfLine(), (rows, 1)),
                "relay": lambda rows=rows: (Box(jnp.array(-1.0), jnp.array(1.0)), (rows, 1)),
                "fc3d": lambda mu=mu: (CoulombFriction(float(mu)), (1, 3)),
            }[str(kind)]()
        )
    return tuple(laws)


LAYOUTS: dict[str, Callable] = {
    "lcp": lambda data, n: ((HalfLine(), (n, 1)),),
    "mlcp": mlcp,
    "relay": relay,
    "fc2d": friction,
    "fc3d": friction,
    "rfc3d": rolling,
}


# Nonlinear problems, by name.


def _polynomials(x, args):
    a, b, c, d = x
    del args
    return jnp.stack(
        [
            3 * a * a + 2 * a * b + 2 * b * b + c + 3 * d - 6,
            2 * a * a + a + b * b + 3 * c + 2 * d - 2,
            3 * a * a + a * b + 2 * b * b + 2 * c + 3 * d - 1,
            a * a + 3 * b * b + 2 * c + 3 * d - 3,
        ]
    )


def _relay_step(x, args):
    del args
    x0, x1, h, g, k = 1.0, 10.0, 1e-3, 9.81, 0.7
    first, second = 2 * x[0] - 1, 2 * x[2] - 1
    r1 = g * second / (1 - k * first * second)
    r0 = -k * first * second * (x1 + h * r1)
    return jnp.stack(
        [x0 + h * (x1 + h * r1) + h * r0 + x[1], 1 - x[0], x1 + h * r1 + x[3], 1 - x[2]]
    )


def _cubic(x, args):
    del args
    y = jnp.pad(x, 1)
    return 4 * x - y[:-2] - y[2:] + x**3 - (-1.0 + np.arange(len(x)) % 4)


def _obstacle(x, args):
    del args
    n, y = len(x), jnp.pad(x, 1)
    h = 1 / (n + 1)
    load = 50 * np.sin(2 * np.pi * h * np.arange(1, n + 1))
    return (2 * x - y[:-2] - y[2:]) / h**2 - load + x**3


def _billups(x, args):
    del args
    return (x - 1) ** 2 - 1.01


FORMULAS = {
    "josephy": _polynomials,
    "zi_step": _relay_step,
    "cubic40": _cubic,
    "obstacle30": _obstacle,
    "billups": _billups,
}
