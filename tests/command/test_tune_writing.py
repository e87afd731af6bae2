"""Files of ``toutates tune``: all of them or none, and nothing of anybody else's is overwritten."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from toutates.command.tune.writing import Written, changed_since, seen, write_beside_models, write_files
from toutates.system.errors import ConfigurationError


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models, of which one has a configuration."""
    for name in "ab":
        (tmp_path / "models" / name).mkdir(parents=True)
    (tmp_path / "models" / "a" / "config.yaml").write_text("old")
    (tmp_path / "copy").write_text("weights")
    return tmp_path / "models"


def wanted(models: Path) -> list[Written]:
    texts = {"config.yaml": "new", "config.pbtxt": "new too"}
    return [Written(models / "a", texts), Written(models / "b", texts, {"model.int8.onnx": models.parent / "copy"})]


def test_beside_models_the_configuration_before_is_kept(models: Path) -> None:
    paths = write_beside_models(wanted(models))
    expected = {
        "a/config.yaml": "new",
        "a/config.yaml.before": "old",
        "b/config.yaml": "new",
        "b/model.int8.onnx": "weights",
    }
    assert files_of(models) == expected
    assert sorted(str(path.relative_to(models)) for path in paths) == sorted(expected)


def test_the_first_file_is_put_beside_a_model(models: Path) -> None:
    (models / "a" / "config.pbtxt").write_text("old")
    paths = write_beside_models([Written(models / "a", {"config.pbtxt": "new"})])
    assert [path.name for path in paths] == ["config.pbtxt.before", "config.pbtxt"]
    assert files_of(models) == {"a/config.yaml": "old", "a/config.pbtxt": "new", "a/config.pbtxt.before": "old"}


def test_new_folders_get_both_files(models: Path) -> None:
    target = models.parent / "out"
    texts = {"config.yaml": "new", "config.pbtxt": "new too"}
    write_files([Written(target / "a", texts, {"model.fp16.onnx": models.parent / "copy"})])
    assert files_of(target) == {
        "a/config.yaml": "new",
        "a/config.pbtxt": "new too",
        "a/model.fp16.onnx": "weights",
    }


@pytest.mark.parametrize("there", ["a/config.yaml.before", "b/model.int8.onnx"])
def test_what_is_there_is_not_overwritten_and_nothing_is_left(models: Path, there: str) -> None:
    (models / there).write_text("mine")
    before = files_of(models)
    with pytest.raises(ConfigurationError, match="is there already, and is not overwritten"):
        write_beside_models(wanted(models))
    assert files_of(models) == before


def test_files_that_came_meanwhile_are_not_overwritten(models: Path) -> None:
    with pytest.raises(ConfigurationError, match="is there already"):
        write_files(wanted(models)[::-1])
    assert files_of(models) == {"a/config.yaml": "old"}


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_whatever_happens_at_whatever_step_leaves_files_as_they_were(
    models: Path, monkeypatch: pytest.MonkeyPatch, count: int, fault: BaseException
) -> None:
    before = files_of(models)
    left = [count]

    def failing(function: Any) -> Any:
        def run(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise fault
            return function(*arguments, **more)

        return run

    monkeypatch.setattr(os, "link", failing(os.link))
    monkeypatch.setattr(shutil, "copyfile", failing(shutil.copyfile))
    monkeypatch.setattr(Path, "write_text", failing(Path.write_text))
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:  # the way back does not fail
        if path.name.endswith(".new"):
            left[0] -= 1
            if left[0] == 0:
                raise fault
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    try:
        write_beside_models(wanted(models))
    except (ConfigurationError, KeyboardInterrupt):
        monkeypatch.undo()
        assert files_of(models) == before
    else:  # there were fewer steps, or a link that failed was made by copying
        monkeypatch.undo()
        assert files_of(models)["b/config.yaml"] == "new"


def test_a_file_system_without_links_gets_the_same(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    write_beside_models(wanted(models))
    assert files_of(models)["a/config.yaml.before"] == "old"
    assert files_of(models)["a/config.yaml"] == "new"
    with pytest.raises(ConfigurationError, match="is there already"):
        write_files(wanted(models))


def test_files_that_change_meanwhile_are_seen(models: Path) -> None:
    (models / "a" / "model.onnx").write_text("graph")
    before = seen([models / "a", models / "b"])
    assert changed_since(before) == []
    (models / "b" / "config.yaml").write_text("came")
    assert changed_since(before) == [models / "b" / "config.yaml"]
    (models / "b" / "config.yaml").unlink()
    (models / "a" / "model.onnx").write_text("other")
    os.utime(models / "a" / "model.onnx", ns=(1, 1))
    assert changed_since(before) == [models / "a" / "model.onnx"]
    (models / "a" / "model.onnx").unlink()
    assert changed_since(before) == [models / "a" / "model.onnx"]
