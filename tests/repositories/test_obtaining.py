"""Models made local with a configuration of their own or another one: what they come to, and what the cache keeps."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tests.repositories.s3_services import S3Service, cached_files, quiet
from tests.repositories.support import repository, want_all_room
from toutates.models.config.triton_configuration import TritonConfiguration, triton_configuration
from toutates.protocol.model_config_pb2 import ModelConfig, ModelVersionPolicy
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.local.repository import LocalRepository
from toutates.repositories.obtaining import obtain

FILES = {"m/1/graph.onnx": b"one", "m/2/graph.onnx": b"two"}
UNUSABLE = {
    "no configuration": b"this is none",
    "no such version": b"version_policy { specific { versions: [7] } }",
    "another name": b'name: "n"',
}


def override(versions: Collection[int]) -> TritonConfiguration:
    specific = ModelVersionPolicy.Specific(versions=versions)
    config = ModelConfig(default_model_filename="graph.onnx", version_policy=ModelVersionPolicy(specific=specific))
    return triton_configuration(config, "m", Path("config"))


def kept(cache: Path) -> set[str]:
    """What lies in a cache once another server has wanted all of its room."""
    want_all_room(ModelCache(cache, 10_000))
    return {path.read_bytes().decode() for path in cached_files(cache)}


@pytest.mark.parametrize("unusable", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_override_takes_the_place_of_a_configuration_that_cannot_be_used(
    service: S3Service, tmp_path: Path, unusable: bytes
) -> None:
    files = {**FILES, "m/config.pbtxt": unusable}
    with repository(service, service.bucket(files), tmp_path / "cache") as remote:
        [folder] = remote.scan()
        assert f"{remote.name}/m/config.pbtxt" in obtain(remote, folder, quiet).problem
        assert kept(tmp_path / "cache") == set()
        fetched = obtain(remote, folder, quiet, override([2]))
        assert (fetched.problem, [version.number for version in fetched.versions]) == ("", [2])
        assert fetched.versions[0].model_path.read_bytes() == b"two"
        assert fetched.versions[0].problem == ""
        assert fetched.versions[0].fingerprint == folder.versions[1].fingerprint
        assert kept(tmp_path / "cache") == {"two", unusable.decode()}
        remote.release(fetched)
        assert kept(tmp_path / "cache") == set()
        none = obtain(remote, folder, quiet, override([7]))
        assert "selects no version" in none.problem
        assert none.warnings == (f"'{remote.name}/m/7' is not there, and version_policy names it",)
        assert kept(tmp_path / "cache") == set()


@pytest.mark.parametrize("unusable", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_override_does_the_same_for_a_directory(tmp_path: Path, unusable: bytes) -> None:
    for name, content in {**FILES, "m/config.pbtxt": unusable}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    local = LocalRepository(tmp_path)
    [folder] = local.scan()
    assert f"{tmp_path}/m/config.pbtxt" in obtain(local, folder, quiet).problem
    found = obtain(local, folder, quiet, override([2]))
    assert (found.problem, [version.number for version in found.versions]) == ("", [2])
    assert found.versions[0].model_path.read_bytes() == b"two"
    assert "selects no version" in obtain(local, folder, quiet, override([7])).problem


def test_an_override_holds_for_a_graph_alone(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    (tmp_path / "config.pbtxt").write_bytes(b"nonsense {")
    local = LocalRepository(tmp_path, lone_name="m")
    [folder] = local.scan()
    assert f"{tmp_path}/config.pbtxt" in folder.problem
    found = obtain(local, folder, quiet, override([1]))
    assert (found.name, found.problem) == ("m", "")
    [version] = found.versions
    assert (version.number, version.model_path, version.model_dir) == (1, tmp_path / "graph.onnx", tmp_path)
