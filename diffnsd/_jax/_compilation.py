"""How programs are compiled that are long and run for seconds."""

from functools import lru_cache
from typing import Any

import jax

OLDER_GENERATOR = {"xla_cpu_use_fusion_emitters": False}


@lru_cache(maxsize=1)
def quickly_compiled() -> dict[str, Any]:
    """Arguments of `jax.jit` for the older code generator of XLA on a CPU; none where there is none.

    It compiles in three quarters of the time and runs no slower (measured: 256 hoppers 28 s for 39 and 34
    us a step for 39, 256 ants 27 s for 35 and 66 us for 73, the gradient of 256 hoppers 50 s for 62 and 89
    us for 98, one after the other on a slow machine). Other devices ignore it. A version of XLA that does
    not know the option refuses it, so that it is tried first.
    """
    try:
        found: Any = jax.jit(lambda x: x, compiler_options=OLDER_GENERATOR)
        found.lower(0.0).compile()
    except (RuntimeError, ValueError, TypeError):
        return {}
    return {"compiler_options": OLDER_GENERATOR}
