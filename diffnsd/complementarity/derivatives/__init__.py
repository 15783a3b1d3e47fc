"""The implicit derivative of the solution, and what it is of."""
