from __future__ import annotations

from pathlib import Path

import pytest

from tests.torchserve_archives import contents, mar
from toutates.command.main import main


def test_an_archive_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = mar(
        tmp_path / "a.mar", contents(files={"requirements.txt": "pillow"}, requirementsFile="requirements.txt")
    )
    repository = tmp_path / "models"
    assert main(["import", str(archive), "--output", str(repository)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"model 'lengths' version 1.0: {repository}/lengths/1\n")
    assert "note: its requirements are not installed" in said
    assert main(["import", str(archive), "--output", str(repository)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"toutates: error: {archive}: version 1.0 of model 'lengths' is in the repository already")


def test_a_refused_archive_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = mar(tmp_path / "a.mar", {"../evil": b""})
    assert main(["import", str(archive), "--output", str(tmp_path / "models")]) == 1
    assert "'../evil' in it leaves the archive's directory by '..'" in capsys.readouterr().err
    assert main(["import"]) == 2
