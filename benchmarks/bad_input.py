"""Wrong arguments in every place of the public constructors and functions: what does a user see?

    python benchmarks/bad_input.py --calls 10000 --seed 0

takes the valid calls of `_calls.py` and `_more_calls.py`, replaces one argument by something wrong, and
demands one of

- a `ValueError` or `TypeError` (a `KeyError` for an unknown name), raised by a sentence of ours (not by
  JAX, NumPy or an operator in the middle of our code) that names the argument;
- a result, where the value makes sense in that place.

It prints what is violated, each kind once, with a count, and ends with status 1 if there is any. A
refusal that takes more than 2 s of processor time is violated too, and so is a result that takes more
than 20 s, most of which it compiles; a call is broken off after a minute. `--skip` passes over the first
calls of a seed, for a run in parts.
"""

import argparse
import inspect
import linecache
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from _calls import calls
from _more_calls import more_calls

PACKAGE = str(Path(nsd.__file__).parent)

# Never right, wherever they stand (unless a place takes anything).
WRONG: dict[str, Any] = {
    "a string": "abc",
    "an object": object(),
    "a dictionary": {"a": 1.0},
    "a class": nsd.MoreauJean,
    "a law's class": nsd.NewtonImpact,
    "a module": np,
    "a complex number": 1.0 + 2.0j,
    "bytes": b"\x80\x04",
    "a set": {1.0, 2.0},
    "a generator of strings": ("x", "y"),
    "a ragged list": [[1.0], [1.0, 2.0]],
    "an array of strings": np.array(["a", "b"]),
    "an array of objects": np.array([None, object()], dtype=object),
    "a key": jax.random.key(0),
    "a pair of modules": (nsd.Equality(), nsd.NewtonImpact()),
}
# Wrong for a number or an array.
NOT_NUMBERS: dict[str, Any] = {
    "NaN": float("nan"),
    "an array of NaN": jnp.full(3, jnp.nan),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "None": None,
    "an empty array": np.zeros(0),
    "a negative number": -1.5,
    "zero": 0.0,
    "a vector of zeros": (0.0, 0.0, 0.0),
    "a long vector": (2.0, 0.0, 0.0),
    "a huge vector": np.ones(100_000),
    "a matrix": np.ones((2, 3)),
    "four axes": np.ones((1, 1, 1, 1)),
    "a huge number": 1e300,
    "a function": lambda: None,
    "a boolean": True,
    "an integer": 10**4,
}


# Names under which a message knows an argument.
ALIASES = {
    "params": "parameters",
    "name": "parameter",
    "on": "mask",
    "methods": "chain",
    "vertices": "points",
}


# What is asked for in good order and takes long: 100,000 fits.
LONG = {("profile(values)", "a huge vector")}


class Hangs(BaseException):
    """Raised into a call that takes too long; no handler of `Exception` catches it."""


def _break_off(signum, frame):
    raise Hangs


class Outcome(NamedTuple):
    """What a call came to; `problem` is empty where it is as it should be."""

    place: str
    value: str
    problem: str


def places() -> list[tuple[str, Callable, tuple, dict, Any]]:
    """Every argument of every valid call: its name, and the call without it."""
    found = []
    for name, (function, args, kwargs) in (calls() | more_calls()).items():
        parameters = list(inspect.signature(function).parameters)
        found += [
            (name, function, args, kwargs, (i, parameters[min(i, len(parameters) - 1)]))
            for i in range(len(args))
        ]
        found += [(name, function, args, kwargs, (None, key)) for key in kwargs]
    return found


def attempts(count: int, seed: int, skip: int = 0, only: str = "") -> Iterator[Outcome]:
    """Wrong calls, each with its outcome; `seed` decides which."""
    choose = random.Random(seed)
    values = WRONG | NOT_NUMBERS
    all_places = [place for place in places() if only in f"{place[0]}({place[-1][1]})"]
    pairs = [
        (place, value)
        for place in all_places
        for value in values
        if (f"{place[0]}({place[-1][1]})", value) not in LONG
    ]
    choose.shuffle(pairs)
    for k in range(skip, skip + count):
        if k % 500 == 499:
            jax.clear_caches()
        (name, function, args, kwargs, (index, key)), value = pairs[k % len(pairs)]
        yield _attempt(name, function, args, kwargs, index, key, value, values[value])


def _attempt(name, function, args, kwargs, index, key, described, value) -> Outcome:
    if index is None:
        kwargs = kwargs | {key: value}
    else:
        args = (*args[:index], value, *args[index + 1 :])
    place, begin, problem = f"{name}({key})", time.process_time(), ""
    accepted = False
    signal.alarm(60)
    try:
        result = function(*args, **kwargs)
    except Hangs:
        problem = "60 s and no end"
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        problem = judged(error, key)
    except Exception as error:
        problem = f"{type(error).__name__} from the inside: {_last(error)}"
    else:
        accepted = True
        if described in WRONG and (key, described) != ("key", "a key"):
            problem = "accepted"
        elif described.endswith("NaN") and _holds_nan(result):
            problem = "NaN accepted"
    finally:
        signal.alarm(0)
    if not problem and time.process_time() - begin > 2 + 18 * accepted:
        problem = f"{time.process_time() - begin:.1f} s"
    return Outcome(place, described, problem)


def judged(error: Exception, key: str) -> str:
    """What is wrong with an error, empty if nothing is: it was raised by us, and names the argument."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [k for k, f in enumerate(frames) if f.filename.startswith(PACKAGE)]
    if ours and any(f.filename.endswith("_calls.py") for f in frames[ours[0] :]):
        return ""  # in a function of the user, who sees it there
    frame = frames[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    by_us = frame.filename.startswith(PACKAGE) and line.startswith("raise")
    if isinstance(error, RuntimeError) and not by_us:
        return f"RuntimeError from the inside: {_last(error)}"
    if not by_us:
        return f"{type(error).__name__} from the inside: {_last(error)}"
    words = ALIASES.get(key, key).replace("_", " ").split()
    if not any(re.search(rf"\b{re.escape(word)}", str(error)) for word in (key, *words)):
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
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="calls of the seed to pass over")
    parser.add_argument("--only", default="", help="places whose name contains this")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    signal.signal(signal.SIGALRM, _break_off)

    begin, made, violated = time.perf_counter(), 0, Counter()
    for outcome in attempts(options.calls, options.seed, options.skip, options.only):
        made += 1
        if outcome.problem:
            if not violated[outcome]:
                print(f"{outcome.place}, {outcome.value}: {outcome.problem}", flush=True)
            violated[outcome] += 1
    seconds = time.perf_counter() - begin
    total = sum(violated.values())
    print(f"{made} calls in {len(places())} places, {seconds:.0f} s: {total} violated, ", end="")
    print(f"{len(violated)} kinds")
    sys.exit(bool(violated))


if __name__ == "__main__":
    main()
