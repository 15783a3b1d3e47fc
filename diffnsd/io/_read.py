"""Reads a model that MuJoCo has compiled: its numbers by name, and its plan."""

import itertools
from typing import Any

import numpy as np

from ._plan import Plan

FREE, BALL, SLIDE, HINGE = range(4)
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
SIZES = {PLANE: 0, SPHERE: 1, CAPSULE: 2, ELLIPSOID: 3, CYLINDER: 2, BOX: 3}
CONNECT, WELD, JOINT = range(3)
INTEGRATOR, FILTER, FILTEREXACT = range(1, 4)
TENDON = 3
OPEN = (-np.inf, np.inf)


class Reader:
    """The elements of a compiled model.

    `values` collects their numbers by name, `views` the places of these in the arrays of the model,
    `controls` the place of the control of every actuator.
    """

    def __init__(self, mujoco: Any, model: Any):
        self.mujoco, self.m = mujoco, model
        self.values: dict[str, np.ndarray] = {}
        self.views: dict[str, np.ndarray] = {}
        self.controls: dict[str, int] = {}
        flags = {
            name.removeprefix("mjDSBL_").lower(): int(getattr(mujoco.mjtDisableBit, name))
            for name in dir(mujoco.mjtDisableBit)
            if name.startswith("mjDSBL_")
        }
        self.disabled = frozenset(k for k, bit in flags.items() if model.opt.disableflags & bit)

    def name(self, kind: str, index: int) -> str:
        """The name of an element; its number if it has none, `#` before it if another one is named so."""
        known = getattr(self.mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
        found = self.mujoco.mj_id2name(self.m, known, index)
        if not found:
            taken = self.mujoco.mj_name2id(self.m, known, str(index)) >= 0
            found = f"#{index}" if taken else str(index)
        return f"{kind}/{found}"

    def keep(self, name: str, **views) -> None:
        """Keeps arrays of an element."""
        for key, view in views.items():
            self.values[f"{name}/{key}"] = np.array(view, float)
            self.views[f"{name}/{key}"] = view

    def keep_number(self, name: str, **views) -> None:
        """Keeps numbers of an element, each the first entry of a view whose entries are all equal."""
        self.keep(name, **views)
        for key in views:
            self.values[f"{name}/{key}"] = self.values[f"{name}/{key}"].reshape(-1)[0]

    def replace(self, name: str, value) -> None:
        """Another value for a number or an array of an element."""
        self.values[name] = np.array(value, float)

    def plan(self) -> Plan:
        """The plan of the file; on the way all numbers are collected."""
        m = self.m
        self.keep("option", gravity=m.opt.gravity, wind=m.opt.wind, magnetic=m.opt.magnetic)
        self.replace("option/density", m.opt.density)
        self.replace("option/viscosity", m.opt.viscosity)
        if "gravity" in self.disabled:
            self.replace("option/gravity", np.zeros(3))
        bodies = tuple(self._body(b) for b in range(1, m.nbody))
        joints = tuple(self._joint(j) for j in range(m.njnt))
        geoms = tuple(self._geom(g) for g in range(m.ngeom))
        sites = tuple(self._site(i) for i in range(m.nsite))
        tendons = tuple(self._tendon(k) for k in range(m.ntendon))
        actuators = tuple(self._actuators())
        # Files that disable both have no passive forces of any kind.
        has_passive = not {"spring", "damper"} <= self.disabled
        return Plan(
            bodies,
            joints,
            geoms,
            tuple(self._pairs()),
            sites,
            tendons,
            actuators,
            tuple(self._activations({name for name, _, _ in actuators})),
            tuple(self._equality(e) for e in range(m.neq) if self.holds(e)),
            tuple(self._limited()),
            tuple(self._rubbing()),
            has_passive and bool(m.opt.density or m.opt.viscosity),
            has_passive and bool(np.any(m.body_gravcomp)),
        )

    def holds(self, e: int) -> bool:
        """Whether an equality takes part."""
        return bool(self.m.eq_active0[e]) and not {"constraint", "equality"} & self.disabled

    def _body(self, b: int) -> tuple:
        m, name = self.m, self.name("body", b)
        self.keep_number(name, mass=m.body_mass[b : b + 1])
        if np.any(m.body_gravcomp):
            self.keep_number(name, gravcomp=m.body_gravcomp[b : b + 1])
        self.keep(name, inertia=m.body_inertia[b], ipos=m.body_ipos[b], iquat=m.body_iquat[b])
        self.keep(name, pos=m.body_pos[b], quat=m.body_quat[b])
        parent = int(m.body_parentid[b]) - 1
        return name, None if parent < 0 else parent

    def _joint(self, j: int) -> tuple:
        m, name, kind = self.m, self.name("joint", j), int(self.m.jnt_type[j])
        at, dof = int(m.jnt_qposadr[j]), int(m.jnt_dofadr[j])
        rates = dof + (6, 3, 1, 1)[kind]
        self.keep(name, range=m.jnt_range[j])
        self.keep_number(name, stiffness=m.jnt_stiffness[j : j + 1])
        if kind != FREE:
            self.keep(name, axis=m.jnt_axis[j], pos=m.jnt_pos[j])
        if kind not in (FREE, BALL):  # whose references follow from the pose of the body
            self.keep_number(name, ref=m.qpos0[at : at + 1], springref=m.qpos_spring[at : at + 1])
        self.keep_number(name, damping=m.dof_damping[dof:rates], armature=m.dof_armature[dof:rates])
        self.keep_number(name, frictionloss=m.dof_frictionloss[dof:rates])
        self._switch_off(name)
        self.keep(name, actuatorfrcrange=m.jnt_actfrcrange[j])
        if not m.jnt_actfrclimited[j]:
            self.replace(f"{name}/actuatorfrcrange", OPEN)
        return name, int(m.jnt_bodyid[j]) - 1, kind, at, dof

    def _switch_off(self, name: str) -> None:
        """Springs and dampers that the options of the file disable."""
        for flag, key in (("spring", "stiffness"), ("damper", "damping")):
            if flag in self.disabled:
                self.replace(f"{name}/{key}", 0.0)

    def _geom(self, g: int) -> tuple:
        m, name, kind = self.m, self.name("geom", g), int(self.m.geom_type[g])
        body = int(m.geom_bodyid[g]) - 1
        self.keep(name, pos=m.geom_pos[g], quat=m.geom_quat[g])
        self._friction(name, m.geom_friction[g], (0, 1, 2, 3))
        if kind in SIZES:
            self.keep(name, size=m.geom_size[g][: SIZES[kind]])
        return name, kind, None if body < 0 else body

    def _friction(self, name: str, values: np.ndarray, places: tuple[int, ...]) -> None:
        """Coefficients of sliding, and where there are contacts that use them, of spinning and rolling."""
        slide, spin, roll = (values[i:j] for i, j in itertools.pairwise(places))
        self.keep_number(name, friction=slide)
        if max([*self.m.geom_condim, *self.m.pair_dim], default=3) > 3:
            self.keep_number(name, spin=spin, roll=roll)

    def _tendon(self, k: int) -> tuple:
        m, name = self.m, self.name("tendon", k)
        rows = range(m.tendon_adr[k], m.tendon_adr[k] + m.tendon_num[k])
        self.keep_number(
            name, stiffness=m.tendon_stiffness[k : k + 1], damping=m.tendon_damping[k : k + 1]
        )
        self.keep_number(name, frictionloss=m.tendon_frictionloss[k : k + 1])
        self.keep(name, springlength=m.tendon_lengthspring[k], range=m.tendon_range[k])
        self._switch_off(name)
        joint = int(self.mujoco.mjtWrap.mjWRAP_JOINT)
        joints = (
            (int(m.wrap_objid[i]), float(m.wrap_prm[i])) for i in rows if m.wrap_type[i] == joint
        )
        straight, wrapped = self._segments(rows)
        return name, tuple(joints), straight, wrapped

    def _segments(self, rows: range) -> tuple[tuple, tuple]:
        """Pieces between sites, straight ones and those with a geom that they may wrap around.

        A pulley divides the length of those behind it.
        """
        m, wrap = self.m, self.mujoco.mjtWrap
        before, around, divisor, straight, wrapped = None, (), 1.0, [], []
        for i in rows:
            which, kind = int(m.wrap_objid[i]), m.wrap_type[i]
            if kind in (int(wrap.mjWRAP_SPHERE), int(wrap.mjWRAP_CYLINDER)):
                around = which, int(m.wrap_prm[i])
            elif kind == int(wrap.mjWRAP_SITE):
                if before is not None and not around:
                    straight.append((before, which, divisor))
                elif before is not None:
                    wrapped.append((before, which, divisor, *around))
                before, around = which, ()
            else:
                before = None
                if kind == int(wrap.mjWRAP_PULLEY):
                    divisor = float(m.wrap_prm[i])
        return tuple(straight), tuple(wrapped)

    def _site(self, i: int) -> tuple:
        m, name, body = self.m, self.name("site", i), int(self.m.site_bodyid[i]) - 1
        self.keep(name, pos=m.site_pos[i], quat=m.site_quat[i])
        self.keep(name, size=m.site_size[i][: SIZES[int(m.site_type[i])]])
        return name, None if body < 0 else body

    def _actuators(self):
        """Those with one control each, see `without_counterpart` for the others."""
        m = self.m
        for a in range(0 if "actuation" in self.disabled else m.nactuator):
            if m.actuator_ctrlnum[a] == 1:
                yield self._actuator(a, int(m.actuator_ctrladr[a]))

    def _actuator(self, a: int, control: int) -> tuple:
        m, name = self.m, self.name("actuator", a)
        self.controls[name] = control
        self.keep(name, gear=m.actuator_gear[a], gainprm=m.actuator_gainprm[a][:3])
        self.keep(name, biasprm=m.actuator_biasprm[a][:3])
        self.keep(
            name, ctrlrange=m.actuator_ctrlrange[control], forcerange=m.actuator_forcerange[a]
        )
        if m.actuator_gaintype[a] != int(self.mujoco.mjtGain.mjGAIN_AFFINE):
            self.replace(f"{name}/gainprm", self.values[f"{name}/gainprm"] * (1, 0, 0))
        if m.actuator_biastype[a] != int(self.mujoco.mjtBias.mjBIAS_AFFINE):
            self.replace(f"{name}/biasprm", np.zeros(3))
        if not m.actuator_ctrllimited[control] or "clampctrl" in self.disabled:
            self.replace(f"{name}/ctrlrange", OPEN)
        if not m.actuator_forcelimited[a]:
            self.replace(f"{name}/forcerange", OPEN)
        return name, int(m.actuator_trntype[a]), int(m.actuator_trnid[a][0])

    def _activations(self, actuators: set[str]):
        m = self.m
        for a in range(m.nactuator):
            name, kind = self.name("actuator", a), int(m.actuator_dyntype[a])
            if name not in actuators or kind not in (INTEGRATOR, FILTER, FILTEREXACT):
                continue
            limited = bool(m.actuator_actlimited[a])
            if kind != INTEGRATOR:
                self.keep_number(name, dynprm=m.actuator_dynprm[a][:1])
            if limited:
                self.keep(name, actrange=m.actuator_actrange[a])
            yield name, kind, int(m.actuator_actadr[a]), limited

    def _equality(self, e: int) -> tuple:
        m, name = self.m, self.name("equality", e)
        kind = int(m.eq_type[e])
        self.keep(name, data=m.eq_data[e][: {CONNECT: 6, WELD: 10}.get(kind, 5)])
        return name, kind, int(m.eq_obj1id[e]), int(m.eq_obj2id[e])

    def _limited(self):
        if not {"constraint", "limit"} & self.disabled:
            yield from (self.name("joint", j) for j in range(self.m.njnt) if self.m.jnt_limited[j])
            yield from (
                self.name("tendon", k) for k in range(self.m.ntendon) if self.m.tendon_limited[k]
            )

    def _rubbing(self):
        m = self.m
        if not {"constraint", "frictionloss"} & self.disabled:
            of_joint = m.dof_frictionloss[m.jnt_dofadr] if m.njnt else np.zeros(0)
            yield from (self.name("joint", j) for j in range(m.njnt) if of_joint[j])
            yield from (
                self.name("tendon", k) for k in range(m.ntendon) if m.tendon_frictionloss[k]
            )

    def _pairs(self):
        """Geoms that may touch, by the rules of MuJoCo: explicit pairs, then groups, welds and parents."""
        m = self.m
        if {"constraint", "contact"} & self.disabled:
            return
        given = set()
        for p in range(m.npair):
            one, two, name = int(m.pair_geom1[p]), int(m.pair_geom2[p]), self.name("pair", p)
            self._friction(name, m.pair_friction[p], (0, 2, 3, 5))
            given.add(frozenset((one, two)))
            yield one, two, int(m.pair_dim[p]), name
        excluded = set(m.exclude_signature.tolist())
        for one in range(m.ngeom):
            for two in range(one + 1, m.ngeom):
                if frozenset((one, two)) in given or not self._may_touch(one, two, excluded):
                    continue
                ranks = m.geom_priority[one], m.geom_priority[two]
                dims = int(m.geom_condim[one]), int(m.geom_condim[two])
                if ranks[0] == ranks[1]:
                    yield one, two, max(dims), None
                else:
                    first = int(ranks[1] > ranks[0])
                    yield one, two, dims[first], self.name("geom", (one, two)[first])

    def terrain(self, g: int) -> tuple[np.ndarray, np.ndarray]:
        """Heights `(rows, columns)` and sizes `(3,)` of the height field of a geom."""
        m, k = self.m, int(self.m.geom_dataid[g])
        shape, first = (int(m.hfield_nrow[k]), int(m.hfield_ncol[k])), int(m.hfield_adr[k])
        heights = m.hfield_data[first : first + shape[0] * shape[1]].reshape(shape)
        return np.array(heights, float), np.array(m.hfield_size[k][:3])

    def hull_points(self, g: int) -> np.ndarray:
        """The corners of the hull of a mesh, as its geom has them."""
        m, mesh = self.m, int(self.m.geom_dataid[g])
        first, count = int(m.mesh_vertadr[mesh]), int(m.mesh_vertnum[mesh])
        points, graph = m.mesh_vert[first : first + count], int(m.mesh_graphadr[mesh])
        if graph < 0:
            return np.array(points, float)
        corners = int(
            m.mesh_graph[graph]
        )  # then the number of faces, places of edges, numbers of corners
        listed = m.mesh_graph[graph + 2 + corners : graph + 2 + 2 * corners]
        return np.array(points[listed], float)

    def _may_touch(self, one: int, two: int, excluded: set[int]) -> bool:
        m = self.m
        kinds, affinities = m.geom_contype, m.geom_conaffinity
        if not (kinds[one] & affinities[two] or kinds[two] & affinities[one]):
            return False
        bodies = sorted((int(m.geom_bodyid[one]), int(m.geom_bodyid[two])))
        welds = [int(m.body_weldid[b]) for b in bodies]
        above = [int(m.body_weldid[m.body_parentid[w]]) for w in welds]
        related = welds[0] and welds[1] and (welds[0] == above[1] or welds[1] == above[0])
        if welds[0] == welds[1] or (related and "filterparent" not in self.disabled):
            return False
        return (bodies[0] << 16) + bodies[1] not in excluded
