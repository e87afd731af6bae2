"""What nobody has thought of while one model's files are read: it costs the other models nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.hostile_files import good_graph
from toutates.command.check import check_repository
from toutates.models import kinds
from toutates.models import repository as models
from toutates.models.config import configuration
from toutates.repositories.control import fetching
from toutates.repositories.local import repository as local
from toutates.repositories.local.repository import LocalRepository


def failing(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that has a mistake, for the model 'bad' alone."""

    def made(*arguments: Any, **named: Any) -> Any:
        if any(re.search(r"\bbad\b", str(one)) for one in arguments):  # no part of a fingerprint
            raise IndexError("list index out of range")
        return real(*arguments, **named)

    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("bad", "good"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1/model.onnx").write_bytes(good_graph())
        (tmp_path / name / "config.pbtxt").write_text("max_batch_size: 4")
    return tmp_path


@pytest.mark.parametrize(
    ("module", "name"),
    [(models, "read_triton_configuration"), (local, "with_fingerprints"), (models, "version_folder")],
)
def test_a_look_finds_the_others(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, failing(getattr(module, name)))
    caplog.set_level(logging.DEBUG)
    bad, good = LocalRepository(root).scan()
    assert (bad.name, bad.versions, good.problem, len(good.versions)) == ("bad", (), "", 1)
    assert "IndexError: list index out of range" in bad.problem
    assert not bad.passed_over
    assert "the files of model 'bad' cannot be read" in caplog.text
    report = check_repository(root)
    assert [line for line in report.problems if "IndexError" in line]
    assert [line for line in report.facts if line.startswith("good 1")]


def test_a_check_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "load_configuration", failing(configuration.load_configuration))
    report = check_repository(root)
    assert len(report.problems) == 1
    assert "IndexError" in report.problems[0]
    assert [line for line in report.facts if line.startswith("good 1")]


class Remote(LocalRepository):
    """One whose files have to be fetched."""

    def fetch(self, folder: models.ModelFolder, *arguments: Any, **named: Any) -> models.ModelFolder:
        if folder.name == "bad":
            raise IndexError("list index out of range")
        return super().fetch(folder, *arguments, **named)


def test_others_are_fetched(root: Path) -> None:
    repository = Remote(root)
    fetched = trio.run(fetching.fetch_all, [(repository, folder) for folder in repository.scan()])
    assert ["IndexError" in folder.problem for folder in fetched] == [True, False]
