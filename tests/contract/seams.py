"""What code of other people imports: the interface of backends, and what a Python model sees."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from toutates.backends import interface
from toutates.backends.plugins.catalogue import GROUP
from toutates.backends.python.child import pb_utils

__all__ = ["backend_lines", "python_model_lines"]

#: Parameters of metrics and tensors have few defaults; those that are not plain are shown by their type.
_PLAIN: Final = (str, bytes, int, float, bool, tuple, type(None))


def backend_lines() -> list[str]:
    """Public names of ``toutates.backends.interface`` with their signatures, and the entry point group."""
    return [f"entry point group {GROUP}", *_of_module(interface)]


def python_model_lines() -> list[str]:
    """Public names of ``triton_python_backend_utils`` with their signatures."""
    return _of_module(pb_utils)


def _of_module(module: ModuleType) -> list[str]:
    lines: list[str] = []
    for name in module.__all__:
        lines += _of_name(name, getattr(module, name))
    return sorted(lines)


def _of_name(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__ if base.__module__.startswith("toutates")]
        yield f"class {name}" + (f"({', '.join(bases)})" if bases else "")
        yield from _of_class(name, value)
    elif inspect.isfunction(value):
        yield f"def {name}{_signature(value)}"
    elif isinstance(value, int | str):
        yield f"{name} = {value!r}"
    elif isinstance(value, dict):
        yield from (f"{name}[{key!r}] = {np.dtype(one).name}" for key, one in value.items())
    else:
        yield name


def _of_class(name: str, kind: type) -> Iterator[str]:
    own = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
    if is_dataclass(kind):
        for field in fields(kind):
            if not field.name.startswith("_"):
                default = f" = {_shown(field.default)}" if isinstance(field.default, _PLAIN) else ""
                has = "" if field.default_factory.__class__.__name__ == "_MISSING_TYPE" else " = made anew"
                yield f"{name}.{field.name}: {field.type}{default}{has}"
    elif "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        yield f"{name}{_signature(vars(kind)['__init__'])}"
    for member, value in vars(kind).items():
        if member.startswith("_") or member in own:
            continue
        if isinstance(value, property):
            annotation = inspect.get_annotations(value.fget).get("return", "") if value.fget else ""
            yield f"{name}.{member} -> {annotation}  property"
        elif isinstance(value, staticmethod | classmethod):
            yield f"{name}.{member}{_signature(value.__func__)}  {type(value).__name__}"
        elif inspect.isfunction(value):
            abstract = "  abstract" if getattr(value, "__isabstractmethod__", False) else ""
            yield f"{name}.{member}{_signature(value)}{abstract}"
        elif isinstance(value, _PLAIN):
            yield f"{name}.{member} = {value!r}"
        elif inspect.isclass(value):
            yield from _of_name(f"{name}.{member}", value)


def _signature(function: Any) -> str:
    """A signature as it is written, whatever Python prints it."""
    parts: list[str] = []
    starred = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        text = (
            parameter.name if parameter.annotation is parameter.empty else f"{parameter.name}: {parameter.annotation}"
        )
        if parameter.default is not parameter.empty:
            text += f" = {_shown(parameter.default)}"
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, starred = "*" + text, True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = "**" + text
        parts.append(text)
    returned = inspect.get_annotations(function).get("return", "")
    return f"({', '.join(parts)})" + (f" -> {returned}" if returned else "")


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
