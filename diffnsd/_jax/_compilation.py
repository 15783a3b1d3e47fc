"""How programs are compiled that are long and run for seconds."""

from functools import lru_cache
from typing import Any

import jax

OLDER_GENERATOR = {"xla_cpu_use_fusion_emitters": False}


@lru_cache(maxsize=1)
def quickly_compiled() -> dict[str, Any]:
    """Arguments of `jax.jit` for the older code generator of XLA on a CPU; none where there is none.

    It runs as fast, and compiles in three quarters of the time (measured: the gradient of 200 steps of a
    hopper, 16 of them, 49 s and 37 s). Other devices ignore it. A version of XLA that does not know the
    option refuses it, so that it is tried first.
    """
    try:
        found: Any = jax.jit(lambda x: x, compiler_options=OLDER_GENERATOR)
        found.lower(0.0).compile()
    except (RuntimeError, ValueError, TypeError):
        return {}
    return {"compiler_options": OLDER_GENERATOR}
