"""What a run ran on: the machine, and the versions of everything."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.models import ROOT

__all__ = ["checkout", "describe_machine", "package_versions", "raise_file_limit", "tool_version"]

_PACKAGES = ("onnxruntime", "numpy", "protobuf", "grpcio", "tritonclient", "mlserver", "nvidia-pytriton", "trio", "h2")
_TELL = (
    "import importlib.metadata as m, platform, sys\n"
    "gil = getattr(sys, '_is_gil_enabled', lambda: True)()\n"
    "names = {d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name']}\n"
    "print('CPython ' + platform.python_version() + ('' if gil else 't'),\n"
    "      *(f'{n} {names[n]}' for n in sys.argv[1:] if n in names), sep=', ')\n"
)


def describe_machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory, kernel, C library, load average, limit of open files."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "load_average_at_start": os.getloadavg()[0],
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }


def checkout() -> str:
    """The commit that is measured, and whether files differ from it; empty where there is no git."""
    commit = _first_line(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    changed = _first_line(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return commit + (" with changes" if commit and changed else "")


def package_versions(python: str) -> str:
    """The interpreter's version, and those of the packages that matter."""
    return _first_line([python, "-c", _TELL, *_PACKAGES])


def tool_version(program: str) -> str:
    return _first_line([program, "--version"])


def raise_file_limit() -> int:
    """Raise the limit of open files as far as it goes, for this process and those it starts; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return next(iter(done.stdout.splitlines()), "").strip()
