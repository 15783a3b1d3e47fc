"""Signatures of classes whose constructor is written by `equinox.Module`, which no parser can see."""

import importlib
import inspect

from griffe import Expr, Extension, Function, Parameter, ParameterKind, Parameters

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: ParameterKind.var_keyword,
}


class Signatures(Extension):
    """Gives every class that states no constructor the one that it has when it is imported."""

    def on_class(self, *, cls, **kwargs):
        """Adds `__init__` with names and default values."""
        if "__init__" in cls.members or cls.name.startswith(("_", "Abstract")):
            return
        try:
            value = getattr(importlib.import_module(cls.module.path), cls.name)
            signature = inspect.signature(value)
        except (ImportError, AttributeError, ValueError, TypeError):
            return
        found = [
            Parameter(
                p.name,
                kind=KINDS[p.kind],
                default=None if p.default is inspect.Parameter.empty else default(p.default),
            )
            for p in signature.parameters.values()
        ]
        this = Parameter("self", kind=ParameterKind.positional_or_keyword)
        cls.set_member("__init__", Function("__init__", parameters=Parameters(this, *found)))


def default(value: object) -> str | Expr:
    """A default value as it would be written, or dots where it cannot."""
    text = repr(value)
    return text if len(text) < 40 and not text.startswith("<") else "..."
