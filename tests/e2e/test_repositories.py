"""Repositories that are not what they should be: with directories that are no models, missing, or slow to answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.control import POLL, answer, client_of, index
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import running
from tests.waiting import wait_until

JUNK = ("lost+found", "__pycache__", "@eaDir", ".git", "scripts")


def add(root: Path, name: str, adds: int, version: int = 1) -> None:
    add_model(root, name, versioned_model(adds), version)


@pytest.mark.parametrize("mode", [(), POLL], ids=["none", "poll"])
def test_directories_that_are_no_models_are_warnings_and_the_server_is_ready(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    root = tmp_path / "models"
    add(root, "m", 1)
    for name in JUNK:
        (root / name / "some").mkdir(parents=True)
    with running(root, tmp_path, mode) as process, client_of(process) as client:
        assert client.is_server_ready()
        assert [name for name, *_ in index(client)] == ["m"]
        if mode:
            add(root, "later", 2)  # the poll that finds it has looked at the others too
            wait_until(lambda: ("later", "1", "READY", "") in index(client))
        for name in JUNK:
            assert process.log.count(f"'{root / name}' is passed over, because it does not look like a model") == 1
        assert client.is_server_ready()
        assert process.stop() == 0


def test_a_model_whose_versions_have_gone_is_served_on_until_its_directory_has_gone(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "m", 1)
    with running(root, tmp_path, POLL) as process, client_of(process) as client:
        shutil.rmtree(root / "m" / "1")  # as by those who are going to write another one there
        wait_until(lambda: "no version directory" in process.log)
        assert answer(client, "m") == 1
        assert client.is_server_ready()
        add(root, "m", 2)
        wait_until(lambda: answer(client, "m") == 2)
        shutil.rmtree(root / "m")
        wait_until(lambda: index(client) == [])
        assert process.stop() == 0
