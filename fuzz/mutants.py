"""Turn one operator of the product round at a time, and see whether the tests of its package notice.

    python fuzz/mutants.py --number 40 [--seed N] [--only protocol models] [--jobs 2]

A mutant is the tree with one comparison, one ``and`` or ``or``, or one ``+`` or ``-`` turned round. It is killed if the
tests of its own package (``tests/protocol`` for ``toutates/protocol``) fail or run for too long, and survives if they
pass. Each is tried in a copy of the tree. Mutants that nothing could tell from the original are listed, each with the
reason, in ``equivalent_mutants.toml``; they are shown and not counted. The same seed draws the same mutants of the same
tree. The end is 1 if less than 95 % were killed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
EQUIVALENT: Final = Path(__file__).with_name("equivalent_mutants.toml")
PACKAGES: Final = ("engine", "infer", "h2grpc", "http1", "protocol", "models")
#: The part of the mutants that tests have to kill.
ENOUGH: Final = 0.95

#: Operators of the syntax tree: how each is written, and what it is turned into.
_TURNED: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}


@dataclass(frozen=True)
class Mutant:
    """One operator that is turned round.

    Attributes:
        file: path in the tree.
        line: number of the line, from 1.
        where: dotted name of the function or class it is in; "" at the top of the module.
        text: the line, without the white space around it.
        change: such as ``< to >=``.
        at: which of the same change in lines of the same text, from 1.
        start, end: bytes of the operator in the file.
        new: what stands there instead.
    """

    file: str
    line: int
    where: str
    text: str
    change: str
    at: int
    start: int
    end: int
    new: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What tells it from others of the tree, as long as its line stays as it is."""
        return self.file, self.where, self.text, self.change, self.at

    def __str__(self) -> str:
        at = f", number {self.at}" if self.at > 1 else ""
        return f"{self.file}:{self.line} {self.where}: {self.change}{at}: {self.text}"


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a module, by their place in it."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[tuple[int, int, str, str]] = []

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    def note(where: str, operator: ast.AST, after: int, before: int, suffix: bytes = b"") -> None:
        turned = _TURNED.get(type(operator))
        if turned is None:
            return
        # Between two operands there are brackets, comments, line breaks and the operator.
        between = re.sub(rb"#[^\n]*", lambda match: b" " * len(match[0]), source[after:before])
        old = re.escape(turned[0].encode()).replace(rb"\ ", rb"\s+") + suffix
        match = re.search(rb"\b" + old + rb"\b" if turned[0][0].isalpha() else old, between)
        assert match is not None, f"{file}: no {turned[0]} between bytes {after} and {before}"
        found.append((after + match.start(), after + match.end(), where, f"{turned[0]} to {turned[1]}"))

    def visit(node: ast.AST, where: str) -> None:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for number, operator in enumerate(node.ops):
                    note(where, operator, end(operands[number]), begin(operands[number + 1]))
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    note(where, node.op, end(left), begin(right))
            case ast.BinOp():
                note(where, node.op, end(node.left), begin(node.right))
            case ast.AugAssign():
                note(where, node.op, end(node.target), begin(node.value), b"(?==)")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                where = f"{where}.{node.name}".removeprefix(".")
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
        for child in ast.iter_child_nodes(node):
            visit(child, where)

    visit(ast.parse(source), "")
    mutants: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for start, stop, where, change in sorted(found):
        number = source.count(b"\n", 0, start) + 1
        text = source[starts[number - 1] : starts[number]].decode().strip()
        same = where, text, change
        seen[same] += 1
        new = change.partition(" to ")[2]
        mutants.append(Mutant(file, number, where, text, change, seen[same], start, stop, new))
    return mutants


def all_mutants(packages: Sequence[str] = PACKAGES) -> list[Mutant]:
    """Those of the modules of some packages, but for generated ones."""
    files = [
        file
        for package in packages
        for file in sorted((ROOT / "toutates" / package).rglob("*.py"))
        if not file.name.endswith("_pb2.py")
    ]
    return [mutant for file in files for mutant in mutants_of(str(file.relative_to(ROOT)), file.read_bytes())]


def equivalent_mutants() -> dict[tuple[str, str, str, str, int], str]:
    """Reasons why nothing can tell some mutants from the original."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {
        (entry["file"], entry["where"], entry["text"], entry["change"], entry.get("at", 1)): entry["reason"]
        for entry in entries
    }


class Copy:
    """A copy of the tree, in which one mutant at a time is tried.

    Args:
        folder: where it is made.
        under: a command that each run of tests is started with, such as ``nice``.
    """

    def __init__(self, folder: Path, under: Sequence[str]) -> None:
        self.folder = folder
        self._under = under
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        for name in subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # By their hash: a mutant may have the size of the original and be written within the same second.
        hashed = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "toutates"]
        subprocess.run([sys.executable, *hashed], cwd=folder, check=True)

    def passes(self, package: str, first: str = "", limit_s: float | None = None) -> tuple[bool, str]:
        """Whether the tests of a package pass in time, and the end of what they printed.

        Args:
            package: of toutates.
            first: a module, whose own tests run before the others.
            limit_s: seconds that they may take.
        """
        folder = f"tests/{package}"
        own = sorted(str(path) for path in Path(folder).rglob(f"test_{first}*.py")) if first else []
        command = [*self._under, sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *own, folder]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                output = "it ran for too long"
            finally:
                # What the tests have started goes with them.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        return process.returncode == 0, output[-3_000:]

    def kills(self, mutant: Mutant, limit_s: float) -> bool:
        """Whether the tests of its package kill a mutant."""
        file = self.folder / mutant.file
        source = file.read_bytes()
        file.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        try:
            return not self.passes(package_of(mutant), Path(mutant.file).stem, limit_s)[0]
        finally:
            file.write_bytes(source)


def package_of(mutant: Mutant) -> str:
    """Its room of toutates."""
    return Path(mutant.file).parts[1]


def _limits_s(copies: Sequence[Copy], packages: Sequence[str], most_s: float) -> dict[str, float]:
    """How long the tests of each package may take: several times what they take of the tree as it is.

    The slowest copy counts, because whatever ran meanwhile slows the mutants down as well.
    """
    limits: dict[str, float] = {}
    for package in packages:
        began = time.monotonic()
        with ThreadPoolExecutor(len(copies)) as pool:
            for passes, output in pool.map(Copy.passes, copies, [package] * len(copies)):
                if not passes:
                    sys.exit(f"the tests of {package} fail without a mutant:\n{output}")
        took_s = time.monotonic() - began
        limits[package] = min(3 * took_s + 20, most_s)
        print(f"{package}: {took_s:.0f} s without a mutant", flush=True)
    return limits


def _try_all(
    drawn: Sequence[Mutant], copies: Sequence[Copy], limits: dict[str, float]
) -> Iterator[tuple[Mutant, bool]]:
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)
    printing = threading.Lock()

    def attempt(mutant: Mutant) -> tuple[Mutant, bool]:
        copy = free.get()
        began = time.monotonic()
        try:
            killed = copy.kills(mutant, limits[package_of(mutant)])
        finally:
            free.put(copy)
        with printing:
            print(f"{'killed' if killed else 'SURVIVED':9}{time.monotonic() - began:5.0f} s  {mutant}", flush=True)
        return mutant, killed

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from pool.map(attempt, drawn)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=40, help="mutants to draw (default: 40)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draws the same ones again")
    known = [package for package in PACKAGES if (ROOT / "toutates" / package).is_dir()]
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="packages to draw from")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at the same time (default: 2)")
    parser.add_argument("--limit", type=float, default=600, help="most seconds for the tests of one (default: 600)")
    parser.add_argument("--under", type=shlex.split, default=[], help="a command to run tests under, such as 'nice'")
    arguments = parser.parse_args()
    candidates = all_mutants(arguments.only)
    drawn = random.Random(arguments.seed).sample(candidates, min(arguments.number, len(candidates)))
    print(
        f"seed {arguments.seed}: {len(drawn)} of {len(candidates)} mutants of {', '.join(arguments.only)}", flush=True
    )
    equivalent = equivalent_mutants()
    for mutant in drawn:
        if mutant.key in equivalent:
            print(f"equivalent        {mutant}\n                  {equivalent[mutant.key]}")
    real = [mutant for mutant in drawn if mutant.key not in equivalent]
    with tempfile.TemporaryDirectory(prefix="toutates-mutants-") as folder:
        copies = [Copy(Path(folder) / str(number), arguments.under) for number in range(arguments.jobs)]
        limits = _limits_s(copies, sorted({package_of(mutant) for mutant in real}), arguments.limit)
        survivors = [mutant for mutant, killed in _try_all(real, copies, limits) if not killed]
    killed = len(real) - len(survivors)
    print(f"\nseed {arguments.seed}: {killed} of {len(real)} killed, {len(drawn) - len(real)} equivalent")
    for mutant in survivors:
        print(f"survived: {mutant}")
    return 0 if killed >= ENOUGH * len(real) else 1


if __name__ == "__main__":
    sys.exit(main())
