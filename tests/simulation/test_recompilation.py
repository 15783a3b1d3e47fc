"""Functions that are defined anew in each call: compiled again, and said once, with the remedy."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from diffnsd import Model, MoreauJean, State, simulate
from diffnsd._recompilation import RecompilationWarning
from diffnsd.simulation._run import COMPILATIONS
from diffnsd.systems import LagrangianSystem

START = State(jnp.ones(1), jnp.zeros(1))


def ends_at(forcing, q=1.0):
    model = Model(LagrangianSystem([[1.0]], forcing=forcing))
    state = State(jnp.full(1, q), jnp.zeros(1))
    return simulate(model, MoreauJean(), 0.0, 0.1, 0.05, state).states.q[-1, 0]


class Spring(eqx.Module):
    stiffness: jax.Array

    def __call__(self, t, state, args):
        return -self.stiffness * state.q


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_function_that_is_defined_anew_is_named_once():
    def sprung(k):
        return ends_at(lambda t, state, args: -k * state.q)

    sprung(2.0)
    with pytest.warns(RecompilationWarning, match="<lambda> .*test_recompilation.py.*Module"):
        sprung(3.0)
    count = COMPILATIONS.count
    sprung(4.0)  # compiled again, and not said again
    assert COMPILATIONS.count == count + 1


def test_functions_inside_of_functions_are_found():
    def sprung(k):
        def law(x):
            return -k * x

        return jax.grad(lambda q: ends_at(jax.jit(lambda t, state, args: law(state.q)), q))(1.0)

    sprung(2.0)
    with pytest.warns(RecompilationWarning, match="law"):
        sprung(3.0)


def test_what_compiles_nothing_or_something_new_is_not_warned_about():
    def sprung(k, n):
        return ends_at(lambda t, state, args: -k * state.q[:n].sum()[None])

    count = COMPILATIONS.count
    ends_at(Spring(jnp.array(2.0)))
    ends_at(Spring(jnp.array(3.0)))  # other values of one program
    assert COMPILATIONS.count == count + 1
    sprung(2.0, 1)
    sprung(jnp.ones(1), 1)  # closes over something else: another program
    ends_at(lambda t, state, args: -2 * state.q)
    ends_at(lambda t, state, args: -3 * state.q)  # other code


def test_inside_of_a_jit_it_is_not_this_call_that_compiles():
    @jax.jit
    def sprung(k):
        return ends_at(lambda t, state, args: -k * state.q)

    sprung(2.0)
    jax.grad(sprung)(3.0)
    jax.jit(jax.vmap(sprung))(jnp.arange(3.0))
