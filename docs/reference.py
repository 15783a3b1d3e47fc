"""The pages of the reference, from the names of the package: every public name has one entry."""

import importlib
import inspect
from types import ModuleType

import diffnsd

# Folders whose names make a page, in the order of the reference.
FAMILIES = (
    "model", "linear", "systems", "systems.elastic", "relations", "laws", "sets", "groups", "shapes",
    "shapes.surfaces",
    "integrators", "simulation", "sensors", "rollout",
    "complementarity", "complementarity.solvers",
    "identification", "control", "diagnostics", "models", "io", "viz",
    "apps.toss", "apps.fit", "apps.mechanism", "apps.pages", "apps.gallery", "apps.cli",
)  # fmt: skip


def public(module: ModuleType) -> list[str]:
    """Public classes and functions of a module that come from this package.

    A folder passes on what it names; a single file names what it defines, and what is named at the top.
    """
    is_folder = hasattr(module, "__path__")
    return sorted(
        (
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and callable(value)
            and getattr(value, "__module__", "").startswith("diffnsd")
            and (is_folder or value.__module__ == module.__name__ or hasattr(diffnsd, name))
        ),
        key=str.lower,
    )


def homes() -> dict[int, str]:
    """For every object the name of its entry: where it is defined, else in the first folder that names it."""
    found: dict[int, str] = {}
    for family in FAMILIES:
        module = importlib.import_module(f"diffnsd.{family}")
        for name in public(module):
            value = getattr(module, name)
            defined_here = value.__module__.startswith(f"{module.__name__}.") or (
                value.__module__ == module.__name__
            )
            if id(value) not in found or defined_here:
                found[id(value)] = f"{module.__name__}.{name}"
    for name in public(diffnsd):
        found.setdefault(id(getattr(diffnsd, name)), f"diffnsd.{name}")
    return found


def addresses() -> dict[str, str]:
    """Where a name as it is written in a text has its entry: `Located`, `nsd.Located`, `control.Sampled`.

    A bare name that means one thing at the top, or in one folder only, leads there. Bare words in lower case
    that are no names at the top are left alone: they may be just words.
    """
    entries = homes()
    found: dict[str, set[str]] = {}
    for module_name in ("diffnsd", *(f"diffnsd.{family}" for family in FAMILIES)):
        module = importlib.import_module(module_name)
        family = module_name.removeprefix("diffnsd").lstrip(".")
        for name in public(module):
            home = entries[id(getattr(module, name))]
            place = home.rpartition(".")[0].removeprefix("diffnsd").lstrip(".") or "index"
            address = f"reference/{place}.html#{home}"
            if not family:
                found[name] = found[f"nsd.{name}"] = {address}
                continue
            for prefix in (family, family.rpartition(".")[2], module_name):
                found.setdefault(f"{prefix}.{name}", set()).add(address)
            if (name[0].isupper() or "_" in name) and not hasattr(diffnsd, name):
                found.setdefault(name, set()).add(address)
    return {name: places.pop() for name, places in found.items() if len(places) == 1}


def summary(value: object) -> str:
    """The first paragraph of a docstring as one line, safe in a table."""
    text = (inspect.getdoc(value) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def page(module: ModuleType, entries: dict[int, str]) -> str:
    """One folder: a table of its names, then an entry for each that is at home here."""
    names = public(module)
    rows, bodies = [], []
    for name in names:
        value = getattr(module, name)
        home = entries[id(value)]
        rows.append(f"| [`{name}`][{home}] | {summary(value)} |")
        if home == f"{module.__name__}.{name}":
            bodies.append(f"::: {home}\n")
    title = "The names at the top" if module is diffnsd else module.__name__
    intro = "" if module is diffnsd else f"{summary(module)}\n\n"
    if module is diffnsd:
        intro = (
            "What a model is made of is named by `import diffnsd as nsd`; what goes deeper is in the "
            "folders. Each name below leads to its entry.\n\n"
        )
    table = "\n".join(["| name | |", "|---|---|", *rows]) if rows else ""
    return f"# {title}\n\n{intro}{table}\n\n" + "\n".join(bodies)


def pages() -> dict[str, str]:
    """The Markdown of every page of the reference, by its path below the pages."""
    entries = homes()
    written = {"reference/index.md": page(diffnsd, entries)}
    for family in FAMILIES:
        module = importlib.import_module(f"diffnsd.{family}")
        written[f"reference/{family}.md"] = page(module, entries)
    return written
