"""Many simulations at once: batches in chunks, on all cores or devices."""

from ._rollout import rollout as rollout
