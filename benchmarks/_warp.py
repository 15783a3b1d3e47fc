"""The workloads of `_peers.py` in MuJoCo Warp, which steps many worlds at once on a GPU, in float32."""

import importlib.util
import time
from typing import Any

import numpy as np

from _harness import Prepared, Worker
from _peers import TASKS

LOOKED_AT = 64
"""Worlds whose motions are looked at before anything is timed."""


def installed() -> bool:
    """Whether MuJoCo Warp is here."""
    return importlib.util.find_spec("mujoco_warp") is not None


def worker(workload: str, batch: int, seed: int = 0, *, timeout_s: float = 900.0) -> Worker:
    """A `Worker` with MuJoCo Warp; it has no gradient."""
    return Worker(prepare, (workload, batch, seed), timeout_s=timeout_s)


def prepare(workload: str, batch: int, seed: int = 0) -> Prepared:
    """For `Worker`: one of `TASKS`; on a GPU its step is captured as one graph and launched once a step.

    `compile_s` is less where Warp finds kernels in its cache on disk; memory on the device is not known.
    """
    import mujoco
    import mujoco_warp
    import warp

    warp.config.quiet = True
    task = TASKS[workload]
    model = task.model("pyramidal")
    qpos, qvel = (warp.array(x.astype(np.float32)) for x in task.initial(batch, seed))
    worlds = mujoco_warp.put_model(model)
    # Room for all contacts of the ant; a world that needs more reports an overflow.
    rows = {"nconmax": 32, "njmax": 160}
    data = mujoco_warp.put_data(model, mujoco.MjData(model), nworld=batch, **rows)
    rest = warp.clone(data.qacc_warmstart)

    def restart() -> None:
        warp.copy(data.qpos, qpos)
        warp.copy(data.qvel, qvel)
        warp.copy(data.qacc_warmstart, rest)
        data.overflow.zero_()

    begin = time.perf_counter()
    mujoco_warp.step(worlds, data)  # compiles its kernels
    compile_s = time.perf_counter() - begin
    step: Any = lambda: mujoco_warp.step(worlds, data)  # noqa: E731
    if warp.get_device().is_cuda:
        with warp.ScopedCapture() as capture:
            mujoco_warp.step(worlds, data)
        step = lambda: warp.capture_launch(capture.graph)  # noqa: E731

    def forward() -> None:
        restart()
        for _ in range(task.steps):
            step()
        warp.synchronize()

    restart()
    motions = np.empty((min(batch, LOOKED_AT), task.steps, model.nq))
    for index in range(task.steps):
        step()
        motions[:, index] = data.qpos.numpy()[: len(motions)]
    checks = task.facts(motions)
    checks["overflowing_worlds"] = int(np.count_nonzero(data.overflow.numpy()))
    checks |= {"version": mujoco_warp.__version__, "cone": "pyramidal", "gradient": "none"}
    return Prepared(forward, compile_s=compile_s, checks=checks)
