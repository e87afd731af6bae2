"""What a run as a whole is held to, and tells at its end.

The tests that took longest are named. ``--most-seconds`` fails a run in which one took longer, for `make test-alone`.

On a free-threaded build, a run that ends with the GIL on has failed, whatever its tests say.

Any extension module that does not declare itself safe switches the GIL on for the rest of the process, and then nothing
is left of what the run was for: threads that really run at once. Python warns, and ``filterwarnings = error`` makes a
failure of that, but not where a plugin imports the module before the filters are set, nor under a test's own filters.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from toutates.system.logs.levels import AREAS, PACKAGE

# The suite finds the same today as tomorrow; `fuzz/run.py` draws other examples, by `--hypothesis-profile fuzz`.
# How long examples take to draw is no fault, on a machine that is busy otherwise.
settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_IMPORT_ALL: Final = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"""


#: How many of the slowest tests are named, of those that take so long.
SLOWEST: Final = 25
LEAST_S: Final = 0.5
#: What a test may take without being named as slow.
SLOW_S: Final = 10.0
#: Seconds that each test took, with its fixtures, by node id.
_took_s: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--most-seconds``."""
    parser.addoption("--most-seconds", type=float, help="fail if a test takes longer; on a machine that does no more")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test takes; with pytest-xdist, in the process that tells it."""
    _took_s[report.nodeid] = _took_s.get(report.nodeid, 0.0) + report.duration


def _too_slow(config: pytest.Config) -> list[str]:
    most_s = config.getoption("--most-seconds")
    return [] if most_s is None else [name for name, took_s in _took_s.items() if took_s > most_s]


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """A server sets the levels of ``logging``, which are the whole process's: afterwards they are as they were."""
    loggers = [logging.getLogger(name) for name in ("", PACKAGE, *(f"{PACKAGE}.{area}" for area in AREAS))]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def pytest_sessionstart() -> None:
    """No garbage is looked for while tests are collected, which takes a third of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """The tests' own objects stay: nobody looks through them again."""
    gc.enable()
    gc.collect(0)  # what holds nothing that could make a circle is then looked at no more, as in a server
    gc.freeze()


def pytest_collection(session: pytest.Session) -> None:
    """Of several test processes, each compiles a share of the test modules before it imports all of them.

    To rewrite their assertions takes most of the time in which tests are collected, and what one process has rewritten
    the others find in its ``__pycache__``.
    """
    given = getattr(session.config, "workerinput", None)
    if given is None or sys.dont_write_bytecode:
        return
    root = session.config.rootpath
    paths = sorted({path for arg in session.config.args for path in (root / arg).rglob("test_*.py")})
    for path in paths[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        with warnings.catch_warnings(), suppress(Exception, pytest.skip.Exception):
            warnings.simplefilter("error")
            # pytest imports again what fails here, and says what is wrong.
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def _gil_is_back() -> bool:
    """Whether the GIL is on in an interpreter that was built to do without it."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and is_gil_enabled()


def _who_needs_the_gil() -> str | None:
    """The module that switched it on, if it is loaded: imported again, in another process, it makes Python say so."""
    extensions = [
        name
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", None) or "").endswith(tuple(EXTENSION_SUFFIXES))
    ]
    command = [sys.executable, "-W", "always", "-c", _IMPORT_ALL, *extensions]
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"has been enabled to load module '([^']+)'", ended.stderr)
    return found[1] if found else None


def _reason() -> str:
    """Why the GIL is on."""
    module = _who_needs_the_gil()
    if module is not None:
        return f"module '{module}' has not declared that it can run without it"
    return "a module whose import failed for it, PYTHON_GIL=1 or -X gil=1 did that"


#: Why the GIL is on, in this process or in one of pytest-xdist's.
_reasons: list[str] = []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run that would otherwise be taken for one without the GIL, or without a slow test."""
    if _gil_is_back():
        _reasons.append(_reason())
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # of a process of pytest-xdist's, whose exit status nobody looks at
            output["gil"] = _reasons[-1]
    if (_reasons or _too_slow(session.config)) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of pytest-xdist's has ended."""
    reason = getattr(node, "workeroutput", {}).get("gil")
    if reason is not None:
        _reasons.append(reason)


def _tell_slowest(terminalreporter: pytest.TerminalReporter) -> None:
    slowest = sorted(_took_s.items(), key=lambda one: -one[1])
    shown = [one for at, one in enumerate(slowest) if (at < SLOWEST and one[1] >= LEAST_S) or one[1] > SLOW_S]
    if not shown:
        return
    terminalreporter.section(f"slowest {len(shown)} tests, of {len(slowest)} in {sum(_took_s.values()):.0f} s")
    for name, took_s in shown:
        terminalreporter.line(f"{took_s:7.2f} s  {name}{'  ABOVE 10 s' if took_s > SLOW_S else ''}")
    for name in _too_slow(terminalreporter.config):
        terminalreporter.line(f"TOO SLOW, and so the run has failed: {name}", red=True, bold=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the slowest tests. Say that the run failed for the GIL, and who switched it on."""
    _tell_slowest(terminalreporter)
    if _reasons:
        terminalreporter.section("the GIL is on", red=True, bold=True)
        text = "This interpreter is free-threaded, and something switched the GIL on: "
        terminalreporter.line(f"{text}{_reasons[0]}.")
