"""One process of several, as its parent sees it: started, talked to, watched, and waited for."""

from __future__ import annotations

import logging
import math
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
import trio

from toutates.api.dataplane.everywhere import Order, Outcome
from toutates.observe.processes.report import Report, read_report
from toutates.server.options import EXIT_FAILURE, EXIT_OK, Options
from toutates.server.processes import messages
from toutates.server.processes.channel import Channel, Handlers, NoAnswer, write_frame
from toutates.server.processes.messages import Failed, Loaded, Start

__all__ = ["Process"]

logger = logging.getLogger(__name__)

#: Seconds between two reports, and how long one is waited for before the process counts as silent.
REPORT_S: Final = 1.0
SILENT_S: Final = 10.0
#: How long the last messages of a process that has ended are waited for.
_LAST_WORDS_S: Final = 1.0
#: How long statistics and indexes of one process are waited for.
READ_S: Final = 5.0


class Process:
    """The parent's side of one process. Used in the parent's Trio run.

    Args:
        number: of the process.
        options: its own.
        on_change: called when it may have become ready, or not ready.
        on_report: takes its reports.
        carry: answers a call that it wants to have carried out in all processes.
        metrics: the answer to METRICS, for an Accept field.
        on_answer_again: called when it answers after it was silent.
        stderr: the descriptor that it logs to.
        owns_ports: whether no other server may listen on REST's port.

    Attributes:
        pid: None while there is none.
        restarts: how often it was started again.
        failed: why it could not start, as it says; None if it did not say so.
        loaded: set once its first load is over.
        loaded_what: what it has loaded.
        joined: whether it is told of all that is to be done in all processes.
        serves: whether it listens.
        silent: whether it has not answered for SILENT_S.
        lacks: what others have done and it has not, by what it is about: why it is not ready.
    """

    def __init__(
        self,
        number: int,
        options: Options,
        *,
        on_change: Callable[[], None],
        on_report: Callable[[int, Report], None],
        carry: Callable[[Order], Awaitable[list[Outcome]]],
        metrics: Callable[[str], Awaitable[bytes]],
        on_answer_again: Callable[[], None],
        stderr: int,
        owns_ports: bool,
    ) -> None:
        self.number = number
        self.options = options
        self.restarts = -1
        self._on_change = on_change
        self._on_report = on_report
        self._carry = carry
        self._metrics = metrics
        self._on_answer_again = on_answer_again
        self._stderr = stderr
        self._owns_ports = owns_ports
        #: signals that it could not be told of yet
        self._signals: list[int] = []
        self.begin()

    def begin(self) -> None:
        """Forget what was known of it: it is to be started, or started again."""
        self.restarts += 1
        self.pid: int | None = None
        self._process: trio.Process | None = None
        self.failed: Failed | None = None
        self.loaded = trio.Event()
        self.loaded_what = Loaded([], [])
        self.joined = False
        self.serves = False
        self.silent = False
        self.lacks: dict[str, str] = {}
        self._state = ""
        self._channel: Channel | None = None
        #: ended before it had anything to do
        self._is_discarded = False

    @property
    def reason(self) -> str:
        """Why it is not ready, a sentence without a full stop; "" if it is."""
        if not self.serves:
            return "it is starting"
        if self.silent:
            return "it does not answer"
        return self._state or next(iter(self.lacks.values()), "")

    async def run(
        self, may_start: Callable[[], Awaitable[tuple[str, ...] | None]], join: Callable[[], Awaitable[None]]
    ) -> int:
        """Start it, and return its exit code once it has ended; minus the signal that killed it.

        Cancelled, it kills it.

        Args:
            may_start: returns once it may load its models, with ``Start.known``. Its interpreter is started before.
            join: run once it can be talked to, and cancelled when it has ended.
        """
        try:
            process, ours = await self._start()
        except OSError as error:  # the system has no process, or no descriptor, left for us
            logger.error("process %d cannot be started: %s", self.number, error)
            return EXIT_FAILURE
        self._process, self.pid = process, process.pid
        if self._is_discarded:
            self.kill()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            async with trio.open_nursery() as nursery:
                has_ended = trio.Event()
                nursery.start_soon(self._talk, stream, may_start, join, has_ended)
                code: int = await process.wait()
                with trio.move_on_after(_LAST_WORDS_S):
                    await has_ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.serves = self.joined = False
            self._channel = None
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            self._process, self.pid = None, None
        return EXIT_OK if self._is_discarded else code

    async def _start(self) -> tuple[trio.Process, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-P", "-m", "toutates.command.process", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=self._stderr,
                    env=_environment(),
                )
            except BaseException:
                ours.close()
                raise
        return process, ours

    def tell(self, name: str, body: bytes = b"") -> None:
        """Send it a notice, if it is there."""
        if self._channel is not None:
            self._channel.tell(name, body)

    def pass_on(self, number: int) -> None:
        """Have it handle a signal, once it can be talked to."""
        if self._channel is None:
            self._signals.append(number)
        self.tell(messages.SIGNAL, str(int(number)).encode())

    def stop(self, *, at_once: bool) -> None:
        """Have it drain, or end the grace; one that has not been told to load anything yet is ended at once."""
        if self._channel is None:
            self._is_discarded = True
            self.kill()
        self.tell(messages.STOP, messages.AT_ONCE if at_once else b"")

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    async def work(self, order: Order) -> Outcome:
        """Carry an order out; a change takes as long as it takes, as long as the process answers at all."""
        try:
            limit_s = math.inf if order.changes else READ_S
            answer = await self._ask(messages.DO, msgspec.msgpack.encode(order), within_s=limit_s)
            outcome = messages.OUTCOME.decode(answer)
        except (NoAnswer, msgspec.DecodeError) as error:
            return Outcome(self.number, error="Unavailable", text=str(error))
        if not outcome.error and self.lacks.pop(order.about, ""):
            self._on_change()
        outcome.process = self.number
        return outcome

    async def _ask(self, name: str, body: bytes = b"", *, within_s: float) -> bytes:
        if self._channel is None:
            raise NoAnswer("it has ended")
        if self.silent:
            raise NoAnswer("it does not answer")
        return await self._channel.ask(name, body, within_s=within_s)

    # --- what it says ------------------------------------------------------------------------------------------------

    async def _talk(
        self,
        stream: trio.SocketStream,
        may_start: Callable[[], Awaitable[tuple[str, ...] | None]],
        join: Callable[[], Awaitable[None]],
        has_ended: trio.Event,
    ) -> None:
        try:
            start = Start(self.number, self.options, await may_start(), self._owns_ports and not self.restarts)
            with suppress(trio.BrokenResourceError):  # it has ended already
                await write_frame(stream, pickle.dumps(start))
            self._channel = Channel(stream, Handlers(self._answer, self._take))
            while self._signals:
                self.pass_on(self._signals.pop(0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, self._channel)
                nursery.start_soon(join)
                await self._channel.run()
                nursery.cancel_scope.cancel()
        except* msgspec.DecodeError:
            logger.exception("process %d sends what nobody understands, and is ended", self.number)
            self.kill()
        finally:
            has_ended.set()
            with trio.CancelScope(shield=True, deadline=0):
                await stream.aclose()

    async def _watch(self, channel: Channel) -> None:
        asked = messages.WHOLE
        while True:
            try:
                answer = await channel.ask(messages.REPORT, asked, within_s=SILENT_S)
            except NoAnswer:
                asked = messages.WHOLE  # what the lost one had is not told again by itself
                if self.serves and not self.silent:
                    logger.warning(
                        "process %d (pid %s) has not answered for %.0f s: its connections may hang",
                        self.number,
                        self.pid,
                        SILENT_S,
                    )
                    self._be_silent(True)
                    channel.give_up("it does not answer")
            else:
                asked = b""
                if self.silent:
                    logger.info("process %d answers again", self.number)
                    self._be_silent(False)
                    self._on_answer_again()
                self._on_report(self.number, read_report(answer))
            await trio.sleep(REPORT_S)

    def _be_silent(self, is_silent: bool) -> None:
        self.silent = is_silent
        self._on_change()

    async def _answer(self, name: str, body: bytes) -> bytes:
        if name == messages.CARRY:
            order = messages.ORDER.decode(body)
            del body
            return msgspec.msgpack.encode(await self._carry(order))
        if name == messages.METRICS:
            return await self._metrics(body.decode("latin-1"))
        raise NoAnswer(f"the parent knows no question '{name}'")

    def _take(self, name: str, body: bytes) -> None:
        if name == messages.LOADED:
            self.loaded_what = msgspec.msgpack.decode(body, type=Loaded)
            self.loaded.set()
        elif name == messages.SERVING:
            self.serves = True
            self._on_change()
        elif name == messages.STATE:
            self._state = body.decode(errors="replace")
            self._on_change()
        elif name == messages.FAILED:
            self.failed = msgspec.msgpack.decode(body, type=Failed)


def _environment() -> dict[str, str]:
    """That of this process, with the places where its modules are; the current directory is one only if it is here."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)}
