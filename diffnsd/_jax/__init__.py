"""All code that depends on the internals of JAX and XLA, and nothing else.

It contains calls that receive their whole batch at once, calls for only those batch elements that need
them, checkpointed loops, functions that run on scalars, boundaries that the compiler does not fuse
across, and inspection of programs and tracers.
"""

from ._batched_call import AbstractKernel as AbstractKernel, call as call
from ._compilation import quickly_compiled as quickly_compiled
from ._dependence import (
    SecondDerivativeError as SecondDerivativeError,
    depends as depends,
    differentiable_once as differentiable_once,
    differentiable_once_where as differentiable_once_where,
    with_value as with_value,
    without_derivative as without_derivative,
)
from ._fences import always_staged as always_staged, one_by_one as one_by_one, staged as staged
from ._fixed_entries import entries_at as entries_at, runs as runs, sums_at as sums_at
from ._loops import (
    SAVED_NAME as SAVED_NAME,
    AbstractLoopAdjoint as AbstractLoopAdjoint,
    Checkpointed as Checkpointed,
    Direct as Direct,
    bounded_while as bounded_while,
    evaluated_again as evaluated_again,
    scan as scan,
)
from ._masked_call import (
    call_where as call_where,
    repeat_where_pending as repeat_where_pending,
    settle_where_pending as settle_where_pending,
    where as where,
)
from ._repetition import without_repetition as without_repetition
from ._scalarise import on_components as on_components
from ._tracers import concrete as concrete, eval_now as eval_now, is_traced as is_traced
