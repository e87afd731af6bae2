"""Small files that an operator wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toutates.models.config.small_file import read_small_file
from toutates.system.errors import ConfigurationError


@pytest.mark.parametrize("size", [0, 1, 4_095, 4_096, 4_097, 9_999, 10_000])
def test_a_file_is_read_whole(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert read_small_file(tmp_path / "file", 10_000) == data


def test_a_file_that_is_too_large_is_refused_though_it_did_not_look_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "file"
    source.write_bytes(bytes(10_001))
    with pytest.raises(ConfigurationError, match="is larger than 10000 bytes"):
        read_small_file(source, 10_000)
    empty = tmp_path / "empty"
    empty.touch()
    looked_at = os.stat(empty)
    monkeypatch.setattr(os, "stat", lambda path, **more: looked_at)  # somebody has written to it since
    with pytest.raises(ConfigurationError, match="is larger than 10000 bytes"):
        read_small_file(source, 10_000)
    assert read_small_file(source, 10_001) == bytes(10_001)


def test_files_that_are_none_are_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_small_file(tmp_path / "fifo", 10)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="is a link to a file that does not exist"):
        read_small_file(tmp_path / "link", 10)
    assert read_small_file(tmp_path / "nothing", 10) is None
