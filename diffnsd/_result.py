"""Outcomes of a computation. The value of each member is a sentence: the cause, then the remedy."""

import equinox as eqx


class RESULTS(eqx.Enumeration):
    """How a solve, a step or a simulation ended.

    Inside compiled code a result is carried as a member of this enumeration; only the outermost
    entry (`simulate`, `solve_complementarity`, ...) raises, and only if `throw=True`.
    """

    successful = "succeeded"
    not_converged = (
        "the complementarity problem did not reach its tolerance; use a smaller step (in a "
        "simulation), more iterations or another solver; the residual is in `stats.residual` of a "
        "simulation, in `residual` of a problem on its own"
    )
    infeasible = (
        "the complementarity problem has no solution: `certificate` is a direction in which every "
        "admissible velocity must grow and the given one falls, whatever the multipliers; look for "
        "contacts or constraints that contradict each other"
    )
    no_smooth_motion = (
        "the laws of the contacts leave no smooth motion at an event, as where friction jams a sliding "
        "contact (Painlevé); use a time-stepping method, such as MoreauJean(), or a smaller mu"
    )
    nonfinite_problem = (
        "the complementarity problem has entries in W or q that are not finite; check the parameters "
        "it was made from"
    )
    nonlinear_not_converged = (
        "Newton's iteration on the smooth equations of a step did not reach its tolerance; use a "
        "smaller step or raise `max_iterations` of the integrator"
    )
    linear_not_solved = (
        "the linear solver of a step failed: its matrix is singular or, for conjugate gradients and "
        "Cholesky, not positive definite, or the iterations ended at `max_steps`; use a smaller step, or "
        "another `linear_solver` of the integrator: SparseLU() for any matrix, MINRES() for symmetric ones"
    )
    nonfinite = (
        "a step produced values that are not finite; check the parameters and the initial state, "
        "or use a smaller step"
    )
    chart_exceeded = (
        "a step was longer than the chart of the group: it turns by about pi or more, h |omega| is "
        "too large; use a smaller step (the state was left as it was before that step)"
    )
    too_many_steps = (
        "the adaptive steps did not reach the end of an interval; raise `max_steps`, loosen the "
        "tolerances, or use a smaller `dt`"
    )
    contact_overflow = (
        "more contacts were active than `max_active` of an interaction allows, or more pairs near each other "
        "than `near` of its shape_contacts; raise it"
    )
    event_occurred = "the simulation was stopped by its event"


def first_error(old: RESULTS, new: RESULTS) -> RESULTS:
    """Combines the results of two consecutive computations: the first failure wins.

    **Arguments:** `old`, `new`: members of `RESULTS`, of any equal batch shape.

    **Returns:** `new` where `old` is `successful`, else `old`.
    """
    return RESULTS.where(old == RESULTS.successful, new, old)


def failed(result: RESULTS):
    """Whether a result is an error (an event is not), as a boolean array."""
    return (result != RESULTS.successful) & (result != RESULTS.event_occurred)
