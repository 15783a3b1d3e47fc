"""Quadrature on [0, 1] and the polynomials of Galerkin methods: NumPy data, exact to rounding."""

import functools
from fractions import Fraction

import equinox as eqx
import numpy as np
from numpy.polynomial import Legendre
from numpy.polynomial.polynomial import polyder, polyval

from ..._arguments import AbstractChecked, checked_arguments
from ..._scalar_kernels import lagrange


class Quadrature(AbstractChecked):
    """Nodes and weights of a quadrature on [0, 1].

    **Arguments:** `nodes`, `weights`: numbers, equally many; `order`: the smallest power that is not
    integrated exactly.
    """

    nodes: tuple[float, ...] = eqx.field(static=True)
    weights: tuple[float, ...] = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __check_init__(self):
        if not len(self.nodes) or len(self.nodes) != len(self.weights):
            raise ValueError(
                f"a quadrature needs as many weights as nodes, at least one: got {len(self.nodes)} "
                f"nodes and {len(self.weights)} weights."
            )


@checked_arguments
def gauss(points: int) -> Quadrature:
    """Gauss quadrature, exact for polynomials of degree `2 points − 1`.

    **Raises:** `ValueError` if `points` is not from 1 to 100.
    """
    _check_points(points, 1)
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return Quadrature(_numbers((nodes + 1) / 2), _numbers(weights / 2), 2 * points)


@checked_arguments
def lobatto(points: int) -> Quadrature:
    """Lobatto quadrature, with both ends, exact for polynomials of degree `2 points − 3`.

    **Raises:** `ValueError` if `points` is not from 2 to 100.
    """
    _check_points(points, 2)
    legendre = Legendre.basis(points - 1)
    inner = np.sort(np.real(legendre.deriv().roots())) if points > 2 else np.zeros(0)
    for _ in range(3):  # polish: roots of a companion matrix lose a few digits
        inner = inner - legendre.deriv()(inner) / legendre.deriv(2)(inner) if points > 2 else inner
    nodes = np.concatenate([[-1.0], inner, [1.0]])
    weights = 2 / (points * (points - 1) * legendre(nodes) ** 2)
    return Quadrature(_numbers((nodes + 1) / 2), _numbers(weights / 2), 2 * points - 2)


def _check_points(points: int, least: int) -> None:
    """Beyond a hundred points the rule gains nothing in double precision, and its roots take minutes."""
    if not least <= points <= 100:
        raise ValueError(f"points must be from {least} to 100, got {points}.")


def _numbers(x) -> tuple[float, ...]:
    return tuple(float(v) for v in x)


@functools.cache
def basis(stages: int, nodes: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lagrange polynomials on the `stages + 1` Lobatto points, without the one at 0.

    **Returns:** their points without 0, shape `(s,)`, and values and derivatives at `nodes`, each
    of shape `(len(nodes), s)`.
    """
    points = [Fraction(x) for x in lobatto(stages + 1).nodes]
    polynomials = lagrange(points)[1:]

    def at_nodes(polynomials) -> np.ndarray:
        return np.array([[polyval(Fraction(x), p) for p in polynomials] for x in nodes], float)

    return (
        np.array(points[1:], float),
        at_nodes(polynomials),
        at_nodes([polyder(p) for p in polynomials]),
    )
