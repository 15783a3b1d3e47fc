"""Posterior distributions of identified parameters: priors, likelihoods, Laplace's method, samplers."""

from ._ensemble import Ensemble as Ensemble
from ._likelihood import (
    GaussianNoise as GaussianNoise,
    Guided as Guided,
    StudentNoise as StudentNoise,
)
from ._nuts import NUTS as NUTS
from ._posterior import Posterior as Posterior, coverage as coverage, posterior as posterior
from ._priors import (
    AbstractPrior as AbstractPrior,
    Flat as Flat,
    LogNormal as LogNormal,
    Normal as Normal,
)
from ._samplers import AbstractSampler as AbstractSampler, Laplace as Laplace
