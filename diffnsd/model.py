"""Models: a system and its interactions."""

from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arguments import AbstractChecked
from ._interaction import ContactMask as ContactMask, Interaction as Interaction
from ._jax import concrete, eval_now, is_traced
from ._types import Config, PerContact, Scalar, State, Vector
from .laws import Context, Equality
from .relations import AbstractRelation, PrescribedVelocity
from .systems import AbstractSystem, SystemProduct


class Energy(eqx.Module):
    """Kinetic and potential energy [J]."""

    kinetic: Scalar
    potential: Scalar

    @property
    def total(self) -> Scalar:
        """Their sum."""
        return self.kinetic + self.potential


class Model(AbstractChecked):
    """A system with its interactions: everything that a simulation needs except the state.

    **Arguments:** `system`; `interactions`: an `Interaction` or a sequence of them;
    `prescribed`: a `PrescribedVelocity` or a sequence of them. These are equality constraints like
    any other: they come last among the interactions, and their impulses are the reactions.

    **Raises:** `TypeError` if one of them is something else.
    """

    system: AbstractSystem
    interactions: tuple[Interaction, ...]

    def __init__(
        self,
        system: AbstractSystem,
        interactions: Interaction | Iterable[Interaction] = (),
        prescribed: PrescribedVelocity | Iterable[PrescribedVelocity] = (),
    ):
        self.system = system
        given = tuple(interactions) if isinstance(interactions, Iterable) else (interactions,)
        held = tuple(prescribed) if isinstance(prescribed, Iterable) else (prescribed,)
        self.interactions = (*given, *(Interaction(p, Equality()) for p in held))

    def part(self, k: int | None) -> tuple["Model", tuple[int, ...]]:
        """The model of system `k` of a `SystemProduct`, `None` for the whole model.

        **Returns:** the model, with the interactions that are stated for that system alone (`OnPart`); which
        of the interactions of the whole model these are.

        **Raises:** `ValueError` if the product has no such system, or the model no product.
        """
        if k is None:
            return self, tuple(range(len(self.interactions)))
        systems = self.system.systems if isinstance(self.system, SystemProduct) else ()
        if not 0 <= k < len(systems):
            raise ValueError(
                f"part={k}, but the {type(self.system).__name__} of the model has {len(systems)} parts."
            )
        alone = [i.relation.of_part(k) for i in self.interactions]
        own = tuple(i for i, relation in enumerate(alone) if relation is not None)
        placed = (eqx.tree_at(lambda x: x.relation, self.interactions[i], alone[i]) for i in own)
        return Model(systems[k], placed), own

    def gaps(self, t: Scalar, q) -> tuple[PerContact | None, ...]:
        """Gaps [m] of every interaction, each of shape `(c,)`."""
        return tuple(i.on(self.system).gap(t, q) for i in self.interactions)

    def energy(self, t: Scalar, state: State) -> Energy | None:
        """Kinetic and potential energy of a state, `None` if the system does not define it."""
        if not self.system.has_energy:
            return None
        return Energy(self.system.kinetic(t, state), self.system.potential(t, state.q))

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Generalised momentum `M v`, shape `(n,)`."""
        return self.system.momentum(t, state)

    def contacts(self, t: Scalar, q) -> tuple[int, ...]:
        """Number of contacts `c` of every interaction, without computing any values."""
        return tuple(i.on(self.system).count(self.system.group, t, q) for i in self.interactions)

    @property
    def compliance_problem(self) -> str | None:
        """Why a method based only on velocities and impulses cannot step the model, or `None`."""
        has_positions = self.system.kind.has_positions
        for relation in (i.relation for i in self.interactions):
            of_states = has_positions and not relation.needs_positions
            if relation.is_compliant or of_states:
                what = "states" if of_states else "positions"
                return (
                    f"{type(relation).__name__} ties {what} to forces, and has no impacts; use "
                    "MoreauJean() or BackwardEuler(), by themselves"
                )
        return None

    def masked(self, t: Scalar, q: Config, on, closed=None, restitution=None, side=None) -> "Model":
        """The model with a mask on its contacts, numbered through all interactions, `(c,)` each.

        **Arguments:** as for `ContactMask`. Existing masks still apply: a contact is on only where both
        masks are on.
        """
        cuts = np.cumsum(self.contacts(t, q))[:-1]
        given = on, closed, restitution, side

        def of(k: int):
            return jax.tree.map(lambda x: jnp.split(x, cuts)[k], given)

        parts = [of(k) for k in range(len(cuts) + 1)]
        interactions = tuple(
            Interaction(i.relation, i.law, i.max_active, ContactMask(*mask) & i.mask)
            for i, mask in zip(self.interactions, parts, strict=True)
        )
        return eqx.tree_at(lambda m: m.interactions, self, interactions)

    def check_gaps(self, t: Scalar, q, tolerance: float) -> str | None:
        """How the gaps of a configuration contradict the laws, in the user's terms, or `None`.

        It reports unilateral contacts that penetrate, and joints that are open, by more than `tolerance`.
        Gaps are checked only where all values are known.
        """
        given = tuple((i.on(self.system), i.mask) for i in self.interactions)
        t, q, given = concrete((t, q, given))
        hidden = any(map(is_traced, jax.tree.leaves((t, q, given))))
        if (
            hidden
            or q is None
            or not any(i.law.holds_gap or i.law.is_unilateral for i in self.interactions)
        ):
            return None
        with jax.ensure_compile_time_eval():
            relations = tuple(relation for relation, _ in given)
            gaps = _gaps(relations, jnp.asarray(t, jax.tree.leaves(q)[0].dtype), q)
        for number, (i, gap) in enumerate(zip(self.interactions, gaps, strict=True)):
            if gap is None or not (i.law.holds_gap or i.law.is_unilateral):
                continue
            excess = np.abs(gap) if i.law.holds_gap else -np.asarray(gap)
            if i.mask is not None:
                excess = np.where(np.asarray(i.mask.on), excess, -np.inf)
            worst = int(np.argmax(excess))
            if excess[worst] > tolerance:
                return _contradiction(i, number, worst, np.asarray(gap))
        return None

    def check(self, state: State) -> str | None:
        """What is wrong with a model and a state, in the user's terms, or `None`.

        Shapes are always checked; values only where they are known, not where `jit` or `vmap` traces them.
        """
        model, state = concrete((self, state))
        group = model.system.group
        n = model.system.velocities
        if np.shape(state.v) != (n,):
            return f"the state's v has shape {np.shape(state.v)}, expected ({n},)"
        checks: list[Callable[[], str | None]] = [
            *(i.law.check for i in model.interactions),
            *(lambda r=i.relation: _misplaced(model.system, r) for i in model.interactions),
            *(lambda i=i: i.on(model.system).check(group) for i in model.interactions),
            *(lambda i=i: _asks_for_velocities(i) for i in model.interactions),
            *(lambda i=i: _misfit(model, state, i) for i in model.interactions),
            lambda: _not_finite(state),
            lambda: model.system.check_point(state.q),
            lambda: model.system.check(state.q),
            lambda: _too_precise(model, state),
        ]
        return next((problem for check in checks if (problem := skip_if_traced(check))), None)


@eqx.filter_jit
def _gaps(relations, t, q):
    """The gaps of all relations, compiled once per structure."""
    return tuple(relation.gap(t, q) for relation in relations)


def _contradiction(interaction: Interaction, number: int, contact: int, gaps: np.ndarray) -> str:
    names, gap = interaction.relation.contact_names or (), float(gaps[contact])
    # The places of a list have no names of their own.
    named = len(names) == len(gaps)
    which = f"the contact of {names[contact]}," if named else f"contact {contact}"
    where = f"{which} of interaction {number} ({type(interaction.relation).__name__})"
    accept = f"accept it by start_tolerance={1.01 * abs(gap):.3g}"
    if interaction.law.holds_gap:
        return (
            f"{where} is a joint that is open by {gap:.3g} in the initial state; start in a "
            f"configuration in which it holds, hold only its rate with RateRelation, or {accept}"
        )
    return (
        f"{where} penetrates in the initial state: its gap is {gap:.3g}, and an open gap is "
        f"expected; move the bodies apart (or check the sign of the gap: positive is open), or, if "
        f"it comes from a measurement or another run, {accept}"
    )


def skip_if_traced(check: Callable[[], str | None]) -> str | None:
    """The result of a check, `None` if it would need a value that a transformation hides."""
    try:
        return check()
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return None


def _misplaced(system: AbstractSystem, relation: AbstractRelation) -> str | None:
    has_positions = relation.part_of(system).kind.has_positions
    if has_positions == relation.needs_positions:
        return None
    name, kind = type(relation).__name__, type(system).__name__
    if isinstance(system, SystemProduct):
        return (
            f"{name} is a relation of one system of a {kind}; use OnPart(system, part, {name}(...))"
        )
    if not has_positions:
        return (
            f"{name} is a relation between positions, which a {kind} has not; use FirstOrderLinear, "
            "FirstOrderType1, FirstOrderType2 or FirstOrderRelation"
        )
    return f"{name} is a relation of first-order systems, not of a {kind}; use GapRelation"


def _misfit(model: Model, state: State, interaction: Interaction) -> str | None:
    """Reports a mask whose number of contacts differs from that of the relation."""
    mask, relation = interaction.mask, interaction.on(model.system)
    if mask is None:
        return None
    c = relation.count(model.system.group, jnp.zeros((), state.v.dtype), state.q)
    shapes = {x.shape for x in jax.tree.leaves(mask)} - {(c,)}
    if not shapes:
        return None
    return (
        f"the mask of {type(relation).__name__} has shape {shapes.pop()}, but the relation has {c} "
        f"contacts: give one value for each, shape ({c},)"
    )


def _asks_for_velocities(interaction: Interaction) -> str | None:
    """Restitution and friction need velocities, which compliant relations do not provide."""
    relation = interaction.relation
    if not relation.is_compliant:
        return None

    def biases(law):
        c = jax.tree.reduce(max, jax.tree.map(np.size, eqx.filter(law, eqx.is_array)), 1)
        u = jnp.ones((interaction.rows, c))
        full = [jnp.full(c, x) for x in (-jnp.inf, 1.0, 0.5)]
        return law.shift(Context(u, *full)), law.lift(u)

    if not any(np.any(np.asarray(x)) for x in eval_now(biases, interaction.law)):
        return None
    return (
        f"{type(interaction.law).__name__} asks for velocities before an impact or along a contact, "
        f"and a {type(relation).__name__} has no impacts; use Complementarity, Equality or Relay, "
        "and a force for what dissipates"
    )


def _not_finite(state: State) -> str | None:
    known = [x for x in jax.tree.leaves(state) if not is_traced(x)]
    if all(np.all(np.isfinite(np.asarray(x))) for x in known):
        return None
    return "the state has entries that are not finite"


def _too_precise(model: Model, state: State) -> str | None:
    """The precision of the state is that of the simulation; laws are converted to it."""
    dtype = state.v.dtype
    others = {x.dtype for x in jax.tree.leaves(state.q)} - {dtype}
    if others:
        return f"the state's q has the dtype {others.pop()} and its v {dtype}; give both the same"
    parts = (model.system, *(i.relation for i in model.interactions))
    for x in jax.tree.leaves(eqx.filter(parts, eqx.is_inexact_array)):
        if jnp.finfo(x.dtype).bits > jnp.finfo(dtype).bits:
            return (
                f"the state has the dtype {dtype}, but the model has parameters of {x.dtype}; "
                f"convert one of them, for example jax.tree.map(lambda x: x.astype({x.dtype}), "
                "state)"
            )
    return None
