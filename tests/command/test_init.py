"""``toutates init``: what it writes can be served as it is, says the truth in its comments, and overwrites nothing."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from toutates.command.main import main
from toutates.models.config.settings import ModelSettings, load_settings


def init(*words: str | Path) -> int:
    return main(["init", *map(str, words)])


def test_the_repository_can_be_served_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "new" / "models"
    assert init(root) == 0
    said = capsys.readouterr().out
    assert f"toutates serve {root}" in said
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "example/1/config.yaml",
        "example/1/model.onnx",
    ]
    assert main(["check", "--strict", str(root)]) == 0


def test_the_configuration_says_what_holds_without_it(tmp_path: Path) -> None:
    init(tmp_path / "models")
    settings = load_settings(tmp_path / "models" / "example" / "1")
    assert settings is not None
    plain = ModelSettings()
    for name in ("batch_size", "capacity", "num_executors", "allocator"):
        assert getattr(settings, name) == getattr(plain, name)


def test_every_key_in_a_comment_can_be_used(tmp_path: Path) -> None:
    root = tmp_path / "models"
    init(root)
    config = root / "example" / "1" / "config.yaml"
    text, keys = re.subn(r"^# (?=[a-z_]+: [\[{\d])", "", config.read_text(), flags=re.MULTILINE)
    assert keys == 6
    config.write_text(text)
    assert main(["check", "--strict", str(root)]) == 0


def test_the_graph_is_what_the_source_says() -> None:
    from toutates.command.init import _GRAPH

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("INPUT", "OUTPUT")]
    node = helper.make_node("Softmax", ["INPUT"], ["OUTPUT"])
    graph = helper.make_graph([node], "example", tensors[:1], tensors[1:])
    opset = [helper.make_opsetid("", 17)]
    assert onnx.load_from_string(_GRAPH) == helper.make_model(
        graph, opset_imports=opset, ir_version=8, producer_name="toutates"
    )


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "example" / "1" / "config.yaml"
    assert init(tmp_path) == 0
    config.write_text("mine")
    assert init(tmp_path) == 1
    assert "is there already, and stays as it is" in capsys.readouterr().err
    assert config.read_text() == "mine"
    assert init(tmp_path, "--name", "other") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["example", "other"]
    (tmp_path / "link").symlink_to("nowhere")
    assert init(tmp_path, "--name", "link") == 1


def test_what_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert init(tmp_path / "file") == 1
    assert "is no folder" in capsys.readouterr().err
    assert init(tmp_path / "file" / "below") == 1
    assert init(tmp_path, "--name", "a/b") == 2
    assert init() == 2
