"""A connection whose requests are messages of one stream: ModelStreamInfer.

Each message gets an id of its own, by which responses are told apart, since a server may answer in another order. A
request is answered when a response has no ``triton_final_response`` or a true one, or is an error; its latency is that
of this response, and the first response of it is what can be checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from toutates.bench.answer import LOST, Answer, ConnectionFailed
from toutates.bench.client_connection import ClientConnection, Request
from toutates.protocol.grpc_service_pb2 import ModelStreamInferResponse
from toutates.system.text import shown

__all__ = ["STREAM", "StreamRequest", "StreamingConnection"]

STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_UNKNOWN: Final = 2
_STREAM_ID: Final = 1
_PREFIX: Final = 5
#: Of messages that wait for the server's windows; then requests wait with the client.
_MOST_PENDING: Final = 1 << 20
#: Requests that are sent before that is looked at again.
_AT_ONCE: Final = 64
#: The tag of ``id`` in ModelInferRequest.
_ID_TAG: Final = b"\x1a"


class StreamRequest:
    """A message that is sent again and again.

    Args:
        message: a ModelInferRequest without an id.
    """

    __slots__ = ("message",)

    def __init__(self, message: bytes) -> None:
        self.message = message


class StreamingConnection(ClientConnection):
    """A connection with one stream; see ``ClientSide``.

    Args:
        authority: host:port.
        metadata: of the stream.
        secure: whether it goes by TLS.
        names: whether messages get ids; otherwise answers are taken in the order of the requests, as Triton sends them.
    """

    def __init__(
        self, authority: str, metadata: Mapping[str, str] | None = None, *, secure: bool = False, names: bool = True
    ) -> None:
        super().__init__()
        self._names = names
        self._head = Request(STREAM, authority, b"", metadata, secure=secure)
        self._is_open = False
        self._begun = 0
        self._pending = bytearray()
        #: Of messages that are not answered, by their ids: the number, and b"" or the first response.
        self._numbers: dict[int, int] = {}
        self._first: dict[int, bytes] = {}

    @property
    def room(self) -> int:
        """How many requests can be sent now, at least."""
        return 0 if self.ended or len(self._pending) >= _MOST_PENDING else _AT_ONCE

    @property
    def under_way(self) -> Collection[int]:
        """The numbers of requests without an answer."""
        return self._numbers.values()

    def begin(self, request: StreamRequest, number: int) -> None:  # type: ignore[override]
        """Send a message, where there is room; see ``ClientSide``."""
        if not self._is_open:
            self._is_open = True
            self._next_id = _STREAM_ID + 2
            self._calls[_STREAM_ID] = 0
            self._windows[_STREAM_ID] = self._initial_window
            self._out += (self._head.headers_head, _STREAM_ID.to_bytes(4, "big"), self._head.headers)
        place = self._begun
        self._begun = place + 1
        self._numbers[place] = number
        self._first[place] = b""
        digits = b"%d" % place
        name = _ID_TAG + bytes([len(digits)]) + digits if self._names else b""
        self._pending += b"\0" + (len(request.message) + len(name)).to_bytes(4, "big")
        self._pending += request.message
        self._pending += name
        self._send_bodies()

    def _send_bodies(self) -> None:
        while self._pending:
            size = min(len(self._pending), self._window, self._windows[_STREAM_ID], self._max_frame)
            if size <= 0:
                return
            self._window -= size
            self._windows[_STREAM_ID] -= size
            piece = bytes(self._pending[:size])
            self._out += ((size << 8).to_bytes(4, "big"), b"\0", _STREAM_ID.to_bytes(4, "big"), piece)
            del self._pending[:size]

    def receive(self, data: bytes) -> Sequence[Answer]:
        """Take bytes; returns the requests that they answer.

        Raises:
            ConnectionFailed: they are not those of such a server.
        """
        answers = list(super().receive(data))
        self._take_messages(answers)
        return answers

    def _end(self, answers: list[Answer], stream_id: int, status: int) -> None:
        """The stream has ended, and all that is under way with it."""
        self._take_messages(answers)
        self._calls.pop(stream_id, None)
        self.ended = self.ended or f"the stream has ended: {self.texts.get(status) or f'status {status}'}"
        self._pending.clear()
        for place in list(self._numbers):
            self._answer(answers, place, status or LOST, b"")

    def _take_messages(self, answers: list[Answer]) -> None:
        received = self._messages.pop(_STREAM_ID, b"")
        at = 0
        while len(received) >= at + _PREFIX:
            end = at + _PREFIX + int.from_bytes(received[at + 1 : at + _PREFIX], "big")
            if len(received) < end:
                break
            self._take_message(answers, bytes(received[at + _PREFIX : end]))
            at = end
        if at < len(received):
            self._messages[_STREAM_ID] = received[at:] if at else received
        self._held = len(received) - at

    def _take_message(self, answers: list[Answer], message: bytes) -> None:
        try:
            response = ModelStreamInferResponse.FromString(message)
        except DecodeError as error:
            raise ConnectionFailed(f"a response of the stream cannot be read: {error}") from None
        inner = response.infer_response
        place = int(inner.id) if inner.id.isdecimal() and len(inner.id) < 20 else next(iter(self._numbers), -1)
        if place not in self._numbers:
            raise ConnectionFailed(f"the server answers a request {shown(inner.id)!r}, which is not under way")
        if response.error_message:
            self.texts.setdefault(_UNKNOWN, response.error_message)
            self._answer(answers, place, _UNKNOWN, b"")
            return
        if inner.outputs and not self._first[place]:
            self._first[place] = b"\0\0\0\0\0" + _inner(message)
        final = "triton_final_response"
        if final not in inner.parameters or inner.parameters[final].bool_param:
            self._answer(answers, place, 0, self._first[place])

    def _answer(self, answers: list[Answer], place: int, status: int, message: bytes) -> None:
        del self._first[place]
        answers.append((self._numbers.pop(place), status, message))


def _inner(message: bytes) -> bytes:
    """The ModelInferResponse of a ModelStreamInferResponse, which has nothing else."""
    if message[:1] != b"\x12":
        return ModelStreamInferResponse.FromString(message).infer_response.SerializeToString()
    at = 1
    while message[at] & 128:
        at += 1
    return message[at + 1 :]
