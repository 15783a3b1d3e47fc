"""What cannot be located in the steps of a method, or not be differentiated twice, and what to do instead."""

from ...model import Model
from .._base import AbstractIntegrator
from .._impact import slip_rows
from .._wrapped import restart_problem

ONCE = "EventDriven with friction in space has no second derivatives; use Located(MoreauJean()) for them"


def curvature_problem(inner: AbstractIntegrator, model: Model) -> str | None:
    """Why second derivatives through the impacts of a method are not true for a model, with the remedy.

    The second derivative of a crossing time needs the acceleration at the crossing, and so velocities of
    second order: an error of first order in the velocity leaves one of order zero in the derivative.
    """
    opens = any(not i.law.never_opens for i in model.interactions)
    slides = any(map(slip_rows, model.interactions))
    if not model.system.kind.has_positions or not (opens or slides):
        return None
    name = type(inner).__name__
    jointed = inner.joints_are_first_order and any(i.law.holds_gap for i in model.interactions)
    if not jointed and inner.order >= 2:
        return None
    why = "with joints " if jointed else ""
    remedy = "joints_at=HalfExplicit() or LieVariational()" if jointed else "MoreauJean()"
    return (
        f"second derivatives through impacts need velocities of second order, and {why}{name} has the "
        f"first; use {remedy} in its place, EventDriven(), or differences of first derivatives"
    )


def locating_problem(
    wrapper: AbstractIntegrator, inner: AbstractIntegrator, model: Model
) -> str | None:
    """Why the impacts or switches of a method cannot be located in its steps, with the remedy."""
    name = type(inner).__name__
    if inner.keeps_impact_times:
        return (
            f"{name} finds the times of impacts by itself; use it without {type(wrapper).__name__}"
        )
    problem = restart_problem(wrapper, inner) or model.compliance_problem or inner.supports(model)
    if problem is None and not model.system.kind.has_positions and inner.point != 1:
        return (
            "switches are located for laws that hold at the end of a step, and those of "
            f"{name} hold at {inner.point:g} of it; use EulerMoreau or ZeroOrderHold"
        )
    return problem
