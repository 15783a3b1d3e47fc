"""Motions from event to event, in complex arithmetic: stops with restitution, friction of limited force.

No time stepping, no complementarity solver, no automatic differentiation: nothing in common with what it
judges. Between events the motion is a smooth differential equation, which a method of order eight follows
with small steps; modes and impacts are found by trying all of them.

The derivatives are complex steps, all parameters at once: lane `i` has `p[i] + 1e-30j`, and its imaginary
part is the derivative. The real parts of the lanes are the same, so that lane 0 makes every decision. The
times of the events are complex too: that is how they take part in the derivative.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.integrate import DOP853

WIDTH = 1e-30
"""Of the complex steps: far below what could be felt by a real part."""

LONGEST_STEP = 8e-3
"""Between looks at the indicators [s]: the method of order eight is then exact to rounding."""

AT_REST = 1e-11
"""Rates below this are zero: what rounding leaves of a rate that was brought to zero."""

MOST_EVENTS = 60


class Mechanism(ABC):
    """What the oracle asks of a mechanism, `M(q) v' = force + friction + pushes of the stops`, `q' = v`.

    Arrays have their lanes in front: `p` is `(..., m)`, `q` and `v` are `(..., n)`. `xp` is the namespace
    of the arrays, so that a model in JAX may share what it must share.
    """

    names: tuple[str, ...]
    """Of the parameters."""
    rubs: np.ndarray
    """Rows `(k, n)`: the rates at which the dry frictions rub are `rubs @ v − belts`."""

    @abstractmethod
    def mass(self, p, q, xp=np):
        """`(..., n, n)`."""

    @abstractmethod
    def force(self, p, t, q, v, xp=np):
        """`(..., n)`: all that is smooth."""

    @abstractmethod
    def gaps(self, p, q, xp=np):
        """`(..., g)`: the stops, not negative."""

    @abstractmethod
    def gap_slopes(self, p, q):
        """`(..., g, n)`: derivatives of the gaps."""

    @abstractmethod
    def gap_drifts(self, p, q, v):
        """`(..., g)`: second derivatives of the gaps in time where nothing accelerates."""

    @abstractmethod
    def restitutions(self, p):
        """`(..., g)`: of the stops."""

    @abstractmethod
    def limits(self, p):
        """`(..., k)`: largest forces of the dry frictions."""

    @abstractmethod
    def belts(self, p):
        """`(..., k)`: speeds of what they rub against."""

    @abstractmethod
    def start(self, p):
        """`q` and `v` at time 0; no stop is touched."""


class Discarded(Exception):
    """A motion that the oracle does not judge: its events crowd, coincide, graze, or leave no mode."""


class Event(NamedTuple):
    """When, what and which; `slope` is the rate at which its indicator went through zero."""

    time: float
    kind: str
    index: int
    slope: float


class _Point(NamedTuple):
    """Time, configuration and velocity, by lanes."""

    t: np.ndarray
    q: np.ndarray
    v: np.ndarray


class _Modes(NamedTuple):
    """The direction in which each friction slides, 0 for one that sticks; which stops are closed."""

    slides: tuple[int, ...]
    closed: tuple[bool, ...]

    @property
    def sticking(self) -> list[int]:
        return [i for i, way in enumerate(self.slides) if way == 0]

    @property
    def resting(self) -> list[int]:
        return [j for j, closed in enumerate(self.closed) if closed]


def _apply(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The product of each lane."""
    return (matrices @ vectors[..., None])[..., 0]


def _react(inverse, rows, lacking):
    """Forces along `rows` that change `rows @ x` by `lacking`, and the change of `x`."""
    spread = inverse @ rows.swapaxes(1, 2)
    forces = np.linalg.solve(rows @ spread, lacking[..., None])[..., 0]
    return forces, _apply(spread, forces)


class _EventByEvent:
    """One mechanism with its parameters, in as many lanes as there are parameters."""

    def __init__(self, mechanism: Mechanism, p: np.ndarray):
        self.mechanism = mechanism
        self.lanes = len(p)
        self.p = p + 1j * WIDTH * np.eye(len(p))
        self.limits = mechanism.limits(self.p)
        self.belts = mechanism.belts(self.p)
        self.restitutions = mechanism.restitutions(self.p)

    def accelerations(self, at: _Point, modes: _Modes):
        """`v'`, the forces of the frictions that stick and of the stops; these are 0 where none acts."""
        mechanism, p = self.mechanism, self.p
        sliding = self.limits * np.array(modes.slides)
        force = mechanism.force(p, *at) - sliding @ mechanism.rubs
        inverse = np.linalg.inv(mechanism.mass(p, at.q))
        a = _apply(inverse, force)
        held, pushes = np.zeros_like(self.limits), np.zeros_like(self.restitutions)
        sticking, resting = modes.sticking, modes.resting
        if sticking or resting:
            rows, wanted = self.constraints(at, sticking, resting)
            forces, change = _react(inverse, rows, wanted - _apply(rows, a))
            a = a + change
            held[:, sticking] = forces[:, : len(sticking)]
            pushes[:, resting] = forces[:, len(sticking) :]
        return a, held, pushes

    def constraints(self, at: _Point, sticking: list[int], resting: list[int]):
        """`rows @ v' = wanted` keeps what sticks at its belt, and what rests at its stop."""
        rubs = self.mechanism.rubs[sticking]
        rows = np.broadcast_to(rubs, (self.lanes, *rubs.shape))
        wanted = np.zeros((self.lanes, len(sticking)), complex)
        if resting:
            slopes = self.mechanism.gap_slopes(self.p, at.q)[:, resting]
            drifts = self.mechanism.gap_drifts(self.p, at.q, at.v)[:, resting]
            rows = np.concatenate([rows, slopes], axis=1)
            wanted = np.concatenate([wanted, -drifts], axis=1)
        return rows, wanted

    def flow(self, at: _Point, s: np.ndarray, modes: _Modes) -> _Point:
        """After the times `s`, which are complex and differ by lane: one step of the method DOP853."""
        start = np.stack([at.q, at.v])
        slopes = np.empty((len(DOP853.C), *start.shape), complex)
        step = s[:, None]
        for i, (weights, node) in enumerate(zip(DOP853.A, DOP853.C, strict=True)):
            q, v = start + step * np.tensordot(weights[:i], slopes[:i], 1)
            slopes[i] = v, self.accelerations(_Point(at.t + node * s, q, v), modes)[0]
        q, v = start + step * np.tensordot(DOP853.B, slopes, 1)
        return _Point(at.t + s, q, v)

    def rates(self, v: np.ndarray) -> np.ndarray:
        """At which the frictions rub."""
        return v @ self.mechanism.rubs.T - self.belts

    def indicators(self, at: _Point, modes: _Modes) -> dict[tuple[str, int], np.ndarray]:
        """By the kind of event and its index: positive until it happens."""
        found = {}
        _, held, pushes = self.accelerations(at, modes)
        rates, gaps = self.rates(at.v), self.mechanism.gaps(self.p, at.q)
        for i, way in enumerate(modes.slides):
            if way == 0:
                # It is held by a force against the direction in which it would slide.
                found["slips back", i] = self.limits[:, i] - held[:, i]
                found["slips on", i] = self.limits[:, i] + held[:, i]
            else:
                found["stops", i] = way * rates[:, i]
        for j, closed in enumerate(modes.closed):
            if closed:
                found["lifts", j] = pushes[:, j]
            else:
                found["strikes", j] = gaps[:, j]
        return found

    def signs(self, v: np.ndarray, stopped: Iterable[int] = ()) -> list[int | None]:
        """The directions in which the frictions slide; `None` for those that the accelerations decide."""
        rates = self.rates(v)[0].real
        undecided = [i in stopped or abs(rate) < AT_REST for i, rate in enumerate(rates)]
        return [
            None if unknown else int(np.sign(rate))
            for unknown, rate in zip(undecided, rates, strict=True)
        ]

    def choose(self, at: _Point, slides: list[int | None], touching: list[int]) -> _Modes:
        """The modes that agree with the accelerations, of all that frictions at rest and contacts may have.

        The force of friction does not depend on the pushes, so that the accelerations are those of a convex
        problem: modes that agree differ, if at all, in nothing that moves.
        """
        undecided = [i for i, way in enumerate(slides) if way is None]
        for shut in itertools.product((True, False), repeat=len(touching)):
            closed = [False] * self.restitutions.shape[1]
            for j, value in zip(touching, shut, strict=True):
                closed[j] = value
            for ways in itertools.product((0, 1, -1), repeat=len(undecided)):
                decided = list(slides)
                for i, way in zip(undecided, ways, strict=True):
                    decided[i] = way
                modes = _Modes(tuple(decided), tuple(closed))
                if self.agree(at, modes, undecided, touching):
                    return modes
        raise Discarded("no modes agree with the accelerations")

    def agree(self, at: _Point, modes: _Modes, undecided: list[int], touching: list[int]) -> bool:
        """Whether what sticks can be held, what starts to slide does, stops push, and gaps open."""
        a, held, pushes = (x[0] for x in self.accelerations(at, modes))
        faster = (self.mechanism.rubs @ a).real
        for i, way in enumerate(modes.slides):
            if way == 0 and abs(held[i].real) > self.limits[0, i].real * (1 + 1e-12):
                return False
            if way != 0 and i in undecided and way * faster[i] <= 1e-12:
                return False
        slopes = self.mechanism.gap_slopes(self.p, at.q)[0]
        opening = slopes @ a + self.mechanism.gap_drifts(self.p, at.q, at.v)[0]
        return all((pushes if modes.closed[j] else opening)[j].real >= 0 for j in touching)

    def impact(self, at: _Point, struck: int, resting: list[int]) -> np.ndarray:
        """The velocity after an impact on one stop, of which those feel a part that are closed.

        Friction of limited force has no impulse.
        """
        contacts = [struck, *resting]
        inverse = np.linalg.inv(self.mechanism.mass(self.p, at.q))
        slopes = self.mechanism.gap_slopes(self.p, at.q)
        rebound = np.zeros_like(self.restitutions)
        rebound[:, struck] = self.restitutions[:, struck]
        before = _apply(slopes, at.v)
        for felt in itertools.product((True, False), repeat=len(contacts)):
            pushing = [j for j, pushes in zip(contacts, felt, strict=True) if pushes]
            lacking = -((1 + rebound) * before)[:, pushing]
            impulses, change = _react(inverse, slopes[:, pushing], lacking)
            v = at.v + change
            left = (_apply(slopes, v) + rebound * before)[0, contacts].real
            if pushing and np.all(impulses[0].real >= 0) and np.all(left >= -1e-12):
                return v
        raise Discarded("no impulses agree with the impact")

    def crossed(self, at: _Point, modes: _Modes) -> list[tuple[str, int]]:
        """Which indicators are negative."""
        return [key for key, x in self.indicators(at, modes).items() if x[0].real < 0]

    def dip(self, at: _Point, later: _Point, dt: float, modes: _Modes) -> float | None:
        """When, within a step, the first of the indicators that are positive at its ends may be negative.

        At the lowest point of the parabola through an indicator's values at the ends and in the middle.
        """
        middle = self.flow(at, np.full(self.lanes, dt / 2 + 0j), modes)
        values = [self.indicators(x, modes) for x in (at, middle, later)]
        dips = []
        for key in values[0]:
            a, b, c = (x[key][0].real for x in values)
            bent = a - 2 * b + c  # a parabola a + (4 b − 3 a − c) r + 2 bent r², 0 <= r <= 1
            lowest = (3 * a - 4 * b + c) / (4 * bent) if bent > 0 else 0.0
            # Not where it has just begun at zero.
            if c >= 0 and 0 < lowest < 1 and 1e-9 < a < 2 * bent * lowest**2 + 1e-9:
                dips.append(lowest * dt)
        return min(dips, default=None)

    def bracket(self, at: _Point, dt: float, modes: _Modes, key) -> float:
        """When an indicator that is negative after `dt` becomes so, to about 1e-10 s, by bisection."""
        low, high = 0.0, dt
        while high - low > 1e-10:
            middle = (low + high) / 2
            after = self.flow(at, np.full(self.lanes, middle + 0j), modes)
            if self.indicators(after, modes)[key][0].real < 0:
                high = middle
            else:
                low = middle
        return high

    def first_root(self, at: _Point, dt: float, modes: _Modes, crossed: list):
        """Which of the crossed indicators was first, its complex time, and its slope there."""
        guesses = {key: self.bracket(at, dt, modes, key) for key in crossed}
        key = min(guesses, key=guesses.__getitem__)

        def value(s):
            return self.indicators(self.flow(at, s, modes), modes)[key]

        s = np.full(self.lanes, guesses[key] + 0j)
        near = max(1e-9, 1e-4 * dt)
        slope = float((value(s + near) - value(s - near))[0].real) / (2 * near)
        if abs(slope) < 1e-10:
            raise Discarded("grazes")
        # Newton's method with the slope held: each pass gains four digits, of the imaginary part too.
        for _ in range(8):
            s = s - value(s) / slope
            if not 0 <= s[0].real <= dt:
                raise Discarded("grazes")
        return key, s, slope

    def after(self, key: tuple[str, int], at: _Point, modes: _Modes) -> tuple[_Point, _Modes]:
        """Velocity and modes after an event."""
        kind, index = key
        if kind == "strikes":
            contacts = [index, *modes.resting]
            at = at._replace(v=self.impact(at, index, modes.resting))
            departing = _apply(self.mechanism.gap_slopes(self.p, at.q), at.v)[0].real
            touching = [j for j in contacts if abs(departing[j]) < AT_REST]
            return at, self.choose(at, self.signs(at.v), touching)
        if kind == "stops":
            stopped = [index, *modes.sticking]
            return at, self.choose(at, self.signs(at.v, stopped), modes.resting)
        return at, self.let_go(key, at, modes)

    def let_go(self, key: tuple[str, int], at: _Point, modes: _Modes) -> _Modes:
        """The modes after a stop has let go, or a friction: towards where its force could not hold."""
        kind, index = key
        slides, closed = list(modes.slides), list(modes.closed)
        if kind == "lifts":
            closed[index] = False
        else:
            slides[index] = -1 if kind == "slips back" else 1
        modes = _Modes(tuple(slides), tuple(closed))
        for (other, _), x in self.indicators(at, modes).items():
            if other in ("slips back", "slips on", "lifts") and x[0].real < -1e-9:
                raise Discarded("two let go at once")
        return modes

    def run(self, end: float) -> tuple[_Point, list[Event]]:
        """The state at the end, and the events on the way."""
        events, since = [], 0.0
        at = _Point(np.zeros(self.lanes, complex), *self.mechanism.start(self.p))
        modes = self.choose(at, self.signs(at.v), [])
        while (now := at.t[0].real) < end - 1e-14:
            # Short steps after an event, so that none is stepped over that follows closely.
            dt = min(LONGEST_STEP, 0.2 * since + 2e-5, end - now)
            # The last step ends at `end` in every lane: the others keep the imaginary parts of the time.
            s = end - at.t if dt == end - now else np.full(self.lanes, dt + 0j)
            later = self.flow(at, s, modes)
            crossed = self.crossed(later, modes)
            if dip := self.dip(at, later, dt, modes):
                there = self.flow(at, np.full(self.lanes, dip + 0j), modes)
                early = self.crossed(there, modes)
                if early or not crossed:
                    dt, later, crossed = dip, there, early
            if not crossed:
                at, since = later, since + dt
                continue
            key, s, slope = self.first_root(at, dt, modes, crossed)
            at, since = self.flow(at, s, modes), 0.0
            self.record(events, Event(at.t[0].real, *key, slope))
            at, modes = self.after(key, at, modes)
        return at, events

    def record(self, events: list[Event], event: Event) -> None:
        """Appends an event, unless it is one of infinitely many."""
        if events and event.kind == "strikes" and event.time - events[-1].time < 1e-7:
            raise Discarded("infinitely many impacts")
        if len(events) == MOST_EVENTS:
            raise Discarded("too many events")
        events.append(event)


def motion(mechanism: Mechanism, p: np.ndarray, end: float, see=None):
    """State `(q, v)` at the end, its derivatives `(2n, m)` by the parameters, and the events.

    **Arguments:** `see(p, q, v)`: instead of the state a vector of it, `(..., k)`, by analytic functions.

    **Raises:** `Discarded` where derivatives do not exist, or might not be those of the oracle.
    """
    run = _EventByEvent(mechanism, p)
    at, events = run.run(end)
    lanes = np.concatenate([at.q, at.v], axis=1) if see is None else see(run.p, at.q, at.v)
    return lanes[0].real, lanes.imag.T / WIDTH, events
