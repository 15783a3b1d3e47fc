"""Block Gauss-Seidel between bodies: contacts of one colour at once, with Anderson's acceleration."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._jax import staged
from ..._numerics import short_sum
from ...laws._base import AbstractLaw
from ..problem._bodies import ManyBodies
from ..problem._dense import Contacts, DenseProblem
from ..problem._natural_map import argument, projected
from ..problem._problem import join
from ._base import AbstractContactSolver, check_tolerance
from ._history import History

BLOCK = 10
"""Sweeps between two tests of the residual."""
NARROW, WIDE = 16, 512
"""Least and largest number of contacts that are visited at once, see `_width`."""
NEAR = 2.0
"""Contacts that close within this multiple of the largest approach at one of their bodies come first."""


class ColouredGaussSeidel(AbstractContactSolver):
    """Block Gauss-Seidel on contacts between bodies, contact after contact with the newest velocities.

        z_i ← (1 − omega) z_i + omega (the multiplier of the contact's own law, all others held),
        v ← v + A^-1 H_i^T dz_i

    That multiplier is found by `inner` projected steps. Contacts that share no body have one colour and are
    visited together. Sweeps are extrapolated from the last ones by least squares (Anderson's acceleration);
    where they grow, the history is dropped. Contacts that are far from closing come last, and are visited
    only if a test every ten sweeps finds that they would push. No matrix between contacts is formed. In
    piles with friction it needs a fraction of the iterations of gradient methods, and goes on where they
    stall.

    Only for steps of free bodies, whose contacts are solved without W; a chain leaves it out of other
    problems. Many contacts on one body, as on a large slab, are visited one by one.

    **Arguments:** `steps`: largest number of sweeps; `tolerance`: residual to reach (`None`: 1e-9 in
    float64, 1e-5 in float32); `inner`: iterations on one contact; `relaxation`: `omega` in (0, 2);
    `memory`: number of sweeps that are extrapolated from.

    **Raises:** `ValueError` if it is to solve other problems alone.

    Reference: F. Jourdan, P. Alart, M. Jean (1998), doi:10.1016/S0045-7825(97)00137-0; H. Walker, P. Ni
    (2011), doi:10.1137/10078356X; the colours: M. Jones, P. Plassmann (1993), doi:10.1137/0914041.
    """

    steps: int = eqx.field(default=2000, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    inner: int = eqx.field(default=4, static=True, kw_only=True)
    relaxation: float = eqx.field(default=1.3, static=True, kw_only=True)
    memory: int = eqx.field(default=5, static=True, kw_only=True)

    explores = True
    resumes = False
    block = BLOCK

    def __check_init__(self):
        check_tolerance(self.tolerance)
        if not 0 < self.relaxation < 2:
            raise ValueError(f"relaxation must lie in (0, 2), got {self.relaxation}.")
        if self.inner < 2:
            raise ValueError(f"inner must be at least 2, got {self.inner}.")
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")

    def suits(self, problem: DenseProblem) -> bool:
        return isinstance(problem.W, ManyBodies)

    def by_bodies(self) -> "ColouredGaussSeidel":
        return self

    def init(self, problem: DenseProblem, z0: Array) -> "_State":
        operator = problem.W
        if not isinstance(operator, ManyBodies):
            raise ValueError(
                "ColouredGaussSeidel solves steps of free bodies, and this problem has a matrix W between "
                "its contacts; use ProjectedGaussSeidel, or AcceleratedProjectedGradient for products."
            )
        q, start = problem.split(problem.q), problem.split(z0)
        approach = jnp.zeros(operator.rows[0].count, problem.q.dtype)
        for rows, x in zip(operator.rows, q, strict=True):
            for _, bodies in rows.sides():
                approach = approach.at[bodies].max(-x[0, :, 0])
        parts = zip(operator.rows, problem.contacts, q, start, strict=True)
        laws = tuple(_arranged(operator, *part, NEAR * approach) for part in parts)
        pairs = zip(laws, problem.split(z0), strict=True)
        z = [law.sorted(x[..., 0]) for law, x in pairs]
        v = _velocity(laws, z)
        # Impulses of unlike contacts compare by the root of their block of W.
        pairs = zip(laws, problem.split(1 / jnp.sqrt(problem.steps())), strict=True)
        weight = _flat([law.sorted(x[..., 0]) for law, x in pairs], jnp.zeros_like(v))
        return _State(z0, laws, weight, History.empty(_flat(z, v), self.memory))

    def step(self, problem: DenseProblem, state: "_State") -> "_State":
        """`BLOCK` extrapolated sweeps."""
        laws, history = state.laws, state.history
        z, _ = _parts(laws, history.y)
        # Velocities are updated by differences, whose rounding errors are removed here.
        v = _velocity(laws, z)
        history = history._replace(y=_flat(z, v))
        visited = [law.visited(x, v) for law, x in zip(laws, z, strict=True)]

        def once(_, history):
            z, v = _parts(laws, history.y)
            for i, law in enumerate(visited):
                z[i], v = law.sweep(z[i], v, self.inner, self.relaxation)
            return history.extrapolated(_flat(z, v), state.weight)

        history = jax.lax.fori_loop(0, BLOCK, once, history)
        pairs = zip(laws, _parts(laws, history.image)[0], strict=True)
        z = join([law.unsorted(x)[..., None] for law, x in pairs])
        return _State(problem.project(z), laws, state.weight, history)


def _flat(z: list[Array], v: Array) -> Array:
    return jnp.concatenate([x.ravel() for x in (*z, v)])


def _parts(laws: tuple["_Law", ...], y: Array) -> tuple[list[Array], Array]:
    """The impulses of every law and the velocities `(b, s)` of a vector of `_flat`."""
    z, at = [], 0
    for law in laws:
        z.append(y[at : at + law.offset.size].reshape(law.offset.shape))
        at += law.offset.size
    return z, y[at:].reshape(laws[0].count, -1)


def _velocity(laws: tuple["_Law", ...], z: list[Array]) -> Array:
    """The change of velocity by impulses, `A^-1 H^T z`, `(b, s)`."""
    v = jnp.zeros((laws[0].count, laws[0].sides[0].pushes.shape[0]), z[0].dtype)
    for law, x in zip(laws, z, strict=True):
        for side in law.sides:
            v = v.at[side.bodies].add(jnp.sum(side.pushes * x[None], axis=1).T)
    return v


class _Side(NamedTuple):
    """One side of contacts in the order of their colours, with a visit of empty ones at the end."""

    values: Float[Array, "k s c"]
    pushes: Float[Array, "s k c"]  # A^-1 H^T
    bodies: Int[Array, " c"]


class _Law(eqx.Module):
    """The contacts under one law in the order of their colours.

    **Arguments:** `sides`; `own`: the block of each contact on the diagonal of W; `offset`; `law`: with its
    numbers for every contact; `starts`, `sizes`: first contact and number of the contacts of each visit,
    `visits` of them; `order`: the contacts in this order; `rho`: the step on one contact. `count`: of bodies;
    `width`: contacts of a visit.
    """

    sides: tuple[_Side, ...]
    own: Float[Array, "k k c"]
    offset: Float[Array, "k c"]
    law: AbstractLaw
    starts: Int[Array, " n"]
    sizes: Int[Array, " n"]
    visits: Int[Array, ""]
    order: Int[Array, " n"]
    rho: Float[Array, " c"]
    count: int = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def sorted(self, x: Float[Array, "k n"]) -> Float[Array, "k c"]:
        return _padded(x[:, self.order], self.width)

    def unsorted(self, x: Float[Array, "k c"]) -> Float[Array, "k n"]:
        known = x[:, : len(self.order)]
        return jnp.zeros_like(known).at[:, self.order].set(known, unique_indices=True)

    def visited(self, z: Float[Array, "k c"], v: Float[Array, "b s"]) -> "_Law":
        """Without visits of contacts that have no multiplier and would get none."""
        # Fused with what follows, three times as fast; in a visit the iterations would compute it again.
        w = _outputs(self.offset, self.sides, v, short_sum)
        law = jax.tree.map(lambda x: x[:, None], self.law)
        contacts = Contacts(law, jnp.ones((z.shape[1], 1), bool), (z.shape[1], z.shape[0]))
        acts = _acts(contacts, w, z, self.rho[:, None])
        before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(acts, dtype=jnp.int32)])
        n = len(self.starts)
        here = before[self.starts + self.sizes] > before[self.starts]
        here = here & (jnp.arange(n, dtype=jnp.int32) < self.visits)
        (at,) = jnp.nonzero(here, size=n, fill_value=0)
        return eqx.tree_at(
            lambda law: (law.starts, law.sizes, law.visits),
            self,
            (self.starts[at], self.sizes[at], jnp.sum(here, dtype=jnp.int32)),
        )

    def sweep(self, z: Float[Array, "k c"], v: Float[Array, "b s"], inner: int, relaxation: float):
        """Every contact once; returns `z` and `v`."""
        k, width = len(z), self.width

        def visit(i, carry):
            z, v = carry
            start = self.starts[i]

            def here(x):
                return jax.lax.dynamic_slice_in_dim(x, start, width, axis=x.ndim - 1)

            sides = [_Side(*map(here, side)) for side in self.sides]
            own, rho, p = here(self.own), here(self.rho)[:, None], here(z)
            law = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, start, width)[:, None], self.law
            )
            one = Contacts(law, jnp.ones((width, 1), bool), (width, k))
            w = _outputs(here(self.offset), sides, v)

            x, u = p, w
            for _ in range(inner):
                new = projected(one, argument(one, u[..., None], x[..., None], rho))[..., 0]
                x, u = new, u + jnp.sum(own * (new - x)[None], axis=1)
            mine = jnp.arange(width, dtype=jnp.int32) < self.sizes[i]
            change = jnp.where(mine[None], relaxation * (x - p), 0)
            z = jax.lax.dynamic_update_slice_in_dim(z, p + change, start, axis=1)
            for side in sides:
                v = v.at[side.bodies].add(jnp.sum(side.pushes * change[None], axis=1).T)
            return z, v

        return jax.lax.fori_loop(0, self.visits, visit, (z, v))


def _outputs(
    offset: Float[Array, "k c"], sides: Sequence[_Side], v: Float[Array, "b s"], added=jnp.sum
) -> Float[Array, "k c"]:
    """`w = H v + offset`, `(k, c)`; `added` sums over the entries of a row."""
    for side in sides:
        offset = offset + added(side.values * v[side.bodies].T[None], axis=1)
    return offset


def _acts(contacts: Contacts, w: Array, z: Array, rho: Array) -> Bool[Array, " c"]:
    """Which contacts have a multiplier, or get one from a projected step."""
    new = projected(contacts, argument(contacts, w[..., None], z[..., None], rho))
    return jnp.any((z != 0) | (new[..., 0] != 0), axis=0)


def _arranged(
    operator: ManyBodies, rows, contacts: Contacts, offset: Array, z0: Array, margin: Array
) -> _Law:
    """The contacts of a law in the order of their colours, those that may close within `margin` first.

    `margin`: a velocity for every body, `(b,)`.
    """
    sides, c = rows.sides(), contacts.shape[0]
    width = _width(rows.count)
    moves = jnp.stack([jnp.any(x != 0, axis=(0, 1)) for x, _ in sides])
    bodies = jnp.stack([i for _, i in sides]).astype(jnp.int32)
    count = rows.count
    active, some = contacts.active[:, 0], jnp.ones((c, 1), offset.dtype)
    nearer = offset[..., 0].at[0].add(-jnp.max(margin[bodies], axis=0))
    near = active & _acts(contacts, nearer, z0[..., 0], some)
    colour = colours(bodies, moves, near, count)
    behind = jnp.max(jnp.where(colour < c, colour, -1), initial=-1) + 1
    colour = jnp.where(near, colour, colours(bodies, moves, active & ~near, count) + behind)
    order = jnp.argsort(colour)
    colour = colour[order]
    first = jnp.searchsorted(colour, colour, side="left").astype(jnp.int32)
    end = jnp.searchsorted(colour, colour, side="right").astype(jnp.int32)
    place = jnp.arange(c, dtype=jnp.int32)
    begins = ((place - first) % width == 0) & (colour < c)
    (starts,) = jnp.nonzero(begins, size=c, fill_value=0)
    starts = starts.astype(jnp.int32)
    sizes = jnp.minimum(end[starts] - starts, width)
    some = jnp.any(active)
    arranged = []
    for x, i in sides:
        i = _padded(i[order], width)
        x = staged(some, lambda x: _padded(x[..., order], width), x)
        arranged.append(_Side(x, staged(some, _pushes, operator, x, i), i))
    own = staged(some, _own_blocks, arranged)
    # The best step for eigenvalues between the least diagonal entry and the largest sum of a row. Rows
    # that hardly move, as those of rolling, would make it so long that the others only change their sign.
    size = jnp.max(jnp.sum(jnp.abs(own), axis=1), axis=0)
    least = jnp.min(jnp.diagonal(own), axis=1)
    size = (size + jnp.maximum(least, size / 4)) / 2

    def each(x):
        """A number of the law for every contact."""
        return jnp.pad(jnp.broadcast_to(x, (c, 1))[order, 0], (0, width), mode="edge")

    law = jax.tree.map(each, contacts.law)
    rho = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
    offset = _padded(offset[:, order, 0], width)
    visits = jnp.sum(begins, dtype=jnp.int32)
    return _Law(tuple(arranged), own, offset, law, starts, sizes, visits, order, rho, count, width)


def _pushes(operator: ManyBodies, x: Float[Array, "k s c"], bodies: Array) -> Float[Array, "s k c"]:
    """The change of a body's velocity by each impulse, `A^-1 H^T`."""
    mobility = operator.scale * operator.mobility.blocks[:, :, bodies]
    return short_sum(mobility[:, :, None] * jnp.swapaxes(x, 0, 1)[None], axis=1)


def _own_blocks(sides: Sequence[_Side]) -> Float[Array, "k k c"]:
    """The block of each contact on the diagonal of W."""
    total = 0.0
    for a in sides:
        for b in sides:
            both = short_sum(a.values[:, :, None] * b.pushes[None], axis=1)
            total = total + jnp.where(a.bodies == b.bodies, both, 0)
    return total  # pyright: ignore[reportReturnType]


def _width(bodies: int) -> int:
    """How many contacts between so many bodies are visited at once, a power of two.

    Narrow visits are many, and each takes microseconds to start; of wide ones the last of each colour is
    mostly empty. With one for 6 to 12 bodies the two are about equal, measured on 200 and 1,000 spheres.
    """
    return min(max(NARROW, 2 ** int(math.log2(max(bodies, 6) / 6))), WIDE)


def _padded(x: Array, width: int) -> Array:
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, width),))


def colours(
    bodies: Int[Array, "s c"], moves: Bool[Array, "s c"], active: Bool[Array, " c"], count: int
) -> Int[Array, " c"]:
    """A colour for each contact, such that those of one colour share no body; `c` where nothing moves.

    In each round those contacts get its number that come first, in a random order, at all of their bodies.
    """
    c = active.shape[0]
    # The order is drawn when the program is made: to shuffle in a step takes as long as all rounds.
    rank = np.random.default_rng(0).permutation(c).astype(np.int32) + 1

    def proceed(carry):
        return jnp.any(carry[1])

    def body(carry):
        colour, waiting, number = carry
        asked = jnp.where(waiting, rank, 0)
        top = jnp.zeros(count, jnp.int32).at[bodies].max(jnp.where(moves, asked[None], 0))
        won = waiting & jnp.all(~moves | (top[bodies] == asked[None]), axis=0)
        return jnp.where(won, number, colour), waiting & ~won, number + 1

    waiting = active & jnp.any(moves, axis=0)
    start = jnp.full(c, c, jnp.int32), waiting, jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(proceed, body, start)[0]


class _State(eqx.Module):
    z: Array
    laws: tuple[_Law, ...]
    weight: Array
    history: History
