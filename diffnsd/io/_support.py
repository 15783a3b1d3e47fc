"""What a file may hold that a model does not."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import shapes
from ._elements import SHAPES
from ._plan import Plan
from ._read import BALL, FILTER, FILTEREXACT, FREE, HFIELD, MESH, TENDON, Reader
from ._sensors import unread_sensors

KINDS = "plane hfield sphere capsule ellipsoid cylinder box mesh sdf".split()


def without_counterpart(reader: Reader, plan: Plan) -> Iterator[tuple[str, str]]:
    """What changes the motion and is not supported: the element, and a sentence."""
    m, mujoco = reader.m, reader.mujoco
    yield from _of_actuators(reader, m, mujoco)
    for k in range(m.ntendon):
        rows = range(m.tendon_adr[k], m.tendon_adr[k] + m.tendon_num[k])
        joints = [
            m.wrap_objid[i] for i in rows if m.wrap_type[i] == int(mujoco.mjtWrap.mjWRAP_JOINT)
        ]
        if any(_runs_inside(m, mujoco, i) for i in rows):
            yield (
                reader.name("tendon", k),
                "has a side site inside the geom that it wraps around, or on another body",
            )
        elif (
            m.tendon_armature[k]
            or np.any(m.tendon_stiffnesspoly[k])
            or np.any(m.tendon_dampingpoly[k])
        ):
            yield (
                reader.name("tendon", k),
                "has an armature, or a spring or damper that is not linear",
            )
        elif any(m.jnt_type[j] in (FREE, BALL) for j in joints):
            yield reader.name("tendon", k), "runs over a joint that is no hinge and no slide"
        elif m.tendon_actfrclimited[k]:
            yield reader.name("tendon", k), "limits the force of its actuators (actuatorfrcrange)"
    for e in filter(reader.holds, range(m.neq)):
        if m.eq_type[e] > int(mujoco.mjtEq.mjEQ_TENDON):
            yield reader.name("equality", e), "is not of type connect, weld, joint or tendon"
        elif m.eq_objtype[e] == int(mujoco.mjtObj.mjOBJ_SITE):
            yield reader.name("equality", e), "is stated between sites; state it between bodies"
        elif m.eq_type[e] == int(mujoco.mjtEq.mjEQ_WELD) and m.eq_data[e][10] == 0:
            yield reader.name("equality", e), "is a weld with torquescale 0; state it as a connect"
    for j in range(m.njnt):
        if np.any(m.jnt_stiffnesspoly[j]) or np.any(m.dof_dampingpoly[m.jnt_dofadr[j]]):
            yield reader.name("joint", j), "has a spring or a damper that is not linear"
        if m.jnt_actgravcomp[j] and np.any(m.body_gravcomp):
            yield reader.name("joint", j), "compensates weight by its actuators (actuatorgravcomp)"
    for b in sorted(_moved_by_mocap(reader) & _that_act(reader, plan)):
        yield reader.name("body", b), "is moved by mocap; here it would stay where it is"
    if m.nflex:
        yield "flex", "deformable bodies are not supported"
    for flag, why in (
        ("OVERRIDE", "values of all contacts are overridden"),
        ("SLEEP", "no body sleeps here"),
    ):
        if m.opt.enableflags & int(getattr(mujoco.mjtEnableBit, f"mjENBL_{flag}")):
            yield f"flag/{flag.lower()}", why
    if m.nplugin:
        yield "plugin", "plugins are not supported"
    if (m.opt.density or m.opt.viscosity) and m.ngeom and np.any(m.geom_fluid[:, 0]):
        yield "fluidshape", "the ellipsoid model of drag is not supported, only that of equal boxes"
    yield from _of_contacts(reader, m, plan)


IGNORED = (
    "actuator body condim contact equality flag flex fluidshape hull joint pair plugin surfacevel tendon"
).split()
"""The kinds of what can be left out."""


def unknown(reader: Reader, names: set[str]) -> list[str]:
    """Names to ignore that are neither kinds nor elements of the file, and so probably misspelt."""
    m = reader.m
    counts = {
        "actuator": m.nactuator,
        "body": m.nbody,
        "equality": m.neq,
        "hull": m.ngeom,
        "joint": m.njnt,
        "pair": m.npair,
        "tendon": m.ntendon,
    }
    known = {"flag/override", "flag/sleep"}
    known |= {f"contact/{a}-{b}" for i, a in enumerate(KINDS) for b in KINDS[i:]}
    for kind, count in counts.items():
        of = "geom" if kind == "hull" else kind
        own = (reader.name(of, k) for k in range(count))
        known |= {f"hull/{name}" if kind == "hull" else name for name in own}
    return sorted(names - known - set(IGNORED))


def _moved_by_mocap(reader: Reader) -> set[int]:
    return set(np.flatnonzero(reader.m.body_mocapid >= 0).tolist())


def _that_act(reader: Reader, plan: Plan) -> set[int]:
    """Bodies on which the motion of others depends, each by the first of the bodies it is fixed to.

    Others, such as the marker of a target, may stay where they are.
    """
    m, mujoco = reader.m, reader.mujoco
    bodies = {m.body_parentid[m.jnt_bodyid[j]] for j in range(m.njnt)}
    bodies |= {m.geom_bodyid[g] for pair in plan.pairs for g in pair[:2]}
    of = {
        int(mujoco.mjtObj.mjOBJ_BODY): np.arange(m.nbody),
        int(mujoco.mjtObj.mjOBJ_SITE): m.site_bodyid,
    }
    for e in filter(reader.holds, range(m.neq)):
        place = of.get(int(m.eq_objtype[e]))
        if place is not None:
            bodies |= {place[m.eq_obj1id[e]], place[m.eq_obj2id[e]]}
    site = int(mujoco.mjtWrap.mjWRAP_SITE)
    kinds = int(mujoco.mjtWrap.mjWRAP_SPHERE), int(mujoco.mjtWrap.mjWRAP_CYLINDER)
    bodies |= {m.site_bodyid[m.wrap_objid[i]] for i in range(m.nwrap) if m.wrap_type[i] == site}
    bodies |= {m.geom_bodyid[m.wrap_objid[i]] for i in range(m.nwrap) if m.wrap_type[i] in kinds}
    return {int(m.body_weldid[b]) for b in bodies}


def _runs_inside(m: Any, mujoco: Any, i: int) -> bool:
    """Whether a tendon may run along the inside of a geom, as of a pulley that is a ring."""
    kinds = int(mujoco.mjtWrap.mjWRAP_SPHERE), int(mujoco.mjtWrap.mjWRAP_CYLINDER)
    geom, side = int(m.wrap_objid[i]), int(m.wrap_prm[i])
    if m.wrap_type[i] not in kinds or side < 0:
        return False
    apart = m.site_pos[side] - m.geom_pos[geom]
    return m.site_bodyid[side] != m.geom_bodyid[geom] or bool(
        np.linalg.norm(apart) < m.geom_size[geom][0]
    )


def _of_actuators(reader: Reader, m: Any, mujoco: Any) -> Iterator[tuple[str, str]]:
    kinds = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_TENDON)
    gains = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE)
    biases = int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE)
    for a in range(m.nactuator):
        name, group = reader.name("actuator", a), int(m.actuator_group[a])
        if m.actuator_ctrlnum[a] != 1:
            yield name, "has not one control"
        elif 0 <= group <= 30 and m.opt.disableactuator & (1 << group):
            yield name, "belongs to a group that is disabled"
        elif m.actuator_trntype[a] not in kinds:
            yield name, "acts on something else than a joint or a tendon"
        elif m.actuator_dyntype[a] > FILTEREXACT:
            yield name, "has other dynamics than an integrator or a filter (dyntype)"
        elif m.actuator_dyntype[a] in (FILTER, FILTEREXACT) and m.actuator_dynprm[a][0] <= 0:
            yield name, "has an activation with a time constant (dynprm) that is not positive"
        elif m.actuator_gaintype[a] not in gains or m.actuator_biastype[a] not in biases:
            yield (
                name,
                "has a gain or a bias that is neither fixed nor affine, such as that of a muscle",
            )
        elif (
            np.any(m.actuator_armature[a])
            or np.any(m.actuator_damping[a])
            or np.any(m.actuator_dampingpoly[a])
            or np.any(m.actuator_delay[a])
        ):
            yield name, "has an armature, damping or delay"


def _of_contacts(reader: Reader, m: Any, plan: Plan) -> Iterator[tuple[str, str]]:
    for p in range(m.npair):
        bodies = m.geom_bodyid[m.pair_geom1[p]], m.geom_bodyid[m.pair_geom2[p]]
        if bodies[0] == bodies[1]:
            yield reader.name("pair", p), "is of two geoms of the same body"
        elif (m.pair_friction[p][0] != m.pair_friction[p][1] and m.pair_dim[p] > 1) or (
            m.pair_friction[p][3] != m.pair_friction[p][4] and m.pair_dim[p] > 4
        ):
            yield (
                reader.name("pair", p),
                "has two different frictions of sliding or rolling; the first would count",
            )
        elif m.pair_adhesion[p]:
            yield reader.name("pair", p), "has adhesion"
    missing: Counter = Counter()
    for pair in plan.pairs:
        kinds = (SHAPE_TYPES.get(plan.geoms[g][1]) for g in pair[:2])
        if not shapes.is_supported(*kinds):
            missing[_kinds_of(plan, pair)] += 1
    for name, count in missing.items():
        yield name, f"{count} pairs of geoms of these kinds may touch, which is not supported"
    if np.any(m.geom_surfacevel) or np.any(m.geom_adhesion):
        yield "surfacevel", "geoms with adhesion or a moving surface are not supported"


SHAPE_TYPES = {MESH: shapes.ConvexHull, HFIELD: shapes.HeightField} | {
    k: type(make(np.ones(3))) for k, make in SHAPES.items()
}


def _kinds_of(plan: Plan, pair: tuple) -> str:
    one, two = sorted(plan.geoms[g][1] for g in pair[:2])
    return f"contact/{KINDS[one]}-{KINDS[two]}"


def without_ignored(plan: Plan, names: set[str]) -> Plan:
    """The plan without the elements of these names, and without the actuators of such tendons."""
    kept = [k for k, (name, *_) in enumerate(plan.tendons) if name not in names]
    actuators, equalities = [], []
    for name, kind, which in plan.actuators:
        if name not in names and (kind != TENDON or which in kept):
            actuators.append((name, kind, kept.index(which) if kind == TENDON else which))
    for name, kind, *ends in plan.equalities:
        there = [k for k in ends if k >= 0]
        if name in names or (kind == TENDON and not set(there) <= set(kept)):
            continue
        found = [kept.index(k) if k >= 0 else k for k in ends] if kind == TENDON else ends
        equalities.append((name, kind, *found))
    gone = {name for name in names if name.startswith("tendon/")}
    return dataclasses.replace(
        plan,
        tendons=tuple(plan.tendons[k] for k in kept),
        actuators=tuple(actuators),
        activations=tuple(
            a for a in plan.activations if a[0] in {name for name, _, _ in actuators}
        ),
        equalities=tuple(equalities),
        pairs=tuple(p for p in plan.pairs if not {_kinds_of(plan, p), p[3]} & names),
        limited=tuple(n for n in plan.limited if n not in gone),
        rubbing=tuple(n for n in plan.rubbing if n not in gone),
    )


def softened(reader: Reader, plan: Plan) -> Iterator[str]:
    """What has no counterpart because contacts, limits and joints are hard here: one sentence each."""
    m = reader.m
    if plan.pairs or plan.limited or plan.equalities or plan.rubbing:
        yield (
            "softness (solref, solimp, impratio): contacts, limits, equalities and dry friction are hard here"
        )
    if any(map(np.any, (m.geom_margin, m.jnt_margin, m.pair_margin, m.tendon_margin))):
        yield "margin: contacts and limits act when they close, not before"
    if any(p[2] > 3 for p in plan.pairs) and m.opt.cone == int(
        reader.mujoco.mjtCone.mjCONE_PYRAMIDAL
    ):
        yield "cone: friction of sliding, spinning and rolling is one ellipsoid, as with cone=elliptic"
    for b in sorted(_moved_by_mocap(reader) - _that_act(reader, plan)):
        yield f"mocap: {reader.name('body', b)} stays where it is; nothing moves by it"
    if any(plan.geoms[g][1] == HFIELD for pair in plan.pairs for g in pair[:2]):
        yield "hfield: smooth between its heights, solid below, and its edge goes on beyond it"
    yield (
        "solver options (integrator, cone, iterations, tolerances): the method is that given to simulate"
    )
    if plan.activations and np.any(m.actuator_actearly):
        yield "actearly: forces follow the activations of the instant that the method evaluates"
    yield from unread_sensors(reader, plan)
