"""What the ports of the workers serve over HTTP/1.1 beside REST: /metrics and the server's health, as they are on the
address of the HTTP side, and the pages of ``openapi``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from toutates.api.control_queue import ControlQueue
from toutates.api.rest.answers import refusal
from toutates.api.rest.calls import RestHttpCall
from toutates.net import Worker
from toutates.observe.view import ServerView, health_answer
from toutates.server.openapi import OpenApiPages
from toutates.system.errors import RequestError

if TYPE_CHECKING:
    from toutates.observe.metrics.texts import MetricsTexts

__all__ = ["Pages"]

_TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n"


class Pages:
    """Makes the answers. The text of /metrics is made on the main thread, in small pieces, and kept for a while.

    Args:
        view: of the server.
        queue: brings requests to the main thread.
        openapi: /openapi.json and /docs.
        metrics: where there are other processes, returns the media type and the text of /metrics of all, for an Accept
            field.
    """

    def __init__(
        self,
        view: ServerView,
        queue: ControlQueue,
        openapi: OpenApiPages,
        metrics: Callable[[str], Awaitable[tuple[str, bytes]]] | None = None,
    ) -> None:
        self._view = view
        self._queue = queue
        self._openapi = openapi
        self._metrics_of_all = metrics
        #: made for the first request, on the main thread
        self._texts: MetricsTexts | None = None

    def of(self, worker: Worker) -> Mapping[str, Callable[[RestHttpCall], None]]:
        """What answers GET and HEAD, by path."""
        view = self._view
        return {
            "/metrics": partial(self._metrics, worker),
            "/health/live": _health("live", lambda: "" if view.is_live() else "the server is shutting down"),
            "/health/ready": _health("ready", view.unready_reason, tells=not self._openapi.callers_are_known),
            **self._openapi.of(worker),
        }

    def _metrics(self, worker: Worker, call: RestHttpCall) -> None:
        self._queue.put(worker, b"", partial(self._text, call), partial(_fail, call))

    async def _text(self, call: RestHttpCall, _: bytes) -> Callable[[], None]:
        accept = call.head.fields.get("accept", "")
        if self._metrics_of_all is not None:
            return _metrics_answer(call, *await self._metrics_of_all(accept))
        if self._texts is None:
            # Here, because a server that nobody asks for metrics needs none of it.
            from toutates.observe.metrics.exposition import Exposition
            from toutates.observe.metrics.texts import MetricsTexts

            metrics = Exposition(self._view)
            self._queue.nursery.start_soon(metrics.run)
            self._texts = MetricsTexts(metrics)
        return _metrics_answer(call, *await self._texts.get(accept))


def _metrics_answer(call: RestHttpCall, content_type: str, text: bytes) -> Callable[[], None]:
    return partial(call.reply, 200, f"content-type: {content_type}\r\nvary: accept\r\n".encode(), text)


def _health(state: str, problem: Callable[[], str], *, tells: bool = True) -> Callable[[RestHttpCall], None]:
    def answer(call: RestHttpCall) -> None:
        status, text = health_answer(state, problem(), tells=tells)
        call.reply(status, _TEXT, text.encode())

    return answer


def _fail(call: RestHttpCall, error: RequestError) -> None:
    call.reply(*refusal(error))
