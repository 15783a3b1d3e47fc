"""The search for the estimate."""
