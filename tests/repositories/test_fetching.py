"""Many models at once: those that cannot be had do not keep the others, and a start that is called off ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from pathlib import Path

import pytest
import trio

from toutates.models.repository import ModelFolder, VersionFolder
from toutates.repositories.control.fetching import fetch_all
from toutates.repositories.interface import Progress
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import RepositoryError


class Stubborn(LocalRepository):
    """A repository whose downloads end when it is stopped; but "quick" is there, and "broken" cannot be had."""

    def __init__(self) -> None:
        super().__init__(Path("stubborn"))
        self.stopped = threading.Event()
        self.begun = threading.Event()

    def fetch(
        self,
        folder: ModelFolder,
        on_progress: Progress,
        versions: Collection[int] | None = None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        if folder.name == "slow":
            self.begun.set()
            self.stopped.wait(120)
        if folder.name != "quick":
            raise RepositoryError(f"{folder.name} cannot be had")
        return folder

    def stop(self) -> None:
        self.stopped.set()


def folder(name: str) -> ModelFolder:
    return ModelFolder(name, Path(name), (VersionFolder(1, Path(name), Path(name)),))


def test_a_model_that_cannot_be_had_keeps_its_place_with_the_reason() -> None:
    repository = Stubborn()
    found = [(repository, folder(name)) for name in ("broken", "quick")]
    broken, quick = trio.run(fetch_all, found)
    assert (broken.name, broken.versions, broken.problem) == ("broken", (), "broken cannot be had")
    assert quick == folder("quick")
    assert not repository.stopped.is_set()


def test_fetching_that_is_cancelled_stops_the_repository() -> None:
    repository = Stubborn()

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch_all, [(repository, folder("slow"))])
                await trio.to_thread.run_sync(repository.begun.wait)
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert repository.stopped.is_set()


class Counting(Stubborn):
    """A repository of models whose bytes come at certain times."""

    def __init__(self, steps: list[tuple[float, str, int, int]]) -> None:
        super().__init__()
        self.now_s = 0.0
        self._steps = steps
        self._together = threading.Barrier(len({name for _, name, _, _ in steps}))
        self._listeners: dict[str, Progress] = {}

    def fetch(
        self,
        folder: ModelFolder,
        on_progress: Progress,
        versions: Collection[int] | None = None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        self._listeners[folder.name] = on_progress
        if self._together.wait(120) == 0:
            for now_s, name, done, total in self._steps:
                self.now_s = now_s
                self._listeners[name](done, total)
        return folder


def test_progress_of_all_models_is_shown_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    steps = [
        (0.0, "one", 1_000_000, 2_000_000),
        (6.0, "other", 0, 3_000_000),
        (6.0, "one", 2_000_000, 2_000_000),
        (12.0, "other", 1_500_000, 3_000_000),
    ]
    repository = Counting(steps)
    found = [(repository, folder(name)) for name in ("one", "other")]
    trio.run(fetch_all, found, (), lambda: repository.now_s)
    assert caplog.messages == ["fetched 1.0 of 5.0 MB: other", "fetched 3.5 of 5.0 MB: other"]
