"""The start of a file: its reference, moved to where its equalities hold."""

import copy
from typing import Any

import numpy as np

from ._plan import Plan
from ._read import JOINT, Reader

ROUNDING = 1e-6
"""Equalities that are open by less [m, rad] hold: files have six digits."""
STEPS = 30
"""Of Newton's method, which needs a few where it gets anywhere."""


def closed_start(reader: Reader, plan: Plan) -> tuple[np.ndarray, tuple[str, ...]]:
    """The configuration nearest to `qpos0` in which the equalities of the plan hold, `(nq,)`.

    A joint that follows another one (`mimic` of URDF, `equality/joint`) is set to where that one puts it.
    What is still open is closed by Newton's method, `dq = −J⁺ r`, with the residuals `r` of MuJoCo.

    **Returns:** the configuration, and a sentence for what was moved, or could not be closed.
    """
    m, q = reader.m, np.array(reader.m.qpos0)
    if not plan.equalities:
        return q, ()
    coupled = [e for e in plan.equalities if e[1] == JOINT]
    for _ in coupled:  # once for every joint of a chain of them
        for name, _, one, two in coupled:
            at, of = m.jnt_qposadr[one], m.jnt_qposadr[two]
            moved = q[of] - m.qpos0[of] if two >= 0 else 0.0
            curve = reader.values[f"{name}/data"]
            q[at] = m.qpos0[at] + np.polyval(curve[::-1], moved)
    sentences = []
    followers = [
        f"{plan.joints[one][0]} at {q[m.jnt_qposadr[one]]:.6g}"
        for one in dict.fromkeys(one for _, _, one, _ in coupled)
        if abs(q[m.jnt_qposadr[one]] - m.qpos0[m.jnt_qposadr[one]]) > ROUNDING
    ]
    if followers:
        sentences.append(f"start: {', '.join(followers)}, where its equality or mimic puts it")
    residual = _Residual(reader, plan)
    worst = np.max(np.abs(residual(q)[0]), initial=0.0)
    if worst <= ROUNDING:
        return q, tuple(sentences)
    closed = residual.root(q)
    if closed is None:
        sentences.append(
            f"start: equalities are open by {worst:.3g} (m, rad) at qpos0, and no configuration near it "
            "closes them; start from a keyframe, or correct the file"
        )
        return q, tuple(sentences)
    sentences.append(
        f"start: moved from qpos0, where equalities are open by {worst:.3g} (m, rad), to where they hold"
    )
    return closed, tuple(sentences)


class _Residual:
    """The residuals `(r,)` of the equalities of a plan, and their Jacobian `(r, nv)`, by MuJoCo."""

    def __init__(self, reader: Reader, plan: Plan):
        mujoco: Any = reader.mujoco
        self.mujoco, self.m = mujoco, copy.copy(reader.m)
        self.m.opt.jacobian = int(mujoco.mjtJacobian.mjJAC_DENSE)
        self.m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        self.data = mujoco.MjData(self.m)
        kept = {name for name, *_ in plan.equalities}
        self.data.eq_active[:] = [reader.name("equality", e) in kept for e in range(self.m.neq)]

    def __call__(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.data.qpos[:] = q
        self.mujoco.mj_fwdPosition(self.m, self.data)
        rows = self.data.efc_type == int(self.mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        count = self.data.nefc * self.m.nv  # an array of no rows has one entry
        slopes = self.data.efc_J[:count].reshape(-1, self.m.nv)
        return np.array(self.data.efc_pos[rows]), np.array(slopes[rows])

    def root(self, q: np.ndarray) -> np.ndarray | None:
        """Where they vanish, near `q`; `None` if Newton's method does not get there."""
        q = q.copy()
        for _ in range(STEPS):
            value, slope = self(q)
            # A redundant row is one of rounding.
            self.mujoco.mj_integratePos(self.m, q, -np.linalg.pinv(slope, 1e-9) @ value, 1.0)
            if not np.all(np.isfinite(q)):
                return None
            if (
                np.max(np.abs(value)) <= ROUNDING
            ):  # and less after this step, whose error is its square
                return q
        return None
