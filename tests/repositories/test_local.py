"""Local directories as repositories: fingerprints that change with any file, and names of several together."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from toutates.models.repository import ModelFolder
from toutates.repositories.control.first_look import look_first
from toutates.repositories.interface import Repository
from toutates.repositories.local import repository as local_repository
from toutates.repositories.local.repository import LocalRepository
from toutates.repositories.opening import open_repositories
from toutates.system.errors import ConfigurationError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("m/1/model.onnx", "m/1/weights/a.data", "m/2/model.onnx", "m/config.pbtxt", "n/1/model.onnx"):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"version_policy { all {} }" if path.name == "config.pbtxt" else name.encode())
    return tmp_path / "root"


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(path.read_bytes())
    os.utime(path.with_name("new"), ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.with_name("new").replace(path)


def find_models(
    repositories: Sequence[Repository], only: Collection[str] | None = None, asked_by: Mapping[str, str] = {}
) -> Sequence[tuple[Repository, ModelFolder]]:
    """The first look of a server, which all repositories answer."""
    seen = trio.run(look_first, repositories, only, asked_by)
    assert not seen.late
    return seen.found


CHANGES: list[tuple[str, Callable[[Path], object], set[int]]] = [
    ("m/1/model.onnx", lambda path: path.write_bytes(b"longer than it was before"), {1}),
    ("m/1/model.onnx", lambda path: os.utime(path, ns=(1, 1)), {1}),
    ("m/1/model.onnx", replace, {1}),
    ("m/1/model.onnx", lambda path: path.unlink(), {1}),
    ("m/1/weights/a.data", lambda path: path.write_bytes(b"other"), {1}),
    ("m/1/config.yaml", lambda path: path.write_bytes(b""), {1}),
    ("m/1/empty", lambda path: path.mkdir(), {1}),
    ("m/config.pbtxt", lambda path: path.write_bytes(b"version_policy { all { } }"), set()),
    ("m/labels.txt", lambda path: path.write_bytes(b"other"), {1, 2}),
]


@pytest.mark.parametrize(("name", "change", "versions"), CHANGES)
def test_a_model_is_looked_at_again_after_any_change_and_not_without(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Path], object], versions: set[int]
) -> None:
    monkeypatch.setattr(local_repository, "SETTLED_NS", 0)
    repository = LocalRepository(root)
    [before] = repository.scan(["m"])
    [same] = repository.scan(["m"])
    assert same is before
    change(root / name)
    [after] = repository.scan(["m"])
    assert after is not before
    [fresh] = LocalRepository(root).scan(["m"])
    assert after == fresh


def test_one_model_is_described_as_it_is_among_all(root: Path) -> None:
    (root / "m" / ".git" / "a").mkdir(parents=True)
    (root / "m" / ".git" / "a" / "b").touch()
    (root / "m" / "1" / ".hidden").write_bytes(b"12345")
    all_of_them = LocalRepository(root).scan()
    assert [LocalRepository(root).scan([one.name]) for one in all_of_them] == [[one] for one in all_of_them]


def test_a_model_that_is_the_repository_is_not_taken_for_a_directory_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_repository, "SETTLED_NS", 0)
    (tmp_path / "m" / "m").mkdir(parents=True)
    (tmp_path / "m" / "model.onnx").write_bytes(b"1")
    repository = LocalRepository(tmp_path / "m")
    [before] = [one for one in repository.scan(["m"]) if one.is_lone]
    assert before.path == tmp_path / "m"
    (tmp_path / "m" / "model.onnx").write_bytes(b"12")
    [after] = [one for one in repository.scan(["m"]) if one.is_lone]
    assert after.fingerprint != before.fingerprint


def test_what_was_just_written_is_not_remembered_because_a_second_change_may_look_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_repository, "SETTLED_NS", 3_600_000_000_000)
    repository = LocalRepository(root)
    [first] = repository.scan(["m"])
    [second] = repository.scan(["m"])
    assert first == second
    assert first is not second


def test_models_with_links_to_directories_or_many_files_are_looked_at_each_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_repository, "SETTLED_NS", 0)
    repository = LocalRepository(root)
    (root / "m" / "3").symlink_to(root / "m" / "1")
    for number in range(local_repository.MOST_FILES_SEEN + 1):
        (root / "n" / "1" / f"{number}").touch()
    for name in ("m", "n"):
        [first] = repository.scan([name])
        [second] = repository.scan([name])
        assert first == second
        assert first is not second
    assert len(repository._seen) == 0


@pytest.mark.parametrize("name", ["..", ".", "", "m/1", "../root/m", "m\0", "nobody"])
def test_only_directories_of_the_repository_are_looked_into(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    repository = LocalRepository(root)
    monkeypatch.setattr(local_repository, "_files_of", looked.append)
    assert repository.scan([name]) == []
    assert looked == ([str(root / name)] if name == "nobody" else [])


def test_sizes_of_versions_are_known_from_the_look(root: Path) -> None:
    [folder] = LocalRepository(root).scan(["m"])
    assert [version.size for version in folder.versions] == [
        len("m/1/model.onnx") + len("m/1/weights/a.data"),
        len("m/2/model.onnx"),
    ]


@pytest.mark.parametrize(("name", "change", "versions"), CHANGES)
def test_any_change_is_another_fingerprint_of_its_version_and_model(
    root: Path, name: str, change: Callable[[Path], object], versions: set[int]
) -> None:
    repository = LocalRepository(root)
    before = repository.scan()
    assert repository.scan() == before
    change(root / name)
    after = repository.scan()
    assert after[0].fingerprint != before[0].fingerprint
    assert after[1] == before[1]
    changed = {
        new.number
        for old, new in zip(before[0].versions, after[0].versions, strict=True)
        if new.fingerprint != old.fingerprint
    }
    assert changed == versions


def test_a_link_that_is_turned_is_another_fingerprint(root: Path) -> None:
    (root / "m" / "3").symlink_to(root / "m" / "1")
    repository = LocalRepository(root)
    (before,) = repository.scan(["m"])
    (root / "m" / "3").unlink()
    (root / "m" / "3").symlink_to(root / "m" / "2")
    (after,) = repository.scan(["m"])
    assert after.versions[2].fingerprint != before.versions[2].fingerprint


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "m" / "1" / "self").symlink_to(root / "m")
    (root / "m" / "1" / "loop").symlink_to(root / "m" / "1" / "loop")
    repository = LocalRepository(root)
    assert repository.scan() == repository.scan()


def test_fetching_leaves_a_directory_as_it_is(root: Path) -> None:
    repository = LocalRepository(root)
    folder, _ = repository.scan()
    assert repository.fetch(folder, lambda *_: None) is folder
    assert [version.number for version in repository.fetch(folder, lambda *_: None, [2]).versions] == [2]
    repository.release(folder)


def test_models_of_several_repositories_are_found_together(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "a" / "1").mkdir(parents=True)
    repositories = open_repositories([root, tmp_path / "other"], cache_root=None, cache_size=1)
    assert [folder.name for _, folder in find_models(repositories)] == ["a", "m", "n"]
    assert [folder.name for _, folder in find_models(repositories, ["n", "a"])] == ["a", "n"]
    with pytest.raises(ConfigurationError, match=r"--load-models: no such model.*'mm'.*did you mean 'm'.*a, m, n"):
        find_models(repositories, ["mm"])


@pytest.mark.parametrize(
    ("models", "remedy"),
    [
        pytest.param(["resnet50", "bert"], "did you mean 'resnet50'? the repository has: bert, resnet50", id="near"),
        pytest.param(["bert"], "the repository has: bert", id="none near"),
        pytest.param([], "the repository has no models", id="empty"),
    ],
)
def test_a_model_asked_for_that_is_not_there_is_refused_by_the_flag_that_asked(
    tmp_path: Path, models: list[str], remedy: str
) -> None:
    for name in models:
        (tmp_path / name / "1").mkdir(parents=True)
    repositories = open_repositories([tmp_path], cache_root=None, cache_size=1)
    for asked_by, flag in (({}, "--load-models"), ({"resnet5": "--load-model"}, "--load-model")):
        with pytest.raises(ConfigurationError) as caught:
            find_models(repositories, ["resnet5"], asked_by)
        assert str(caught.value) == f"{flag}: no such model in the repository (got 'resnet5'); {remedy}"


def test_two_models_of_one_name_are_told_with_both_paths_and_refused_where_all_must_answer(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "other" / "m" / "1").mkdir(parents=True)
    repositories = open_repositories([root, tmp_path / "other"], cache_root=None, cache_size=1)
    said = f"is in two repositories: '{root}/m' and '{tmp_path}/other/m'"
    with pytest.raises(ConfigurationError, match=said):
        trio.run(partial(look_first, repositories, all_must_answer=True))
    [double] = [folder for _, folder in find_models(repositories) if folder.name == "m"]
    assert said in double.problem
    assert [folder.name for _, folder in find_models(repositories, ["n"])] == ["n"]


def test_a_graph_alone_changes_with_every_file_beside_it_and_is_not_said_to_lie_loose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    [repository] = open_repositories([tmp_path], cache_root=None, cache_size=1, lone_name="m")
    (before,) = repository.scan()
    assert (before.name, before.source) == ("m", str(tmp_path))
    (tmp_path / "labels.txt").write_bytes(b"cat")
    (after,) = repository.scan()
    assert after.versions[0].fingerprint != before.versions[0].fingerprint
    assert caplog.messages == []


def test_loose_graphs_are_said_once_and_others_when_they_lie_there(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = LocalRepository(root)
    (root / "resnet.onnx").write_bytes(b"")
    for _ in range(2):
        repository.scan()
        repository.scan(["m"])
    [line] = caplog.messages
    assert line.startswith(f"{root}/resnet.onnx: lies in no model's directory, and is not served; ")
    (root / "bert.onnx").write_bytes(b"")
    repository.scan()
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith(f"{root}/bert.onnx: lies in no model's directory")
    LocalRepository(root, tells_log=False).scan()
    assert len(caplog.messages) == 2
