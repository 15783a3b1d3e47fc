"""The import floors: lower floors and the own family; never upward, never sideways."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "diffnsd"

FLOORS = (
    {
        "_jax",
        "_types",
        "_result",
        "_numerics",
        "_scalar_kernels",
        "_block_rows",
        "_own_rows",
        "_joint_rows",
        "_world_rows",
        "_block_diagonal",
        "linear",
        "_recompilation",
        "_outline",
        "_expects",
        "_argument_rules",
        "_arguments",
        "_checkpointing",
        "_optional",
    },
    {"groups", "sets", "shapes"},
    {"systems", "relations", "laws"},
    {"complementarity"},
    {"model", "_interaction"},
    {"integrators"},
    {"simulation", "rollout", "control", "diagnostics", "sensors"},
    {"identification", "models", "io"},
    {"viz", "apps"},
)
FLOOR = {family: floor for floor, families in enumerate(FLOORS) for family in families}

# `_jax` and the shape vocabulary serve the whole of floor 0; diagnostics and sensors read the solutions of
# `simulation`, which knows nothing of them; an application uses the plots beside it.
SIDEWAYS_ALLOWED = {
    *((family, "_types") for family in FLOORS[0] - {"_jax"}),
    *((family, "_jax") for family in FLOORS[0]),
    ("_block_rows", "_numerics"),
    ("_block_rows", "_own_rows"),
    ("_own_rows", "_numerics"),
    ("_joint_rows", "_block_rows"),
    ("_joint_rows", "_numerics"),
    ("_joint_rows", "_world_rows"),
    ("_world_rows", "_numerics"),
    ("_block_rows", "_world_rows"),
    ("_block_diagonal", "_block_rows"),
    ("_block_diagonal", "_numerics"),
    ("_arguments", "_argument_rules"),
    ("_arguments", "_expects"),
    ("_expects", "_argument_rules"),
    ("_checkpointing", "_arguments"),
    ("_checkpointing", "_outline"),
    ("linear", "_arguments"),
    ("linear", "_expects"),
    ("linear", "_numerics"),
    ("linear", "_optional"),
    ("diagnostics", "simulation"),
    ("sensors", "simulation"),
    ("apps", "viz"),
    ("model", "_interaction"),
}

MAX_LINES = 400
OPTIONAL = ("matplotlib", "viser", "mujoco", "typer", "blackjax")


def modules() -> dict[str, Path]:
    """Dotted name of every module of the package, and its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name) of every import of a module, those inside functions too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from ..laws import _base` names a module, `from ..laws import X` a member of one.
                member = f"{source}.{alias.name}"
                yield node.lineno, member if member in MODULES else source


def internal_imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    return (
        (line, target)
        for line, target in imports(name, path)
        if target == "diffnsd" or target.startswith("diffnsd.")
    )


def violation(name: str, target: str) -> str | None:
    """Why module `name` may not import `target`, or None."""
    if target == "diffnsd":
        return "imports the package itself, which is above every floor"
    family, other = name.split(".")[1], target.split(".")[1]
    if other not in FLOOR:
        return f"imports {target}, which is on no floor"
    if family == other:
        return None
    if FLOOR[other] < FLOOR[family] or (family, other) in SIDEWAYS_ALLOWED:
        return None
    if FLOOR[other] > FLOOR[family]:
        return f"imports upward: {family} (floor {FLOOR[family]}), {other} (floor {FLOOR[other]})"
    if target.split(".")[2:3] == ["_base"]:
        return None
    return f"imports sideways: {family} and {other} are both on floor {FLOOR[family]}"


def test_the_package_is_found():
    assert "diffnsd" in MODULES


def test_every_module_is_on_a_floor():
    strangers = {name.split(".")[1] for name in MODULES if "." in name} - set(FLOOR)
    assert not strangers, f"not on any floor: {sorted(strangers)}"


@pytest.mark.parametrize("name", [name for name in MODULES if "." in name])
def test_imports_stay_below(name):
    if name.split(".")[1] not in FLOOR:
        pytest.fail(f"{name} is on no floor")
    path = MODULES[name]
    problems = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {problem}"
        for line, target in internal_imports(name, path)
        if (problem := violation(name, target))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("name", "target", "allowed"),
    [
        ("diffnsd.laws._coulomb", "diffnsd.sets", True),
        ("diffnsd.laws._coulomb", "diffnsd.laws._base", True),
        ("diffnsd.laws._coulomb", "diffnsd.complementarity._base", False),
        ("diffnsd.laws._coulomb", "diffnsd.relations._base", True),
        ("diffnsd.laws._coulomb", "diffnsd.relations", False),
        ("diffnsd.complementarity.problem._problem", "diffnsd.laws", True),
        ("diffnsd.complementarity.problem._problem", "diffnsd.model", False),
        ("diffnsd.relations._frame", "diffnsd.groups", True),
        ("diffnsd.groups._so3", "diffnsd.sets", False),
        ("diffnsd.groups._so3", "diffnsd.systems", False),
        ("diffnsd._numerics", "diffnsd._jax", True),
        ("diffnsd._jax._loops", "diffnsd._types", False),
        ("diffnsd._jax._loops", "diffnsd._numerics", False),
        ("diffnsd.model", "diffnsd", False),
        ("diffnsd.apps.cli", "diffnsd.viz", True),
        ("diffnsd.viz._plot", "diffnsd.apps", False),
        ("diffnsd.identification.fitting._fit", "diffnsd.rollout", True),
        ("diffnsd.rollout._batch", "diffnsd.identification", False),
        ("diffnsd.rollout._batch", "diffnsd.simulation", False),
    ],
)
def test_the_rule_itself(name, target, allowed):
    assert (violation(name, target) is None) == allowed


def test_no_import_circles():
    """An `__init__.py` gathers its folder; the files of the folder do not import it."""
    graph = {
        name: {target for _, target in internal_imports(name, path) if target in MODULES}
        for name, path in MODULES.items()
        if name != "diffnsd"
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            pytest.fail("circle: " + " -> ".join([*trail[trail.index(name) :], name]))
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            visit(target, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("name", MODULES)
def test_private_parts_of_other_packages(name):
    """`equinox.internal` is unstable by promise and has one importer; `jax._src` has none."""
    path = MODULES[name]
    for line, target in imports(name, path):
        assert not target.startswith("jax._src"), f"{path.name}:{line} imports {target}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = any(
        (isinstance(node, ast.Import) and any(a.name == "equinox.internal" for a in node.names))
        or (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (
                node.module == "equinox.internal"
                or (node.module == "equinox" and any(a.name == "internal" for a in node.names))
            )
        )
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "internal"
            and isinstance(node.value, ast.Name)
            and node.value.id in ("eqx", "equinox")
        )
        for node in ast.walk(tree)
    )
    assert not used or name == "diffnsd._jax._loops", f"{name} uses equinox.internal"


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_short(name):
    lines = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{name} has {lines} lines, {MAX_LINES} are allowed"


def test_import_has_no_side_effects():
    """A fresh interpreter: no configuration of JAX changes, and no optional package is loaded."""
    program = f"""
import json, sys
import jax
before = dict(jax.config.values)
import diffnsd
after = dict(jax.config.values)
print(json.dumps({{
    "x64": [before["jax_enable_x64"], after["jax_enable_x64"]],
    "changed": sorted(key for key in after if before.get(key) != after[key]),
    "loaded": [name for name in {OPTIONAL!r} if name in sys.modules],
}}))
"""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_ENABLE_X64"}
    child = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=PACKAGE.parent,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout.splitlines()[-1])
    assert seen == {"x64": [False, False], "changed": [], "loaded": []}
