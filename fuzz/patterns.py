"""Every regular expression of the product over a megabyte of its worst characters, timed.

Patterns are found by the syntax tree, so that none is left out: constants by their names in imported modules, and those
that stand where they are used. The texts are made of what a pattern repeats: what comes before it, what it takes again
and again, and then something that it does not take. Python's ``re`` holds the GIL, and gives up no search; so one whose
time grows faster than its text, in the hands of a stranger, stops the whole server.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

__all__ = ["Found", "Slow", "run_patterns", "slowest", "tree_patterns"]

ROOT: Final = Path(__file__).resolve().parent.parent
_FUNCTIONS: Final = {"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
#: What is made while the server runs, of what the operator or the product has written, by the name of the function.
_MADE: Final = {
    "toutates/access/callers.py:__init__": "globs of the access file, joined: `*` of fnmatch is atomic",
    "toutates/api/rest/endpoints.py:_pattern": "the paths of the product's own table",
    "toutates/command/check.py:_remedy": "the product's own list",
    "toutates/command/options.py:_pattern": "the operator's own",
    "toutates/repositories/sentence_transformers/weights.py:require_all_used": "the product's own lists",
    "toutates/system/client_text.py:_without_folder": "the path of a folder, which each place meets once",
    "toutates/system/client_text.py:_without_other_paths": "entries of the root directory, after one of three quotes",
}
#: Characters that stand for their kinds.
_KINDS: Final = "a0Z \t\n\r\"'/\\-_.:;,=@<>[]{}()%*?#&+!~\x00\x1b\x80\xff"
#: Sizes at which a text is tried at first. Time that doubles with each character shows at some ten of them.
_STEPS: Final = (16, 20, 25, 31, 39, 49, 61, 256, 1_024, 8_192, 65_536)
_MEGABYTE: Final = 1_000_000
#: Seconds of CPU that a text may take: some, and so many for each character.
_SOME_S: Final = 0.02
_EACH_S: Final = 0.5e-6


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern of the tree.

    Attributes:
        place: file and line.
        pattern: compiled.
        ways: the functions by which it is used.
    """

    place: str
    pattern: re.Pattern[Any]
    ways: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slow:
    """What took the longest.

    Attributes:
        found: the pattern.
        way: the function.
        text: how the text is made.
        size: of it, characters.
        took_s: CPU time.
    """

    found: Found
    way: str
    text: str
    size: int
    took_s: float

    @property
    def is_too_slow(self) -> bool:
        """Whether it is more than a pattern may take that a stranger's text meets."""
        return self.took_s > _SOME_S + self.size * _EACH_S

    def __str__(self) -> str:
        pattern = self.found.pattern.pattern
        return f"{self.found.place}: {pattern!r}.{self.way}: {self.took_s:.3f} s for {self.size} of {self.text}"


# --- finding them ----------------------------------------------------------------------------------------------------


def tree_patterns(root: Path = ROOT / "toutates") -> Iterator[Found]:
    """All patterns of the product.

    Raises:
        LookupError: one that is made in a way that this module does not know.
    """
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        if "re." in text:
            yield from _patterns_of(path, ast.parse(text))


def _patterns_of(path: Path, tree: ast.Module) -> Iterator[Found]:
    ways: dict[str, set[str]] = {}
    functions: dict[ast.AST, str] = {}
    named: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions |= dict.fromkeys(ast.walk(node), node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _FUNCTIONS:
            ways.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and node in tree.body:
                named[node.value] = target.id
    # Of a pattern that goes by other names, as one of a table.
    others = {way for name, used in ways.items() if name not in {*named.values(), "re"} for way in used}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
            continue
        way = node.func.attr
        if way != "compile" and way not in _FUNCTIONS:
            continue
        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        used = {way} if way != "compile" else ways.get(named.get(node, ""), others or _FUNCTIONS)
        pattern = _evaluated(node, path)
        if pattern is not None:
            yield Found(place, pattern, tuple(sorted(used)))
        elif f"{path.relative_to(ROOT)}:{functions.get(node)}" not in _MADE:
            raise LookupError(f"{place}: a pattern that is neither a constant nor in {__name__}._MADE")


def _evaluated(node: ast.Call, path: Path) -> re.Pattern[Any] | None:
    """The pattern that a call names; None where it is made of what is not there before the call."""
    flags = [key.value for key in node.keywords if key.arg == "flags"] or node.args[1 if _is_compile(node) else 99 :]
    code = compile(ast.fix_missing_locations(ast.Expression(ast.Tuple([node.args[0], *flags], ast.Load()))), "", "eval")
    names = {one.id for one in ast.walk(node.args[0]) if isinstance(one, ast.Name)}
    module = vars(importlib.import_module(_module(path))) if names - {"re"} else {"re": re}
    try:
        return re.compile(*eval(code, module))
    except NameError:
        return None


def _is_compile(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "compile"


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


# --- their worst texts -----------------------------------------------------------------------------------------------


def _takes(node: Any, character: str) -> bool:
    """Whether a part of a pattern that takes one character takes this one."""
    code, value = node
    if code is codes.LITERAL:
        return bool(ord(character) == value)
    if code is codes.NOT_LITERAL:
        return bool(ord(character) != value)
    if code is codes.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if code is codes.CATEGORY:
        name = {"SPACE": r"\s", "DIGIT": r"\d", "WORD": r"\w"}[str(value).rpartition("_")[2]]
        return bool(re.match(name, character)) != ("_NOT_" in str(value))
    if code is codes.IN:
        negated = value[0][0] is codes.NEGATE
        return any(_takes(one, character) for one in value[negated:]) != negated
    return code is codes.ANY and character != "\n"


def _characters(node: Any, pool: str) -> list[str]:
    return [one for one in pool if _takes(node, one)][:4]


def _insides(node: Any) -> list[Any]:
    """What a part of a pattern consists of: sequences, of which the first is the likeliest; none of one character."""
    code, value = node
    if code is codes.SUBPATTERN:
        return [value[3]]
    if code is codes.ATOMIC_GROUP:
        return [value]
    if code is codes.BRANCH:
        return list(value[1])
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return [value[2]]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [value[1]] if value[0] > 0 else []
    return []


def _least(sequence: Any, pool: str) -> str:
    """A short text that a sequence is likely to take."""
    text = ""
    for node in sequence:
        code, value = node
        inside = _insides(node)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            text += _least(value[2], pool) * min(value[0], 8)
        elif inside and code not in (codes.ASSERT, codes.ASSERT_NOT):
            text += _least(inside[0], pool)
        elif code is codes.LITERAL:
            text += chr(value)
        else:
            text += (_characters(node, pool) or [""])[0]
    return text


def _repeats(sequence: Any, before: str, pool: str) -> Iterator[tuple[str, str]]:
    """What leads to each repetition of a sequence, and what that takes."""
    for node in sequence:
        code, value = node
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT) and value[1] > 20:
            alone = value[2][0] if len(value[2]) == 1 else None
            for one in (_characters(alone, pool) if alone is not None else []) or [_least(value[2], pool)]:
                yield before, one
        for inside in _insides(node):
            yield from _repeats(inside, before, pool)
        before += _least([node], pool)


def _texts(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """Beginnings, what is repeated, and ends."""
    flags = pattern.flags & ~(re.LOCALE if isinstance(pattern.pattern, str) else 0)
    tree = parser.parse(pattern.pattern, flags)
    written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    pool = "".join(dict.fromkeys(_KINDS + written))
    found: dict[tuple[str, str, str], None] = {}
    for before, repeated in _repeats(tree, "", pool):
        for beginning, unit in ((before, repeated), ("", repeated), ("", before + repeated), ("", before)):
            for end in ("", "\x00", "\n!"):
                if unit:
                    found[beginning, unit, end] = None
    for one in dict.fromkeys(written):
        found["", one, "\x00"] = None
    return list(found)


def _work(pattern: re.Pattern[Any], way: str) -> Callable[[Any], object]:
    empty = pattern.pattern[:0]
    if way in ("sub", "subn"):
        return lambda text: pattern.sub(empty, text)
    if way == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    work: Callable[[Any], object] = getattr(pattern, way)
    return work


def _timed(work: Callable[[Any], object], text: Any, most_s: float) -> float:
    """CPU time of it; of the better of two where the first was too long, which may have met a cold cache."""
    took_s = most_s
    for _ in range(2):
        began = time.thread_time()
        work(text)
        took_s = min(took_s, time.thread_time() - began) if took_s < most_s else time.thread_time() - began
        if took_s < most_s:
            break
    return took_s


def slowest(found: Found) -> Slow | None:
    """What takes a pattern the longest, of a megabyte, or of the size at which that is too long already."""
    worst: tuple[float, Callable[[Any], object], str, tuple[str, str, str]] | None = None
    is_text = isinstance(found.pattern.pattern, str)

    def made(parts: tuple[str, str, str], size: int) -> Any:
        beginning, unit, end = parts
        text = beginning + unit * (size // len(unit)) + end
        return text if is_text else text.encode("latin-1", "replace")

    for parts in _texts(found.pattern):
        for way in found.ways:
            work = _work(found.pattern, way)
            for size in _STEPS:
                most_s = _SOME_S + size * _EACH_S
                took_s = _timed(work, made(parts, size), most_s)
                if took_s > most_s:
                    return Slow(found, way, repr(parts), size, took_s)
            if worst is None or took_s > worst[0]:
                worst = took_s, work, way, parts
    if worst is None:
        return None
    _, work, way, parts = worst
    took_s = _timed(work, made(parts, _MEGABYTE), _SOME_S + _MEGABYTE * _EACH_S)
    return Slow(found, way, repr(parts), _MEGABYTE, took_s)


def run_patterns(say: Callable[[str], None] = print, patterns: Sequence[Found] = ()) -> bool:
    """Time all of them; returns whether none is too slow."""
    timed = [one for one in map(slowest, patterns or tree_patterns()) if one is not None]
    bad = [one for one in timed if one.is_too_slow]
    for one in bad:
        say(f"TOO SLOW {one}")
    if timed and not bad:
        say(f"the slowest: {max(timed, key=lambda one: one.took_s / one.size)}")
    return not bad


if __name__ == "__main__":
    raise SystemExit(not run_patterns())
