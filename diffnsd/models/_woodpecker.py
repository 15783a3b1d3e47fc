"""The woodpecker toy: a sleeve that jams on a pole, a bird on a spring, and a beak that knocks.

A limit cycle sustained by impacts and dry friction: without jamming the toy would fall, without
the beak the bird would swing out.
"""

import jax.numpy as jnp

from .._arguments import Number, checked_arguments
from .._types import State
from ..laws import CoulombFriction
from ..model import Interaction, Model
from ..relations import GapRelation
from ..systems import LagrangianSystem

SLEEVE_MASS, BIRD_MASS = 3.0e-4, 4.5e-3  # [kg]
SLEEVE_INERTIA, BIRD_INERTIA = 5.0e-9, 7.0e-7  # [kg m²]
SPRING, G = 5.6e-3, 9.81  # [N m/rad], [m/s²]
POLE_RADIUS, SLEEVE_RADIUS, SLEEVE_HALF_HEIGHT = 2.5e-3, 3.1e-3, 5.8e-3  # [m]
TO_SPRING, TO_BIRD = 1.0e-2, 1.5e-2  # sleeve to spring, spring to bird [m]
BEAK_HEIGHT, BEAK_LENGTH = 2.0e-2, 2.01e-2  # [m]


@checked_arguments
def woodpecker(mu=0.3, e_beak: Number = 0.5, stiffness=SPRING) -> Model:
    """The woodpecker toy with small angles: `q (3,)` = height [m], angle of sleeve and bird [rad].

    Three contacts with the pole: the beak, the lower and the upper edge of the sleeve.

    **Arguments:** `mu`: friction coefficient of all contacts; `e_beak`: restitution of the beak,
    that of the sleeve is 0; `stiffness` of the spring [N m/rad].

    Reference: C. Glocker, C. Studer, Formulation and preparation for numerical evaluation of linear
    complementarity systems in dynamics (2005), doi:10.1007/s11044-005-2519-6; the toy's data are
    those of C. Glocker, Dynamik von Starrkörpersystemen mit Reibung und Stößen (1995).
    """
    s, g = BIRD_MASS * TO_SPRING, BIRD_MASS * TO_BIRD
    mass = jnp.array(
        [
            [BIRD_MASS + SLEEVE_MASS, s, g],
            [s, SLEEVE_INERTIA + s * TO_SPRING, s * TO_BIRD],
            [g, s * TO_BIRD, BIRD_INERTIA + g * TO_BIRD],
        ]
    )
    k = jnp.asarray(stiffness, dtype=float) * jnp.array([[0.0, 0, 0], [0, 1, -1], [0, -1, 1]])
    weight = -G * jnp.array([BIRD_MASS + SLEEVE_MASS, s, g])
    e = jnp.stack([jnp.asarray(e_beak, dtype=float), jnp.zeros(()), jnp.zeros(())])
    contact = Interaction(GapRelation(_pole, rows_per_contact=2), CoulombFriction(mu, e))
    return Model(LagrangianSystem.linear(mass, stiffness=k, f_ext=weight), contact)


def _pole(t, q):
    """Gaps to the pole and heights of the contact points, which slide along it."""
    del t
    y, sleeve, bird = q[0], q[1], q[2]
    play = SLEEVE_RADIUS - POLE_RADIUS
    beak = TO_SPRING + TO_BIRD - BEAK_LENGTH - POLE_RADIUS - BEAK_HEIGHT * bird
    tip = y + TO_SPRING * sleeve + (TO_BIRD - BEAK_LENGTH) * bird
    edge = y + SLEEVE_RADIUS * sleeve
    lower, upper = play + SLEEVE_HALF_HEIGHT * sleeve, play - SLEEVE_HALF_HEIGHT * sleeve
    return jnp.stack([jnp.stack(x) for x in ((beak, tip), (lower, edge), (upper, edge))])


@checked_arguments
def woodpecker_state() -> State:
    """A state on the limit cycle, the sleeve jammed and the bird swinging towards the pole."""
    return State(jnp.array([0.0, -0.1036, -0.2788]), jnp.array([-0.3411, 0.0, -7.4583]))
