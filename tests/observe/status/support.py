"""The HTTP side in a thread of its own, with a view of a server that is not there, and a client of few words."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from toutates.api.dataplane.plane import ServerIdentity
from toutates.h2grpc import Limits
from toutates.models.load_counters import LoadCounters
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.net.listening import bind
from toutates.observe.http.connections import ConnectionTable
from toutates.observe.http.http_thread import serving_http
from toutates.observe.status.app import make_site
from toutates.observe.view import ServerView
from toutates.system.address import Address
from toutates.system.placement import Placement

__all__ = ["Answer", "get", "http_side", "view_of"]


def view_of(
    table: ModelTable | None = None,
    *,
    workers: Sequence[Worker] = (),
    is_live: Callable[[], bool] = lambda: True,
    unready_reason: Callable[[], str] = lambda: "",
) -> ServerView:
    """A server as the HTTP side sees it; without workers of its own it has one that never runs."""
    return ServerView(
        identity=ServerIdentity("triton", "1.2.3"),
        started_s=time.time(),
        workers=workers or [Worker("worker-0", Limits())],
        infer=[],
        get_table=lambda: table or ModelTable({}),
        repositories=(),
        loading=LoadCounters(),
        dropped_log_lines=lambda: 0,
        traces=lambda: (0, 0),
        is_live=is_live,
        unready_reason=unready_reason,
    )


@contextmanager
def http_side(view: ServerView | None = None, table: ConnectionTable | None = None, **options: Any) -> Iterator[int]:
    """Serve for the block, which gets the port; ``table`` takes the connections, ``options`` are ``make_site``'s."""
    (listener,) = bind(Address("127.0.0.1", 0), "--metrics-addr")
    port: int = listener.getsockname()[1]
    begun, end = threading.Event(), threading.Event()

    async def main() -> None:
        site = partial(make_site, view or view_of(), **options)
        async with serving_http(listener, site, Placement(), table=table):
            begun.set()
            await trio.to_thread.run_sync(end.wait)

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    try:
        assert begun.wait(120)
        yield port
    finally:
        end.set()
        thread.join(120)
        assert not thread.is_alive()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        """The body."""
        return self.body.decode()


def get(port: int, path: str, method: str = "GET", *, body: str | None = None, **headers: str) -> Answer:
    """One request on a connection of its own; ``sec_fetch_site`` is the header Sec-Fetch-Site."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
