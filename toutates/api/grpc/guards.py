"""The guards of restricted protocols (``toutates.api.restrictions``).

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

from toutates.api.restrictions import RestrictedProtocol
from toutates.h2grpc import GrpcError, Guard, HeaderField, Method, Status

__all__ = ["restricted"]


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


def guard_of(restriction: RestrictedProtocol) -> Guard:
    """A guard that lets callers with the secret pass, and refuses others with Triton's status and text."""
    name, value = restriction.header.encode(), restriction.value.encode()
    refusal = GrpcError(Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{restriction.header}'")

    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        given = [field.text for field in fields if field.name == name]
        # All values are compared, also after one that matches: the time taken must not tell which one did.
        return None if any([compare_digest(candidate, value) for candidate in given]) else refusal

    return guard
