"""Calls and their transport as the path of an inference knows them, and a clock that tests turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from toutates.infer.reading import request_id
from toutates.protocol.grpc_service_pb2 import ModelInferResponse
from toutates.system.errors import RequestError

__all__ = ["PEER", "KnownCall", "KnownTransport", "Status", "Turned"]

PEER = "192.0.2.1:5"


class Turned:
    """A clock that tests turn; it stands in for the module ``time``."""

    def __init__(self, now_ns: int = 1_000) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return 7_000_000 + self.now_ns


class Status(IntEnum):
    FINE = 0
    WRONG = 1


@dataclass(eq=False)
class KnownCall:
    """All that the path of an inference knows of a call; it is its own responder."""

    buffer: bytes = b""
    start: int = 0
    end: int = 0
    open: bool = True
    deadline_ns: int = 10**18
    context: Any = None
    answer: bytes | None = None
    breaks: int = 0  # answers that fail before one succeeds
    head: Any = None

    @property
    def responder(self) -> KnownCall:
        return self

    def reply(self, call: KnownCall, parts: Sequence[Any], length: int) -> None:
        assert call is self
        self._break()
        assert self.open
        self.answer = b"".join(parts)
        assert len(self.answer) == length
        self.open = False

    def fail(self) -> None:
        self._break()
        self.open = False

    def _break(self) -> None:
        if self.breaks:
            self.breaks -= 1
            raise ValueError("a bug")

    @property
    def response(self) -> ModelInferResponse:
        assert self.answer is not None
        return ModelInferResponse.FromString(self.answer)

    def values(self, dtype: Any = np.int32) -> list[list[int]]:
        """The numbers of each output."""
        return [np.frombuffer(raw, dtype).tolist() for raw in self.response.raw_output_contents]


@dataclass
class KnownTransport:
    """A transport that notes what it is asked for."""

    failed: list[tuple[KnownCall, type[RequestError], str]] = field(default_factory=list)
    ended: list[KnownCall] = field(default_factory=list)
    traced: tuple[str, str] = ("00-a", "x=1,y=2")
    held_bytes: int = 0

    def fail(self, call: KnownCall, error: RequestError) -> None:
        call.fail()
        self.failed.append((call, type(error), str(error)))

    def end_connection(self, call: KnownCall, error: Exception) -> None:
        self.ended.append(call)

    def status_of(self, error: type[RequestError] | None) -> Status:
        return Status.FINE if error is None else Status.WRONG

    def request_id(self, id_field: bytes) -> str:
        return request_id(id_field)

    def peer(self, call: object) -> str:
        return PEER

    def hold(self, call: object, size: int) -> None:
        self.held_bytes += size

    def trace_context(self, call: object) -> tuple[str, str]:
        return self.traced
