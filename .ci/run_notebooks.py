"""Executes notebooks/*.ipynb without changing them; a failing or slow notebook fails the run.

Usage: python .ci/run_notebooks.py [--limit SECONDS] [--together N] [NOTEBOOK ...]
"""

import argparse
import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent


def execute(path: Path, limit: float) -> str | None:
    """Runs one notebook in its own folder; returns what went wrong, or None."""
    client = NotebookClient(
        nbformat.read(path, as_version=4), resources={"metadata": {"path": str(path.parent)}}
    )
    end = time.monotonic() + limit
    try:
        asyncio.run(asyncio.wait_for(client.async_execute(), limit))
    except (TimeoutError, DeadKernelError, CellExecutionError) as error:
        # At the limit the kernel is ended, which nbclient may report as a death instead.
        return str(error) if time.monotonic() < end else f"took more than {limit:g} s"
    return None


def main() -> int:
    """Runs every notebook, reports each, and returns the number that failed."""
    parser = argparse.ArgumentParser(description="Execute the notebooks.")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds allowed per notebook")
    parser.add_argument("--together", type=int, default=1, help="notebooks that run at a time")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: notebooks/*.ipynb")
    arguments = parser.parse_args()
    notebooks = arguments.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    if not notebooks:
        print("no notebooks found", file=sys.stderr)
        return 1

    def report(path: Path) -> bool:
        begin = time.perf_counter()
        problem = execute(path.resolve(), arguments.limit)
        print(f"{path.name}: {problem or 'ok'} ({time.perf_counter() - begin:.1f} s)", flush=True)
        return problem is not None

    with ThreadPoolExecutor(arguments.together) as pool:
        return sum(pool.map(report, notebooks))


if __name__ == "__main__":
    sys.exit(main())
