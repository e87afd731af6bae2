"""The table of methods that can be called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.status import GrpcError

__all__ = [
    "Guard",
    "HalfClose",
    "MessageHandler",
    "Method",
    "NoMethods",
    "StreamHandler",
    "Variant",
    "method_table",
]

#: Runs as a task of the driver, with what it makes of the call (``toutates.net.ServerStream``); returning ends the call
#: with OK, raising GrpcError with that status.
StreamHandler = Callable[[Any], Awaitable[None]]
#: Called with each message of a call, in order, an ``events.MessageReceived``; answers by ``Call.send``, or raises as a
#: unary handler does, which ends the call. Must not block. The call ends with OK once the client has ended it.
MessageHandler = Callable[[Any], None]
#: Called with a call whose client will send no more messages.
HalfClose = Callable[[Any], None]
#: Decides by the header list whether a method may be called: the error that refuses the call, or None. Called before
#: the request is read, for every header block that is not remembered. Must not block or raise, and must always return
#: the same for as long as it lets a block pass, and unless it returns a ``CallRefused``.
Guard = Callable[[Sequence[HeaderField]], GrpcError | None]
#: Another method that answers calls with these headers, or None. The rules of a guard apply.
Variant = Callable[[Sequence[HeaderField]], "Method | None"]


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC. Exactly one of the handlers is given.

    Attributes:
        path: ``/package.Service/Method``.
        unary: the handler of a call with one request message and one response message, a ``call.UnaryHandler``.
        stream: the handler of a call that is a stream in either direction.
        compressible: whether responses are compressed where server and client both want it.
        guard: who may call it; None for everybody.
        variant: the method that answers in its place, by the headers; None for no other.
        message: the handler of the messages of a streaming call, one by one. Such a call needs no task.
        half_close: given with ``message`` by a handler that does the flow control itself. A message is then unread
            until it calls ``ServerConnection.take_message``, which gives the window back, and it ends the call itself.
            Without it a message counts as read at once, and one of a caller who leaves too many answers unread ends
            the call.
        max_message_size: the largest message of a streaming call, bytes, if it is less than the connection's limits. A
            message that never becomes whole is kept for as long as its call is open.
    """

    path: str
    unary: Callable[[Any], None] | None = None
    stream: StreamHandler | None = None
    compressible: bool = False
    guard: Guard | None = None
    variant: Variant | None = None
    message: MessageHandler | None = None
    half_close: HalfClose | None = None
    max_message_size: int | None = None

    def __post_init__(self) -> None:
        if [self.unary, self.stream, self.message].count(None) != 2:
            raise ValueError(f"{self.path}: give either a unary, a stream or a message handler")


class NoMethods(Mapping[bytes, Method]):
    """The table of a port that carries no calls: whatever is called is refused.

    Args:
        error: that ends each call.
    """

    def __init__(self, error: GrpcError) -> None:
        self._method = Method("none", unary=lambda call: None, guard=lambda fields: error)

    def __getitem__(self, path: bytes) -> Method:
        return self._method

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def __len__(self) -> int:
        return 0


def method_table(methods: Iterable[Method]) -> Mapping[bytes, Method]:
    """Methods by the bytes of their ``:path``.

    Raises:
        ValueError: two methods share a path.
    """
    table: dict[bytes, Method] = {}
    for method in methods:
        if table.setdefault(method.path.encode(), method) is not method:
            raise ValueError(f"{method.path} is in the table twice")
    return table
