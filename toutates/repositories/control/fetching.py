"""Models of repositories made local, a few at a time, with lines in the log that show how far they are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from toutates.models.repository import ModelFolder, unexpected
from toutates.repositories.control.threads import fetches_of, has_all_here, in_thread
from toutates.repositories.interface import Progress, Repository
from toutates.repositories.obtaining import obtain
from toutates.system.errors import ToutatesError
from toutates.system.logs.progress import ProgressLine

__all__ = ["fetch_all"]

logger = logging.getLogger(__name__)

#: Until the first line, so that a start from the cache has none, and between two lines. Seconds.
_PERIOD_S: Final = 5.0


async def fetch_all(
    found: Sequence[tuple[Repository, ModelFolder]],
    cpus: tuple[int, ...] = (),
    clock: Callable[[], float] = time.monotonic,
) -> list[ModelFolder]:
    """Fetch models, in the order given. One that cannot be had keeps its place, with the reason as its problem.

    Cancelled, it stops the repositories, and waits for the threads to notice.

    Args:
        found: from ``find_models``.
        cpus: where threads run, see ``placement.running_on``.
        clock: seconds.
    """
    folders = [folder for _, folder in found]
    fetched = _FetchedBytes(ProgressLine(logger, "fetched %.1f of %.1f MB: %s", _PERIOD_S, clock))
    all_there = False

    async def fetch(number: int, repository: Repository, folder: ModelFolder) -> None:
        try:
            work = partial(obtain, repository, folder, fetched.of(folder.name))
            folders[number] = await in_thread(cpus, fetches_of(repository), work, name=f"fetch {folder.name}")
        except ToutatesError as error:
            folders[number] = replace(folder, versions=(), problem=str(error))
        except Exception as error:
            folders[number] = replace(folder, versions=(), problem=unexpected(folder.name, folder.path, error))

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
                if has_all_here(repository):  # there is nothing to fetch
                    folders[number] = repository.fetch(folder, _not_shown)
                    continue
                nursery.start_soon(fetch, number, repository, folder)
        all_there = True
        watching.cancel_scope.cancel()
    return folders


def _not_shown(done: int, total: int) -> None:
    """Progress of what is there already."""


class _FetchedBytes:
    """Adds up what has come of several models.

    Args:
        line: shows the sum, in MB.
    """

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._models: dict[str, tuple[int, int]] = {}
        self._done = self._total = 0

    def of(self, model: str) -> Progress:
        """What is to be called with one model's progress, in any thread."""

        def on_progress(done: int, total: int) -> None:
            with self._lock:
                old_done, old_total = self._models.get(model, (0, 0))
                self._models[model] = (done, total)
                self._done += done - old_done
                self._total += total - old_total
                self._line.show(self._done / 1e6, self._total / 1e6, model)

        return on_progress
