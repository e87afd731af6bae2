"""No error of a request is kept with its past: what is raised from a name, or kept under one, is another (``anew``).

An error leads to the frames that it has passed, and a frame to its names. So one that has a name in such a frame, or a
place in what the frame holds, is never freed but by the garbage collector, and the request stays in memory with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent / "toutates"
#: Rooms whose errors hold no request, and are logged with the frames that they passed.
_OF_NO_REQUEST: Final = {"bench", "command", "repositories", "server", "tune"}
#: How threads of executors die is logged so too.
_OF_THREADS: Final = {"engine/executor_threads.py"}
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What a function has, without the functions in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))


def is_kept(raised: ast.expr | None, caught: set[str]) -> bool:
    """Whether what is raised has been there before: it has a name or a place. A class has not, nor what was caught."""
    name = raised.id if isinstance(raised, ast.Name) else raised.attr if isinstance(raised, ast.Attribute) else ""
    is_class = name.lstrip("_")[:1].isupper() and not name.isupper()
    return isinstance(raised, (ast.Name, ast.Attribute, ast.Subscript)) and not is_class and name not in caught


def kept_errors(tree: ast.AST) -> Iterator[int]:
    """The lines where an error that is kept is raised, or one that was caught is kept."""
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        nodes = list(of_function(function))
        handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler) and node.name]
        caught = {handler.name for handler in handlers if handler.name}
        yield from (node.lineno for node in nodes if isinstance(node, ast.Raise) and is_kept(node.exc, caught))
        for handler in handlers:
            for node in (one for statement in handler.body for one in ast.walk(statement)):
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Return)) and node.value is not None:
                    value = node.value
                    parts = value.elts if isinstance(value, ast.Tuple) else getattr(value, "values", [value])
                    if any(isinstance(part, ast.Name) and part.id == handler.name for part in parts):
                        yield node.lineno


def test_errors_are_kept_and_raised_again_without_their_past() -> None:
    found = {}
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT)
        if place.parts[0] not in _OF_NO_REQUEST and str(place) not in _OF_THREADS:
            found[str(place)] = list(kept_errors(ast.parse(path.read_text())))
    assert len(found) > 100
    assert {place: lines for place, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("refusal = make()\nraise refusal", [2]),
        ("raise self.refusal", [1]),
        ("raise LATE", [1]),
        ("raise found[0] from None", [1]),
        ("try:\n  pass\nexcept ValueError as error:\n  kept = error", [4]),
        ("try:\n  pass\nexcept ValueError as error:\n  self.error = self.error or error", [4]),
        ("try:\n  pass\nexcept ValueError as error:\n  return error", [4]),
        ("try:\n  pass\nexcept ValueError as error:\n  error, size = error, 0", [4]),
        ("try:\n  pass\nexcept ValueError as error:\n  kept = anew(error)\n  raise error", []),
        ("raise anew(refusal)", []),
        ("raise _OddError", []),
        ("raise module.OddError", []),
        ("raise self.refusal()", []),
    ],
)
def test_the_forms_are_told_from_others(text: str, found: list[int]) -> None:
    tree = ast.parse("def function():\n" + "\n".join("  " + line for line in text.splitlines()))
    assert [line - 1 for line in kept_errors(tree)] == found
