"""The size of the program of a step: what it grows by, every compilation pays for."""

import jax
import jax.numpy as jnp
import pytest

from diffnsd import MoreauJean
from diffnsd.models import cube_state, tossed_cube

# Operations of the lowered module, counted with jax 0.10.2. A change that shrinks them by more than
# a tenth is welcome: write down the new number. 900 of them follow the path of tilted solutions, with
# which a step of a settling cube takes a third fewer iterations, 360 find where a step of it bends and 100
# restart at random, which halves the iterations of the slowest of a batch; 250 say where the choice jumps,
# 230 count contacts in Painlevé's region.
# Picking the rows of the contacts that are solved saves 280, but doubles the time of a gradient in a batch.
OPERATIONS = {"step": 6430, "gradient": 10210}


def height(state, mu):
    """Of the cube after one step, with everything that a step computes."""
    model, scheme, h = tossed_cube(mu, 0.1), MoreauJean(theta=1.0), jnp.asarray(1 / 148)
    t0 = jnp.zeros(())
    memory = scheme.init(model, t0, state, None)
    after, info, memory, _ = scheme.step(model, t0, h, state, memory, None)
    return jnp.sum(after.q.position) + jnp.sum(after.v), (after, info, memory)


PROGRAMS = {
    "step": height,
    "gradient": jax.grad(height, argnums=(0, 1), has_aux=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_of_a_cube_step_does_not_grow(name):
    attitude = jnp.array([1.0, 0.0, 0.0, 0.0])
    state = cube_state(jnp.array([0.0, 0.0, 0.1]), attitude, jnp.zeros(3), jnp.zeros(3))
    lowered = jax.jit(PROGRAMS[name]).lower(state, jnp.asarray(0.2))
    count = sum(" = " in line for line in lowered.as_text().splitlines())
    known = OPERATIONS[name]
    assert 0.9 * known < count < 1.1 * known, f"{count} operations, {known} before"
