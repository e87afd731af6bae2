"""The generated modules are what protoc makes of the .proto files: those that `make proto` would write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = Path("toutates", "protocol")


def test_generated_modules_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PROTOCOL).glob("*.proto"))
    options = ["-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *sources], cwd=ROOT, check=True)
    written = sorted((tmp_path / PROTOCOL).iterdir())
    assert len(written) == 2 * len(sources) == 8
    assert {path.name for path in written} == {path.name for path in (ROOT / PROTOCOL).glob("*_pb2.py*")}
    for path in written:
        assert path.read_text("utf-8") == (ROOT / PROTOCOL / path.name).read_text("utf-8"), "run make proto"
