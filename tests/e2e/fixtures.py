"""One server for all tests that leave it as they found it, and the repositories for those that start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.held import Runs, running_held
from tests.e2e.models import build_broken_repository, build_repository
from tests.e2e.process import VARIABLE, ServerProcess, running

__all__ = ["broken_repository", "held_server", "pytest_runtest_protocol", "repository", "server"]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that all load."""
    root = tmp_path_factory.mktemp("repository")
    build_repository(root)
    return root


@pytest.fixture(scope="session")
def broken_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of which one loads."""
    root = tmp_path_factory.mktemp("broken_repository")
    build_broken_repository(root)
    return root


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server that the tests share. Its log shows at the end that no handler failed, nor the GIL came back."""
    with running(repository, tmp_path_factory.mktemp("server"), ["--http-addr", "127.0.0.1:0"]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


@pytest.fixture(scope="session")
def held_server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    """Another one, whose runs of the model "slow" tests may hold."""
    with running_held(repository, tmp_path_factory.mktemp("held_server")) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Servers of tests that measure search no answers for memory that nobody wrote."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("alone") is not None:
            patch.setenv(VARIABLE, "0")
        return (yield)
