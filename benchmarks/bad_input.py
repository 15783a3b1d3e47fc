"""Wrong arguments in every place of the public constructors and functions: what does a user see?

    python benchmarks/bad_input.py --calls 10000 --seed 0

takes the valid calls of `_exported.py`, of every class and function that the package exports, replaces one
argument by something wrong, and demands one of

- a `ValueError` or `TypeError` (a `KeyError` for an unknown name), raised by a sentence of ours (not by
  JAX, NumPy or an operator in the middle of our code) that names the argument;
- a result, where the value makes sense in that place.

It prints what is violated, each kind once, with a count, and ends with status 1 if there is any. A
refusal that takes more than 2 s of processor time is violated too, and so is a result that takes more
than 20 s, most of which it compiles; a call is broken off after a minute, and the run after 150 s that no
signal ends. So is a call that needs more than
1 GB of memory beyond what the process has. `--calls 0` makes every call there is once; `--skip` passes over
the first calls of a seed, for a run in parts.
"""

import argparse
import faulthandler
import inspect
import linecache
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Batches of LAPACK may wait for ever for each other in the threads of jaxlib 0.10.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np

import diffnsd as nsd
from _exported import all_calls
from _wrong import NOT_NUMBERS, WRONG, derived, kinds_of

PACKAGE = str(Path(nsd.__file__).parent)

# Names under which a message knows an argument.
ALIASES = {
    "params": "parameters",
    "name": "parameter",
    "on": "mask",
    "methods": "chain",
    "vertices": "points",
    "state0": "state",
    "force": "value",
    "ts": "times",
    "path": "file",
    "names": "file",
    "trajectories": "trajectory",
    "source": "file",
}


# What is asked for in good order and takes long: 100,000 fits, the motions of all models.
LONG = {("profile(values)", "a huge vector"), ("write_gallery(names)", "an empty array")}


# What a place of this name takes, and is wrong elsewhere.
TEXTS = {"path", "source", "folder", "ignore", "title", "unit"}

NO_ARGUMENT = "no_such_argument"
MOST_MEMORY = 2**30


class Hangs(BaseException):
    """Raised into a call that takes too long; no handler of `Exception` catches it."""


def _break_off(signum, frame):
    raise Hangs


class Place(NamedTuple):
    """An argument of a valid call: `index` if it is positional, and its valid value."""

    name: str
    function: Callable
    args: tuple
    kwargs: dict
    index: int | None
    key: str
    valid: Any

    def __str__(self) -> str:
        return f"{self.name}({self.key})"


class Outcome(NamedTuple):
    """What a call came to; `problem` is empty where it is right; `memory`: bytes beyond those before."""

    place: str
    value: str
    problem: str
    memory: int


def places() -> list[Place]:
    """Every argument of every valid call, and one that no call has."""
    found = []
    for name, (function, args, kwargs) in all_calls().items():
        parameters = list(inspect.signature(function).parameters)
        call = name, function, args, kwargs
        found += [
            Place(*call, i, parameters[min(i, len(parameters) - 1)], value)
            for i, value in enumerate(args)
        ]
        found += [Place(*call, None, key, value) for key, value in kwargs.items()]
        found.append(Place(*call, None, NO_ARGUMENT, None))
    return found


def pairs(only: str = "") -> list[tuple[Place, str, Any]]:
    """Every wrong call: a place, the name of a value, and the value."""
    found = []
    for place in places():
        if only not in str(place):
            continue
        if place.key == NO_ARGUMENT:
            values = {"a number": 1.0}
        else:
            values = WRONG | NOT_NUMBERS | derived(place.valid) | kinds_of(place.name, place.key)
        found += [
            (place, name, value) for name, value in values.items() if (str(place), name) not in LONG
        ]
    return found


def attempts(count: int, seed: int, skip: int = 0, only: str = "") -> Iterator[Outcome]:
    """Wrong calls, each with its outcome; `seed` decides which. A count of 0 makes all of them."""
    todo = pairs(only)
    random.Random(seed).shuffle(todo)
    for k in range(skip, skip + count if count else len(todo)):
        if k % 500 == 499:
            jax.clear_caches()
        yield attempt(*todo[k % len(todo)])


TAKE_NAN = {
    *(nsd.groups.dexpinv_series, nsd.groups.matrix_log, nsd.groups.quaternion_from_matrix),
    *(nsd.groups.quaternion_log, nsd.groups.quaternion_product, nsd.groups.rotate),
    *(nsd.groups.rotation_matrix, nsd.relations.tangents, nsd.identification.pad),
    *(nsd.identification.masked_mean, nsd.identification.mean_of_means),
    nsd.ComplementarityProblem,
}
"""Operations on arrays, through which NaN passes as in JAX's own; and a problem, in which rows that do not
take part may hold anything (`solve_complementarity` refuses the rest)."""


def attempt(place: Place, described: str, value: Any) -> Outcome:
    """Makes a wrong call."""
    args, kwargs = place.args, place.kwargs
    if place.index is None:
        kwargs = kwargs | {place.key: value}
    else:
        args = (*args[: place.index], value, *args[place.index + 1 :])
    begin, problem, before = time.process_time(), "", reset_memory()
    accepted, handler = False, signal.signal(signal.SIGALRM, _break_off)
    signal.alarm(60)
    try:
        result = place.function(*args, **kwargs)
    except Hangs:
        problem = "60 s and no end"
    except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
        problem = judged(error, place.key)
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__} from the inside: {_last(error)}"
    else:
        accepted = True
        if is_never_right(place.key, described):
            problem = "accepted"
        elif described.endswith("NaN") and _holds_nan(result) and place.function not in TAKE_NAN:
            problem = "NaN accepted"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    if not problem and time.process_time() - begin > 2 + 18 * accepted:
        problem = f"{time.process_time() - begin:.1f} s"
    memory = max(0, most_memory() - before)
    if not problem and memory > MOST_MEMORY:
        problem = f"{memory / 2**30:.1f} GB"
    return Outcome(str(place), described, problem, memory)


def is_never_right(key: str, described: str) -> bool:
    """Whether a value makes no sense in a place."""
    if key in ("batch", "design", "designs", "runs") and "complex" in described:
        return False  # any pytree
    if key == NO_ARGUMENT or described in ("its own class", "its parts", "complex numbers"):
        return True
    # Modules are pytrees of numbers.
    modules = "params", "a pair of modules"
    fine = modules, ("key", "a key"), ("ignore", "a generator of strings")
    if described == "a string" and key in TEXTS or (key, described) in fine:
        return False
    return described in WRONG


def reset_memory() -> int:
    """Makes the most memory that the process had that which it has, where Linux lets us; bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
    return most_memory()


def most_memory() -> int:
    """The most memory [bytes] that the process had, since it was reset."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("VmHWM"))
    except OSError:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def judged(error: Exception, key: str) -> str:
    """What is wrong with an error, empty if nothing is: it was raised by us, and names the argument."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [k for k, f in enumerate(frames) if f.filename.startswith(PACKAGE)]
    if ours and any(f.filename.endswith("_calls.py") for f in frames[ours[0] :]):
        return ""  # in a function of the user, who sees it there
    frame = frames[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    by_us = frame.filename.startswith(PACKAGE) and line.startswith("raise")
    if key == NO_ARGUMENT and isinstance(error, TypeError) and key in str(error):
        return ""
    if not by_us:
        return f"{type(error).__name__} from the inside: {_last(error)}"
    words = ALIASES.get(key, key).replace("_", " ").split()
    if not any(re.search(rf"\b{re.escape(word)}", str(error), re.I) for word in (key, *words)):
        return f"does not name `{key}`: {str(error).splitlines()[0][:150]}"
    return ""


def _last(error: Exception) -> str:
    ours = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "not in diffnsd"
    return f"{where}: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}"


def _holds_nan(result: Any) -> bool:
    leaves = [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array | np.ndarray | float)]
    return any(np.isnan(x).any() for x in leaves if np.asarray(x).dtype.kind == "f")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000, help="0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="calls of the seed to pass over")
    parser.add_argument("--only", default="", help="places whose name contains this")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    begin, made, violated, most = time.perf_counter(), 0, Counter(), 0
    working = tempfile.TemporaryDirectory()
    os.chdir(working.name)
    faulthandler.dump_traceback_later(150, exit=True)  # for what no signal reaches
    for outcome in attempts(options.calls, options.seed, options.skip, options.only):
        faulthandler.dump_traceback_later(150, exit=True)
        made, most = made + 1, max(most, outcome.memory)
        if outcome.problem:
            if not violated[outcome[:3]]:
                print(f"{outcome.place}, {outcome.value}: {outcome.problem}", flush=True)
            violated[outcome[:3]] += 1
    faulthandler.cancel_dump_traceback_later()
    seconds = time.perf_counter() - begin
    total = sum(violated.values())
    print(
        f"{made} calls in {len(places())} places of {len(all_calls())} valid calls, {seconds:.0f} s, at "
        f"most {most / 2**20:.0f} MB for one: {total} violated, {len(violated)} kinds"
    )
    sys.exit(bool(violated))


if __name__ == "__main__":
    main()
