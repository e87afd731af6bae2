"""Files of a version that change while its sessions are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toutates.backends.onnx.unchanged import FilesOfSessions
from toutates.models.repository import VersionFolder, file_model, lone_model, scan_model
from toutates.system.errors import ModelLoadError


def version_of(root: Path) -> VersionFolder:
    """A version whose graph is a directory, which leads elsewhere, as a mounted ConfigMap does."""
    (root / "m" / "1").mkdir(parents=True)
    for name in ("first", "second"):
        (root / name).mkdir()
        (root / name / "model.onnx").write_bytes(b"its weights are in w")
        (root / name / "w").write_bytes(b"weights")
        os.utime(root / name / "w", ns=(0, 0))
    (root / "m" / "1" / "..data").symlink_to(root / "first")
    for name in ("model.onnx", "w"):
        (root / "m" / "1" / name).symlink_to(f"..data/{name}")
    [version] = scan_model(root / "m").versions
    return version


def test_a_version_whose_links_lead_elsewhere_has_changed(tmp_path: Path) -> None:
    version = version_of(tmp_path)
    files = FilesOfSessions(version)
    files.check()
    (tmp_path / "link").symlink_to(tmp_path / "second")
    (tmp_path / "link").rename(version.path / "..data")
    with pytest.raises(ModelLoadError, match=r"/m/1/model\.onnx' has changed"):
        files.check()


@pytest.mark.parametrize("name", ["model.onnx", "w"])
def test_a_file_that_is_written_in_its_place_or_removed_has_changed(tmp_path: Path, name: str) -> None:
    version = version_of(tmp_path)
    files = FilesOfSessions(version)
    with open(version.path / name, "ab") as file:
        file.write(b"x")
    with pytest.raises(ModelLoadError, match=rf"/m/1/{name}' has changed"):
        files.check()
    files = FilesOfSessions(version)
    (version.path / name).unlink()
    with pytest.raises(ModelLoadError, match=rf"/m/1/{name}' has changed"):
        files.check()


def test_files_of_which_the_graph_knows_nothing_may_come_and_go(tmp_path: Path) -> None:
    version = version_of(tmp_path)
    for name in ("kept", "removed"):
        (version.path / name).write_bytes(b"some")
    files = FilesOfSessions(version)
    (version.path / "kept").write_bytes(b"more")
    (version.path / "removed").unlink()
    (version.path / "new").touch()
    files.check()
    (version.path / "model.onnx").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.onnx' has changed"):
        files.check()


def test_of_a_folder_that_may_be_anybodys_only_the_graph_and_its_weights_count(tmp_path: Path) -> None:
    for name in ("net.onnx", "net.onnx_data", "other.bin"):
        (tmp_path / name).write_bytes(b"net.onnx_data or other.bin")
    [version] = file_model(tmp_path / "net.onnx", "net").versions
    files = FilesOfSessions(version)
    (tmp_path / "other.bin").write_bytes(b"another")
    files.check()
    (tmp_path / "net.onnx_data").write_bytes(b"another")
    with pytest.raises(ModelLoadError, match="onnx_data' has changed"):
        files.check()


def test_a_graph_in_the_repositorys_own_directory_has_its_weights_beside_it(tmp_path: Path) -> None:
    for name in ("model.onnx", "w"):
        (tmp_path / name).write_bytes(b"w has its weights")
    [version] = lone_model(tmp_path, "m").versions
    files = FilesOfSessions(version)
    (tmp_path / "w").write_bytes(b"another")
    with pytest.raises(ModelLoadError, match="/w' has changed"):
        files.check()
