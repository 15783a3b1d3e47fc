"""Measured and constructed problems from the data beside the project, judged by their residual.

The definitions are those of the data's `FORMAT.md`, written again here.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import RESULTS, ComplementarityProblem, solve_complementarity
from diffnsd.laws import Complementarity, CoulombFriction

# Grouped by the size they are filled up to: one compiled solver for a group.
UNILATERAL = {
    12: """lcp_CPS_1 lcp_CPS_2 lcp_CPS_3 lcp_deudeu lcp_ortiz lcp_exp_murty lcp_exp_murty2
    lcp_trivial gen_lcp_pd_n2 gen_lcp_pd_n10 gen_lcp_murty_n4 gen_lcp_murty_n8 gen_lcp_murty_n12
    gen_lcp_psd_n8 gen_lcp_fathi_n8 gen_lcp_contact_n8 gen_lcp_pmatrix_n10 gen_lcp_bimatrix_n11
    gen_lcp_copositive_n12 gen_lcp_lp_kkt_n9""",
    30: """gen_lcp_pd_n20 gen_lcp_psd_n20_2 gen_lcp_contact_n20 lcp_mmc gen_lcp_pd_nonsym_n30""",
}
FRICTION = {
    12: """fc3d_Rover11035 fc3d_Rover11211 fc3d_FrictionContact3D_RR_1c gen_fc3d_pile_n3
    gen_fc3d_pile_n6 gen_fc3d_wedge_n9 gen_fc3d_wedge_n9_3 fc3d_TwoRods1-condensed gen_fc3d_wall_n12
    fc3d_Rover1039 fc3d_Rover4493 fc3d_Rover4516""",
    24: """fc3d_Rover1040 fc3d_Rover1041 fc3d_Rover3865 fc3d_Rover4613 fc3d_Rover9770
    gen_fc3d_pile_n18 gen_fc3d_wall_n24""",
}
WITHOUT_SOLUTION = {12: "gen_lcp_infeasible_n3 gen_fc3d_infeasible_n6"}


def names(*groups):
    return [
        pytest.param(size, name, id=name, marks=() if size == 12 else pytest.mark.slow)
        for group in groups
        for size, listed in group.items()
        for name in listed.split()
    ]


@eqx.filter_jit
def solve_unilateral(W, q):
    law = Complementarity(), (len(q), 1)
    return solve_complementarity(ComplementarityProblem(W, q, (law,)), throw=False)


@eqx.filter_jit
def solve_friction(W, q, mu):
    law = CoulombFriction(mu), (len(mu), 3)
    return solve_complementarity(ComplementarityProblem(W, q, (law,)), throw=False)


def load(folder, name):
    with np.load(folder / "complementarity" / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def run(problem, size):
    """Solves a problem filled up with contacts of their own that stay open."""
    W, q = problem["M"], problem["q"]
    n, more = len(q), size - len(q)
    W = np.block(
        [[W, np.zeros((n, more))], [np.zeros((more, n)), np.mean(np.diag(W)) * np.eye(more)]]
    )
    q = np.concatenate([q, np.mean(np.abs(q)) * np.ones(more)])
    if problem["kind"] == "lcp":
        out = solve_unilateral(jnp.asarray(W), jnp.asarray(q))
    else:
        contacts = size // 3
        q[n:] *= np.arange(n, size) % 3 == 0
        mu = np.full(contacts, 0.5)
        mu[: n // 3] = problem["mu"]
        out = solve_friction(jnp.asarray(W), jnp.asarray(q), jnp.asarray(mu))
    # Exactly zero but for 2.5e-10 where all of W's diagonal is zero.
    assert out.result != RESULTS.successful or np.all(np.abs(np.asarray(out.z)[n:]) < 1e-9)
    return np.asarray(out.z)[:n], bool(out.result == RESULTS.successful)


def natural_map(problem, z, rho):
    w = problem["M"] @ z + problem["q"]
    if problem["kind"] == "lcp":
        return z - np.maximum(0, z - rho * w), w
    u, mu = w.reshape(-1, 3), np.broadcast_to(problem["mu"], len(w) // 3)
    lifted = u + np.outer(mu * np.hypot(u[:, 1], u[:, 2]), [1, 0, 0])
    x = z.reshape(-1, 3) - rho * lifted
    projected = np.zeros_like(x)
    for i in range(len(x)):
        normal, slip = x[i, 0], np.hypot(x[i, 1], x[i, 2])
        if slip <= mu[i] * normal:
            projected[i] = x[i]
        elif mu[i] * slip > -normal:
            on_cone = (normal + mu[i] * slip) / (1 + mu[i] ** 2)
            projected[i] = on_cone * np.array([1, *(mu[i] * x[i, 1:] / slip)])
    return z - projected.ravel(), w


def residuals(problem, z):
    """The residuals `res_rel` and `res_vel`: relative to everything, and in units of velocity."""
    size = np.linalg.norm
    plain, w = natural_map(problem, z, 1.0)
    rho = np.sqrt(len(z)) / size(problem["M"])
    scaled, _ = natural_map(problem, z, rho)
    q = problem["q"]
    return (
        size(plain) / max(size(q), size(z), size(w)),
        size(scaled) / (rho * max(size(q), size(w))),
    )


@pytest.mark.parametrize(("size", "name"), names(UNILATERAL, FRICTION))
def test_solved(size, name, data_dir):
    problem = load(data_dir, name)
    z, successful = run(problem, size)
    relative, velocity = residuals(problem, z)
    # Measured at most 1.4e-9 and 1.4e-9.
    assert successful and relative <= 1e-8 and velocity <= 1e-6
    w, known = (problem["M"] @ x + problem["q"] for x in (z, problem["z"]))
    if str(problem["unique"]) in ("unique", "w-unique"):
        np.testing.assert_allclose(w, known, rtol=0, atol=1e-5 * max(1, np.max(np.abs(known))))


@pytest.mark.parametrize(("size", "name"), names(WITHOUT_SOLUTION))
def test_a_problem_without_solution_is_never_solved(size, name, data_dir):
    """Impulses that grow without bound make a residual relative to them small: no success."""
    _, successful = run(load(data_dir, name), size)
    assert not successful


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gen_fc3d_pile_n60", "gen_fc3d_pile_n60_2", "gen_fc3d_wall_n60"])
def test_large_piles(name, data_dir):
    """Twenty contacts with hyperstatic impulses."""
    problem = load(data_dir, name)
    z, successful = run(problem, 60)
    relative, velocity = residuals(problem, z)
    assert successful and relative <= 1e-8 and velocity <= 1e-6


@pytest.mark.slow
def test_full_newton_steps_change_modes_of_redundant_contacts(data_dir):
    """A stack of boxes on 52 contacts. Steps that only descend need ten times the passes."""
    problem = load(data_dir, "fc3d_BoxesStack1-i100000-32")
    out = solve_friction(*(jnp.asarray(problem[x]) for x in ("M", "q", "mu")))
    relative, velocity = residuals(problem, np.asarray(out.z))
    assert relative <= 1e-8 and velocity <= 1e-6
    # Measured 21, and 236 with a line search in every pass.
    assert int(out.iterations) < 60
