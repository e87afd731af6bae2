"""One server for all attacks that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.attacks.models import build_composed, build_repository
from tests.attacks.support import FLAGS
from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.process import ServerProcess, running


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is attacked."""
    root = tmp_path_factory.mktemp("models")
    build_repository(root)
    build_composed(root)
    return root


@pytest.fixture(scope="session")
def target(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server that attacks share. At its end it stops as it should, and has logged neither failures nor floods."""
    with running(models, tmp_path_factory.mktemp("target"), FLAGS) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)
