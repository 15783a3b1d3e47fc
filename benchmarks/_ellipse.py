"""Single impacts of an ellipse on a wall: constant laws, and one whose constants depend on the place.

One impact is one step of `MoreauJean` without forces from the measured state before it, with the
contact at the measured arms. The law is `CoulombFriction(mu, e, e_t)`. Restitution is found to depend
on where along the wall the ellipse strikes, by 0.6 to 0.45 over 15 cm, and hardly on speed: the wall
gives way differently there. So the constants are functions of that place and of the arms of the contact,
a small network that is trained by gradients through the law.
"""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import _measured
from diffnsd import Interaction, Model, SaveAt, simulate
from diffnsd.integrators import MoreauJean
from diffnsd.laws import CoulombFriction
from diffnsd.relations import PlanarContact
from diffnsd.systems import LagrangianSystem

KEYS = ("lin", "energy", "full")
RATE, STEPS = 0.01, 1200


class Arms(eqx.Module):
    """A contact at a fixed arm from the centre, on a wall below it."""

    arm: Any

    def __call__(self, t, q):
        point = (q[:2] + self.arm)[None]
        return point, point, jnp.array([[0.0, 1.0]])


class Impacts:
    """The measured impacts that carry no flag: states before and after, arms, place on the wall.

    The angle is mirrored in the file (README of the data set): with the arm `(n3, d3)` the tangential
    velocity there is `vx − d3 omega`, which is that of `PlanarContact` with its sign.
    """

    def __init__(self):
        self.data, self.scorer = _measured.load("ellipse_impacts")
        d = self.data
        self.which = np.flatnonzero(d["flags"].sum(axis=1) == 0)
        self.before = d["state_pre"][:, 3:].astype(float)
        self.after = d["state_post"][:, 3:].astype(float)
        self.arms = np.stack([d["n3"], d["d3"]], axis=1).astype(float)
        self.place = d["state_pre"][:, 0].astype(float)
        self.k = float(d["radius_of_gyration"])
        self.features = np.stack(
            [(self.place - 0.37) / 0.05, self.arms[:, 0] / 7e-3, (self.arms[:, 1] + 0.03) / 4e-3],
            axis=1,
        )

    def score(self, which: np.ndarray, velocity: np.ndarray) -> dict[str, float]:
        prediction = {"impact_id": self.data["impact_id"][which], "velocity_post": velocity}
        rows = self.scorer.score(prediction, self.data)[1]
        return {key: float(rows[key].mean()) for key in KEYS}


def impact(numbers, arm, before, k):
    """The velocity after an impact with `numbers = (mu, e, e_t)`."""
    system = LagrangianSystem(
        jnp.diag(jnp.stack([jnp.ones(()), jnp.ones(()), jnp.asarray(k) ** 2]))
    )
    law = CoulombFriction(*numbers)
    model = Model(system, (Interaction(PlanarContact(Arms(arm), 0), law),))
    start = system.state(jnp.zeros(3), before)
    run = simulate(model, MoreauJean(), 0.0, 1e-6, 1e-6, start, saveat=SaveAt.end(), throw=False)
    return run.states.v


class Constant(eqx.Module):
    """The same constants for all impacts, from numbers without bounds."""

    raw: Any
    with_tangential: bool = eqx.field(static=True)

    def __call__(self, features):
        tangential = jnp.tanh(self.raw[2]) if self.with_tangential else 0 * self.raw[2]
        return jax.nn.softplus(self.raw[0]), jax.nn.sigmoid(self.raw[1]), tangential


class Placed(eqx.Module):
    """Constants as functions of the place on the wall and, if wanted, of the arms of the contact."""

    net: eqx.nn.MLP
    width: int = eqx.field(static=True)

    def __call__(self, features):
        raw = self.net(features[: self.width])
        base = Constant(raw + jnp.array([-1.5, 0.2, 0.2]), True)
        return base(features)


def predicted(law: Callable, impacts: Impacts, which: np.ndarray) -> jax.Array:
    def one(features, arm, before):
        return impact(law(features), arm, before, impacts.k)

    batch = impacts.features[which], impacts.arms[which], impacts.before[which]
    return jax.vmap(one)(*(jnp.asarray(x) for x in batch))


def fit(law: Callable, impacts: Impacts, train: np.ndarray, steps: int):
    """Adam on the mean of the errors that the data set is scored by, of energy and of velocity."""
    after = jnp.asarray(impacts.after[train])

    @eqx.filter_jit
    def step(law, memory):
        def loss(law):
            apart, total = predicted(law, impacts, train) - after, 0.0
            for scale in (np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, impacts.k])):
                length = jnp.sqrt(jnp.sum((apart * scale) ** 2, axis=1) + 1e-12)
                total += jnp.mean(length / jnp.linalg.norm(after * scale, axis=1))
            return total

        value, gradient = eqx.filter_value_and_grad(loss)(law)
        change, memory = optimiser.update(gradient, memory, eqx.filter(law, eqx.is_array))
        return eqx.apply_updates(law, change), memory, value

    schedule = optax.cosine_decay_schedule(RATE, steps)
    optimiser = optax.adamw(schedule, weight_decay=0.01)
    memory = optimiser.init(eqx.filter(law, eqx.is_array))
    for _ in range(steps):
        law, memory, _ = step(law, memory)
    return law


def rows(seed: int, quick: bool) -> list[dict[str, Any]]:
    """Laws fitted on seven tenths of the impacts and scored on the rest."""
    impacts = Impacts()
    train, test = _measured.split(impacts.which, 0.7, seed)
    if quick:
        train, test = train[:20], test[:20]
    start = jnp.array([-1.5, 0.1, 0.1])

    def network(width):
        key = jax.random.key(seed)
        return Placed(eqx.nn.MLP(width, 3, 16, 2, activation=jnp.tanh, key=key), width)

    laws = {
        "Coulomb, Newton": Constant(start, False),
        "Coulomb, Newton, tangential restitution": Constant(start, True),
        "constants that depend on the place": network(1),
        "constants that depend on the place and the arms": network(3),
    }
    found = []
    for name, law in laws.items():
        begun = time.perf_counter()
        fitted = fit(law, impacts, train, 3 if quick else STEPS)
        seconds = time.perf_counter() - begun
        scores = impacts.score(test, np.asarray(predicted(fitted, impacts, test)))
        row = {"data": "ellipse_impacts", "model": name, "impacts": len(test)} | scores
        if isinstance(fitted, Constant):
            row["mu, e, e_t"] = [float(x) for x in fitted(None)]
        found.append(row | {"fit_seconds": round(seconds, 1)})
    return found
