"""Models of repositories made local, a few at a time, with lines in the log that show how far they are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import trio

from toutates.models.repository import ModelFolder
from toutates.repositories.interface import Progress, Repository
from toutates.repositories.obtaining import obtain
from toutates.system.errors import ToutatesError
from toutates.system.placement import running_on

__all__ = ["DownloadLine", "fetch_all"]

logger = logging.getLogger(__name__)

_MODELS_AT_ONCE: Final = 4
_PERIOD_S: Final = 5.0


async def fetch_all(found: Sequence[tuple[Repository, ModelFolder]], cpus: tuple[int, ...] = ()) -> list[ModelFolder]:
    """Fetch models, in the order given. One that cannot be had keeps its place, with the reason as its problem.

    Cancelled, it stops the repositories, and waits for the threads to notice.

    Args:
        found: from ``find_models``.
        cpus: where threads run, see ``placement.running_on``.
    """
    folders = [folder for _, folder in found]
    limiter = trio.CapacityLimiter(_MODELS_AT_ONCE)
    line = DownloadLine()
    all_there = False

    def fetch_anywhere(repository: Repository, folder: ModelFolder) -> ModelFolder:
        # The repository's own threads inherit the CPUs of the one that starts them.
        with running_on(cpus, cpus):
            return obtain(repository, folder, line.of(folder.name))

    async def fetch(number: int, repository: Repository, folder: ModelFolder) -> None:
        try:
            folders[number] = await trio.to_thread.run_sync(
                fetch_anywhere, repository, folder, limiter=limiter, thread_name=f"fetch {folder.name}"
            )
        except ToutatesError as error:
            folders[number] = replace(folder, versions=(), problem=str(error))

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not all_there:
                for repository, _ in found:
                    repository.stop()

    async with trio.open_nursery() as watching:
        watching.start_soon(stop_when_cancelled)
        async with trio.open_nursery() as nursery:
            for number, (repository, folder) in enumerate(found):
                nursery.start_soon(fetch, number, repository, folder)
        all_there = True
        watching.cancel_scope.cancel()
    return folders


class DownloadLine:
    """Shows downloads of several models together, by a line in the log every few seconds.

    Nothing is shown before the first one has taken some time, so that a start from the cache is silent.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._models: dict[str, tuple[int, int]] = {}
        self._next = clock() + _PERIOD_S

    def of(self, model: str) -> Progress:
        """What is to be called with one model's progress, in any thread."""

        def on_progress(done: int, total: int) -> None:
            with self._lock:
                self._models[model] = (done, total)
                if self._clock() >= self._next:
                    self._next = self._clock() + _PERIOD_S
                    self._show(model)

        return on_progress

    def _show(self, model: str) -> None:
        done = sum(done for done, _ in self._models.values()) / 1e6
        total = sum(total for _, total in self._models.values()) / 1e6
        logger.info("fetched %.1f of %.1f MB: %s", done, total, model)
