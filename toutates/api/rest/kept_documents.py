"""Documents that are made on the main thread when they are first asked for, and kept for all workers.

A worker answers with one that is there. Where none still holds, the worker's first caller has it made, and those after
it wait with it, until that begins: a document is never older than the request for it. Whoever has a document already,
by its ETag, is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Protocol

import trio

from toutates.api.control_queue import ControlQueue
from toutates.api.rest.answers import refusal
from toutates.api.rest.calls import RestHttpCall
from toutates.http1 import encode_fields
from toutates.net import Worker
from toutates.system.errors import RequestError

__all__ = ["Document", "DocumentPage", "DocumentSource", "make_document"]

#: Bytes of a part of a document, or more: joining that many takes less than a millisecond.
PART_BYTES: Final = 262_144
#: Callers answered at once; the next ones follow once others have had their turn.
ANSWERED_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it is sent.

    Attributes:
        fields: header fields, which hold for 304 as well.
        kind: the field that says what the body is.
        etag: with its quotation marks.
        parts: the body.
        size: its bytes.
    """

    fields: bytes
    kind: bytes
    etag: str
    parts: tuple[bytes, ...]
    size: int


class DocumentSource(Protocol):
    """What has a document."""

    def current(self) -> Document | None:
        """The document, if it has been made and still holds. May be called in any thread."""
        ...

    async def make(self) -> Document:
        """Make the document. Called on the main thread, by many at a time."""
        ...


async def make_document(
    pieces: Iterable[bytes], media_type: str, fields: Mapping[str, str] = MappingProxyType({})
) -> Document:
    """Make a document of its pieces, with others running in between.

    Args:
        pieces: of the body.
        media_type: of the body.
        fields: header fields beside those that all documents have.
    """
    digest = sha256()
    parts: list[bytes] = []
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            parts.append(b"".join(waiting))
            digest.update(parts[-1])
            waiting, size = [], 0
        # Trio asks the kernel for news here, without the GIL: a worker that waits for it gets it.
        await trio.lowlevel.checkpoint()
    parts.append(b"".join(waiting))
    digest.update(parts[-1])
    etag = f'"{digest.hexdigest()[:32]}"'
    # Browsers and proxies may keep it, and ask each time whether it still holds.
    common = {
        "etag": etag,
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
    }
    return Document(
        encode_fields({**common, **fields}),
        encode_fields({"content-type": media_type}),
        etag,
        tuple(parts),
        sum(map(len, parts)),
    )


@dataclass(slots=True)
class DocumentPage:
    """Answers GET and HEAD for a document. Used by one worker.

    Args:
        worker: it.
        queue: brings requests to the main thread.
        source: has the document.
    """

    worker: Worker
    queue: ControlQueue
    source: DocumentSource
    #: calls for which making the document has not begun; the main thread sets it to None then
    _waiting: list[RestHttpCall] | None = None

    def __call__(self, call: RestHttpCall) -> None:
        """Answer a request."""
        document = self.source.current()
        if document is not None:
            _answer(call, document)
            return
        waiting = self._waiting
        if waiting is not None:
            waiting.append(call)
            return
        self._waiting = calls = [call]
        self.queue.put(self.worker, b"", partial(self._make, calls), partial(self._fail, calls))

    async def _make(self, calls: list[RestHttpCall], _: bytes) -> Callable[[], None]:
        self._let_go_of(calls)
        document = await self.source.make()
        return partial(self._answer_all, calls, lambda call: _answer(call, document))

    def _let_go_of(self, calls: list[RestHttpCall]) -> None:
        if self._waiting is calls:
            self._waiting = None

    def _fail(self, calls: list[RestHttpCall], error: RequestError) -> None:
        self._let_go_of(calls)
        self._answer_all(calls, lambda call: call.reply(*refusal(error)))

    def _answer_all(self, calls: list[RestHttpCall], answer: Callable[[RestHttpCall], None], at: int = 0) -> None:
        """On the worker's thread: answer the calls from ``at`` on."""
        end = at + ANSWERED_AT_ONCE
        for call in calls[at:end]:
            answer(call)
        if end < len(calls):
            self.worker.call_soon(partial(self._answer_all, calls, answer, end))


def _answer(call: RestHttpCall, document: Document) -> None:
    if _has(call.head.fields.get("if-none-match", ""), document.etag):
        call.reply(304, document.fields, b"")
    else:
        call.reply_in_parts(document.fields + document.kind, document.parts, document.size)


def _has(known: str, etag: str) -> bool:
    """Whether If-None-Match names a document (RFC 9110 section 13.1.2)."""
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    return etag in tags or tags == ["*"]
