"""Any solver can be given to any integrator, and every answer says what solved it."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    RESULTS,
    ComplementarityProblem,
    State,
    integrators,
    simulate,
    solve_complementarity,
)
from diffnsd.complementarity import (
    AcceleratedProjectedGradient,
    Auto,
    Chain,
    Enumeration,
    InteriorPoint,
    Lemke,
    ProjectedGaussSeidel,
    SemismoothNewton,
    Splitting,
)
from diffnsd.complementarity.solvers import LevenbergMarquardt, Newton, RegularisedNewton
from diffnsd.integrators import EulerMoreau, MoreauJean
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.models import rlc_diode, sliding_block
from diffnsd.sets import HalfLine

GENERAL = (
    Auto(),
    SemismoothNewton(),
    Newton(),
    Splitting(),
    ProjectedGaussSeidel(),
    AcceleratedProjectedGradient(),
    InteriorPoint(),
    Chain((Newton(2), Splitting(200), LevenbergMarquardt())),
)
INTERVALS = Lemke(), Enumeration()


def name(solver):
    return type(solver).__name__


@pytest.mark.slow
@pytest.mark.parametrize("solver", GENERAL, ids=name)
def test_friction_of_a_block(solver):
    """A block slides, is braked by `mu m g h` a step, and stops after `v0 / (mu g)`."""
    mu, g, speed, dt = 0.3, 9.81, 1.0, 0.02
    start = State(jnp.zeros(3), jnp.array([speed, 0.5 * speed, 0.0]))
    # The rounding of a solve may open a contact: the law that looks at the gap holds it.
    law = GapStabilized(CoulombFriction(mu))
    model, method = sliding_block(mu, g, law=law), MoreauJean(theta=1.0, solver=solver)
    run = eqx.filter_jit(lambda: simulate(model, method, 0.0, 0.5, dt, start, throw=False))()
    assert run.result == RESULTS.successful
    # Backward Euler on sliding friction is exact at the end of every step: a constant deceleration.
    size = np.hypot(speed, 0.5 * speed)
    rate = np.maximum(size - mu * g * np.asarray(run.ts), 0) / size
    exact = rate[:, None] * np.array([speed, 0.5 * speed, 0.0])
    # Measured at most 2e-9: the tolerance of the solve.
    np.testing.assert_allclose(run.states.v, exact, rtol=0, atol=1e-6)
    assert np.all(run.stats.residual <= 1e-8) and np.all(run.stats.violation <= 1e-6)
    assert run.stats.solver_names == solver.names


@pytest.mark.slow
@pytest.mark.parametrize("solver", (*GENERAL, *INTERVALS), ids=name)
def test_a_circuit_with_a_diode(solver):
    """Each step of the implicit Euler method by hand: the diode conducts, or it blocks."""
    R, L, C, h, steps = 1e3, 1e-2, 1e-6, 2e-6, 50
    method = EulerMoreau(theta=1.0, gamma=1.0, solver=solver)
    start = State(None, jnp.array([10.0, 0.0]))
    model = rlc_diode(R, L, C)
    run = eqx.filter_jit(lambda: simulate(model, method, 0.0, steps * h, h, start, throw=False))()
    assert run.result == RESULTS.successful
    x, exact = np.array([10.0, 0.0]), [np.array([10.0, 0.0])]
    for _ in range(steps):
        for conducts in (True, False):
            # lam = v / R where it conducts.
            a = np.array([[-1 / (R * C) if conducts else 0.0, -1 / C], [1 / L, 0.0]])
            new = np.linalg.solve(np.eye(2) - h * a, x)
            if (new[0] >= 0) == conducts:
                break
        x = new
        exact.append(x)
    # Measured at most 1e-8, of 10 V.
    np.testing.assert_allclose(run.states.v, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("solver", INTERVALS, ids=name)
def test_solvers_of_intervals_refuse_friction_in_a_step(solver):
    start = State(jnp.zeros(3), jnp.array([1.0, 0.0, 0.0]))
    with pytest.raises(
        ValueError, match=r"cannot solve the contacts of a step: .*use Auto\(\) for"
    ):
        simulate(sliding_block(), MoreauJean(solver=solver), 0.0, 0.02, 0.02, start)


def test_the_default_is_a_chain_that_prints_itself():
    text = repr(Auto())
    assert text.startswith("Chain(") and "RegularisedNewton(" in text
    names = Auto().names
    assert names[0] == "start" and {"Newton", "Splitting", "Lemke", "Enumeration"} <= set(names)
    assert Chain((Auto(rounds=0), Lemke())).names == (
        "start",
        "Newton",
        "Lemke",
        "LevenbergMarquardt",
    )
    again = Chain((Newton(5), Splitting(9), Newton(40), Newton(80))).names
    assert again[1:] == ("Newton", "Splitting", "Newton 2", "Newton 3")
    with pytest.raises(ValueError, match=r"a chain needs a method at least"):
        Chain(())
    with pytest.raises(
        TypeError, match=r"an entry of methods is the class Newton; pass an instance"
    ):
        Chain((Newton,))
    with pytest.raises(
        TypeError, match=r"such as .*Newton\(10\).*got .*diffnsd.integrators.Newton"
    ):
        Chain((integrators.Newton(5),))


@pytest.mark.slow
def test_a_solution_says_which_link_solved_it():
    """A link that has no time to solve it, and one that can; and a start that is a solution already."""
    random = np.random.default_rng(0)
    root = random.normal(size=(6, 6))
    W, q = jnp.asarray(root @ root.T / 6 + 0.1 * np.eye(6)), jnp.asarray(random.normal(size=6))
    problem = ComplementarityProblem(W, q, ((HalfLine(), (6, 1)),))
    chain = Chain((AcceleratedProjectedGradient(10), Lemke()))
    out = solve_complementarity(problem, chain)
    assert out.solved_by == 2 and out.solver == "Lemke" and out.residual < 1e-9
    assert out.violation < 1e-9
    again = solve_complementarity(problem, chain, warm_start=out.z)
    assert again.solved_by == 0 and again.solver == "start" and again.iterations == 0


@pytest.mark.slow
def test_one_notion_of_success():
    """The residual beside the accept tolerance decides, and nothing else does."""
    W, q = jnp.eye(3) + 0.5, jnp.array([-1.0, 0.5, -0.2])
    problem = ComplementarityProblem(W, q, ((CoulombFriction(0.5), (1, 3)),))
    rough = Chain((Splitting(25),), tolerance=1e-14)
    out = solve_complementarity(problem, rough, throw=False)
    assert out.residual > 1e-14 and out.result == RESULTS.not_converged
    content = Chain((Splitting(25),), tolerance=1e-14, accept_tolerance=float(2 * out.residual))
    assert solve_complementarity(problem, content).z.shape == (3,)
    assert Auto(tolerance=1e-13).accept_tolerance_for(q.dtype) == 1e-13
    assert Auto().accept_tolerance_for(q.dtype) == 1e-8


@pytest.mark.slow
def test_links_of_one_kind_keep_their_numbers():
    """The first of two links does all of its own passes, whatever those of the second are."""
    random = np.random.default_rng(8)
    root = random.normal(size=(6, 6))
    W, q = jnp.asarray(root @ root.T / 6 + 0.1 * np.eye(6)), jnp.asarray(random.normal(size=6))
    problem = ComplementarityProblem(W, q, ((HalfLine(), (6, 1)),))
    many, one = RegularisedNewton(60, 1, 1), RegularisedNewton(1, 1, 1)
    alone = solve_complementarity(problem, Chain((many,)))
    both = solve_complementarity(problem, Chain((many, one)))
    assert both.solved_by == 1 and both.iterations == alone.iterations
