"""Identification: bounded parameters, gradient-based fits, least squares, uncertainty, shooting.

Nothing here depends on the physics: models are pytrees, losses and residuals are functions.
"""

from ._base import Parameters as Parameters
from .bayes import (
    NUTS as NUTS,
    AbstractPrior as AbstractPrior,
    AbstractSampler as AbstractSampler,
    Ensemble as Ensemble,
    Flat as Flat,
    GaussianNoise as GaussianNoise,
    Guided as Guided,
    Laplace as Laplace,
    LogNormal as LogNormal,
    Normal as Normal,
    Posterior as Posterior,
    StudentNoise as StudentNoise,
    coverage as coverage,
    posterior as posterior,
)
from .fitting._fit import fit as fit
from .fitting._joint import (
    RunEstimates as RunEstimates,
    joint_least_squares as joint_least_squares,
)
from .fitting._least_squares import least_squares as least_squares
from .fitting._outcome import (
    FIT_RESULTS as FIT_RESULTS,
    Evaluations as Evaluations,
    FitError as FitError,
    FitHistory as FitHistory,
    FitProgress as FitProgress,
    FitResult as FitResult,
    Stage as Stage,
)
from .fitting._programs import Programs as Programs
from .fitting._robust import RobustFit as RobustFit, robust_least_squares as robust_least_squares
from .fitting._starts import Starts as Starts, Valley as Valley, several_starts as several_starts
from .information._informative import (
    Informative as Informative,
    fisher_information as fisher_information,
    informative as informative,
)
from .information._profile import Profile as Profile, profile as profile
from .information._uncertainty import (
    Uncertainty as Uncertainty,
    raw_covariance as raw_covariance,
    uncertainty as uncertainty,
)
from .residuals._by_run import ByRun as ByRun, linearise_by_run as linearise_by_run
from .residuals._linearise import (
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
from .residuals._over_runs import ResidualOverRuns as ResidualOverRuns, SumOverRuns as SumOverRuns
from .residuals._shooting import (
    ShootingPlan as ShootingPlan,
    masked_mean as masked_mean,
    mean_of_means as mean_of_means,
    pad as pad,
    segments as segments,
)
from .unknowns._inertia import (
    PhysicalInertia as PhysicalInertia,
    PhysicalMoments as PhysicalMoments,
)
from .unknowns._parameters import (
    Rebuild as Rebuild,
    Scaled as Scaled,
    Tied as Tied,
    parameters as parameters,
)
from .unknowns._transforms import (
    AbstractTransform as AbstractTransform,
    AtLeast as AtLeast,
    AtMost as AtMost,
    Interval as Interval,
    Positive as Positive,
    Unbounded as Unbounded,
)
