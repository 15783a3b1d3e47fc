"""Programs in processes of their own, on as many devices as JAX is told a CPU has; and what devices exchange.

The programs may import this too.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "recv",
    "reduce-scatter",
    "send",
)
"""Operations of XLA by which devices exchange something."""

COLLECTIVE = re.compile(rf" = .*? (?:{'|'.join(KINDS)})(?:-start)?\(")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|computations?)=\{?(%?[\w.-]+(?:, %[\w.-]+)*)"
)
LOOP = re.compile(r"(?:body|condition)=%?([\w.-]+)")


def collectives(text: str, in_loops: bool = False) -> int:
    """How many collective operations a compiled program has, as text; or only those in its loops."""
    if not in_loops:
        return len(COLLECTIVE.findall(text))
    computations, name = {"": ""}, ""
    for line in text.splitlines(keepends=True):
        if begins := COMPUTATION.match(line):
            name = begins[1]
        computations[name] = computations.get(name, "") + line
    waiting, found = set(LOOP.findall(text)), set()
    while waiting:
        found |= waiting
        called = CALLED.findall("".join(computations[name] for name in waiting))
        waiting = {name.lstrip("%") for names in called for name in names.split(", ")} - found
    return sum(len(COLLECTIVE.findall(computations[name])) for name in found)


def environment(devices: int) -> dict[str, str]:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    tests = Path(__file__).parent
    paths = [str(tests.parent), str(tests), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def python(program: str, *arguments: str, devices: int = 1) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment(devices),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(*processes: subprocess.Popen) -> list[dict]:
    """What the processes print last, as JSON; none is left running."""
    try:
        ended = [process.communicate(timeout=560) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


# A process that a shell started in the background ignores Ctrl-C, and so do its children.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(program: str, *arguments: str, devices: int) -> tuple[int, str, str, float]:
    """Sends Ctrl-C to a program half a second after it says `ready`.

    **Returns:** exit status, what it wrote to both streams, and how long it went on [s].
    """
    running = python(HEEDING + program, *arguments, devices=devices)
    try:
        assert running.stdout is not None
        said = running.stdout.readline()
        while said and said.strip() != "ready":
            said = running.stdout.readline()
        time.sleep(0.5)
        sent = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=300)
        return running.returncode, out, errors, time.monotonic() - sent
    finally:
        running.kill()
        running.wait()
