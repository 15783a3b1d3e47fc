"""The public surface: everything named has a docstring, and every class is abstract or final."""

import builtins
import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import equinox as eqx
import pytest

import diffnsd

ROOT = Path(__file__).resolve().parent.parent
# Third-party packages of the extras: a module that needs one is left out where it is not installed.
OPTIONAL = {"matplotlib", "viser", "mujoco", "typer", "rich"}


def load() -> list[ModuleType]:
    """Every module of the package."""
    loaded = [diffnsd]
    for found in pkgutil.walk_packages(diffnsd.__path__, "diffnsd.", onerror=lambda name: None):
        if found.name.endswith(".__main__"):
            continue
        try:
            loaded.append(importlib.import_module(found.name))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in OPTIONAL:
                raise
    return loaded


LOADED = load()
FAMILIES = [
    module
    for module in LOADED
    if module.__name__.count(".") <= 1 + module.__name__.startswith("diffnsd.apps.")
    and not module.__name__.rpartition(".")[2].startswith("_")
]
CLASSES = {
    f"{module.__name__}.{name}": value
    for module in LOADED
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == module.__name__
}


def public(module: ModuleType) -> list[str]:
    """Public names: `__all__` where there is one, else what does not start with an underscore."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return sorted(names)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name != "jaxtyping"  # the import hook of --shapes puts it into every module
        and (
            module.__name__ == "diffnsd"
            or getattr(value, "__module__", "").startswith("diffnsd")
            or inspect.ismodule(value)
            and value.__name__.startswith("diffnsd")
        )
    )


def written_docstring(value: object) -> str | None:
    """What somebody wrote: no inherited docstring, no signature that a dataclass filled in."""
    if isinstance(value, type):
        text = value.__dict__.get("__doc__")
        if text and dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}("):
            return None
        return text
    return inspect.getdoc(value)


NAMES = [
    (module.__name__, name)
    for module in FAMILIES
    for name in public(module)
    if callable(value := getattr(module, name)) or inspect.ismodule(value)
]
CLASS_NAMES = [
    (module, name)
    for module, name in NAMES
    if isinstance(cls := getattr(importlib.import_module(module), name), type)
    and cls.__module__.startswith("diffnsd")
]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "pages").glob("*.md")), ids=lambda page: page.stem
)
def test_pages_name_only_what_exists(page):
    """The classes in code spans; of tables that translate from another program, the last column."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    if page.stem == "siconos" or page.stem.startswith("from_"):
        lines = [line.split("|")[2] for line in lines if line[:2] == "| "]
    spans = [x for line in lines for x in re.findall(r"`([^`]*)`", line)]
    named = {x for span in spans for x in re.findall(r"\b[A-Z][a-z]\w+", span)}
    known = {name for _, name in NAMES} | set(public(diffnsd.complementarity.solvers))
    known |= set(public(diffnsd.systems.elastic))
    known |= set(dir(builtins)) | set(re.findall(r"^class (\w+)", text, flags=re.MULTILINE))
    assert not named - known, sorted(named - known)
    if page.stem == "siconos":
        assert len(named) > 40


def test_names_in_all_exist():
    for module in LOADED:
        missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
        assert not missing, f"{module.__name__}.__all__ names {missing}"


def test_the_package_leaks_no_foreign_modules():
    foreign = [
        name
        for name in public(diffnsd)
        if inspect.ismodule(value := getattr(diffnsd, name))
        and not value.__name__.startswith("diffnsd.")
    ]
    assert not foreign, f"public by accident: {foreign}"


@pytest.mark.parametrize("name", [module.__name__ for module in FAMILIES])
def test_modules_have_docstrings(name):
    assert (importlib.import_module(name).__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_public_names_have_docstrings(module, name):
    value = getattr(importlib.import_module(module), name)
    assert (written_docstring(value) or "").strip(), f"{module}.{name} has no docstring"


@pytest.mark.parametrize(("module", "name"), CLASS_NAMES)
def test_public_methods_have_docstrings(module, name):
    cls = getattr(importlib.import_module(module), name)
    bare = [
        member
        for member, value in vars(cls).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
        # An override may leave the words to the method it overrides.
        and not (inspect.getdoc(getattr(cls, member)) or "").strip()
    ]
    assert not bare, f"{module}.{name}: no docstring on {bare}"


def is_abstract(cls: type) -> bool:
    return cls.__name__.lstrip("_").startswith("Abstract") or inspect.isabstract(cls)


@pytest.mark.parametrize("path", CLASSES)
def test_classes_are_abstract_or_final(path):
    """What can be instantiated is not subclassed.

    Exceptions may form families; an enumeration has no instances, and is extended by subclassing.
    """
    cls = CLASSES[path]
    if issubclass(cls, BaseException) or isinstance(cls, type(eqx.Enumeration)):
        return
    parents = [
        base.__name__
        for base in cls.__bases__
        if base.__module__.split(".")[0] == "diffnsd" and not is_abstract(base)
    ]
    assert not parents, f"{path} extends {parents}, which can be instantiated themselves"


@pytest.mark.parametrize("path", CLASSES)
def test_abstract_classes_say_so(path):
    """Abstract types begin with `Abstract`, so that a reader sees it where they are used."""
    cls = CLASSES[path]
    if inspect.isabstract(cls):
        assert cls.__name__.lstrip("_").startswith("Abstract"), f"{path} has abstract methods"
