"""The interface of a convex set `K` of multipliers of one contact.

A set works on the `k` rows of a contact along the first axis, `z` of shape `(k, ...)`; the trailing
axes are contacts and elements of a batch, and the parameters of the set broadcast over them. Matrices
are nested lists of arrays `(...)`, so that everything stays elementwise.
"""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float

Rows = Float[Array, "k ..."]
Blocks = list[list[Array]]


class AbstractSet(eqx.Module):
    """A closed convex set in `R^k` that is easy to project on."""

    @abstractmethod
    def project(self, z: Rows) -> Rows:
        """Euclidean projection of `z` on the set."""

    @abstractmethod
    def jacobian(self, z: Rows) -> Blocks:
        """One element of the B-subdifferential of the projection, `k x k` arrays `(...)`."""

    @abstractmethod
    def prox(self, z: Rows, kappa: Array) -> Rows:
        """Proximal map of `kappa` times the logarithmic barrier: tends to `project` as kappa -> 0.

        The point `p` of the central path: `p - z = kappa * (gradient of the barrier at p)`.
        """

    @abstractmethod
    def margin(self, z: Rows) -> Array:
        """Distance of `z` to the nearest change of mode of the projection, shape `(...)`."""

    def refuses(self, rows: int) -> str | None:
        """Why the set cannot be one of `rows` rows, in the user's terms, or `None`."""
        del rows
        return None

    def interval(self) -> tuple[Array | float, Array | float] | None:
        """The bounds `(lower, upper)` of every row if the set is a product of intervals, else `None`.

        Bounds that are the same for all values of the parameters are numbers, others arrays.
        """
        return None

    def unilateral(self) -> bool:
        """Whether the set is a cone that holds the first axis: velocities of its dual have `w_0 >= 0`."""
        return False

    def check(self) -> str | None:
        """What is wrong with the parameters whose values are known, in the user's terms."""
        return None
