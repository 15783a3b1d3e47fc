"""What functions of the user return, and the arguments they take, told by their names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    Checkpointing,
    Event,
    Integral,
    Interaction,
    LagrangianSystem,
    Model,
    MoreauJean,
    NewtonEulerSystem,
    PrescribedVelocity,
    SaveAt,
    State,
    bundled_gradient,
    simulate,
)
from diffnsd.identification import GaussianNoise, least_squares, posterior, several_starts
from diffnsd.laws import DryFriction, NewtonImpact
from diffnsd.relations import GapRelation, RateRelation, sphere_on_sphere

START = State(jnp.zeros(2), jnp.zeros(2))
PARAMS = {"a": jnp.asarray(1.0)}


def run(system=None, interactions=(), prescribed=(), t1=0.1, dt=0.01, start=START, **options):
    system = LagrangianSystem(np.eye(2)) if system is None else system
    model = Model(system, interactions, prescribed)
    return simulate(model, MoreauJean(), 0.0, t1, dt, start, **options)


CALLS = {
    "f_int": lambda x: run(LagrangianSystem(np.eye(2), lambda t, q, v: x)),
    "potential_energy": lambda x: run(LagrangianSystem(np.eye(2), potential_energy=lambda q: x)),
    "lagrangian": lambda x: run(LagrangianSystem.from_lagrangian(lambda q, v: x, n=2)),
    "the gap function": lambda x: run(
        None, Interaction(GapRelation(lambda t, q: x), NewtonImpact())
    ),
    "RateRelation": lambda x: run(
        None, Interaction(RateRelation(lambda t, q: x), DryFriction(1.0))
    ),
    "rate": lambda x: run(prescribed=PrescribedVelocity(0, lambda t: x)),
    "Event": lambda x: run(event=Event(lambda t, state, args: x)),
    "Integral": lambda x: run(integrals=Integral(lambda t, state, args: x)),
    "residual": lambda x: least_squares(lambda p: x, PARAMS),
    "log_likelihood": lambda x: posterior(lambda p: x, PARAMS),
    r"function\(x\)": lambda x: bundled_gradient(
        lambda y: x, jnp.ones(2), jax.random.key(0), scale=0.1, samples=4
    ),
}


@pytest.mark.parametrize("value", [None, "x", jnp.zeros(0), jnp.ones(2, complex)])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_returned(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name}.* must"):
        CALLS[name](value)


@pytest.mark.parametrize("name", ["the gap function", "potential_energy", r"function\(x\)"])
def test_integers_have_no_derivative(name):
    with pytest.raises(
        TypeError, match=f"{name}.* numbers of type int64, which have no derivative"
    ):
        CALLS[name](jnp.array([1, 2]))


@pytest.mark.parametrize("name", ["potential_energy", "lagrangian", r"function\(x\)"])
def test_one_number(name):
    with pytest.raises(ValueError, match=f"{name}.* must return one real number; .* shape"):
        CALLS[name](jnp.ones(2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NewtonEulerSystem(1.0, 1.0, lambda t: t), r"takes 1 argument, \(t\)"),
        (lambda: PrescribedVelocity(0, lambda: 1.0), "rate .* takes no argument"),
        (
            lambda: least_squares(lambda p: p["a"], PARAMS, callback=lambda x: x),
            r"callback must be a function of \(step, progress\)",
        ),
        (lambda: several_starts(lambda p: 3, PARAMS), "must be a FitResult"),
        (lambda: GaussianNoise(lambda p: p, jnp.ones(3)), "deviation must be one finite number"),
        (
            lambda: run(start=State(jnp.ones(2, complex), jnp.ones(2))),
            "State whose q .* complex128",
        ),
        (lambda: run(start=State(jnp.ones(2), "x")), "State whose v is an object of type str"),
    ],
)
def test_arguments_of_another_kind(make, words):
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"t1": 1e30}, r"1e\+32 steps are too many"),
        ({"dt": 1e-300}, "steps are too many"),
        ({"t1": 1e12, "dt": 1.0}, "steps are too many"),
        ({"max_steps": 10**13}, "max_steps must be at most"),
        ({"start_tolerance": -1.0}, "start_tolerance must be at least 0"),
    ],
)
def test_numbers_of_a_run(options, words):
    with pytest.raises(ValueError, match=words):
        run(**options)


def test_folders(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in ("", "a\0b", file):
        with pytest.raises(ValueError, match="^folder .*"):
            Checkpointing(folder)
    with pytest.raises(ValueError, match=r"folder .* cannot be made"):
        run(save=Checkpointing(file / "under"), saveat=SaveAt(5))


def test_lists_of_bodies():
    with pytest.raises(ValueError, match="body1 and body2 must be as long as each other"):
        sphere_on_sphere(0.1, 0.1, [0, 1], [1, 0, 1])
