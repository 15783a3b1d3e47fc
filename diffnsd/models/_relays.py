"""Systems with relays: an oscillator, dry friction, a gene network."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import Four, Number, Two, checked_arguments
from .._numerics import as_float
from ..laws import Relay
from ..model import Interaction, Model
from ..relations import FirstOrderLinear, FirstOrderType1
from ..systems import FirstOrderSystem


@checked_arguments
def relay_oscillator(gain: Number = 1.0, stiffness: Number = 3.0, damping: Number = 2.0) -> Model:
    """Relay feedback on a third-order system: `x1''' + damping x1'' + stiffness x1' = lam`.

    With `lam ∈ −gain Sgn(x1)` and `x = (x1, x1', x1'')`; it settles on a limit cycle.

    **Arguments:** `gain`: bound of the relay, positive; `stiffness`, `damping`: positive.

    Reference: K. Johansson, A. Barabanov, K. Åström, Limit cycles with chattering in relay feedback
    systems (2002), doi:10.1109/TAC.2002.802770.
    """
    k, d = as_float(stiffness), as_float(damping)
    one, zero = jnp.ones_like(k), jnp.zeros_like(k)
    a = jnp.stack(
        [jnp.stack([zero, one, zero]), jnp.stack([zero, zero, one]), jnp.stack([zero, -k, -d])]
    )
    relation = FirstOrderLinear([[1.0, 0.0, 0.0]], [[0.0], [0.0], [1.0]])
    law = Relay(-as_float(gain), as_float(gain))
    return Model(FirstOrderSystem.linear(a), Interaction(relation, law))


class _Thresholds(eqx.Module):
    values: Float[Array, "4"]

    def __call__(self, t, x):
        del t
        return self.values - x[jnp.array([0, 1, 0, 1])]


class _Production(eqx.Module):
    rate: Float[Array, ""]

    def __call__(self, t, lam):
        del t
        return self.rate * jnp.stack([(1 - lam[2]) * lam[1], lam[0] * (1 - lam[3])])


class _Decay(eqx.Module):
    rates: Float[Array, "2"]

    def __call__(self, t, x, args):
        del t, args
        return -self.rates * x


@checked_arguments
def gene_network(
    thresholds: Four = (4.0, 4.0, 8.0, 8.0),
    rate: Number = 40.0,
    decay: Two = (4.5, 1.5),
) -> Model:
    """Two genes that switch each other on above a threshold, and themselves off above another.

        x1' = −decay1 x1 + rate s(x2 − threshold2) (1 − s(x1 − threshold3))
        x2' = −decay2 x2 + rate s(x1 − threshold1) (1 − s(x2 − threshold4))

    The steps `s` from 0 to 1 are the multipliers of four relays, which enter bilinearly. Concentrations
    slide along the thresholds where their production is switched off.

    **Arguments:** `thresholds`: `(4,)`; `rate`; `decay`: `(2,)`.

    Reference: V. Acary, H. de Jong, B. Brogliato, Numerical simulation of piecewise-linear models of
    gene regulatory networks (2014), doi:10.1016/j.physd.2013.11.013.
    """
    system = FirstOrderSystem(_Decay(as_float(decay)), n=2)
    relation = FirstOrderType1(_Thresholds(as_float(thresholds)), _Production(as_float(rate)), 4)
    return Model(system, Interaction(relation, Relay(0.0, 1.0)))
