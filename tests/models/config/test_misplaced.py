"""What is given as a model repository and is none: each mistake is named, with the path that would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.models.config.misplaced import loose_graphs, near_directory, near_name, right_path_for_file, wrong_root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model in a directory below a directory."""
    root = tmp_path / "above" / "models"
    (root / "bert" / "1").mkdir(parents=True)
    (root / "bert" / "1" / "model.onnx").write_bytes(b"")
    return root


def test_a_repository_is_one_whether_or_not_it_has_models(repository: Path, tmp_path: Path) -> None:
    assert wrong_root(repository) == ""
    (tmp_path / "empty").mkdir()
    assert wrong_root(tmp_path / "empty") == ""
    assert wrong_root(tmp_path / "none") == ""


def test_the_directory_of_a_version_is_none(repository: Path) -> None:
    model = repository / "bert"
    assert wrong_root(model / "1") == f"is the directory of version 1 of the model 'bert'; name '{repository}'"
    (model / "2").mkdir()
    assert wrong_root(model / "2") == ""  # it has no graph
    (model / "one").mkdir()
    (model / "one" / "model.onnx").write_bytes(b"")
    assert wrong_root(model / "one") == ""  # and this is no version


def test_the_directory_of_a_model_is_none(repository: Path) -> None:
    assert wrong_root(repository / "bert") == (
        f"is the directory of one model, whose version 1 lies in it, and not of a model repository; name '{repository}'"
    )


def test_the_directory_above_is_none(repository: Path) -> None:
    (repository.parent / "empty").mkdir()
    assert wrong_root(repository.parent) == (f"has no models, but its directory 'models' has some; name '{repository}'")


def test_graphs_that_lie_loose_are_named(tmp_path: Path) -> None:
    for name in ("model.onnx", "resnet.onnx", ".hidden.onnx", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    first, second = loose_graphs(tmp_path)
    assert first.startswith(f"{tmp_path}/model.onnx: lies in no model's directory")
    assert first.endswith(f"move it to '{tmp_path}/NAME/1/model.onnx'")
    assert second.endswith(f"move it to '{tmp_path}/resnet/1/model.onnx'")


def test_a_file_is_none(repository: Path) -> None:
    assert right_path_for_file(repository / "bert" / "1" / "model.onnx") == f"name '{repository}'"
    for name, model in (("bert.onnx", "bert"), ("model.onnx", "NAME")):
        assert right_path_for_file(repository / name) == (
            f"serve it alone by 'toutates serve {repository / name}'; "
            f"or move it to '{repository}/{model}/1/model.onnx', and name '{repository}'"
        )
    assert right_path_for_file(repository / "bert.zip") == "name the directory that holds one directory per model"
    assert right_path_for_file(repository / "1" / "bert.zip") == "name the directory that holds one directory per model"


def test_names_that_are_nearly_right_are_found(repository: Path) -> None:
    assert near_name("bret", ["bert", "gpt"]) == "bert"
    assert near_name("bert", ["gpt"]) == ""
    assert near_directory(repository.parent / "model") == str(repository)
    assert near_directory(repository.parent / "model" / "deeper") == str(repository)
    assert near_directory(repository.parent / "x") == ""


@pytest.mark.parametrize(
    "path", [".cache/bert/1/model.onnx", "sub/bert.onnx", "01/model.onnx", "٣/model.onnx", "1.txt"]
)
def test_what_may_be_an_empty_repository_is_no_mistake(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(b"")
    assert wrong_root(tmp_path) == ""


def test_a_file_is_no_directory_with_nearly_the_right_name(tmp_path: Path) -> None:
    (tmp_path / "models").write_bytes(b"")
    assert near_directory(tmp_path / "model") == ""
