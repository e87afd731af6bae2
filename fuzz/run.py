"""Fuzz everything for some time, or replay one case.

    python fuzz/run.py [--seconds 60] [--seed N] [--only NAME ...]
    python fuzz/run.py --replay NAME FILE

Kinds of runs that share the time:

- random cases: what ``tests/fuzz/targets.py`` lists, as fast as cases can be made;
- cases that coverage guides towards code not seen before (``guided.py``), where atheris is installed;
- the tests that Hypothesis drives, with other examples than the suite's;
- and every regular expression of the product is timed, once (``patterns.py``).

What breaks an invariant is made small, kept in ``.fuzz/crashers``, and printed with the command line that replays it.
Copied to ``tests/fuzz/crashers/NAME`` it is a test. The exit code is 1 if there was any.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fuzz.patterns import run_patterns  # noqa: E402 - found by the path above
from tests.fuzz.targets import CORPUS, TARGETS, Target  # noqa: E402 - found by the path above

WORK: Final = ROOT / ".fuzz"
#: Runs of pytest: by name, what they run.
PROPERTIES: Final[Mapping[str, tuple[str, ...]]] = {
    "conversation": ("tests/fuzz/test_conversation.py",),
    "properties": ("tests/fuzz/test_frames.py", "tests/fuzz/test_configuration.py", "tests/protocol", "tests/models"),
}
#: Seconds given to making a crasher smaller.
SHRINKING_SECONDS: Final = 10.0
_CASES: Final = re.compile(r"(\d+) passing")


def main() -> int:
    """Run the command line; returns the exit code, 1 if anything failed."""
    runs = _runs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="in all")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="settles all cases but the guided ones"
    )
    parser.add_argument("--only", nargs="+", choices=list(runs), metavar="NAME", help=", ".join(runs))
    parser.add_argument("--replay", nargs=2, metavar=("NAME", "FILE"), help="one case, instead of all that")
    arguments = parser.parse_args()
    if arguments.replay:
        name, file = arguments.replay
        return replay(name.removeprefix("guided_"), Path(file))
    names = arguments.only or list(runs)
    print(f"seed {arguments.seed}, {arguments.seconds / len(names):.1f} s for each of {len(names)}", flush=True)
    failed = [name for name in names if not runs[name](arguments.seconds / len(names), arguments.seed)]
    print(f"FAILED: {', '.join(failed)}" if failed else "every invariant holds")
    return 1 if failed else 0


def replay(name: str, file: Path) -> int:
    """Check one case, and show what it raises."""
    try:
        TARGETS[name].check(file.read_bytes())
    except Exception:
        traceback.print_exc()
        return 1
    print(f"{name}: the invariant holds on {file}")
    return 0


def _runs() -> dict[str, Callable[[float, int], bool]]:
    """By name, what takes seconds and a seed and says whether all went well."""
    runs: dict[str, Callable[[float, int], bool]] = {}
    for name in TARGETS:
        runs[name] = lambda seconds, seed, name=name: run_random(name, seconds, seed)  # type: ignore[misc]
    for name, target in TARGETS.items():
        if target.guided:
            runs[f"guided_{name}"] = lambda seconds, _, name=name: run_guided(name, seconds)  # type: ignore[misc]
    for name in PROPERTIES:
        runs[name] = lambda seconds, seed, name=name: run_properties(name, seconds, seed)  # type: ignore[misc]
    runs["patterns"] = lambda seconds, seed: run_patterns(print)
    return runs


def _say(name: str, cases: int, seconds: float, rest: str) -> None:
    print(f"{name:22} {cases:9} cases {cases / max(seconds, 1e-3):9.0f}/s  {rest}", flush=True)


# --- random cases ----------------------------------------------------------------------------------------------------


def run_random(name: str, seconds: float, seed: int) -> bool:
    """Cases by chance, until the first that fails; whether none did."""
    target = TARGETS[name]
    start = time.monotonic()
    cases = 0
    while time.monotonic() < start + seconds:
        # Each case has a seed of its own, so that it does not matter how many came before it.
        case = target.make_case(random.Random(seed << 32 | cases))
        cases += 1
        error = _error(target, case)
        if error is not None:
            _say(name, cases, time.monotonic() - start, f"FAILS: {error!r}"[:500])
            _keep(name, _shrunk(target, case, error))
            return False
    _say(name, cases, time.monotonic() - start, "holds")
    return True


def _error(target: Target, case: bytes) -> Exception | None:
    try:
        target.check(case)
    except Exception as error:
        return error
    return None


def _shrunk(target: Target, case: bytes, error: Exception) -> bytes:
    """A smaller case that fails in the same place, as far as leaving out pieces and some time get."""
    end = time.monotonic() + SHRINKING_SECONDS
    wanted = _place(error)
    size = len(case) // 2
    while size:
        at = 0
        while at < len(case):
            if time.monotonic() > end:
                return case
            smaller = case[:at] + case[at + size :]
            found = _error(target, smaller)
            if found is not None and _place(found) == wanted:
                case = smaller
            else:
                at += size
        size //= 2
    return case


def _place(error: Exception) -> tuple[type[Exception], str, int | None]:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), frame.filename, frame.lineno


def _keep(name: str, case: bytes) -> None:
    folder = WORK / "crashers" / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / hashlib.sha1(case).hexdigest()[:12]
    file.write_bytes(case)
    _say_replay(name, file)


def _say_replay(name: str, file: Path) -> None:
    print(f"  {file.stat().st_size} bytes; replay: {_python()} fuzz/run.py --replay {name} {file.relative_to(ROOT)}")


def _python() -> str:
    return shlex.quote(os.path.relpath(sys.executable) if sys.executable.startswith(str(ROOT)) else sys.executable)


# --- guided by coverage ----------------------------------------------------------------------------------------------


def run_guided(name: str, seconds: float) -> bool:
    """libFuzzer by way of atheris, in a process of its own, which it ends as it likes; whether it found nothing."""
    if importlib.util.find_spec("atheris") is None:
        print(f"guided_{name}: left out, atheris is not installed ({_python()} -m pip install atheris)")
        return True
    crashers = WORK / "crashers" / name
    found = WORK / "corpus" / name
    for folder in (crashers, found, CORPUS / name):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(crashers.iterdir())
    command = [sys.executable, str(ROOT / "fuzz" / "guided.py"), name, f"-max_total_time={max(1, round(seconds))}"]
    command += ["-print_final_stats=1", f"-artifact_prefix={crashers}/", str(found), str(CORPUS / name)]
    start = time.monotonic()
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False)
    cases = re.findall(r"stat::number_of_executed_units:\s*(\d+)", ended.stdout)
    coverage = [int(number) for number in re.findall(r"\bcov: (\d+)", ended.stdout)]
    grown = f"coverage {coverage[0]} -> {coverage[-1]}" if coverage else "no coverage"
    fails = ended.returncode != 0
    _say(
        f"guided_{name}",
        int(cases[-1]) if cases else 0,
        time.monotonic() - start,
        f"{'FAILS' if fails else 'holds'}, {grown}",
    )
    if fails:
        print("\n".join(ended.stdout.splitlines()[-40:]))
        for file in set(crashers.iterdir()) - before:
            _say_replay(name, file)
    return not fails


# --- by Hypothesis ---------------------------------------------------------------------------------------------------


def run_properties(name: str, seconds: float, seed: int) -> bool:
    """Rounds of pytest, each with a seed, until time is up or one fails; whether none did."""
    start = time.monotonic()
    cases = rounds = 0
    while rounds == 0 or time.monotonic() < start + seconds:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "hypothesis", "--timeout=0"]
        command += ["--hypothesis-profile=fuzz", f"--hypothesis-seed={seed + rounds}", *PROPERTIES[name]]
        statistics = "--hypothesis-show-statistics"
        ended = subprocess.run([*command, statistics], cwd=ROOT, capture_output=True, text=True, check=False)
        cases += sum(map(int, _CASES.findall(ended.stdout)))
        rounds += 1
        if ended.returncode:
            _say(name, cases, time.monotonic() - start, f"FAILS in round {rounds}")
            print("\n".join((ended.stdout + ended.stderr).splitlines()[-60:]))
            print(f"  replay: {_python()} {shlex.join(command[1:])}")
            return False
    _say(name, cases, time.monotonic() - start, f"holds, rounds: {rounds}")
    return True


if __name__ == "__main__":
    sys.exit(main())
