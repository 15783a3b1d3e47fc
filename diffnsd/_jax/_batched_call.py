"""Kernels: iterations that JAX sees as a single operation, and how they receive a batch.

A kernel is a separate primitive. It is traced once, when it is compiled, whatever transformations were
applied before. Its derivative is its own rule, under any composition of forward and reverse mode. `vmap`
passes it a whole batch at once, with the batch on the last axis. On a CPU it is then a stage of its own:
otherwise XLA computes what leads to an operand again in every operation of the kernel that reads it.
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import PyTree

from ._fences import always_staged


class AbstractKernel(eqx.Module):
    """A function of pytrees of arrays that is elementwise in all axes after the documented ones.

    Under `vmap` it is called once for the whole batch (nested `vmap`s add further trailing axes), and
    its loops may end when the last batch element has finished. Its own fields are static.
    """

    @abstractmethod
    def __call__(self, *args: PyTree) -> PyTree:
        """The values."""

    @abstractmethod
    def shapes(self, *args: PyTree) -> PyTree:
        """Anything with the structure, shapes and dtypes of the values."""

    def jvp(self, primals: tuple, tangents: tuple) -> tuple[PyTree, PyTree]:
        """Values and their tangents, two tuples; the tangent is `None` for values that have none."""
        raise NotImplementedError(f"{type(self).__name__} has no derivative.")


kernel_p = Primitive("diffnsd_kernel")
kernel_p.multiple_results = True


def call(kernel: AbstractKernel, *args: PyTree) -> Any:
    """Evaluates `kernel(*args)` as a single operation."""
    leaves, tree = jax.tree.flatten(args)
    leaves = [jnp.asarray(x) for x in leaves]
    structure = jax.tree.structure(kernel.shapes(*jax.tree.unflatten(tree, leaves)))
    out = kernel_p.bind(*leaves, kernel=kernel, tree=tree, is_batched=False)
    return jax.tree.unflatten(structure, out)


def _evaluate(*leaves, kernel, tree, **_):
    return jax.tree.leaves(kernel(*jax.tree.unflatten(tree, leaves)))


def _evaluate_on_cpu(*leaves, kernel, tree, is_batched):
    """As a stage of its own in a batch; alone, where arrays are small, a stage costs more than it saves."""
    evaluate = partial(_evaluate, kernel=kernel, tree=tree)
    if not is_batched:
        return evaluate(*leaves)
    # What an empty array says is known to the compiler, which then removes the boundary.
    probe = min(leaves, key=lambda x: (x.size == 0, x.size))
    return always_staged(probe, evaluate, *leaves)


@eqx.filter_jit
def _evaluate_compiled(leaves, kernel, tree):
    return _evaluate(*leaves, kernel=kernel, tree=tree)


@kernel_p.def_impl
def _impl(*leaves, kernel, tree, **_):
    return _evaluate_compiled(leaves, kernel, tree)


@kernel_p.def_abstract_eval
def _abstract(*avals, kernel, tree, **_):
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
    out = jax.tree.leaves(kernel.shapes(*jax.tree.unflatten(tree, structs)))
    return [ShapedArray(x.shape, x.dtype) for x in out]


def _batch(leaves, dims, *, kernel, tree, **_):
    size = next(x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None)

    def to_last(x, dim):
        if dim is None:
            return jnp.broadcast_to(x[..., None], (*x.shape, size))
        return jnp.moveaxis(x, dim, -1)

    out = kernel_p.bind(*map(to_last, leaves, dims), kernel=kernel, tree=tree, is_batched=True)
    return out, [x.ndim - 1 for x in out]


def _differentiate(primals, tangents, *, kernel, tree, **_):
    tangents = [ad.instantiate_zeros(t) for t in tangents]
    pair = jax.tree.unflatten(tree, primals), jax.tree.unflatten(tree, tangents)
    out, moved = kernel.jvp(*pair)
    flat = []
    for values, part in zip(out, moved, strict=True):
        leaves = jax.tree.leaves(values)
        zero = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in leaves]
        flat += zero if part is None else jax.tree.leaves(part)
    return jax.tree.leaves(out), flat


ad.primitive_jvps[kernel_p] = _differentiate
batching.primitive_batchers[kernel_p] = _batch
mlir.register_lowering(kernel_p, mlir.lower_fun(_evaluate, multiple_results=True))
mlir.register_lowering(
    kernel_p, mlir.lower_fun(_evaluate_on_cpu, multiple_results=True), platform="cpu"
)
