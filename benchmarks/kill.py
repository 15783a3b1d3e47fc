"""Long computations with checkpoints, killed at random moments: is the end that of a run left in peace?

    python benchmarks/kill.py --times 50 --seed 0
    python benchmarks/kill.py --cases fit chain --times 10

A process simulates a sliding block, fits a curve or draws chains, and is killed (`SIGKILL`) after a random
time, wherever it is: starting, compiling, stepping, or writing a file. The next goes on from the files. After
the last kill a process runs to the end, and every bit of what it returns must be that of an uninterrupted
run. A case that ends before it was killed often enough is begun anew. Prints the kills, those that fell while
files were written, and the files that were lost; ends with status 1 if a bit differs or a file was lost.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BEGIN = """
import sys, jax, jax.numpy as jnp, numpy as np, optax
jax.config.update("jax_enable_x64", True)
from diffnsd import Checkpointing, MoreauJean, SaveAt, identification, simulate
from diffnsd.models import block_state, sliding_block
folder, size = sys.argv[1], float(sys.argv[2])
t = np.linspace(0.0, 2.0, 400)
data = 2.0 * np.exp(-1.3 * t) + 0.05 * np.random.default_rng(0).standard_normal(400)
start = {"a": jnp.asarray(1.0), "b": jnp.asarray(0.5)}
def residual(p):
    return p["a"] * jnp.exp(-p["b"] * t) - data
"""

PROGRAMS = {
    "simulate": """
done = simulate(sliding_block(0.01), MoreauJean(), 0.0, size, 1e-3, block_state(0.0, speed=2.0),
                saveat=SaveAt(steps=500), save=Checkpointing(folder, every=500))
found = done.states, done.impulses, done.energy, done.stats
""",
    "fit": """
done = identification.fit(lambda p: jnp.sum(residual(p) ** 2), start, optax.adam(1e-4), rtol=1e-14,
                          max_steps=int(100 * size), save=Checkpointing(folder, every=200), throw=False)
found = done.params, done.loss, done.history.loss, done.history.values, done.steps
""",
    "chain": """
noise = identification.GaussianNoise(residual, deviation=0.05)
sampler = identification.NUTS(draws=int(20 * size), warmup=200)
done = identification.posterior(noise, start, sampler=sampler, save=Checkpointing(folder, every=100))
found = done.samples, done.log_density, done.rhat, done.evaluations, done.acceptance
""",
}
END = """
print(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(found)).hex())
"""


def files(folder: Path) -> int:
    """How many parts are complete."""
    return len(list(folder.glob("part*.npz")))


def killed(case: str, times: int, size: float, choose: random.Random) -> tuple[bool, int, int, int]:
    """Whether the bits are equal; kills, those between which files were written, and files lost."""
    program, kills, between, lost = BEGIN + PROGRAMS[case] + END, 0, 0, 0
    with tempfile.TemporaryDirectory() as where:
        peace, war = Path(where, "peace"), Path(where, "war")
        war.mkdir()

        def command(folder: Path) -> list[str]:
            return [sys.executable, "-c", program, str(folder), str(size)]

        begin = time.monotonic()
        whole = subprocess.run(command(peace), capture_output=True, text=True, check=True).stdout
        seconds = time.monotonic() - begin
        print(f"{case}: left in peace {seconds:.0f} s, {files(peace)} files", flush=True)
        while kills < times:
            before = files(war)
            with subprocess.Popen(command(war), stdout=subprocess.DEVNULL) as going:
                # Half of them at any moment, the others once files are being written.
                if choose.random() < 0.5:
                    time.sleep(choose.uniform(0, min(6, seconds)))
                else:
                    while going.poll() is None and files(war) == before:
                        time.sleep(1e-3)
                    time.sleep(choose.uniform(0, 0.2))
                ended = going.poll() is not None
                going.kill()
            if ended:  # it must be right, and begins anew
                last = subprocess.run(command(war), capture_output=True, text=True, check=True)
                if last.stdout != whole:
                    return False, kills, between, lost
                for path in war.iterdir():
                    path.unlink()
                continue
            kills += 1
            between += files(war) > before
            lost += max(0, before - files(war))
        last = subprocess.run(command(war), capture_output=True, text=True, check=True).stdout
    return last == whole, kills, between, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="kills of all cases together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", choices=tuple(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="of the motion, 1,000 steps each; others alike"
    )
    options = parser.parse_args()
    choose, good = random.Random(options.seed), True
    for k, case in enumerate(options.cases):
        share = len(range(k, options.times, len(options.cases)))
        same, kills, between, lost = killed(case, share, options.seconds, choose)
        print(
            f"{case}: {kills} kills, {between} of them between files, {lost} files lost; "
            f"bits equal: {same}",
            flush=True,
        )
        good &= same and not lost
    sys.exit(not good)


if __name__ == "__main__":
    main()
