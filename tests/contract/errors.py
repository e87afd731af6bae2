"""The tables from errors to statuses: gRPC's, REST's, and those of the other APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from toutates.api.grpc.statuses import STATUSES as GRPC
from toutates.api.rest.answers import STATUSES as REST
from toutates.api.rest.answers import Answer
from toutates.api.text import cohere, openai, proxy, tei
from toutates.api.text.problems import Kind, Problem
from toutates.api.text.problems import as_problem as as_text_problem
from toutates.api.torchserve.answers import as_problem
from toutates.system import errors
from toutates.system.errors import ConfigurationError, QuotaExceeded, RequestError

__all__ = ["error_lines"]

_TEXT_APIS: Final[dict[str, Callable[[Problem], Answer]]] = {
    "cohere": cohere.FORM.refuse,
    "openai": openai.FORM.refuse,
    "proxy": proxy.FORM.refuse,
    "tei": tei.FORM.refuse,
}


def error_lines() -> list[str]:
    """Each class of errors with its status everywhere; each kind of problem of the APIs for text; and how texts are."""
    lines = []
    for kind in _classes():
        error = kind("TEXT", 1.0) if issubclass(kind, QuotaExceeded) else kind("TEXT")
        torch = as_problem(error, "MODEL", "1")
        parts = [f"error {_line_of(kind)}", f"grpc {GRPC[kind].name}", f"rest {REST[kind].value}"]
        parts.append(f"torchserve {torch.code} {torch.kind}")
        problem = as_text_problem(error, "input")
        parts += [f"{name} {_TEXT_APIS[name](problem).status}" for name in _TEXT_APIS]
        lines.append("  ".join(parts))
    for wrong in Kind:
        for name, refuse in _TEXT_APIS.items():
            answer = refuse(Problem(wrong, "TEXT", "PARAM"))
            body = answer.body.decode()
            lines.append(f"text {wrong.value}  {name} {answer.status}  {body}".rstrip())
    located = ConfigurationError("PROBLEM", key="KEY", value="VALUE", remedy="REMEDY")
    lines.append(f"configuration error  {located}")
    return sorted(lines)


def _classes() -> Iterator[type[RequestError]]:
    for name in errors.__all__:
        found = getattr(errors, name)
        if isinstance(found, type) and issubclass(found, RequestError) and found is not RequestError:
            yield found


def _line_of(kind: type[Exception]) -> str:
    """A class with those that it is a case of."""
    bases = [base.__name__ for base in kind.__mro__[1:] if issubclass(base, RequestError) and base is not RequestError]
    return " < ".join((kind.__name__, *bases))
