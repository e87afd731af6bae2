"""The interpreter: which one it is, whether it runs with the GIL, and which module switched the GIL on.

On free-threaded Python an extension module that does not declare itself safe switches the GIL on for the whole process,
from then on. Workers then take turns, which shows only as missing throughput; so the server logs a warning.
"""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
import warnings
from typing import Final, TextIO

__all__ = ["describe_interpreter", "free_threaded", "gil_enabled", "gil_problem", "watch_gil"]

#: How CPython's RuntimeWarning begins (Python/import.c); the name is the module's, dotted.
_SWITCHED_ON: Final = r"The global interpreter lock \(GIL\) has been enabled to load module '([^']*)'"

#: Modules that switched the GIL on, since ``watch_gil``. At most one, unless several are loaded at the same time.
_culprits: list[str] = []


def gil_enabled() -> bool:
    """Whether the GIL is on now, so that only one thread at a time runs Python code."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)  # since 3.13
    return is_gil_enabled is None or bool(is_gil_enabled())


def free_threaded() -> bool:
    """Whether this build of Python can run without the GIL."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def describe_interpreter() -> str:
    """The interpreter, its version and build, and whether it runs with the GIL."""
    build = " free-threaded" if free_threaded() else ""
    gil = "with the GIL" if gil_enabled() else "without the GIL"
    return f"{platform.python_implementation()} {platform.python_version()}{build} {gil}"


def watch_gil() -> None:
    """Note from now on which module switches the GIL on. Call it before anything large is imported.

    It wraps ``warnings.showwarning``. Call it again when that has been replaced.

    CPython names the module only in a RuntimeWarning. That warning is always shown, also where warnings are off or are
    errors, because it is about the process and not about code. Other warnings are left as they are.
    """
    if gil_enabled():
        return
    warnings.filterwarnings("always", _SWITCHED_ON, RuntimeWarning)
    show = warnings.showwarning

    def note(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        match = re.match(_SWITCHED_ON, str(message))
        if match:
            _culprits.append(match[1])
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = note


def gil_problem() -> str:
    """Why a free-threaded interpreter runs with the GIL, and the remedy; "" for other builds and without the GIL."""
    if not free_threaded() or not gil_enabled():
        return ""
    effect = "workers take turns instead of running in parallel"
    if getattr(sys.flags, "gil", None) == 1:  # None where nobody asked
        asked = "-X gil=1" if sys._xoptions.get("gil") == "1" else "PYTHON_GIL=1"
        return f"the GIL is on because {asked} asks for it, and {effect}; start without it"
    remedy = "PYTHON_GIL=0 keeps the GIL off, at your own risk"
    if _culprits:
        names = ", ".join(f"'{name}'" for name in _culprits)
        return (
            f"the GIL was switched on by module {names}, which does not declare that it can run without it, and "
            f"{effect}; install a release of it that supports free-threaded Python, or remove it. {remedy}"
        )
    return (
        f"the GIL was switched on by a module that was loaded before the server's own or with its warning hidden, and "
        f"{effect}; 'python -v -m toutates' shows what is loaded. {remedy}"
    )
