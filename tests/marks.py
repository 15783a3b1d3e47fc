"""Marks for what need not run each time."""

from collections.abc import Iterable

import pytest


def slow(*values):
    """Parameters of a slow test: a program of its own for what another one proves in kind."""
    return pytest.param(*values, marks=pytest.mark.slow)


def nightly(*values):
    """Parameters of a test of a kind that a shorter one proves, or of one that takes a minute."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def slow_but(quick: Iterable, values: Iterable) -> list:
    """Parameters of a test: all `values`, slow but for the `quick` ones."""
    quick = tuple(quick)
    return [value if value in quick else slow(value) for value in values]
