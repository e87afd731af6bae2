"""Packages with backends for tests, installed as pip would leave them: modules, and metadata with an entry point."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ROOT", "documented_decoupled", "documented_example", "install", "install_text", "write_model"]

ROOT = Path(__file__).resolve().parents[3]


def install_text(folder: Path, module: str, source: str, entry_points: dict[str, str], *, name: str = "") -> None:
    """Put a distribution into a folder that is on the path of the server."""
    (folder / f"{module}.py").write_text(source)
    name = name or module.replace("_", "-")
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}\n" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("[toutates.backends]\n" + "".join(lines))


def install(folder: Path, backend: str, body: str, *, interface: str = "interface = 1", head: str = "") -> None:
    """Install a package with one backend: y = 2 * x for FP32 [-1, 2], but for what ``body`` says.

    Args:
        folder: see ``install_text``.
        backend: its name; the module is called after it.
        body: of the class, indented by four blanks.
        interface: the line that says the version.
        head: of the module.
    """
    source = f"""
import numpy as np
from toutates.backends.interface import Backend, InvalidRequest, Tensor, Tensors
{head}

class Doubling(Backend):
    def load(self, source):
        return Tensors([Tensor("x", "FP32", (-1, 2))], [Tensor("y", "FP32", (-1, 2))])

    def run(self, inputs):
        return {{"y": 2 * inputs["x"]}}

class Tried(Doubling):
    {interface}

{body}
"""
    install_text(folder, f"{backend}_module", source, {backend: f"{backend}_module:Tried"})


def _documented() -> tuple[str, list[str]]:
    """docs/writing-a-backend.md, and its blocks of Python."""
    page = (ROOT / "docs" / "writing-a-backend.md").read_text()
    return page, re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def documented_decoupled(folder: Path) -> str:
    """Install the decoupled backend of that page; returns its name."""
    install_text(folder, "countdown_backend", _documented()[1][1], {"countdown": "countdown_backend:Countdown"})
    return "countdown"


def documented_example(folder: Path) -> str:
    """Install the smallest backend of docs/writing-a-backend.md, by its own pyproject.toml; returns its name."""
    page, (code, *_) = _documented()
    project = tomllib.loads(re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0])["project"]
    points = project["entry-points"]["toutates.backends"]
    [(name, target)] = points.items()
    install_text(folder, target.partition(":")[0], code, points, name=project["name"])
    assert code.count("\n") <= 30
    return str(name)


def write_model(
    repository: Path, model: str, config: str, files: dict[str, bytes | npt.NDArray[Any]] | None = None
) -> Path:
    """A model of one version; returns the version's directory."""
    version = repository / model / "1"
    version.mkdir(parents=True)
    if config:
        (repository / model / "config.pbtxt").write_text(config)
    for name, content in (files or {}).items():
        if isinstance(content, bytes):
            (version / name).write_bytes(content)
        else:
            np.save(version / name, content)
    return version
