"""The servers and repositories of the end-to-end tests, and a server in this process whose runs a test may hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fixtures import broken_repository, held_server, pytest_runtest_protocol, repository, server
from tests.e2e.held import Runs, waiting_run
from toutates.backends.onnx.session import ModelSession

__all__ = ["broken_repository", "few", "held_server", "pytest_runtest_protocol", "repository", "runs", "server"]


@pytest.fixture
def few(repository: Path, tmp_path: Path) -> Path:
    """A repository of one model of three versions, 1, 2 and 10."""
    (tmp_path / "few").mkdir()
    os.symlink(repository / "versions", tmp_path / "few" / "versions")
    return tmp_path / "few"


@pytest.fixture
def runs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The runs of the model "slow" of a server in this process, which the test may hold."""
    runs = Runs(tmp_path_factory.mktemp("runs") / "runs")
    run, wait = ModelSession.run, waiting_run(runs.path)

    def wait_and_run(session: ModelSession, *arguments: Any) -> Any:
        if session.model == "slow":
            wait()
        return run(session, *arguments)

    monkeypatch.setattr(ModelSession, "run", wait_and_run)
    return runs
