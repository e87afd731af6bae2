"""What watches the server: its HTTP side, and the dump that SIGUSR2 asks for."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from toutates.access.gate import Gate
from toutates.access.pages import WebPages
from toutates.observe.debug.debug_dump import dump, this_run
from toutates.observe.view import ServerView
from toutates.system.address import Address
from toutates.system.logs.recent import RecentWarning
from toutates.system.logs.setup import Logs
from toutates.system.placement import Placement

if TYPE_CHECKING:
    from toutates.observe.http.http_thread import Stop

__all__ = ["Monitoring"]

logger = logging.getLogger(__name__)


class Monitoring:
    """Serves the HTTP side, and writes dumps to the log. Made and used on the main thread, within its Trio run.

    Args:
        view: of the server.
        logs: have the last warnings, and take dumps.
    """

    def __init__(self, view: ServerView, logs: Logs) -> None:
        self._view = view
        self._logs = logs
        self._main = this_run("main")
        self._dumping = False
        self._stop: Stop | None = None

    def serving(
        self,
        listener: socket.socket | None,
        placement: Placement,
        *,
        debug_for_all: bool,
        pages: WebPages,
        more_warnings: Callable[[], Iterable[RecentWarning]] = tuple,
        gate: Gate | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> AbstractAsyncContextManager[None]:
        """Serve metrics, probes, the status page and /debug for as long as the block lasts.

        Args:
            listener: of the HTTP side; None where it is off.
            placement: where its thread runs.
            debug_for_all: whether /debug answers to other machines too.
            pages: know the names by which callers on this machine may ask.
            more_warnings: the last ones of other logs.
            gate: knows callers; None lets everybody in.
            tls: the context for connections to come; None for plaintext.
        """
        if listener is None:
            return nullcontext()
        # Here, because a server without an HTTP side needs none of it.
        from toutates.observe.http.http_thread import Stop, serving_http
        from toutates.observe.http.site import Site
        from toutates.observe.metrics.exposition import Exposition
        from toutates.observe.status.app import make_site

        host, port = listener.getsockname()[:2]
        scheme = "http" if tls() is None else "https"
        page = f"{scheme}://{Address('localhost' if host in ('0.0.0.0', '::') else host, port)}/"
        logger.info("status page on %s, metrics on %smetrics", page, page)

        def warnings() -> list[RecentWarning]:
            return sorted((*self._logs.recent.latest(), *more_warnings()), key=lambda one: one.time_s)

        def make() -> Site:
            return make_site(
                self._view,
                Exposition(self._view),
                warnings,
                [self._main],
                debug_for_all=debug_for_all,
                gate=gate,
                pages=pages,
            )

        self._stop = stop = Stop()
        return serving_http(listener, make, placement, tls, stop)

    def leave(self) -> None:
        """Have clients told that the server is about to stop."""
        if self._stop is not None:
            self._stop.leave()

    async def log_dump(self) -> None:
        """Write to the log what the server is doing; nothing while another dump is being made."""
        if not self._dumping:
            self._dumping = True
            try:
                self._logs.write("monitoring", "SIGUSR2: " + await dump(self._view, [self._main]))
            finally:
                self._dumping = False
