"""What the benchmarks of the cube and the ball have in common: check, then time, then compare."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import _harness
import _workloads
from _harness import Ratio, Row, Timing, Worker, WorkerError

OURS = "diffnsd"

# A function that starts the worker of an engine for a batch size.
Start = Callable[[int], Worker]


@dataclasses.dataclass(frozen=True)
class Bar:
    """A figure that has to be reached.

    `read` takes the rows and the timings of one batch size, and returns the spread of the figure,
    or None where it does not apply or was not measured. `most`: whether it is a largest value.
    """

    name: str
    limit: float
    most: bool
    read: Callable[[Mapping[str, Row], Mapping[str, Timing]], Ratio | None]

    def line(self, spread: Ratio) -> tuple[str, ...]:
        """A line of the table of bars; the median decides."""
        met = spread.median <= self.limit if self.most else spread.median >= self.limit
        sign = "<=" if self.most else ">="
        digits = (f"{x:.3g}" for x in (spread.minimum, spread.median, spread.maximum))
        return self.name, f"{sign} {self.limit:g}", *digits, "met" if met else "MISSED"


def faster(peer: str, limit: float, batches: Iterable[int]) -> Bar:
    """Forward: the peer's time over ours."""

    def read(rows: Mapping[str, Row], timings: Mapping[str, Timing]) -> Ratio | None:
        peers = timings.get(f"{peer} forward")
        mine = timings.get(f"{OURS} forward")
        return _harness.ratio(peers, mine) if peers and mine and _batch(rows) in batches else None

    return Bar(f"{peer} / {OURS}, forward", limit, False, read)


def gradient_cost(limit: float, batches: Iterable[int]) -> Bar:
    """Our gradient's time over our forward time."""

    def read(rows: Mapping[str, Row], timings: Mapping[str, Timing]) -> Ratio | None:
        slow, fast = timings.get(f"{OURS} gradient"), timings.get(f"{OURS} forward")
        return _harness.ratio(slow, fast) if slow and fast and _batch(rows) in batches else None

    return Bar(f"{OURS} gradient / forward", limit, True, read)


def figure(name: str, limit: float, field: str, batches: Iterable[int] | None = None) -> Bar:
    """A field of our row; its spread, if it has one, is in `field`_min and _max."""

    def read(rows: Mapping[str, Row], timings: Mapping[str, Timing]) -> Ratio | None:
        del timings
        row = rows.get(OURS)
        if row is None or batches is not None and row.batch not in batches:
            return None
        middle = getattr(row, field)
        if middle is None:
            return None
        low, high = (getattr(row, f"{field}_{end}", middle) for end in ("min", "max"))
        return Ratio(low, middle, high)

    return Bar(name, limit, True, read)


def _batch(rows: Mapping[str, Row]) -> int:
    return next(iter(rows.values())).batch


# ------------------------------------------------------------------------------------------


def check_physics(workload: str, dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the checks in a process of their own; a broken run ends the benchmark here."""
    print(f"\n{workload}, {dtype}: checking the physics", flush=True)
    try:
        arguments = (workload, dtype, options.seed)
        with Worker(_workloads.prepare_checks, arguments, timeout_s=options.timeout) as worker:
            facts = worker.checks()
    except WorkerError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error
    print("  " + "; ".join(f"{name} {_harness._short(value)}" for name, value in facts.items()))
    return facts


def our_worker(workload: str, engine: str, dtype: str, options: argparse.Namespace) -> Start:
    """Starts what runs through `diffnsd.rollout`."""

    def start(batch: int) -> Worker:
        arguments = (workload, engine, batch, dtype, options.seed)
        return Worker(_workloads.prepare, arguments, timeout_s=options.timeout)

    return start


def compare(
    workload: str,
    dtype: str,
    steps: int,
    engines: Mapping[str, Start],
    bars: Sequence[Bar],
    facts: Mapping[str, Any],
    options: argparse.Namespace,
) -> list[Row]:
    """Times all engines in turns at every batch size, prints and returns the rows.

    An engine that cannot be prepared gets a row that says why; ours ends the benchmark.
    """
    everything: list[Row] = []
    lines = []
    for batch in options.batches:
        rows, timings = _turns(workload, dtype, steps, batch, engines, options)
        ratios = _ratios(timings)
        print()
        _harness.print_rows(list(rows.values()))
        print()
        _harness.print_ratios("ratio of times", ratios)
        print()
        if OURS in rows:
            spreads = {name: dataclasses.astuple(spread) for name, spread in ratios.items()}
            checks = {**rows[OURS].checks, "physics": dict(facts), "ratios_min_median_max": spreads}
            rows[OURS] = dataclasses.replace(rows[OURS], checks=checks)
        for bar in bars:
            if (spread := bar.read(rows, timings)) is not None:
                lines.append((str(batch), *bar.line(spread)))
        everything += rows.values()
    if lines:
        print(f"\n{workload}, {dtype}: what has to be reached, and what was (the median decides)")
        columns = ("batch", "figure", "bar", "min", "median", "max", "")
        _harness.print_table(columns, lines)
    return everything


def _turns(
    workload: str,
    dtype: str,
    steps: int,
    batch: int,
    engines: Mapping[str, Start],
    options: argparse.Namespace,
) -> tuple[dict[str, Row], dict[str, Timing]]:
    with ExitStack() as stack:
        workers, rows = {}, {}
        for engine, prepared in _prepared(engines, batch, getattr(options, "ahead", 1)):
            print(f"{workload}, {dtype}, batch {batch}: preparing {engine} ...", flush=True)
            try:
                workers[engine] = stack.enter_context(prepared())
            except WorkerError as error:
                print(f"  {error}", file=sys.stderr)
                if engine == OURS:
                    raise SystemExit(1) from error
                checks = {"not_timed": str(error).strip().splitlines()[-1]}
                rows[engine] = Row(engine, workload, batch, dtype, checks=checks)
        stack.enter_context(_harness.alone(getattr(options, "lock", None)))
        measured, timings = _harness.measure(
            workers,
            workload=workload,
            batch=batch,
            steps=steps,
            dtype=dtype,
            repetitions=options.repetitions,
        )
    rows |= {row.engine: row for row in measured}
    if "mujoco" in rows:  # computes in double precision whatever is asked for
        rows["mujoco"] = dataclasses.replace(rows["mujoco"], dtype="float64")
    return {engine: rows[engine] for engine in engines}, timings


def _prepared(
    engines: Mapping[str, Start], batch: int, ahead: int
) -> Iterator[tuple[str, Callable[[], Worker]]]:
    """Every engine, and a call that waits for its worker; `ahead` of them are prepared side by side."""
    if ahead <= 1:
        yield from ((name, functools.partial(start, batch)) for name, start in engines.items())
        return
    with ThreadPoolExecutor(ahead) as pool:
        waiting = {name: pool.submit(start, batch) for name, start in engines.items()}
        try:
            for name in engines:
                yield name, waiting.pop(name).result
        finally:  # what nobody has taken
            for future in waiting.values():
                if not future.cancel() and future.exception() is None:
                    future.result().close()


def _ratios(timings: Mapping[str, Timing]) -> dict[str, Ratio]:
    """Every peer to us, forward and gradient; and everyone's gradient to its own forward run."""
    found = {}
    for name in timings:
        engine, way = name.rsplit(" ", 1)
        mine = timings.get(f"{OURS} {way}")
        if engine == "scan" and mine is not None:
            found[f"{OURS} / {engine}, {way}"] = _harness.ratio(mine, timings[name])
        elif engine != OURS and mine is not None:
            found[f"{engine} / {OURS}, {way}"] = _harness.ratio(timings[name], mine)
        if way == "gradient" and f"{engine} forward" in timings:
            forward = timings[f"{engine} forward"]
            found[f"{engine} gradient / forward"] = _harness.ratio(timings[name], forward)
    return found


def chosen(engines: Mapping[str, Start], options: argparse.Namespace) -> dict[str, Start]:
    """The engines asked for with `--engines`; all of them without it."""
    if options.engines is None:
        return dict(engines)
    if unknown := set(options.engines) - set(engines):
        raise SystemExit(
            f"no engine {', '.join(sorted(unknown))} here; there are {', '.join(engines)}"
        )
    return {name: start for name, start in engines.items() if name in options.engines}


def finish(rows: Sequence[Row], facts: Mapping[str, str], options: argparse.Namespace) -> None:
    """Writes the JSON file that was asked for."""
    if options.json is not None:
        _harness.write_json(rows, options.json, facts)
        print(f"\n{len(rows)} rows in {options.json}")
