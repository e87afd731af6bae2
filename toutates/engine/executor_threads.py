"""The threads of a version's executors. A thread that dies is replaced.

An executor whose thread dies, or cannot be started, gets another one: at once the first time, then after a pause that
doubles, up to MAX_PAUSE_S. After a thread that has lived for FORGET_S the count begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from toutates.engine.servable import Host
from toutates.system.own_thread import LeftBehind, OwnThread
from toutates.system.placement import running_on

__all__ = ["ExecutorThreads", "Loop", "note_death", "say_what_does_not_end"]

logger = logging.getLogger(__name__)

#: Pauses before an executor's thread is replaced; none before the first time, then from FIRST_PAUSE_S, doubled.
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 10.0
#: Seconds after which the death of a thread counts as the first one again.
FORGET_S: Final = 60.0
#: How many deaths of an executor's threads are accepted once no worker is left; then it is given up.
MAX_DEATHS_AT_THE_END: Final = 3
#: How long the runs of a version that is unloaded may go on before the log says so.
SAID_AFTER_S: Final = 30.0
#: Seconds that a run may still take once no worker is left. Nobody waits for its answers, and the process is to end.
LAST_RUN_S: Final = 10.0


class Loop(Protocol):
    """What an executor's thread runs."""

    def run(self) -> None:
        """Work until there will be no more. Called again, in another thread, if it raises."""
        ...


def note_death(name: str, version: int, deaths: int, death: BaseException) -> float:
    """Log the death of an executor's thread, and say after how many seconds it is to be replaced.

    Args:
        name: of the executor.
        version: number of its model's version.
        deaths: how many of its threads have died in a row.
        death: why.
    """
    pause_s = 0.0 if deaths == 1 else min(FIRST_PAUSE_S * 2 ** min(deaths - 2, 30), MAX_PAUSE_S)
    logger.error(
        "%s of version %d died (%d in a row); it is replaced %s",
        name,
        version,
        deaths,
        f"in {pause_s:g} s" if pause_s else "at once",
        exc_info=death,
        extra={"executor": name, "version": version},
    )
    return pause_s


def say_what_does_not_end(model: str, version: int, running: int) -> None:
    """Log that runs of a version go on that is to be freed."""
    logger.warning(
        "version %d of model '%s' has been unloaded for %g s, and %d of its runs have not ended: its memory is not "
        "freed until they do, and a run that hangs stays until the server is restarted",
        version,
        model,
        SAID_AFTER_S,
        running,
        extra={"model": model, "version": version},
    )


class ExecutorThreads:
    """The threads of one model version.

    Args:
        model: its name.
        version: its number.
        executors: all executors of the version.
    """

    def __init__(self, model: str, version: int, executors: Sequence[Loop]) -> None:
        self._model = model
        self._version = version
        self._executors = list(executors)
        self._count = len(self._executors)
        self._running = 0
        #: numbers of the executors that have no thread now
        self._dead: set[int] = set()
        self._workers_ended = trio.Event()
        self._closed = trio.Event()

    @property
    def ready(self) -> bool:
        """Whether some executor has a thread."""
        return len(self._dead) < self._count

    async def run(self, host: Host) -> None:
        """Run the executors, each in a thread, until all of them have ended for good."""
        leave = trio.Event()
        async with trio.open_nursery() as around:
            around.start_soon(self._leave_in_time, leave)
            around.start_soon(self._say_what_does_not_end)
            async with trio.open_nursery() as nursery:
                for number, executor in enumerate(self._executors):
                    # CPUs are taken here, side by side, and not in the tasks, which begin in any order.
                    nursery.start_soon(self._keep_running, executor, number, host, host.take_cpus(), leave)
                    self._running += 1
                del executor
                self._executors.clear()
            around.cancel_scope.cancel()

    async def _leave_in_time(self, leave: trio.Event) -> None:
        """Set ``leave`` when runs that have not ended are not waited for any more."""
        await self._workers_ended.wait()
        await trio.sleep(LAST_RUN_S)
        leave.set()

    async def _say_what_does_not_end(self) -> None:
        """Log it if runs go on for long in a version that is to be freed."""
        await self._closed.wait()
        await trio.sleep(SAID_AFTER_S)
        say_what_does_not_end(self._model, self._version, self._running)

    def note_closed(self) -> None:
        """The version is to be freed: its executors end as soon as they have run what they have."""
        self._closed.set()

    def note_that_workers_ended(self) -> None:
        """Replace threads that die without a pause from now on, and only a few times: nobody waits for answers."""
        self._workers_ended.set()

    async def _keep_running(
        self, executor: Loop, number: int, host: Host, cpus: tuple[int, ...], leave: trio.Event
    ) -> None:
        try:
            await self._keep_one(executor, number, host, cpus, leave)
        finally:
            self._running -= 1

    async def _keep_one(
        self, executor: Loop, number: int, host: Host, cpus: tuple[int, ...], leave: trio.Event
    ) -> None:
        name = f"executor-{number} {self._model}"
        deaths = deaths_at_the_end = 0
        while True:
            started = trio.current_time()
            try:
                death = await self._run(executor, name, cpus, host.anywhere, leave)
            except LeftBehind:
                text = "%s of version %d has not ended its run, and is left behind"
                logger.error(text, name, self._version, extra={"executor": name, "version": self._version})
                return
            if death is None:
                return
            host.on_death()
            deaths = 1 if trio.current_time() - started >= FORGET_S else deaths + 1
            pause_s = note_death(name, self._version, deaths, death)
            if self._workers_ended.is_set():
                deaths_at_the_end += 1
                if deaths_at_the_end == MAX_DEATHS_AT_THE_END:
                    return
            self._mark(number, host, dead=True)
            with trio.move_on_after(pause_s):
                await self._workers_ended.wait()
            self._mark(number, host, dead=False)

    @staticmethod
    async def _run(
        executor: Loop, name: str, cpus: tuple[int, ...], anywhere: tuple[int, ...], leave: trio.Event
    ) -> BaseException | None:
        """Run one thread of an executor; returns the error that ended it or kept it from starting, None for neither.

        Raises:
            LeftBehind: it had not ended when ``leave`` was set.
        """

        def run() -> BaseException | None:
            try:
                with running_on(cpus, anywhere):
                    executor.run()
            except BaseException as death:
                return death
            return None

        thread = OwnThread(name)
        try:
            # Not abandoned on cancellation: closing the servable ends the executor, and the nursery waits for that.
            return await thread.run(run, leave)
        except (RuntimeError, OSError, MemoryError) as error:  # the system has no thread left for us
            return error
        finally:
            thread.end()

    def _mark(self, number: int, host: Host, *, dead: bool) -> None:
        """Note whether an executor has no thread, and tell the host if that changes ``ready``."""
        was_ready = self.ready
        if dead:
            self._dead.add(number)
        else:
            self._dead.discard(number)
        if self.ready is not was_ready:
            host.on_ready_change()
