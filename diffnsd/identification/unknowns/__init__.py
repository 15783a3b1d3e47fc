"""What is estimated: parameters, their bounds and the coordinates of the search."""
