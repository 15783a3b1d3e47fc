"""Repeating a function only where it is needed: few lanes of a batch, or not at all.

Under `vmap` a conditional pays both branches for every lane. Here the lanes that need the function
are gathered, an eighth of the batch at a time; the derivative is that of a plain scan.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp


def repeat_where_pending(body: Callable, run, rounds: int):
    """`run = body(run)` while `run.pending`, at most `rounds` times; `rounds` bounds it already.

    **Arguments:** `body`: pure function from a pytree of arrays with a boolean leaf `pending`, shape
    `()`, to the same; it may close over arrays, and is differentiated in them too. It must clear
    `pending` after `rounds` passes at the latest.

    **Returns:** the last `run`, differentiable in forward and reverse mode.
    """
    run = jax.tree.map(_strong, run)
    body = eqx.filter_closure_convert(lambda r: jax.tree.map(_strong, body(r)), run)
    dynamic, static = eqx.partition((body, run), eqx.is_array)
    floats, others = eqx.partition(dynamic, eqx.is_inexact_array)

    @jax.custom_jvp
    def repeat(floats, others):
        function, run = eqx.combine(floats, others, static)
        return _compact(function, run)

    @repeat.defjvp
    def repeat_jvp(primals, tangents):
        floats, others = primals

        def of_floats(floats):
            function, run = eqx.combine(floats, others, static)

            def once(run, _):
                return jax.lax.cond(run.pending, lambda r: function(r), lambda r: r, run), None

            return jax.lax.scan(once, run, length=rounds)[0]

        return jax.jvp(of_floats, (floats,), (tangents[0],))

    return repeat(floats, others)


def _strong(x):
    """The same array without weak type: loops want carries of one type."""
    return jax.lax.convert_element_type(x, x.dtype) if not x.weak_type else jnp.array(x, x.dtype)


def _compact(function, run):
    """The loop without derivative; under `vmap` on the lanes that need it."""
    dynamic, static = eqx.partition(function, eqx.is_array)

    @jax.custom_batching.custom_vmap
    def call(dynamic, run):
        function = eqx.combine(dynamic, static)
        return jax.lax.while_loop(lambda r: r.pending, lambda r: function(r), run)

    @call.def_vmap
    def rule(lanes, in_batched, dynamic, run):
        batched, run_batched = in_batched
        run = jax.tree.map(
            lambda x, b: x if b else jnp.broadcast_to(x, (lanes, *x.shape)), run, run_batched
        )
        axes = jax.tree.map(lambda b: 0 if b else None, batched)

        def once(dynamic, run):
            return eqx.combine(dynamic, static)(run)

        def body(run):
            if lanes <= 16:
                chosen, own = run, dynamic
            else:
                capacity = max(8, lanes // 8)
                _, index = jax.lax.top_k(run.pending.astype(jnp.int32), capacity)
                chosen = jax.tree.map(lambda x: x[index], run)
                own = jax.tree.map(lambda x, b: x[index] if b else x, dynamic, batched)
            new = jax.vmap(once, in_axes=(axes, 0))(own, chosen)

            def pick(a, b):
                mask = chosen.pending.reshape(chosen.pending.shape + (1,) * (a.ndim - 1))
                return jnp.where(mask, a, b)

            new = jax.tree.map(pick, new, chosen)
            if lanes <= 16:
                return new
            return jax.tree.map(lambda x, y: x.at[index].set(y), run, new)

        run = jax.lax.while_loop(lambda r: jnp.any(r.pending), body, run)
        return run, jax.tree.map(lambda _: True, run)

    return call(dynamic, run)
