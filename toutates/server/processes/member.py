"""One of several processes, as it hears from its parent and tells it of itself."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import trio

from toutates.api.dataplane.everywhere import LocalCalls, Order, Outcome
from toutates.models.table import ModelTable
from toutates.observe.processes.report import Report, Reporter
from toutates.observe.view import ServerView
from toutates.repositories.control.model_control import ModelControl
from toutates.server.processes import messages
from toutates.server.processes.channel import Channel, Handlers, NoAnswer
from toutates.server.processes.messages import Loaded, Start
from toutates.server.shutdown import Shutdown
from toutates.system.errors import Unavailable
from toutates.system.logs.setup import Logs
from toutates.system.text import writable

__all__ = ["Member"]

logger = logging.getLogger(__name__)

#: How long other processes' metrics are waited for.
METRICS_S: Final = 5.0
#: How long their text is kept; what it is made of changes once a second.
METRICS_KEPT_S: Final = 0.5


class Member:
    """The parent's side of this process. Used on the main thread, but for ``reason``.

    Args:
        start: what the parent has said first.
        sock: to the parent; it stays the caller's.
        logs: of this process.

    Attributes:
        number: of this process.
        is_alone: whether nobody serves on REST's port while it starts.
    """

    def __init__(self, start: Start, sock: socket.socket, logs: Logs) -> None:
        self.number, self.is_alone = start.number, start.is_alone
        self._others = "the server is starting"
        self._sock = sock
        self._logs = logs
        self._may_serve = trio.Event()
        self._reporter: Reporter | None = None
        self._calls: LocalCalls | None = None
        self._control: ModelControl | None = None
        self._polling = False
        self._metrics_turn = trio.Lock()
        #: by Accept field when it was made, its media type, and the text
        self._metrics: dict[str, tuple[float, str, bytes]] = {}
        self._channel: Channel
        self._nursery: trio.Nursery
        self._shutdown: Shutdown
        self._signalled: Callable[[int], None]
        self._on_others: Callable[[], None] = lambda: None

    async def run(
        self,
        shutdown: Shutdown,
        signalled: Callable[[int], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Talk to the parent until cancelled. Its end is the end of this process.

        Args:
            shutdown: of this server.
            signalled: called with the number of a signal that the parent passes on.
            task_status: told once the parent can be talked to.
        """
        self._shutdown, self._signalled = shutdown, signalled
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(self._sock.dup()))
        self._channel = Channel(stream, Handlers(self._answer, self._take))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await self._channel.run()
            logger.critical("the parent process has ended, and so does this one")
            shutdown.leaving.set()
            shutdown.begun.set()
            shutdown.grace_ended.set()

    # --- what the server tells ---------------------------------------------------------------------------------------

    def reason(self) -> str:
        """Why the server as a whole is not ready, as the parent has said last; "" if it is. Any thread may call it."""
        return self._others

    def watch(self, view: ServerView, on_others: Callable[[], None]) -> None:
        """From now on this can be told of; ``on_others`` is called when the parent has said another ``reason``."""
        self._reporter = Reporter(view, self._logs.recent)
        self._on_others = on_others

    def tell_state(self, reason: str) -> None:
        """Why this process is not ready by itself; "" if it is."""
        self._channel.tell(messages.STATE, writable(reason).encode())

    async def join(self, table: ModelTable, reason: str, calls: LocalCalls, control: ModelControl) -> bool:
        """The first load is over: do what was done in the others, and wait until all may serve.

        Args:
            table: of the models.
            reason: why they keep this process from being ready.
            calls: carries out what the parent asks for.
            control: polls when the parent says so.

        Returns:
            Whether to serve; False if the shutdown has begun.
        """
        self._calls, self._control = calls, control
        names = [writable(name) for name in table.models]
        self.tell_state(reason)
        loaded = Loaded(names, [one.text for one in self._logs.recent.latest()])
        self._channel.tell(messages.LOADED, msgspec.msgpack.encode(loaded))
        await self._until_shutdown(self._may_serve.wait)
        self._logs.only_news(None)
        return not self._shutdown.begun.is_set()

    def tell_serving(self) -> None:
        """This process listens."""
        self._channel.tell(messages.SERVING)

    # --- what it asks ------------------------------------------------------------------------------------------------

    async def carry(self, order: Order) -> Sequence[Outcome]:
        """Have a call carried out in all processes.

        Raises:
            Unavailable: the parent does not do it.
        """
        try:
            return messages.OUTCOMES.decode(await self._channel.ask(messages.CARRY, msgspec.msgpack.encode(order)))
        except NoAnswer as error:
            raise Unavailable(f"the other processes of the server cannot be asked: {error}") from None

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        """The media type and the text of /metrics, of all processes.

        Raises:
            Unavailable: the parent does not answer.
        """
        async with self._metrics_turn:
            made_s, content_type, text = self._metrics.get(accept, (-math.inf, "", b""))
            if trio.current_time() - made_s < METRICS_KEPT_S:
                return content_type, text
            try:
                asked = accept.encode("latin-1", "replace")
                answer = await self._channel.ask(messages.METRICS, asked, within_s=METRICS_S)
            except NoAnswer as error:
                raise Unavailable(f"the metrics of all processes cannot be had: {error}") from None
            head, _, text = answer.partition(b"\n")
            # One text: whoever asks for another format takes its place.
            self._metrics = {accept: (trio.current_time(), head.decode(), text)}
            return head.decode(), text

    # --- what the parent says ----------------------------------------------------------------------------------------

    async def _answer(self, name: str, body: bytes) -> bytes:
        if name == messages.REPORT:
            return await self._report(whole=body == messages.WHOLE)
        if name == messages.DO:
            order = messages.ORDER.decode(body)
            del body
            if self._calls is None:
                raise NoAnswer("it is still starting")
            return msgspec.msgpack.encode(await self._calls.answer(order))
        raise NoAnswer(f"it knows no question '{name}'")

    async def _report(self, *, whole: bool) -> bytes:
        if self._reporter is None:
            return msgspec.msgpack.encode(Report(None, False, []))
        pieces = []
        for piece in self._reporter.pieces(whole=whole):
            pieces.append(piece)
            await trio.lowlevel.checkpoint()
        return b"".join(pieces)

    def _take(self, name: str, body: bytes) -> None:
        if name == messages.SERVE:
            self._others = body.decode()
            self._may_serve.set()
        elif name == messages.READY:
            self._others = body.decode()
            self._on_others()
        elif name == messages.POLL:
            if self._control is not None and not self._polling and not self._shutdown.begun.is_set():
                self._nursery.start_soon(self._poll, self._control)
        elif name == messages.SIGNAL:
            self._signalled(int(body))
        elif name == messages.STOP:
            # Not Shutdown.request: a terminal, or systemd, may have sent the signal to this process too.
            self._shutdown.begin()
            if body == messages.AT_ONCE:
                self._shutdown.begun.set()
                self._shutdown.grace_ended.set()

    async def _poll(self, control: ModelControl) -> None:
        self._polling = True
        try:
            await self._until_shutdown(control.poll_once)
        finally:
            self._polling = False

    async def _until_shutdown(self, wait: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:

            async def cancel_when_stopping() -> None:
                await self._shutdown.begun.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_when_stopping)
            await wait()
            nursery.cancel_scope.cancel()
