"""The models' first load: which models there are, what becomes of them, and what the operator is told of it."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import onnxruntime
import trio

from toutates.models.manager import ModelManager
from toutates.repositories.control.fetching import fetch_all
from toutates.repositories.control.first_look import FirstLook, look_first
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.on_demand import OnDemand
from toutates.repositories.control.passed_over import PassedOver
from toutates.repositories.control.threads import FIRST_LOOKS
from toutates.repositories.control.waiting import Waiting
from toutates.repositories.interface import Repository
from toutates.repositories.opening import open_repositories
from toutates.repositories.pace import Patience
from toutates.server.options import Options
from toutates.server.shutdown import Shutdown
from toutates.server.startup_table import MOST_ROWS, placement_records, placement_table, startup_records, startup_table
from toutates.system.errors import ToutatesError
from toutates.system.logs.progress import ProgressLine
from toutates.system.logs.setup import Logs
from toutates.system.placement import Placement

__all__ = ["FirstLoad"]

logger = logging.getLogger(__name__)

#: How long the start waits for a directory that another container or a mount puts in place, and how often it looks.
_LATE_S: Final = 10.0
_LOOK_S: Final = 0.1
#: Between two lines of the log that tell how far loading is, where there are very many versions. Seconds.
_PROGRESS_S: Final = 2.0
#: While the models are loaded, the garbage collector looks at new objects when there are so many more.
_GC_THRESHOLD: Final = 50_000


class FirstLoad:
    """Opens the repositories, loads their models, and prints the tables of the start.

    Args:
        options: of the server.
        placement: where its threads run.
        providers: names of the execution providers, by priority.
        logs: takes the tables.
        shutdown: ends the load early; it is told where --exit-on-error ends the server.

    Attributes:
        repositories: those that are open; all of them once ``run`` has found the models.
        waiting: what the start is waiting for.
        passed_over: what the log has been told of entries that are no models.
    """

    def __init__(
        self, options: Options, placement: Placement, providers: list[str], logs: Logs, shutdown: Shutdown
    ) -> None:
        self.repositories: list[Repository] = []
        self.waiting = Waiting()
        self.passed_over = PassedOver()
        self._options = options
        self._placement = placement
        self._providers = providers
        self._logs = logs
        self._shutdown = shutdown

    async def run(self, manager: ModelManager, control: ModelControl, demand: OnDemand | None = None) -> bool:
        """Find and load the models, unless the shutdown begins first; returns whether to go on.

        Args:
            manager: loads them.
            control: is told of them.
            demand: loads others later; None for none.

        Raises:
            ConfigurationError: see ``open_repositories`` and ``look_first``.
        """
        with _less_garbage_collection():
            return await self._run(manager, control, demand)

    async def _run(self, manager: ModelManager, control: ModelControl, demand: OnDemand | None) -> bool:
        started = time.monotonic()
        async with trio.open_nursery() as nursery:

            async def cancel_when_stopping() -> None:
                await self._shutdown.begun.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_when_stopping)
            seen = await self._look()
            folders = await fetch_all(seen.found, self._placement.anywhere)
            period_s = _PROGRESS_S if sum(len(folder.versions) for folder in folders) > MOST_ROWS else 0.0
            line = ProgressLine(logger, "loaded %d of %d: %s", period_s)
            await manager.load_all(folders, line.show)
            control.begin(seen.found, folders, seen.late)
            await control.load_missing()
            if demand is not None:
                await demand.begin(all_must_answer=self._options.exit_on_error)
            nursery.cancel_scope.cancel()
        if self._shutdown.begun.is_set():
            return False
        if not manager.table.models and self._options.load_models is None and not control.late:
            await self._warn_of_no_models(may_be_empty=manager.table.may_be_empty)
        shown = (manager.table, self._providers, time.monotonic() - started, control.unready_reason)
        self._logs.show(startup_table(*shown), startup_records(*shown))
        placed = (self._placement, manager.table, manager.executor_threads)
        self._logs.show(placement_table(*placed), placement_records(*placed))
        # Of what ONNX Runtime does apart from any session, only the loading of providers is worth a line; allocations
        # that fail come back as errors to those who asked for them.
        onnxruntime.set_default_logger_severity(4)
        if self._options.exit_on_error and any(model.fails for model in manager.table.models.values()):
            logger.critical("a model cannot be served, see above; the server ends, as --exit-on-error says")
            self._shutdown.failed = True
            return False
        return True

    def close(self) -> None:
        """Stop the repositories' threads."""
        for repository in self.repositories:
            repository.stop()

    async def _look(self) -> FirstLook:
        """Find out which models there are. Takes as long as a repository takes to answer."""
        options = self._options
        self.waiting.begin([str(one) for one in options.model_repositories])
        # In a thread: boto3 may look for credentials in the network, and the cache may be another server's just now.
        open_them = partial(
            open_repositories,
            options.model_repositories,
            cache_root=options.model_cache_dir,
            cache_size=options.model_cache_size,
            lone_name=options.model_name,
            patience=Patience(options.download_min_rate),
        )
        async with self.waiting.logged():
            await self._wait_for_directories()
            self.repositories += await FIRST_LOOKS.run(open_them, abandon_on_cancel=True)
            return await look_first(
                self.repositories,
                options.load_models,
                dict.fromkeys(options.load_model, "--load-model"),
                all_must_answer=options.exit_on_error,
                waiting=self.waiting,
                passed_over=self.passed_over,
                cpus=self._placement.anywhere,
            )

    async def _wait_for_directories(self) -> None:
        """Wait, for some seconds, until directories of models are there.

        Kubernetes mounts files by links that it makes, and a container beside this one may make the directory, or the
        link to its own, when it starts. Where nobody has said how long that may take, a directory whose parent is
        missing too is a mistake, and not waited for. What is not there then, ``look_first`` refuses.
        """
        wait_s = self._options.wait_for_repository_s
        look = partial(_late, anywhere=wait_s is not None)
        wait_s = _LATE_S if wait_s is None else wait_s
        directories = [one for one in self._options.model_repositories if isinstance(one, Path)]
        told = False
        with trio.move_on_after(wait_s):
            while late := await FIRST_LOOKS.run(look, directories, abandon_on_cancel=True):
                for path in () if told else late:
                    logger.warning(
                        "the model repository '%s' is not there yet: waiting for it, %.0f s at most", path, wait_s
                    )
                told = True
                await trio.sleep(_LOOK_S)

    async def _warn_of_no_models(self, *, may_be_empty: bool) -> None:
        until = "" if may_be_empty else "; the server is not ready until it has one"
        for repository in self.repositories:
            try:
                advice = await FIRST_LOOKS.run(repository.advice, abandon_on_cancel=True)
            except ToutatesError:
                advice = ""  # it was listed a moment ago, and what is wrong now is told elsewhere
            advice = f": {advice}" if advice else ""
            logger.warning("the model repository %s has no models%s%s", repository.name, until, advice)


def _late(directories: Sequence[Path], *, anywhere: bool) -> list[Path]:
    """Those that are not there, or are links to nothing, where something may still put them.

    Args:
        directories: of models.
        anywhere: whether something may put them where the directory above is missing too.
    """
    missing = [path for path in directories if _is_missing(path)]
    if anywhere:
        return missing
    return [path for path in missing if os.path.islink(path) or os.path.isdir(os.path.dirname(os.path.abspath(path)))]


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # it is there, and cannot be read
        return False
    return False


@contextmanager
def _less_garbage_collection() -> Iterator[None]:
    """Have the garbage collector look seldom: nearly all that is made meanwhile stays, and it would visit it over and
    over. What is garbage by now is freed before.
    """
    gc.collect()
    threshold = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
