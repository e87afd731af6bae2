"""The generated modules are what protoc makes of proto/*.proto: those that `make proto` would write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toutates.protocol.proto_files import PROTO_NAMES, read_proto

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = Path("toutates", "protocol")


def test_generated_modules_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    script = ROOT / "release" / "generate_protocol.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    written = sorted((tmp_path / PROTOCOL).iterdir())
    assert len(written) == 2 * len(PROTO_NAMES) == 8
    assert {path.name for path in written} == {path.name for path in (ROOT / PROTOCOL).glob("*_pb2.py*")}
    for path in written:
        assert path.read_text("utf-8") == (ROOT / PROTOCOL / path.name).read_text("utf-8"), "run make proto"


def test_the_files_of_the_folder_are_those_that_are_handed_out() -> None:
    files = {path.name: path.read_bytes() for path in (ROOT / "proto").iterdir()}
    assert files == {name: read_proto(name) for name in PROTO_NAMES}
    for text in files.values():
        assert b"toutates" not in text
