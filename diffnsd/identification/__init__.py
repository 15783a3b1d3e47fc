"""Identification: bounded parameters, gradient-based fits, least squares, uncertainty, shooting.

Nothing here depends on the physics: models are pytrees, losses and residuals are functions.
"""

from ._base import Parameters as Parameters
from ._by_run import ByRun as ByRun, linearise_by_run as linearise_by_run
from ._fit import fit as fit
from ._inertia import PhysicalInertia as PhysicalInertia, PhysicalMoments as PhysicalMoments
from ._informative import (
    Informative as Informative,
    fisher_information as fisher_information,
    informative as informative,
)
from ._joint import (
    RunEstimates as RunEstimates,
    joint_least_squares as joint_least_squares,
)
from ._least_squares import least_squares as least_squares
from ._linearise import (
    AbstractJacobian as AbstractJacobian,
    AbstractLinearised as AbstractLinearised,
    AbstractRobustLoss as AbstractRobustLoss,
    AbstractSampledJacobian as AbstractSampledJacobian,
    ForwardJacobian as ForwardJacobian,
    Huber as Huber,
    Linearisation as Linearisation,
    ReverseJacobian as ReverseJacobian,
    SecantJacobian as SecantJacobian,
    linearise as linearise,
)
from ._outcome import (
    FIT_RESULTS as FIT_RESULTS,
    Evaluations as Evaluations,
    FitError as FitError,
    FitHistory as FitHistory,
    FitProgress as FitProgress,
    FitResult as FitResult,
    Stage as Stage,
)
from ._over_runs import ResidualOverRuns as ResidualOverRuns, SumOverRuns as SumOverRuns
from ._parameters import (
    Rebuild as Rebuild,
    Scaled as Scaled,
    Tied as Tied,
    parameters as parameters,
)
from ._profile import Profile as Profile, profile as profile
from ._programs import Programs as Programs
from ._robust import RobustFit as RobustFit, robust_least_squares as robust_least_squares
from ._shooting import (
    ShootingPlan as ShootingPlan,
    masked_mean as masked_mean,
    mean_of_means as mean_of_means,
    pad as pad,
    segments as segments,
)
from ._starts import Starts as Starts, Valley as Valley, several_starts as several_starts
from ._transforms import (
    AbstractTransform as AbstractTransform,
    AtLeast as AtLeast,
    AtMost as AtMost,
    Interval as Interval,
    Positive as Positive,
    Unbounded as Unbounded,
)
from ._uncertainty import (
    Uncertainty as Uncertainty,
    raw_covariance as raw_covariance,
    uncertainty as uncertainty,
)
from .bayes import (
    NUTS as NUTS,
    AbstractPrior as AbstractPrior,
    AbstractSampler as AbstractSampler,
    Ensemble as Ensemble,
    Flat as Flat,
    GaussianNoise as GaussianNoise,
    Laplace as Laplace,
    LogNormal as LogNormal,
    Normal as Normal,
    Posterior as Posterior,
    StudentNoise as StudentNoise,
    coverage as coverage,
    posterior as posterior,
)
