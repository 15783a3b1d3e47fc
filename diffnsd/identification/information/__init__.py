"""What the data say of the parameters, and what other data would say."""
