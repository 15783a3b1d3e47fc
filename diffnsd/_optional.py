"""Optional packages, imported where they are used."""

import importlib
from types import ModuleType


def require(name: str, purpose: str, extra: str = "viz") -> ModuleType:
    """Imports an optional package, or raises an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} is needed for {purpose} and cannot be imported here: "
            f'pip install "diffnsd[{extra}]"'
        ) from error
