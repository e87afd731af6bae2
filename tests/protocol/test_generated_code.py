"""The generated modules are what proto/generate.py makes of the .proto files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_modules_are_current(generator: ModuleType, tmp_path: Path) -> None:
    written = generator.generate(tmp_path)
    assert len(written) == 2 * len(list((ROOT / "proto").glob("*.proto")))
    for path in written:
        checked_in = ROOT / "toutates" / "protocol" / path.name
        assert path.read_text("utf-8") == checked_in.read_text("utf-8"), "run python proto/generate.py"
