"""Who may call what: the guards of restricted protocols (``toutates.api.restrictions``).

A guard judges a call by its header block, before anything of its request is read or kept, and a call it refuses never
reaches a handler. Methods without a restriction have no guard, and pay nothing.

The verdict on a header block is remembered with the block, as all verdicts are (``h2grpc.headers``), for its connection
alone. That tells nobody anything about the secret: a block is found again by its hash, which is keyed at random, and
only where the same connection has sent all of it before. In every block that is new, values are compared in constant
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hmac import compare_digest

from toutates.api.restrictions import RestrictedProtocol
from toutates.h2grpc import GrpcError, Guard, HeaderField, Method, Status

__all__ = ["restricted"]


def restricted(methods: Iterable[Method], restrictions: Sequence[RestrictedProtocol]) -> Iterator[Method]:
    """The methods, with guards where they are restricted.

    Args:
        methods: all of them.
        restrictions: no two of the same protocol.
    """
    guards = {path: guard_of(restriction) for restriction in restrictions for path in restriction.paths}
    for method in methods:
        guard = guards.get(method.path)
        yield method if guard is None else replace(method, guard=guard)


def guard_of(restriction: RestrictedProtocol) -> Guard:
    """A guard that lets those pass who know the secret; the others get Triton's status and text."""
    name, value = restriction.header.encode(), restriction.value.encode()
    refusal = GrpcError(Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{restriction.header}'")

    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        given = [field.value for field in fields if field.name == name]
        # All of them are compared, whichever it is that is right.
        return None if any([compare_digest(candidate, value) for candidate in given]) else refusal

    return guard
