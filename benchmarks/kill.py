"""A long simulation with checkpoints, killed at random moments: is its end that of a run left in peace?

    python benchmarks/kill.py --times 50 --seed 0

A process simulates a sliding block and is killed (`SIGKILL`) after a random time, wherever it is: starting,
compiling, stepping, or writing a file. The next goes on from the files. After the last kill a process runs
to the end, and every bit of what it returns must be that of an uninterrupted run. Prints the kills, those
that fell while files were written, and the files that were lost; ends with status 1 if a bit differs.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import sys, jax
jax.config.update("jax_enable_x64", True)
from diffnsd import Checkpointing, MoreauJean, SaveAt, simulate
from diffnsd.models import block_state, sliding_block
done = simulate(sliding_block(0.01), MoreauJean(), 0.0, float(sys.argv[2]), 1e-3, block_state(0.0, speed=2.0),
                saveat=SaveAt(steps=500), save=Checkpointing(sys.argv[1], every=500))
leaves = jax.device_get(jax.tree.leaves((done.states, done.impulses, done.energy, done.stats)))
print(b"".join(x.tobytes() for x in leaves).hex())
"""


def files(folder: Path) -> int:
    """How many parts are complete."""
    return len(list(folder.glob("part*.npz")))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="of the motion, 1,000 steps each"
    )
    options = parser.parse_args()
    choose, kills, between, lost = random.Random(options.seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as where:
        peace, war = Path(where, "peace"), Path(where, "war")
        war.mkdir()

        def command(folder: Path) -> list[str]:
            return [sys.executable, "-c", PROGRAM, str(folder), str(options.seconds)]

        begin = time.monotonic()
        whole = subprocess.run(command(peace), capture_output=True, text=True, check=True).stdout
        print(f"left in peace: {time.monotonic() - begin:.0f} s, {files(peace)} files", flush=True)
        while kills < options.times:
            before = files(war)
            with subprocess.Popen(command(war), stdout=subprocess.DEVNULL) as going:
                # Half of them at any moment, the others once files are being written.
                if choose.random() < 0.5:
                    time.sleep(choose.uniform(0, 6))
                else:
                    while going.poll() is None and files(war) == before:
                        time.sleep(1e-3)
                    time.sleep(choose.uniform(0, 0.2))
                ended = going.poll() is not None
                going.kill()
            if ended:
                break
            kills += 1
            if kills % 10 == 0:
                print(f"{kills} kills, {files(war)} files", flush=True)
            between += files(war) > before
            lost += max(0, before - files(war))
        last = subprocess.run(command(war), capture_output=True, text=True, check=True).stdout
    same = last == whole
    print(f"{kills} kills, {between} of them between files, {lost} files lost; bits equal: {same}")
    sys.exit(not same or lost > 0)


if __name__ == "__main__":
    main()
