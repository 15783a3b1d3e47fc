"""Contacts of points, nodes, round bodies and shapes."""
