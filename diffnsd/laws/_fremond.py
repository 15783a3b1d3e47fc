"""Frémond's impact law, an instance of Coulomb friction with restitution."""

from .._arguments import Numbers, checked_arguments
from ._base import parameter
from ._coulomb_friction import CoulombFriction


@checked_arguments
def fremond_impact(mu: Numbers, e: Numbers = 0.0, theta: Numbers = 0.5) -> CoulombFriction:
    """Coulomb friction on the mean tangential velocity of an impact: dissipative by construction.

        ū_T = theta u_T⁺ + (1 − theta) u_T⁻,   P_T = −mu P_N ū_T/|ū_T|  or  ū_T = 0
        0 <= u_N⁺ + e u_N⁻ ⟂ P_N >= 0

    Divided by `theta`, this is `CoulombFriction` with `e_t = (1 − theta)/theta`. For
    `theta = 1/2` the work of an impact is `P_T · ū_T + (1 − e)/2 P_N u_N⁻ <= 0`, whatever the
    directions of slip before and after.

    **Arguments:** `mu`, `e`: as in `CoulombFriction`; `theta`: weight of the velocity after the
    impact, in [1/2, 1]; 1 is Coulomb's law on that velocity.

    **Returns:** the law. **Raises:** in a simulation, if a parameter is out of range.

    Reference: M. Frémond, Non-Smooth Thermomechanics (2002), doi:10.1007/978-3-662-04800-9.
    """
    theta = parameter(theta)
    return CoulombFriction(mu, e, (1 - theta) / theta)
