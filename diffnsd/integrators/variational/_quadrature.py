"""Quadrature on [0, 1] and the polynomials of Galerkin methods: NumPy data, exact to rounding."""

import functools
import math
from fractions import Fraction

import equinox as eqx
import numpy as np
from numpy.polynomial import Legendre


class Quadrature(eqx.Module):
    """Nodes and weights of a quadrature on [0, 1].

    **Arguments:** `nodes`, `weights`: numbers, as many of one as of the other; `order`: the smallest
    power that is not integrated exactly.
    """

    nodes: tuple[float, ...] = eqx.field(static=True)
    weights: tuple[float, ...] = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __check_init__(self):
        if not self.nodes or len(self.nodes) != len(self.weights):
            raise ValueError(
                f"a quadrature needs as many weights as nodes, at least one: got {len(self.nodes)} "
                f"nodes and {len(self.weights)} weights."
            )


def gauss(points: int) -> Quadrature:
    """The quadrature of Gauss, exact for polynomials of degree `2 points − 1`.

    **Raises:** `ValueError` if `points < 1`.
    """
    if points < 1:
        raise ValueError(f"Gauss quadrature needs at least 1 point, got {points}.")
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return Quadrature(_numbers((nodes + 1) / 2), _numbers(weights / 2), 2 * points)


def lobatto(points: int) -> Quadrature:
    """The quadrature of Lobatto, both ends included, exact for degree `2 points − 3`.

    **Raises:** `ValueError` if `points < 2`.
    """
    if points < 2:
        raise ValueError(f"Lobatto quadrature needs at least 2 points, got {points}.")
    legendre = Legendre.basis(points - 1)
    inner = np.sort(np.real(legendre.deriv().roots())) if points > 2 else np.zeros(0)
    for _ in range(3):  # polish: roots of a companion matrix lose a few digits
        inner = inner - legendre.deriv()(inner) / legendre.deriv(2)(inner) if points > 2 else inner
    nodes = np.concatenate([[-1.0], inner, [1.0]])
    weights = 2 / (points * (points - 1) * legendre(nodes) ** 2)
    return Quadrature(_numbers((nodes + 1) / 2), _numbers(weights / 2), 2 * points - 2)


def _numbers(x) -> tuple[float, ...]:
    return tuple(float(v) for v in x)


@functools.cache
def basis(stages: int, nodes: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lagrange polynomials on the `stages + 1` points of Lobatto, without the one at 0.

    **Returns:** their points without 0, shape `(s,)`, and values and derivatives at `nodes`, each
    of shape `(len(nodes), s)`.
    """
    # In rational numbers: what is rounded here is the same in every step, an error that no shorter
    # step removes (the sums of slopes must be those of linear motion to rounding).
    points = [Fraction(x) for x in lobatto(stages + 1).nodes]
    at = [Fraction(x) for x in nodes]
    values, slopes = [], []
    for i in range(1, stages + 1):
        others = points[:i] + points[i + 1 :]
        scale = math.prod(points[i] - x for x in others)
        values.append([math.prod(t - x for x in others) / scale for t in at])
        without = [others[:k] + others[k + 1 :] for k in range(stages)]
        slopes.append([sum(math.prod(t - x for x in rest) for rest in without) / scale for t in at])
    return np.array(points[1:], float), np.array(values, float).T, np.array(slopes, float).T
