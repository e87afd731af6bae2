"""Responses as this server sends them: never cached, never guessed at, and large ones in chunks."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from toutates.observe.status.page import Page

__all__ = ["page_response", "text_response"]

#: A peer has a time for each chunk (``connections.SEND_S``), not for the whole.
CHUNK_BYTES: Final = 65_536

_HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_NO_SCRIPTS: Final = "default-src 'none'; frame-ancestors 'none'"


class _Chunked(Response):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for start in range(0, len(body), CHUNK_BYTES):
            chunk = body[start : start + CHUNK_BYTES]
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def text_response(
    body: str | bytes,
    *,
    status: int = 200,
    content_type: str = "text/plain; charset=utf-8",
    headers: dict[str, str] | None = None,
) -> Response:
    """A response that no browser takes for a page."""
    head = {**_HEADERS, "content-security-policy": _NO_SCRIPTS, "content-type": content_type, **(headers or {})}
    return _Chunked(body, status, head)


def page_response(page: Page) -> Response:
    """A page under its own policy."""
    head = {**_HEADERS, "content-security-policy": page.policy, "content-type": "text/html; charset=utf-8"}
    return _Chunked(page.html, 200, head)
