"""Timing, memory and tables for the benchmarks: every engine in a process of its own, in turns.

A benchmark names for each engine a *prepare* function that builds and compiles the workload and
returns a `Prepared`. `Worker` runs it in a fresh process, so that peak memory is the engine's own
and a row that hangs can be ended. `alternate` lets the workers take turns, so that all engines see
the same noise of the machine, and ratios between two engines are taken turn by turn. Compiling is
timed apart, by `compile_timed`, and is never inside a measured run.
"""

import argparse
import ctypes
import dataclasses
import gc
import importlib.metadata
import importlib.util
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import platform
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before JAX is imported: several processes take turns on one GPU, so none of them may reserve it;
# and a program read from the persistent cache was not compiled, so its compile time would be none.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)

PACKAGES = (
    *("diffnsd", "jax", "jaxlib", "equinox", "numpy"),
    *("mujoco", "mujoco-mjx", "mujoco-warp", "warp-lang"),
)


# ----------------------------------------------------------------------------------------
# Rows


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a result: an engine on a workload at a batch size.

    Times are microseconds per step of one system: the wall time of the whole call divided by
    (steps × batch). `None`: not measured, or the engine cannot do it; `checks` says which.
    `peak_mb` is the highest memory while forward and gradient ran, compiling left out.
    """

    engine: str
    workload: str
    batch: int
    dtype: str
    us_per_step: float | None = None
    us_per_step_min: float | None = None
    us_per_step_max: float | None = None
    gradient_us_per_step: float | None = None
    gradient_us_per_step_min: float | None = None
    gradient_us_per_step_max: float | None = None
    compile_s: float | None = None
    gradient_compile_s: float | None = None
    peak_mb: float | None = None
    repetitions: int | None = None
    checks: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call, one entry for each turn."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over the turns [s]."""
        return statistics.median(self.seconds)

    def us(self, steps: int) -> tuple[float, float, float]:
        """(median, min, max) in microseconds per step, for `steps` system steps in one call."""
        scale = 1e6 / steps
        return self.median * scale, min(self.seconds) * scale, max(self.seconds) * scale


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times longer one call takes than another: paired turn by turn."""

    minimum: float
    median: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.minimum:.2f} / {self.median:.2f} / {self.maximum:.2f}"


def ratio(slow: Timing, fast: Timing) -> Ratio:
    """Ratio of two timings of one `alternate` call; turns that only one has are left out."""
    paired = [a / b for a, b in zip(slow.seconds, fast.seconds, strict=False)]
    return Ratio(min(paired), statistics.median(paired), max(paired))


# ----------------------------------------------------------------------------------------
# Timing


def wait(value: Any) -> Any:
    """Blocks until every JAX array in `value` is there; anything else passes."""
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(value)
    return value


def timed(call: Callable[[], Any], calls: int = 1) -> float:
    """Seconds of one call, as the mean over `calls` calls in a row; results are waited for."""
    begin = time.perf_counter()
    for _ in range(calls):
        wait(call())
    return (time.perf_counter() - begin) / calls


def alternate(
    measures: Mapping[str, Callable[[int], float]],
    *,
    repetitions: int = 5,
    minimum_s: float = 0.1,
    slow_after_s: float = 60.0,
) -> dict[str, Timing]:
    """Times several callables in turns: a, b, c, a, b, c, ...

    **Arguments:**

    - `measures`: by name, a function that makes so many calls in a row and returns the mean seconds
        of one: `Worker.forward`, `Worker.gradient`, or `lambda calls: timed(f, calls)`.
    - `repetitions`: turns of each, at least 5.
    - `minimum_s`: a turn repeats short calls until it lasts about this long.
    - `slow_after_s`: what takes longer than this for one call gets one turn after its warm-up, not
        `repetitions` of them. `Timing.seconds` shows how many there were.

    **Returns:** a `Timing` for each name that did not fail; what raises `WorkerError` is dropped.
    """
    if repetitions < 5:
        raise ValueError(f"a median needs at least 5 repetitions, not {repetitions}")
    calls, seconds = {}, {}
    for name, measure in measures.items():  # warm-up, not counted
        try:
            first = measure(1)  # may also look at the results
            first = min(first, measure(1)) if first < 10 * minimum_s else first
        except WorkerError as error:
            print(f"  {name}: {error}", file=sys.stderr)
            continue
        calls[name] = max(1, min(10_000, round(minimum_s / max(first, 1e-9))))
        seconds[name] = []
        if first > slow_after_s:
            print(f"  {name}: {first:.0f} s a call, measured once", file=sys.stderr)
            calls[name] = 0
    for turn in range(repetitions):
        for name in list(seconds):
            if calls[name] == 0 and turn > 0:
                continue
            try:
                seconds[name].append(measures[name](max(1, calls[name])))
            except WorkerError as error:
                print(f"  {name}: {error}", file=sys.stderr)
                del seconds[name]
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def compile_timed(function: Callable, *arguments: Any) -> tuple[Callable, float]:
    """Compiles a function for these arguments; returns the program and the seconds it took."""
    import jax

    begin = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - begin


def looked_at(call: Callable[[], Any], look: Callable[[Any], None]) -> Callable[[], Any]:
    """`call`, whose first result `look` sees; where that is the warm-up, it is not timed."""
    seen = False

    def run() -> Any:
        nonlocal seen
        value = call()
        if not seen:
            look(value)
            seen = True
        return value

    return run


def first_call(call: Callable[[], Any]) -> float:
    """Seconds that the first call takes longer than the second one: tracing and compiling."""
    first, second = (timed(call) for _ in range(2))
    return max(0.0, first - second)


# ----------------------------------------------------------------------------------------
# Memory


def reset_peak_memory() -> bool:
    """Lowers this process's high-water mark to what it holds now; False where the system cannot.

    What was freed is first given back to the system: compiling leaves hundreds of megabytes.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory_mb() -> float:
    """High-water mark of this process's resident memory [MB, 10⁶ bytes].

    Read from `/proc`: on Linux `ru_maxrss` of a child begins with what its *parent* held when it
    started the child, so there it is a fallback only.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def device_peak_mb() -> float | None:
    """High-water mark of the accelerator's memory [MB]; None on a CPU."""
    if "jax" not in sys.modules:
        return None
    statistics_ = sys.modules["jax"].devices()[0].memory_stats()
    return statistics_["peak_bytes_in_use"] / 1e6 if statistics_ else None


# ----------------------------------------------------------------------------------------
# Workers


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A workload that is built and compiled, ready to be timed.

    - `forward`, `gradient`: calls without arguments; `gradient` is None where there is none.
    - `compile_s`, `gradient_compile_s`: seconds of compiling, None for what needs none.
    - `checks`: what was verified about the physics, and anything a reader of the row must know;
        the calls may add to it.
    """

    forward: Callable[[], Any]
    gradient: Callable[[], Any] | None = None
    compile_s: float | None = None
    gradient_compile_s: float | None = None
    checks: dict[str, Any] = dataclasses.field(default_factory=dict)


class WorkerError(RuntimeError):
    """A worker failed, died, or took too long; it is ended."""


def _serve(
    pipe: multiprocessing.connection.Connection, prepare: Callable, arguments: tuple
) -> None:
    """The worker's side: prepare, then time what is asked for until told to stop."""
    try:
        base = peak_memory_mb()
        prepared = prepare(*arguments)
        facts = {
            "compile_s": prepared.compile_s,
            "gradient_compile_s": prepared.gradient_compile_s,
            "has_gradient": prepared.gradient is not None,
            "base_mb": base,
            "prepare_peak_mb": peak_memory_mb(),
            "peak_is_of_the_run": reset_peak_memory(),
            "rest_mb": peak_memory_mb(),
        }
        pipe.send(("ok", facts))
        while (request := pipe.recv()) is not None:
            which, calls = request
            if which == "memory":
                pipe.send(("ok", device_peak_mb() or peak_memory_mb()))
            elif which == "checks":
                pipe.send(("ok", prepared.checks))
            else:
                pipe.send(("ok", timed(getattr(prepared, which), calls)))
    except EOFError:
        pass
    except BaseException:
        pipe.send(("error", traceback.format_exc(limit=-8)))


class Worker:
    """A process of its own that has prepared one workload and times it on request.

    **Arguments:**

    - `prepare`: a function at the top level of a module, called in the new process.
    - `arguments`: its arguments; they are pickled.
    - `cores`: the processor cores the process may use; default all of this process. It is set
        before the process starts, so that the thread pools made in it have the right size.
    - `timeout_s`: for the preparation, and for each request. Past it the process is killed.

    Use it in a `with` statement. **Raises:** `WorkerError`.
    """

    def __init__(
        self,
        prepare: Callable[..., Prepared],
        arguments: Sequence[Any] = (),
        *,
        cores: Collection[int] | None = None,
        timeout_s: float = 900.0,
    ):
        self.timeout_s = timeout_s
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, prepare, tuple(arguments)), daemon=True
        )
        with pinned(cores):
            self._process.start()
        other.close()
        facts = self._answer()
        self.compile_s: float | None = facts["compile_s"]
        self.gradient_compile_s: float | None = facts["gradient_compile_s"]
        self.has_gradient: bool = facts["has_gradient"]
        self.base_mb: float = facts["base_mb"]
        self.prepare_peak_mb: float = facts["prepare_peak_mb"]
        self.peak_is_of_the_run: bool = facts["peak_is_of_the_run"]
        self.rest_mb: float = facts["rest_mb"]

    def forward(self, calls: int = 1) -> float:
        """Seconds of one forward call, the mean of `calls`."""
        return self._request("forward", calls)

    def gradient(self, calls: int = 1) -> float:
        """Seconds of one gradient call, the mean of `calls`."""
        return self._request("gradient", calls)

    def peak_mb(self) -> float:
        """Peak since the preparation ended [MB]: of the device; on a CPU of the process."""
        return self._request("memory", 0)

    def checks(self) -> dict[str, Any]:
        """What was verified so far."""
        checks = self._request("checks", 0)
        if not self.peak_is_of_the_run:
            checks["peak_mb"] = "with compiling: the high-water mark cannot be reset here"
        return checks

    def close(self) -> None:
        """Ends the process."""
        if self._process.is_alive():
            try:
                self._pipe.send(None)
                self._process.join(5)
            except OSError:
                pass
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, which: str, calls: int) -> Any:
        try:
            self._pipe.send((which, calls))
        except OSError as error:
            raise WorkerError("has ended before") from error
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(self.timeout_s):
                raise WorkerError(f"no answer within {self.timeout_s:g} s")
            status, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            problem = f"died with exit code {self._process.exitcode}"
            self.close()
            raise WorkerError(problem) from error
        except WorkerError:
            self._process.kill()
            self.close()
            raise
        if status == "error":
            self.close()
            raise WorkerError(value)
        return value


@contextmanager
def pinned(cores: Collection[int] | None) -> Iterator[None]:
    """Runs the body, and the processes started in it, on these cores; None: on all."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Runs the body while no other process holds the lock of this file; None: at once."""
    if lock is None:
        yield
        return
    import fcntl

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def one_core() -> set[int]:
    """The last core this process may use, for `Worker(cores=...)`."""
    return {max(os.sched_getaffinity(0))} if hasattr(os, "sched_getaffinity") else {0}


def peak_memory_of(
    prepare: Callable[..., Prepared], *arguments: Any, gradient: bool = False
) -> dict[str, float]:
    """Peak memory of one forward (or gradient) call, in a process of its own [MB].

    **Returns:** `base` (interpreter and imports), `prepare` (with building and compiling) and `run`
    (while the call ran; on a GPU the device's).
    """
    with Worker(prepare, arguments) as worker:
        (worker.gradient if gradient else worker.forward)()
        return {
            "base": worker.base_mb,
            "prepare": worker.prepare_peak_mb,
            "run": worker.peak_mb(),
        }


def measure(
    workers: Mapping[str, Worker],
    *,
    workload: str,
    batch: int,
    steps: int,
    dtype: str,
    repetitions: int = 5,
    slow_after_s: float = 60.0,
) -> tuple[list[Row], dict[str, Timing]]:
    """Times forward and gradient of all workers in turns.

    **Returns:** a `Row` for each worker, and the timings under the names "engine forward" and
    "engine gradient", for `ratio`.
    """
    calls: dict[str, Callable[[int], float]] = {}
    for engine, worker in workers.items():
        calls[f"{engine} forward"] = worker.forward
        if worker.has_gradient:
            calls[f"{engine} gradient"] = worker.gradient
    timings = alternate(calls, repetitions=repetitions, slow_after_s=slow_after_s)
    rows = []
    for engine, worker in workers.items():
        forward, gradient = (timings.get(f"{engine} {way}") for way in ("forward", "gradient"))
        times = forward.us(steps * batch) if forward else (None,) * 3
        gradient_times = gradient.us(steps * batch) if gradient else (None,) * 3
        try:
            peak, checks = worker.peak_mb(), worker.checks()
        except WorkerError:
            peak, checks = None, {}
        if forward is None:
            checks["failed"] = "the forward run failed or timed out"
        elif worker.has_gradient and gradient is None:
            checks["failed"] = "the gradient run failed or timed out"
        rows.append(
            Row(
                engine,
                workload,
                batch,
                dtype,
                *times,
                *gradient_times,
                worker.compile_s,
                worker.gradient_compile_s,
                peak,
                len(forward.seconds) if forward else None,
                checks,
            )
        )
    return rows, timings


# ----------------------------------------------------------------------------------------
# Output


def header() -> dict[str, str]:
    """Versions and machine, for the top of a table."""
    facts = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed"
    facts["processor"] = _processor()
    facts["cores"] = str(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    if hasattr(os, "getloadavg"):
        facts["load"] = f"{os.getloadavg()[0]:.2f}"
    import jax

    device = jax.devices()[0]
    facts["device"] = f"{device.platform}: {device.device_kind}"
    return facts


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_json(
    rows: Sequence[Row], path: str | Path, facts: Mapping[str, str] | None = None
) -> None:
    """Writes a list of rows; `facts` (see `header`) go into each row under "environment"."""
    listed = [{**dataclasses.asdict(row), "environment": dict(facts or {})} for row in rows]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(listed), indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """The value in JSON's types; JSON has no NaN and no infinity, they become strings."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, int | float | str | None) else str(value)


def print_header(title: str, facts: Mapping[str, str]) -> None:
    """Prints the title, the versions and the machine."""
    print(f"\n{title}")
    print("  " + ", ".join(f"{name} {value}" for name, value in facts.items()))


def print_rows(rows: Sequence[Row]) -> None:
    """Prints a table: times as median (min to max), then each row's checks."""

    def spread(middle: float | None, low: float | None, high: float | None) -> str:
        return "-" if middle is None else f"{middle:.3g} ({low:.3g} to {high:.3g})"

    def number(value: float | None, digits: str) -> str:
        return "-" if value is None else format(value, digits)

    table = [
        (
            row.engine,
            row.workload,
            str(row.batch),
            row.dtype,
            spread(row.us_per_step, row.us_per_step_min, row.us_per_step_max),
            spread(
                row.gradient_us_per_step, row.gradient_us_per_step_min, row.gradient_us_per_step_max
            ),
            number(row.compile_s, ".1f"),
            number(row.gradient_compile_s, ".1f"),
            number(row.peak_mb, ".0f"),
        )
        for row in rows
    ]
    columns = (
        ("engine", "workload", "batch", "dtype", "µs/step", "gradient µs/step")
        + ("compile s", "grad. compile s", "peak MB")
    )  # fmt: skip
    print_table(columns, table)
    for row in rows:
        if row.checks:
            listed = "; ".join(f"{name}: {_short(value)}" for name, value in row.checks.items())
            print(f"  {row.engine}, {row.workload}, batch {row.batch}: {listed}")


def print_ratios(title: str, ratios: Mapping[str, Ratio]) -> None:
    """Prints ratios as min, median and max over the turns."""
    listed = [
        (name, f"{r.minimum:.2f}", f"{r.median:.2f}", f"{r.maximum:.2f}")
        for name, r in ratios.items()
    ]
    print_table((title, "min", "median", "max"), listed)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, with rich where it is installed."""
    if importlib.util.find_spec("rich") and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for line in (columns, ["-" * width for width in widths], *rows):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).strip()


def parser(description: str, batches: Sequence[int]) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    made.add_argument("--batches", type=int, nargs="+", default=list(batches), metavar="N")
    made.add_argument("--repetitions", type=int, default=5, help="turns of each engine, at least 5")
    made.add_argument("--engines", nargs="+", metavar="NAME", help="only these engines")
    made.add_argument(
        "--seed", type=int, default=0, help="of the initial states, shared by all engines"
    )
    made.add_argument(
        "--timeout", type=float, default=900.0, metavar="S", help="of one call of one engine"
    )
    return made
