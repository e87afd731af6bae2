"""The guards of restricted protocols (``toutates.api.restrictions``), and of RPCs that change the server.

A guard judges a call by its header block, before its request is read or kept. A call that it refuses does not reach a
handler. Methods without a restriction have no guard, and pay nothing.

The verdict on a header block is remembered with the block, for its connection alone, like all verdicts
(``h2grpc.headers``). That reveals nothing about the secret: a block is found again by a hash that is keyed at random,
and only where the same connection has sent the whole block before. Values of a new block are compared in constant time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hmac import compare_digest

from toutates.access.pages import WebPages
from toutates.api.restrictions import CHANGES, RestrictedProtocol
from toutates.h2grpc import GrpcError, Guard, HeaderField, Method, Status, text_of, texts_of
from toutates.system.errors import Forbidden

__all__ = ["closed_to_pages", "restricted"]


def restricted(methods: Iterable[Method], restrictions: Sequence[RestrictedProtocol]) -> Iterator[Method]:
    """Give the restricted ones of some methods a guard.

    Args:
        methods: all methods.
        restrictions: what is restricted; no two of them restrict the same protocol.
    """
    guards = {path: guard_of(restriction) for restriction in restrictions for path in restriction.paths}
    for method in methods:
        guard = guards.get(method.path)
        yield method if guard is None else replace(method, guard=guard)


def closed_to_pages(methods: Iterable[Method], web: WebPages) -> Iterator[Method]:
    """Give those of some methods that can change the server a guard, which is asked before any other.

    Browsers reach gRPC's paths too: pages of ``--cors-origin`` by HTTP/2 with TLS, others by a proxy for gRPC-Web.

    Args:
        methods: all methods.
        web: which pages may change the server.
    """
    for method in methods:
        yield replace(method, guard=_for_pages(web, method.guard)) if method.path in CHANGES else method


def _for_pages(web: WebPages, inner: Guard | None) -> Guard:
    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        texts = {field[0].decode("latin-1"): text_of(field).decode("latin-1") for field in fields}
        texts.setdefault("host", texts.get(":authority", ""))
        try:
            web.check_change(texts)
        except Forbidden as error:
            return GrpcError(Status.PERMISSION_DENIED, str(error))
        return None if inner is None else inner(fields)

    return guard


def guard_of(restriction: RestrictedProtocol) -> Guard:
    """A guard that lets callers with the secret pass, and refuses others with Triton's status and text."""
    name, value = restriction.header.encode(), restriction.value.encode()
    refusal = GrpcError(Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{restriction.header}'")

    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        given = texts_of(fields, name)
        # All values are compared, also after one that matches: the time taken must not tell which one did.
        return None if any([compare_digest(candidate, value) for candidate in given]) else refusal

    return guard
