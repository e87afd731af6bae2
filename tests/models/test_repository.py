"""A local repository: which models and versions are found, and what is said of the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toutates.models.repository import ModelFolder, VersionFolder, say_passed_over, scan
from toutates.system.errors import ConfigurationError


def add(root: Path, *files: str) -> None:
    """Create files below a directory, with the directories that they need."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()


def only_model(root: Path) -> ModelFolder:
    [model] = scan(root)
    return model


def test_models_are_found_by_name_and_versions_by_number(tmp_path: Path) -> None:
    add(tmp_path, "b/1/model.onnx", "a/10/model.onnx", "a/9/model.onnx")
    first, second = scan(tmp_path)
    assert first == ModelFolder(
        "a",
        tmp_path / "a",
        (
            VersionFolder(9, tmp_path / "a/9", tmp_path / "a/9/model.onnx"),
            VersionFolder(10, tmp_path / "a/10", tmp_path / "a/10/model.onnx"),
        ),
    )
    assert second.name == "b"


def test_an_empty_repository_has_no_models(tmp_path: Path) -> None:
    assert scan(tmp_path) == []


def test_files_and_hidden_directories_are_no_models(tmp_path: Path) -> None:
    add(tmp_path, "README.md", ".git/1/model.onnx", "m/1/model.onnx", "..data/1/model.onnx")
    hidden, model = scan(tmp_path)
    assert (hidden.name, hidden.passed_over, hidden.versions) == (".git", True, ())
    assert (model.name, model.passed_over) == ("m", False)
    reason = "it does not look like a model: hidden directories hold no models"
    assert say_passed_over(hidden) == f"'{tmp_path}/.git' is passed over, because {reason}"


@pytest.mark.parametrize("name", ["lost+found", "__pycache__", "@eaDir"])
def test_directories_of_file_systems_are_no_models_and_are_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    add(tmp_path, f"{name}/1/model.onnx")
    monkeypatch.setattr(os, "listdir", refuse_listing(tmp_path / name))
    model = only_model(tmp_path)
    assert (model.passed_over, model.versions) == (True, ())


@pytest.mark.parametrize("file", ["scripts/export.py", "scripts/v1/model.onnx", "scripts/model.onnx"])
def test_a_directory_without_version_and_configuration_is_passed_over(tmp_path: Path, file: str) -> None:
    add(tmp_path, file)
    model = only_model(tmp_path)
    assert model.passed_over
    assert say_passed_over(model) == (
        f"'{tmp_path}/scripts' is passed over, because it does not look like a model: no version directory in "
        f"'{tmp_path}/scripts', such as '{tmp_path}/scripts/1', and no config.pbtxt"
    )


@pytest.mark.parametrize("file", ["m/1/model.onnx", "m/1/notes", "m/config.pbtxt"])
def test_a_directory_with_a_version_or_a_configuration_is_a_model(tmp_path: Path, file: str) -> None:
    add(tmp_path, file)
    assert not only_model(tmp_path).passed_over


@pytest.mark.parametrize("name", ["ünïcode", "with space", "1", "a.b-c_d", "模型", "configs"])
def test_any_directory_name_that_is_utf8_names_a_model(tmp_path: Path, name: str) -> None:
    add(tmp_path, f"{name}/1/model.onnx")
    assert only_model(tmp_path).name == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("two\nlines", r"two\nlines", id="end of a line"),
        pytest.param("\x1b[2Jgone", r"\x1b[2Jgone", id="escape of a terminal"),
        pytest.param("a\u202eb", r"a\u202eb", id="change of direction"),
        pytest.param("a\u2028b", r"a\u2028b", id="line separator"),
    ],
)
def test_a_directory_name_with_control_characters_is_shown_escaped_with_the_problem(
    tmp_path: Path, name: str, shown: str
) -> None:
    add(tmp_path, f"{name}/1/model.onnx")
    model = only_model(tmp_path)
    assert (model.name, model.versions) == (shown, ())
    assert model.problem == "the name of the model's directory has control characters"


def test_a_directory_name_that_is_not_utf8_is_shown_escaped_with_the_problem(tmp_path: Path) -> None:
    try:
        os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    model = only_model(tmp_path)
    assert (model.name, model.versions) == (r"caf\xe9", ())
    assert "not UTF-8" in model.problem


def test_a_model_file_may_be_a_directory_that_holds_it_and_its_weights(tmp_path: Path) -> None:
    add(tmp_path, "m/1/model.onnx/model.onnx", "m/1/model.onnx/weights.bin")
    [version] = only_model(tmp_path).versions
    assert version.model_path == tmp_path / "m/1/model.onnx/model.onnx"
    assert version.problem == ""


def test_a_model_without_versions_has_a_problem(tmp_path: Path) -> None:
    add(tmp_path, "m/config.pbtxt")
    model = only_model(tmp_path)
    assert model.versions == ()
    assert model.problem == f"no version directory in '{tmp_path}/m', such as '{tmp_path}/m/1'"


@pytest.mark.parametrize(
    ("file", "expected", "instead"),
    [
        pytest.param("m/1/notes.txt", "m/1/model.onnx", "", id="no model file"),
        pytest.param("m/1/model.onnx/weights.bin", "m/1/model.onnx/model.onnx", "", id="a directory without one"),
        pytest.param(
            "m/1/other.onnx",
            "m/1/model.onnx",
            ", but 'other.onnx'; rename it to model.onnx, or name it in default_model_filename or model_filename",
            id="another graph",
        ),
        pytest.param(
            "m/1/model.dali",
            "m/1/model.onnx",
            ", but 'model.dali'; DALI pipelines are not served, only ONNX models: prepare inputs in the client or in "
            "the graph, or keep it on Triton",
            id="a pipeline",
        ),
    ],
)
def test_a_version_without_its_model_file_is_kept_with_a_problem(
    tmp_path: Path, file: str, expected: str, instead: str
) -> None:
    add(tmp_path, file, "m/2/model.onnx")
    model = only_model(tmp_path)
    assert [version.number for version in model.versions] == [1, 2]
    assert model.versions[0].problem == f"unable to find '{tmp_path / expected}': No such file or directory{instead}"
    assert model.versions[1].problem == model.problem == ""


def test_a_model_file_that_is_a_fifo_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    os.mkfifo(tmp_path / "m/1/model.onnx")
    assert only_model(tmp_path).versions[0].problem.endswith("is not a regular file")


@pytest.mark.parametrize("name", ["01", "0", "-1", "1a", "v1", "1.0", "²", "٣", str(2**63), "9" * 50])
def test_a_directory_that_is_no_version_is_passed_over_with_a_warning(tmp_path: Path, name: str) -> None:
    add(tmp_path, "m/1/model.onnx", f"m/{name}/model.onnx")
    model = only_model(tmp_path)
    assert [version.number for version in model.versions] == [1]
    [warning] = model.warnings
    assert f"'{tmp_path}/m/{name}' is passed over" in warning


@pytest.mark.parametrize(
    "name", ["assets", "tokenizer", "variables", "utils", "__pycache__", "vocabulary", "versioning"]
)
def test_folders_of_what_a_model_needs_are_no_warning(tmp_path: Path, name: str) -> None:
    add(tmp_path, "m/1/model.onnx", f"m/{name}/a_file")
    assert not only_model(tmp_path).warnings


def test_the_greatest_version_is_the_greatest_int64(tmp_path: Path) -> None:
    add(tmp_path, f"m/{2**63 - 1}/model.onnx")
    assert only_model(tmp_path).versions[0].number == 2**63 - 1


@pytest.mark.parametrize(
    "entry", ["warmup/x", "initial_state/x", "configs/a.pbtxt", ".hidden/x", "config.pbtxt", "1.txt"]
)
def test_what_belongs_beside_versions_is_passed_over_in_silence(tmp_path: Path, entry: str) -> None:
    add(tmp_path, "m/1/model.onnx", f"m/{entry}")
    model = only_model(tmp_path)
    assert [version.number for version in model.versions] == [1]
    assert model.warnings == ()


def test_links_to_directories_are_followed(tmp_path: Path) -> None:
    add(tmp_path, "store/version/model.onnx", "root/real/1/model.onnx")
    root = tmp_path / "root"
    (root / "linked").symlink_to(root / "real")
    (root / "real/2").symlink_to(tmp_path / "store/version")
    (tmp_path / "link").symlink_to(root)
    models = scan(tmp_path / "link")
    assert [(model.name, len(model.versions)) for model in models] == [("linked", 2), ("real", 2)]


def test_a_link_to_itself_and_a_link_to_nothing_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert scan(tmp_path) == []


def test_only_the_models_asked_for_are_listed(tmp_path: Path) -> None:
    add(tmp_path, "a/1/model.onnx", "b/1/model.onnx", "c/1/model.onnx")
    assert [model.name for model in scan(tmp_path, ["c", "a"])] == ["a", "c"]
    assert [model.name for model in scan(tmp_path, ["b", "unknown"])] == ["b"]
    assert scan(tmp_path, []) == []


def test_a_graph_alone_in_the_repository_is_version_1_of_a_model_of_the_directorys_name(tmp_path: Path) -> None:
    root = tmp_path / "store"
    add(root, "model.onnx", "config.pbtxt", "notes.txt", "docs/a.txt", "..data/model.onnx")
    (root / "config.pbtxt").write_text('name: "store"\nmax_batch_size: 5\n')
    passed_over, model = scan(root)
    assert (passed_over.name, passed_over.passed_over) == ("docs", True)
    [version] = model.versions
    assert (model.name, model.path, model.is_lone, model.problem) == ("store", root, True, "")
    assert (version.number, version.path, version.model_dir, version.problem) == (1, root, root, "")
    assert version.triton is not None
    assert version.triton.settings.batch_size == 5
    assert scan(root, ["store"]) == [model]
    assert scan(root, ["other"]) == []


def test_a_graph_alone_in_the_repository_may_be_given_a_name(tmp_path: Path) -> None:
    add(tmp_path, "1/model.onnx")
    (tmp_path / "1" / "config.pbtxt").write_text('name: "elsewhere"\n')
    [model] = scan(tmp_path / "1", lone_name="resnet")
    assert (model.name, model.versions) == ("resnet", ())
    assert "unexpected directory name 'resnet' for model 'elsewhere'" in model.problem


@pytest.mark.parametrize("name", [".hidden", "lost+found", "two\nlines"])
def test_a_directory_whose_name_no_model_can_have_gives_none_to_a_graph_alone(tmp_path: Path, name: str) -> None:
    add(tmp_path, f"{name}/model.onnx")
    assert only_model(tmp_path / name).name == "model"


@pytest.mark.parametrize("other", ["m/1/model.onnx", "m/config.pbtxt", "other.onnx"])
def test_a_graph_beside_models_or_other_graphs_is_not_served(tmp_path: Path, other: str) -> None:
    add(tmp_path, "model.onnx", other)
    assert not any(model.is_lone for model in scan(tmp_path))
    assert not any(model.is_lone for model in scan(tmp_path, lone_name="resnet"))


def test_a_version_of_a_model_is_no_graph_alone(tmp_path: Path) -> None:
    add(tmp_path, "models/m/1/model.onnx")
    with pytest.raises(ConfigurationError, match=rf"is the directory of version 1 .*; name '{tmp_path}/models'$"):
        scan(tmp_path / "models" / "m" / "1")


def test_a_root_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "missing"
    with pytest.raises(ConfigurationError) as caught:
        scan(root)
    assert str(caught.value) == (
        f"--model-repository: there is no such directory (got '{root}'); create it, or correct the path"
    )


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "file")
    with pytest.raises(ConfigurationError, match=r"--model-repository: is not a directory .*one directory per model"):
        scan(tmp_path / "file")


def refuse_listing(path: Path) -> Callable[[str | Path], list[str]]:
    """A listdir that may not read one directory: file modes do not bind root, whom tests may run as."""
    real = os.listdir

    def listdir(asked: str | Path) -> list[str]:
        if Path(asked) == path:
            raise PermissionError(13, "Permission denied")
        return real(asked)

    return listdir


def test_a_root_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", refuse_listing(tmp_path))
    with pytest.raises(ConfigurationError, match=r"cannot be read: Permission denied .*; make it readable"):
        scan(tmp_path)


def test_a_model_that_cannot_be_read_is_kept_with_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "locked/1/model.onnx", "open/1/model.onnx")
    monkeypatch.setattr(os, "listdir", refuse_listing(tmp_path / "locked"))
    locked, opened = scan(tmp_path)
    assert (locked.versions, locked.problem) == ((), f"cannot read '{tmp_path}/locked': Permission denied")
    assert opened.problem == ""
