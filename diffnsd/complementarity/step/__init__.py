"""The search for the solution of a step problem."""
