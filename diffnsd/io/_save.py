"""Writes fitted numbers back into an MJCF file."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._arguments import checked_arguments
from ._elements import Elements
from ._numbers import restitution_in
from ._parse import compiled, is_text, mujoco_of_reader, parsed
from ._read import Reader


@checked_arguments
def save_mjcf(
    elements: Elements,
    source: str | os.PathLike,
    path: str | os.PathLike,
    assets: dict[str, bytes] | None = None,
) -> None:
    """Writes an MJCF file with the numbers of `elements`, such as those that were identified.

    Only numbers that differ from those of the source are changed.
    The writer of MuJoCo gives six digits.

    **Arguments:** `source`, `assets`: as they were loaded; `path`: the file to write.

    **Raises:** as `load_mjcf`; `ValueError` if the source has other elements, a file cannot hold a number, or
    `path` ends in `.urdf`, which nothing here writes.
    """
    if str(path).lower().endswith(".urdf"):
        raise ValueError(f"{path} would hold MJCF, not URDF: give a name that ends in .xml.")
    mujoco = mujoco_of_reader()
    spec = parsed(mujoco, source, assets)
    spec.compiler.inertiafromgeom = int(mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO)
    spec.compiler.saveinertial = True
    given = compiled(spec)
    # Masses are stated, not implied by geoms: neither could be changed alone otherwise.
    for body in spec.bodies[1:]:
        body.explicitinertial, body.fullinertia = True, np.full(6, np.nan)
        body.mass, body.inertia = given.body_mass[body.id], given.body_inertia[body.id]
        body.ipos, body.iquat = given.body_ipos[body.id], given.body_iquat[body.id]
    # Nor do springs of tendons follow sites that are moved.
    for tendon in spec.tendons:
        tendon.springlength = given.tendon_lengthspring[tendon.id]
    _set_restitution(mujoco, spec, given, float(elements["contact/restitution"]))
    spec.option.density = float(elements["option/density"])
    spec.option.viscosity = float(elements["option/viscosity"])
    m = compiled(spec)
    reader = Reader(mujoco, m)
    reader.plan()
    wanted = {n: np.asarray(x) for n, x in elements.values.items() if n != "contact/restitution"}
    if strange := [n for n in wanted if n not in reader.values]:
        raise ValueError(
            f"the source has no {strange[0]}; give the file that the elements were loaded from."
        )
    changed = {n: x for n, x in wanted.items() if not np.array_equal(x, reader.values[n])}
    if fixed := [
        n for n, x in changed.items() if n not in reader.views or not np.all(np.isfinite(x))
    ]:
        raise ValueError(f"{fixed[0]} cannot be changed in a file; change it there by hand.")
    for name, value in changed.items():
        reader.views[name][...] = value
    if not is_text(source) and (spec.meshes or spec.hfields or spec.textures):
        # Meshes and textures stay where they are.
        here = os.path.dirname(os.path.abspath(source))
        spec.meshdir = os.path.join(here, spec.meshdir)
        spec.texturedir = os.path.join(here, spec.texturedir)
    try:
        spec.copy_back(m)
        for body in spec.bodies[1:]:  # which `copy_back` forgets
            body.gravcomp = m.body_gravcomp[body.id]
        Path(path).write_text(spec.to_xml())
    except (mujoco.FatalError, ValueError) as error:
        raise ValueError(f"MuJoCo cannot write these numbers: {error}") from None
    except OSError as error:
        raise ValueError(f"the file cannot be written: {error}; choose another path.") from None
    again = Reader(mujoco, compiled(parsed(mujoco, path, assets)))
    again.plan()
    for name, value in wanted.items():
        found, known = again.values[name], np.isfinite(value)
        scale = np.max(np.abs(value[known]), initial=1e-3)
        if not np.allclose(found[known], value[known], rtol=0, atol=1e-5 * scale):
            if name in changed:
                raise ValueError(f"MuJoCo wrote {name} as {found.tolist()}, not {value.tolist()}.")
            raise ValueError(
                f"From {', '.join(changed)} MuJoCo computes {name} anew, {found.tolist()} in place of "
                f"{value.tolist()}: the file cannot hold both."
            )


def check_writable(
    elements: Elements, names: Iterable[str], source: str | os.PathLike, assets=None
) -> None:
    """Whether a file can hold other values of these numbers: each is changed a little, and written.

    MuJoCo computes some numbers from others, such as the second anchor of a `connect` from the places of
    bodies, so that one of them cannot be changed alone.

    **Raises:** `ValueError` with the name, and why.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_mjcf(elements, source, Path(folder) / "unchanged.xml", assets)
        except ValueError:
            return  # no matter of these numbers: the fit is made, and says then that no file was written
        for name in names:
            value = elements[name]
            # Entries that are zero may mean that they are not used; a vector of zeros is a place.
            moved = jnp.where(jnp.any(value), 1.01 * value, 1e-3)
            changed = eqx.tree_at(lambda e, n=name: e.values[n], elements, moved)
            try:
                save_mjcf(changed, source, Path(folder) / "changed.xml", assets)
            except ValueError as error:
                raise ValueError(
                    f"{name} cannot be fitted: a file cannot hold another value. {error}"
                ) from None


def _set_restitution(mujoco: Any, spec: Any, given: Any, value: float) -> None:
    """Writes the restitution where `load_mjcf` finds it, unless it is that of the source."""
    if [value] == restitution_in(Reader(mujoco, given)):
        return
    numeric = spec.numeric("restitution")
    if numeric is None:
        numeric = spec.add_numeric(name="restitution", size=1)
    numeric.data = [value]
