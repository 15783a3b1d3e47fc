"""Posterior distributions of identified parameters: priors, likelihoods, Laplace's method, samplers."""

from ._likelihood import GaussianNoise as GaussianNoise, StudentNoise as StudentNoise
from ._posterior import Posterior as Posterior, coverage as coverage, posterior as posterior
from ._priors import (
    AbstractPrior as AbstractPrior,
    Flat as Flat,
    LogNormal as LogNormal,
    Normal as Normal,
)
from ._samplers import (
    NUTS as NUTS,
    AbstractSampler as AbstractSampler,
    Ensemble as Ensemble,
    Laplace as Laplace,
)
