"""Programs compiled with the optimisation that users have, which `conftest.py` turns off for tests."""

OPTIMISED = {"xla_backend_optimization_level": 3}
"""For `compiler_options` of `jax.jit`, where what is compared depends on rounding."""
