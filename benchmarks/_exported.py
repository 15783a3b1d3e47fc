"""What the package exports, all valid calls of it, and what nobody calls with arguments of their own."""

import enum
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import equinox as eqx

import diffnsd
from _calls import Call, calls
from _more_calls import more_calls
from _part_calls import part_calls
from _use_calls import use_calls

RECORDS = {
    "": "ComplementaritySolution Pose Solution State",
    "complementarity": "Block MixedProblem Statistics",
    "control": "SampledDetails",
    "diagnostics": "GradientExplanation",
    "identification": (
        "ByRun Evaluations FitHistory FitProgress FitResult Informative Linearisation Parameters Posterior "
        "Profile Programs Rebuild RobustFit RunEstimates Scaled ShootingPlan Starts Tied Uncertainty Valley"
    ),
    "integrators": (
        "Clocked ContactForces FirstOrderDetails Multistep NoMemory StepInfo StepMatrices WarmStart"
    ),
    "io": "Elements",
    "laws": "Context",
    "linear": "NodePattern",
    "model": "Energy",
    "models": "ReadyModel",
    "relations": "ContactPlaces Joint NeighbourContacts",
    "rollout": "BundledGradient",
    "sensors": "Frame Instant Interval",
    "shapes": "Closest Frame",
    "simulation": "EventPoint StepStatistics",
    "systems.elastic": "Equilibrium Shared",
    "apps.fit": "Bands Identified Job Quantity Simulated Spread",
    "apps.mechanism": "Runs",
    "apps.pages": (
        "LearnedCurve LearnedMap Motion ParameterRow PoseErrors PosteriorDraws RunFigures Scores Solid "
        "TossComparison"
    ),
    "apps.toss": "PaddedTosses Toss",
}
"""Plain data: what functions of the package return or take as it is, and check where they take it."""

PARTS = {
    "complementarity": "solve_mixed",
    "identification": "raw_covariance",
    "integrators": "step_residuals",
    "laws": "check_range parameter",
    "model": "skip_if_traced",
    "apps.fit": "about_predictions banded_runs bands draw_and_show fit_and_show identify moved_by "
    "posterior_of print_notes weights write_fit_report write_result",
    "apps.pages": "add_bodies ball_points draw_forces filled_page place quiet_viser ring_points set_stage",
}
"""Functions by which the parts of the package are put together: they get what is checked already."""


def exported() -> dict[str, Callable]:
    """Every class and function of the package and its public folders that is called with arguments, by name.

    Without abstract classes, errors, and enumerations. What a file imports is not what it exports.
    """
    found: dict[int, tuple[str, Callable]] = {}
    for module in _public_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or not callable(value) or _is_no_call(value):
                continue
            home = getattr(value, "__module__", "")
            mine = home == module.__name__ or hasattr(module, "__path__") and _is_ours(home)
            if mine:
                found.setdefault(id(value), (f"{module.__name__}.{name}", value))
    return {name.removeprefix("diffnsd."): value for name, value in found.values()}


def uncalled() -> set[str]:
    """Names that need no valid call."""
    lists = (*RECORDS.items(), *PARTS.items())
    return {f"{folder}.{name}".lstrip(".") for folder, names in lists for name in names.split()}


@functools.cache
def all_calls() -> dict[str, Call]:
    """Valid calls by name: those written down, and constructors without arguments."""
    written = {**calls(), **more_calls(), **part_calls(), **use_calls()}
    called = set(map(id, called_by(written)))
    for name, value in exported().items():
        bare = not _parameters(value)
        if bare and id(value) not in called and name not in uncalled():
            written[name] = (value, (), {})
    return written


def called_by(written: dict[str, Call]) -> Iterator[Callable]:
    """The constructors and functions that have a valid call."""
    for function, _, _ in written.values():
        yield getattr(function, "func", function)


def _parameters(function: Callable) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _is_ours(home: str) -> bool:
    return home == "diffnsd" or home.startswith("diffnsd.")


def _is_no_call(value: Any) -> bool:
    if not isinstance(value, type):
        return False
    abstract = inspect.isabstract(value) or value.__name__.startswith("Abstract")
    named = issubclass(value, BaseException | enum.Enum) or isinstance(value, type(eqx.Enumeration))
    return abstract or named


def _public_modules() -> list[ModuleType]:
    """The package, its folders and files without an underscore, two levels deep (three of applications)."""
    found = [diffnsd]
    for module in pkgutil.walk_packages(diffnsd.__path__, "diffnsd."):
        parts = module.name.split(".")[1:]
        if any(part.startswith("_") for part in parts) or parts[:2] == ["apps", "cli"]:
            continue
        if len(parts) == 1 or parts[0] == "apps" or module.name in DEEPER:
            found.append(importlib.import_module(module.name))
    return found


DEEPER = {
    "diffnsd.complementarity.solvers",
    "diffnsd.systems.elastic",
    "diffnsd.viz.gradient",
    "diffnsd.viz.invariants",
}
