"""CORS: pages of other origins that may read this server's answers (Fetch Standard, section 3.3 "CORS protocol").

Browsers ask first whether a page may send what it wants to send, without any key: that is answered here, before
whatever the request itself has to bring. No cookie means anything to this server, so none is let through
(``access-control-allow-credentials``): a page gives its key in ``authorization``, as every client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from toutates.api.rest.answers import Answer
from toutates.api.rest.calls import RestHttpCall
from toutates.http1 import Head, Refused, Responder, encode_fields
from toutates.protocol.rest.lengths import HEADER_LENGTH

__all__ = ["ANY", "CrossOrigin"]

#: In the place of an origin: all of them.
ANY: Final = "*"
#: For how long a browser need not ask again, seconds; Chromium forgets after two hours.
_MAX_AGE_S: Final = 7_200
_VARY: Final = b"vary: origin\r\n"
_METHOD: Final = "access-control-request-method"
_HEADERS: Final = "access-control-request-headers"
_NAMES: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]+")


class CrossOrigin:
    """Which pages may.

    Args:
        origins: as browsers name them, such as https://app.example; or ANY alone.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        # The star stands for all header fields of answers, those of models' handlers too. Our own is named beside it
        # for browsers that do not know it.
        exposed = {"access-control-expose-headers": f"{HEADER_LENGTH}, *"}
        self._fields = {
            origin: encode_fields({"access-control-allow-origin": origin, **exposed})
            + (b"" if origin == ANY else _VARY)
            for origin in origins
        }
        #: for pages that may not, and for what is no page: a cache must not give them the others' answers
        self._others = self._fields.get(ANY, _VARY)

    def fields_of(self, head: Head) -> bytes:
        """The header fields that every answer to a request has."""
        return self._fields.get(head.fields.get("origin", ""), self._others)

    def preflight(self, head: Head) -> Answer | None:
        """The answer to a browser that asks what a page may send; None for any other request."""
        fields = head.fields
        if head.method != "OPTIONS" or _METHOD not in fields or "origin" not in fields:
            return None
        if self.fields_of(head) is _VARY:
            return None  # it may not, so there is nothing to say that a browser would need
        allowed = {"access-control-max-age": str(_MAX_AGE_S)}
        # What a path does not take is refused when it comes.
        for asked, answered in ((_METHOD, "access-control-allow-methods"), (_HEADERS, "access-control-allow-headers")):
            if _NAMES.fullmatch(fields.get(asked, "")):
                allowed[answered] = fields[asked]
        return Answer(204, encode_fields(allowed), b"")

    @property
    def call_class(self) -> type[RestHttpCall]:
        """Of requests whose answers have these fields."""
        cross_origin = self

        class CrossOriginCall(RestHttpCall):
            __slots__ = ()

            def __init__(self, head: Head, body: bytes | bytearray, responder: Responder) -> None:
                super().__init__(head, body, _WithFields(responder, cross_origin.fields_of(head)))

        return CrossOriginCall


class _WithFields:
    """A ``Responder`` for one request, which adds header fields to its answer."""

    __slots__ = ("_fields", "_responder", "finish", "send", "write_refusal")

    def __init__(self, responder: Responder, fields: bytes) -> None:
        self._responder = responder
        self._fields = fields
        self.send = responder.send
        self.finish = responder.finish
        self.write_refusal: Callable[[Refused], tuple[bytes, bytes]] = responder.write_refusal

    @property
    def link(self) -> Any:
        return self._responder.link

    @property
    def owner(self) -> Any:
        return self._responder.owner

    def reply(self, request: Any, parts: Sequence[bytes | memoryview], length: int) -> None:
        self._responder.reply(request, (self._fields + bytes(parts[0]), *parts[1:]), length)

    def respond(self, request: Any, status: int, fields: bytes, body: bytes) -> None:
        self._responder.respond(request, status, fields + self._fields, body)

    def respond_in_parts(self, request: Any, fields: bytes, parts: Sequence[bytes], length: int) -> None:
        self._responder.respond_in_parts(request, fields + self._fields, parts, length)

    def begin(self, request: Any, status: int, fields: bytes) -> None:
        self._responder.begin(request, status, fields + self._fields)
