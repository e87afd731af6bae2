"""A file as a repository, here and on S3: what is its model, what changes it, and what does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.repositories.s3_services import S3Service, quiet
from tests.repositories.support import s3_repository
from tests.triton_repository import negative
from toutates.models.config.configuration import load_configuration
from toutates.models.config.triton_configuration import TritonConfiguration, read_triton_configuration
from toutates.models.repository import VersionFolder
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.local.file import FileRepository
from toutates.repositories.obtaining import obtain
from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import ConfigurationError

GRAPH = negative().SerializeToString()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "net.onnx").write_bytes(GRAPH)
    return tmp_path / "net.onnx"


def override(folder: Path, text: str) -> TritonConfiguration:
    (folder / "given").mkdir()
    (folder / "given" / "config.pbtxt").write_text(text)
    found = read_triton_configuration(folder / "given", "net")
    assert found is not None
    return found


def version(repository: FileRepository, given: TritonConfiguration | None = None) -> VersionFolder:
    [folder] = repository.scan()
    [found] = obtain(repository, folder, quiet, given).versions
    return found


def test_a_file_is_version_1_whatever_lies_beside_it(path: Path) -> None:
    (path.parent / "config.yaml").write_text("seed: 1")
    (path.parent / "modules.json").write_text("[]")
    repository = FileRepository(path, "net")
    found = version(repository)
    assert (found.number, found.model_path, found.problem) == (1, path, "")
    assert load_configuration(found).settings.backend == "supertensor"
    assert [folder.name for folder in repository.scan({"net"})] == ["net"]
    assert repository.scan({"other"}) == []


def test_beside_a_model_onnx_its_configuration_counts(path: Path) -> None:
    path = path.rename(path.with_name("model.onnx"))
    repository = FileRepository(path, "net")
    before = version(repository).fingerprint
    lines = "backend: supertensor\nbatch_size: 3\ncapacity: 2\nnum_executors: 1\nallocator: cpu\n"
    (path.parent / "config.yaml").write_text(lines)
    assert version(repository).fingerprint != before
    assert load_configuration(version(repository)).settings.batch_size == 3


def test_its_files_and_no_others_change_it(path: Path) -> None:
    repository = FileRepository(path, "net")
    seen = {version(repository).fingerprint}
    for name in ("other.onnx", "netty", "config.yaml"):
        (path.parent / name).write_text("x")
    assert {version(repository).fingerprint} == seen
    for name in ("net.onnx.data", "net.onnx_data", "net.data"):
        (path.parent / name).write_text("x")
        assert version(repository).fingerprint not in seen
        seen.add(version(repository).fingerprint)
    os.utime(path, ns=(1, 1))
    assert version(repository).fingerprint not in seen


def test_a_file_that_is_gone_is_a_problem_of_its_version(path: Path) -> None:
    repository = FileRepository(path, "net")
    path.unlink()
    assert version(repository).problem == f"unable to find '{path}': No such file or directory"


def test_another_configuration_is_for_the_same_file(path: Path) -> None:
    repository = FileRepository(path, "net")
    given = override(path.parent, 'max_batch_size: 5 default_model_filename: "secret.onnx"')
    found = load_configuration(version(repository, given), overridden=True)
    assert (found.folder.model_path, found.settings.batch_size) == (path, 5)


def test_another_backend_cannot_run_what_lies_beside_it(path: Path) -> None:
    (path.parent / "model.py").write_text("")
    given = override(path.parent, 'backend: "python"')
    with pytest.raises(ConfigurationError, match="is not for a model that is a file"):
        load_configuration(version(FileRepository(path, "net"), given), ("onnxruntime", "python"), overridden=True)


def test_a_wrong_configuration_may_be_overridden(path: Path) -> None:
    path = path.rename(path.with_name("model.onnx"))
    (path.parent / "config.pbtxt").write_text("max_batch_size: many")
    repository = FileRepository(path, "net")
    [folder] = repository.scan()
    assert "config.pbtxt" in folder.problem
    assert version(repository, override(path.parent, "max_batch_size: 5")).model_path == path


def test_a_file_on_s3_is_recalled_while_s3_does_not_answer(moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({"some/net.onnx": GRAPH, "some/net.onnx_data": b"x", "some/network.onnx": b"x"})
    place = BucketSpecification("s3", bucket, "some/", moto_service.endpoint, file="net.onnx", model_name="net")
    repository = s3_repository(place, ModelCache(tmp_path / "cache", 2**30))
    try:
        [folder] = repository.scan()
        fetched = repository.fetch(folder, quiet)
        assert sorted(path.name for path in fetched.versions[0].path.iterdir()) == ["model.onnx", "net.onnx_data"]
        repository.release(fetched)
        recalled = repository.recall(None, "it is down")
        assert recalled is not None
        assert recalled.folders == [folder]
        assert repository.recall({"net"}, "it is down") is not None
    finally:
        repository.stop()
