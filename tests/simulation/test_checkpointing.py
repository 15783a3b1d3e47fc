"""Simulations that go on after `kill -9`: the same bits, and nothing believed that is damaged."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from diffnsd import Checkpointing, Event, MoreauJean, SaveAt, simulate
from diffnsd.models import ball_state, bouncing_ball

STEPS = 430


def run(folder=None, e=0.8, event=None, **options):
    save = None if folder is None else Checkpointing(folder, every=100, **options)
    return simulate(
        bouncing_ball(e),
        MoreauJean(),
        0.0,
        STEPS * 1e-3,
        1e-3,
        ball_state(0.0),
        saveat=SaveAt(steps=50),
        event=event,
        save=save,
    )


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder)


@pytest.fixture
def folder(written, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(written[0], copy)
    return copy


@pytest.mark.slow
def test_the_files_change_no_bit(written):
    same(run(), written[1])
    names = sorted(path.name for path in written[0].iterdir())
    assert names == [f"part_{i:06d}.npz" for i in range(4)]


@pytest.mark.slow
def test_a_run_with_an_event(tmp_path):
    event = Event(lambda t, state, args: state.q[0] - 0.5)
    same(run(tmp_path, event=event), run(event=event))


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
def test_it_goes_on_from_what_is_there(written, folder, kept):
    for path in sorted(folder.iterdir())[kept:]:
        path.unlink()
    old = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    same(run(folder), written[1])
    assert len(list(folder.iterdir())) == 4
    assert all(path.stat().st_mtime_ns == when for path, when in old.items())


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path):
    """A bit of the largest array; one of the archive's own entries may say nothing, such as a date."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.compress_size)
    data, at = bytearray(path.read_bytes()), largest.header_offset
    name, extra = (int.from_bytes(data[at + k : at + k + 2], "little") for k in (26, 28))
    data[at + 30 + name + extra + largest.compress_size // 2] ^= 4
    path.write_bytes(bytes(data))


def empty(path: Path):
    path.write_bytes(b"")


def foreign(path: Path):
    np.savez(path, x=np.ones(3))


def pickled(path: Path):
    np.savez(path, header=np.array([object()], object), allow_pickle=True)


def changed(path: Path, **arrays):
    """A file with other arrays, in a smaller archive."""
    with np.load(path) as archive:
        kept = dict(archive)
    np.savez_compressed(path, **{**kept, **arrays})


def no_object(path: Path):
    changed(path, header=np.array("[]"))


def bomb(path: Path):
    """Of a hundredth of its size."""
    changed(path, leaf_0=np.zeros(2_000_000))


def long_header(path: Path):
    changed(path, header=np.array(" " * 100_000))


def other_shape(path: Path):
    changed(path, leaf_0=np.zeros(7))


@pytest.mark.parametrize(
    "damage",
    [cut, flip, empty, foreign, pickled, no_object, bomb, long_header, other_shape],
)
def test_a_damaged_file_is_refused_by_name(written, folder, damage):
    damage(folder / "part_000002.npz")
    with pytest.raises(ValueError, match=r"part_000002.npz is damaged .* skip_damaged=True"):
        run(folder)
    same(run(folder, skip_damaged=True), written[1])
    same(run(folder), written[1])  # it was written again


def test_files_of_another_format_are_refused(folder):
    with np.load(folder / "part_000000.npz") as archive:
        header = json.loads(str(archive["header"])) | {"format": 3}
    changed(folder / "part_000000.npz", header=np.array(json.dumps(header)))
    with pytest.raises(ValueError, match=r"part_000000.npz has the format 3, .* reads 7"):
        run(folder)


def test_files_of_another_run_are_refused(folder):
    with pytest.raises(ValueError, match="part_000000.npz belongs to another run"):
        run(folder, e=0.7)


@pytest.mark.parametrize("copied", [True, False])
def test_a_file_of_another_place_is_refused(written, folder, copied):
    one, two = folder / "part_000001.npz", folder / "part_000002.npz"
    old = one.read_bytes()
    one.write_bytes(two.read_bytes())
    if not copied:
        two.write_bytes(old)
    with pytest.raises(ValueError, match=r"part_000001.npz holds part 2 of this run, not part 1"):
        run(folder)
    same(run(folder, skip_damaged=True), written[1])


def test_what_it_cannot_do_is_refused(tmp_path):
    with pytest.raises(ValueError, match="under a transformation"):
        jax.eval_shape(lambda e: run(tmp_path, e), 0.5)
    with pytest.raises(ValueError, match="every must be at least 1"):
        Checkpointing(tmp_path, every=0)
    with pytest.raises(ValueError, match=r"needs SaveAt\(steps=...\)"):
        simulate(
            bouncing_ball(), MoreauJean(), 0.0, 0.1, 0.01, ball_state(0.0),
            saveat=SaveAt.end(), save=Checkpointing(tmp_path),
        )  # fmt: skip


LONG = """
import sys, jax
jax.config.update("jax_enable_x64", True)
from diffnsd import Checkpointing, MoreauJean, SaveAt, simulate
from diffnsd.models import block_state, sliding_block
done = simulate(sliding_block(0.01), MoreauJean(), 0.0, 40.0, 1e-3, block_state(0.0, speed=2.0),
                saveat=SaveAt(steps=500), save=Checkpointing(sys.argv[1], every=500))
print(jax.device_get(done.states.v).tobytes().hex(), jax.device_get(done.stats.residual).tobytes().hex())
"""


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    """Killed again and again, at moments that a seed decides, until a process reaches the end."""
    command = [sys.executable, "-c", LONG]
    whole = subprocess.run([*command, tmp_path / "a"], capture_output=True, text=True, check=True)
    choose, kills, files = random.Random(0), 0, 0
    (tmp_path / "b").mkdir()
    while True:
        with (tmp_path / "out").open("w") as out:
            going = subprocess.Popen([*command, tmp_path / "b"], stdout=out)
        target = files + choose.randint(10, 30)
        while going.poll() is None and len(list((tmp_path / "b").glob("*.npz"))) < target:
            time.sleep(choose.uniform(0, 2e-3))
        if going.poll() is not None:
            break
        os.kill(going.pid, signal.SIGKILL)
        going.wait()
        now = len(list((tmp_path / "b").glob("part*.npz")))
        assert now >= files  # nothing that was written is lost
        files, kills = now, kills + 1
    assert (tmp_path / "out").read_text() == whole.stdout
    assert kills >= 2
