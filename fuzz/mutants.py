"""Replace one operator of the product at a time by its opposite, and see whether tests fail.

    python -m fuzz.mutants --number 40 [--seed N] [--only protocol models] [--jobs 2]

A mutant is the tree with one comparison, one ``and`` or ``or``, or one ``+`` or ``-`` replaced by its opposite. It is
killed if the tests of its own package (``tests/protocol`` for ``toutates/protocol``) fail or run for too long, or those
from outside do (``tests/e2e``). Mutants that compute the same as the original are listed, each with the reason, in
``equivalent_mutants.toml``; they are shown and not counted. The same seed draws the same mutants of the same tree. The
exit status is 1 if less than 95 % were killed.

Each mutant is tried in a copy of the tree. The tests of a package first run once without a mutant, and ``coverage``
records which test executes which line. A mutant then needs only the tests that execute its line, the quickest file
first. Tests run in processes forked from one that has imported pytest and the libraries already.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import coverage
import pytest

from tests.e2e.executed_lines import VARIABLE, executed_lines

ROOT: Final = Path(__file__).resolve().parent.parent
EQUIVALENT: Final = Path(__file__).with_name("equivalent_mutants.toml")
PACKAGES: Final = ("engine", "infer", "h2grpc", "http1", "protocol", "models")
#: The part of the mutants that tests have to kill.
ENOUGH: Final = 0.95
#: The tests from outside; how many of their files run at once where their lines are recorded, and for how long at most.
OUTSIDE: Final = "e2e"
_AT_ONCE: Final = 4
_RECORDING_S: Final = 3_000.0
#: Seconds of them that are tried on a mutant.
MOST_OUTSIDE_S: Final = 120.0

#: Operators of the syntax tree: how each is written, and its opposite.
_OPPOSITES: Final[dict[type[ast.AST], tuple[str, str]]] = {
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
    """One operator that is replaced by its opposite.

    Attributes:
        file: path in the tree.
        line: number of the line, from 1.
        where: dotted name of the function or class it is in; "" at the top of the module.
        text: the line, without the white space around it.
        change: such as ``< to >=``.
        at: which of the same change in lines of the same text, from 1.
        lines: numbers of the first line of the expression and of the line after its last.
        start, end: bytes of the operator in the file.
        new: what stands there instead.
    """

    file: str
    line: int
    where: str
    text: str
    change: str
    at: int
    lines: tuple[int, int]
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
    found: list[tuple[int, int, str, str, tuple[int, int]]] = []

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    def note(
        where: str, node: ast.expr | ast.stmt, operator: ast.AST, after: int, before: int, suffix: bytes = b""
    ) -> None:
        opposite = _OPPOSITES.get(type(operator))
        if opposite is None:
            return
        # Between two operands there are brackets, comments, line breaks and the operator.
        between = re.sub(rb"#[^\n]*", lambda match: b" " * len(match[0]), source[after:before])
        old = re.escape(opposite[0].encode()).replace(rb"\ ", rb"\s+") + suffix
        match = re.search(rb"\b" + old + rb"\b" if opposite[0][0].isalpha() else old, between)
        assert match is not None, f"{file}: no {opposite[0]} between bytes {after} and {before}"
        assert node.end_lineno is not None
        lines = node.lineno, node.end_lineno + 1
        found.append((after + match.start(), after + match.end(), where, f"{opposite[0]} to {opposite[1]}", lines))

    def visit(node: ast.AST, where: str) -> None:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for number, operator in enumerate(node.ops):
                    note(where, node, operator, end(operands[number]), begin(operands[number + 1]))
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    note(where, node, node.op, end(left), begin(right))
            case ast.BinOp():
                note(where, node, node.op, end(node.left), begin(node.right))
            case ast.AugAssign():
                note(where, node, node.op, end(node.target), begin(node.value), b"(?==)")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                where = f"{where}.{node.name}".removeprefix(".")
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
        for child in ast.iter_child_nodes(node):
            visit(child, where)

    visit(ast.parse(source), "")
    mutants: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for start, stop, where, change, lines in sorted(found):
        number = source.count(b"\n", 0, start) + 1
        text = source[starts[number - 1] : starts[number]].decode().strip()
        same = where, text, change
        seen[same] += 1
        new = change.partition(" to ")[2]
        mutants.append(Mutant(file, number, where, text, change, seen[same], lines, start, stop, new))
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


#: What tests import, takes long to import, and no mutant changes.
_LIBRARIES: Final = ["pytest", "hypothesis", "numpy", "trio", "h2.connection", "onnxruntime", "google.protobuf"]
_CONTEXT: Final = multiprocessing.get_context("forkserver")


@dataclass
class Coverage:
    """What the tests of a package do without a mutant.

    Attributes:
        took_s: seconds that each test takes, by its pytest node ID, in the order in which they ran.
        failed: tests that failed while their lines were recorded, which makes them slower.
        lines: who executes a line, by file and number: node IDs of tests; the file of a test for all of its tests,
            because the fixture that executes the line may be one of the file's; "" for whatever imports the module.
    """

    took_s: dict[str, float]
    failed: list[str]
    lines: dict[tuple[str, int], set[str]]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Node IDs of the tests that execute a mutant, those of its module first. All where none does.

        All, because a test may execute it in a process of its own, whose lines are not recorded.
        """
        who = set().union(*(self.lines.get((mutant.file, line), ()) for line in range(*mutant.lines)))
        chosen = [test for test in self.took_s if {"", test, _file_of(test)} & who] or list(self.took_s)
        file_s = self._file_s(chosen)
        own = f"test_{Path(mutant.file).stem}"
        return sorted(
            chosen,
            key=lambda test: (
                not Path(_file_of(test)).stem.startswith(own),
                file_s[_file_of(test)],
                _file_of(test),
                self.took_s[test],
            ),
        )

    def _file_s(self, tests: Iterable[str]) -> dict[str, float]:
        """Seconds that the files of tests take."""
        file_s: dict[str, float] = {}
        for test in tests:
            file_s[_file_of(test)] = file_s.get(_file_of(test), 0.0) + self.took_s[test]
        return file_s

    def files_of(self, mutant: Mutant, most_s: float) -> list[str]:
        """Files of tests that passed and execute a mutant, the quickest first, for so many seconds, but one."""
        who = set().union(*(self.lines.get((mutant.file, line), ()) for line in range(*mutant.lines)))
        file_s = self._file_s(self.took_s)
        chosen: list[str] = []
        for file in sorted(who - set(map(_file_of, self.failed)), key=file_s.__getitem__):
            most_s -= file_s[file]
            if chosen and most_s < 0:
                break
            chosen.append(file)
        return chosen


def _file_of(test: str) -> str:
    return test.partition("::")[0]


class _Reports:
    """A plugin of pytest that notes how long tests take, and which fail."""

    def __init__(self) -> None:
        self._took_s: dict[str, float] = {}
        self._failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test has ended."""
        self._took_s[report.nodeid] = self._took_s.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed[report.nodeid] = None

    def run(self, arguments: list[str]) -> None:
        """Run pytest."""
        status = pytest.main(arguments, [self])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise ChildProcessError(f"pytest ended with {status}")

    def record(self, arguments: list[str]) -> Coverage:
        """Run pytest; servers write down which lines they execute."""
        with tempfile.TemporaryDirectory() as folder:
            os.environ[VARIABLE] = folder
            self.run([*arguments, f"--numprocesses={_AT_ONCE}", "--dist=loadfile"])
            return Coverage(self._took_s, list(self._failed), executed_lines(Path(folder), Path.cwd()))


class _Recorder(_Reports):
    """A plugin of pytest that finds out which lines of a package tests execute in their own process.

    Args:
        package: of toutates.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=[f"toutates/{package}"])

    def record(self, arguments: list[str]) -> Coverage:
        """Run pytest."""
        self._coverage.start()
        self.run(arguments)
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[tuple[str, int], set[str]] = {}
        for path in data.measured_files():
            file = str(Path(path).relative_to(Path.cwd()))
            for line, contexts in data.contexts_by_lineno(path).items():
                lines[file, line] = set(contexts)
        return Coverage(self._took_s, list(self._failed), lines)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A test's fixtures come next, those of its file among them."""
        self._coverage.switch_context(_file_of(item.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """The test itself comes next."""
        self._coverage.switch_context(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Its fixtures come next again."""
        self._coverage.switch_context(_file_of(item.nodeid))


def _run_pytest(folder: str, arguments: list[str], recorded: str) -> None:
    """Run tests of the copy in ``folder``, in a process that was forked for it.

    Args:
        folder: of the copy; what pytest prints goes to the file of the same name with ``.log``.
        arguments: pytest's.
        recorded: a package, or OUTSIDE, whose ``Coverage`` is written to ``folder`` with ``.coverage``, or "".
    """
    os.setsid()
    os.chdir(folder)
    with open(f"{folder}.log", "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    # pytest cannot rewrite the asserts of its plugins, which are imported already, and fails for trying to.
    arguments = ["-q", "-p", "no:cacheprovider", "--assert=plain", *arguments]
    if recorded:
        reports = _Reports() if recorded == OUTSIDE else _Recorder(recorded)
        Path(f"{folder}.coverage").write_bytes(pickle.dumps(reports.record(arguments)))
        status = 0
    else:
        status = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(status)  # whatever threads a mutant has left


class Copy:
    """A copy of the tree, in which one mutant at a time is tried.

    Args:
        folder: where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        for name in subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # By their hash: a mutant may have the size of the original and be written within the same second.
        hashed = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "toutates"]
        subprocess.run([sys.executable, *hashed], cwd=folder, check=True)

    def passes(self, tests: Sequence[str], limit_s: float, recorded: str = "") -> bool:
        """Whether tests pass in time, up to the first that fails; all run where lines are recorded."""
        arguments = [*(() if recorded else ("-x",)), *tests]
        process = _CONTEXT.Process(target=_run_pytest, args=(str(self.folder), arguments, recorded))
        process.start()
        assert process.pid is not None
        process.join(limit_s)
        passed = process.exitcode == 0
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what the tests have started goes with them
        except ProcessLookupError:
            pass
        process.join()
        return passed

    @property
    def output(self) -> str:
        """The end of what the last run of tests printed."""
        return Path(f"{self.folder}.log").read_text(errors="replace")[-3_000:]

    def coverage_of(self, package: str, limit_s: float) -> Coverage:
        """What the tests of a package, or those from outside, execute, after seeing that they pass without a mutant.

        Of those from outside some fail because their servers are slower; their files are left out.
        """
        if not self.passes([f"tests/{package}"], limit_s, package):
            sys.exit(f"the tests of {package} do not run:\n{self.output}")
        found: Coverage = pickle.loads(Path(f"{self.folder}.coverage").read_bytes())
        if package != OUTSIDE and found.failed and not self.passes(found.failed, limit_s):
            sys.exit(f"the tests of {package} fail without a mutant:\n{self.output}")
        return found

    def kills(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> bool:
        """Whether tests kill a mutant: one of them fails, or they take longer."""
        file = self.folder / mutant.file
        source = file.read_bytes()
        file.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        try:
            return not self.passes(tests, limit_s)
        finally:
            file.write_bytes(source)


def package_of(mutant: Mutant) -> str:
    """Its room of toutates."""
    return Path(mutant.file).parts[1]


def _survivors(
    drawn: Sequence[Mutant], copies: Sequence[Copy], tests_for: Callable[[Mutant], tuple[Sequence[str], float]]
) -> list[Mutant]:
    """Try mutants; returns those that survive.

    Args:
        drawn: the mutants.
        copies: in which they are tried, one in each at a time.
        tests_for: the tests that may kill a mutant, and how many seconds they may take.
    """
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)
    printing = threading.Lock()

    def survives(mutant: Mutant) -> bool:
        tests, limit_s = tests_for(mutant)
        copy = free.get()
        began = time.monotonic()
        try:
            killed = bool(tests) and copy.kills(mutant, tests, limit_s)
        finally:
            free.put(copy)
        with printing:
            print(f"{'killed' if killed else 'SURVIVED':9}{time.monotonic() - began:5.0f} s  {mutant}", flush=True)
        return not killed

    with ThreadPoolExecutor(len(copies)) as pool:
        return [mutant for mutant, survived in zip(drawn, pool.map(survives, drawn), strict=True) if survived]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=40, help="mutants to draw (default: 40)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draws the same ones again")
    known = [package for package in PACKAGES if (ROOT / "toutates" / package).is_dir()]
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="packages to draw from")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at the same time (default: 2)")
    parser.add_argument("--inside", action="store_true", help="leave the tests from outside out")
    parser.add_argument("--limit", type=float, default=600, help="most seconds for the tests of one (default: 600)")
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
    _CONTEXT.set_forkserver_preload(_LIBRARIES)
    with tempfile.TemporaryDirectory(prefix="toutates-mutants-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(arguments.jobs)]
        coverages: dict[str, Coverage] = {}

        def record(package: str, limit_s: float) -> Coverage:
            began = time.monotonic()
            found = coverages[package] = copies[0].coverage_of(package, limit_s)
            print(f"{package}: {time.monotonic() - began:.0f} s without a mutant", flush=True)
            return found

        def inside(mutant: Mutant) -> tuple[Sequence[str], float]:
            coverage = coverages[package_of(mutant)]
            tests = coverage.tests_of(mutant)
            return tests, min(3 * sum(coverage.took_s[test] for test in tests) + 20, arguments.limit)

        for package in sorted({package_of(mutant) for mutant in real}):
            record(package, arguments.limit)
        survivors = _survivors(real, copies, inside)
        if survivors and not arguments.inside:
            outside = record(OUTSIDE, _RECORDING_S)
            limit_s = 3 * MOST_OUTSIDE_S
            survivors = _survivors(
                survivors, copies, lambda mutant: (outside.files_of(mutant, MOST_OUTSIDE_S), limit_s)
            )
    killed = len(real) - len(survivors)
    print(f"\nseed {arguments.seed}: {killed} of {len(real)} killed, {len(drawn) - len(real)} equivalent")
    for mutant in survivors:
        print(f"survived: {mutant}")
    return 0 if killed >= ENOUGH * len(real) else 1


if __name__ == "__main__":
    sys.exit(main())
