"""Making the parts of one connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toutates.h2grpc.call import Call
from toutates.h2grpc.deadlines import Deadlines
from toutates.h2grpc.goodbye import Goodbye
from toutates.h2grpc.header_blocks import HeaderBlocks
from toutates.h2grpc.headers import HeaderReader
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.method import Method
from toutates.h2grpc.output import Output
from toutates.h2grpc.plain import Admit, PlainRequests
from toutates.h2grpc.read_buffer import ReadBuffer
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.requests import Requests
from toutates.h2grpc.responder import Responder
from toutates.h2grpc.response_queue import ResponseQueue
from toutates.h2grpc.settings import Settings
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.spending import Spending
from toutates.h2grpc.stream_table import StreamTable
from toutates.h2grpc.windows import Windows

__all__ = ["Parts"]


class Parts:
    """The parts of one connection. ``ServerConnection``, ``FrameLoop`` and ``Receiver`` take those that they need.

    No part refers to the connection, so reference counts free all of it, without the garbage collector. The Args are
    those of ``ServerConnection``.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        dirty: list[Any],
        response_encoding: str,
        shared: Shared,
        admit: Admit | None,
    ) -> None:
        self.limits = limits
        self.shared = shared
        self.output = Output(dirty)
        self.settings = Settings(limits, self.output)
        self.windows = Windows(limits, self.output)
        self.table: StreamTable[Call] = StreamTable(limits, shared.budget)
        self.queue = ResponseQueue(self.windows, self.settings, self.output, shared.budget)
        self.held = RequestMemory(limits, shared.budget)
        self.responder = Responder(self.output, self.settings, self.windows, self.table, self.queue, self.held, shared)
        self.plain = PlainRequests(
            limits,
            self.settings,
            self.table,
            self.windows,
            self.held,
            self.responder,
            shared,
        )
        self.requests = Requests(limits, self.held, self.responder, shared, self.plain)
        self.blocks = HeaderBlocks(limits, shared.budget)
        self.header_reader = HeaderReader(methods, limits, response_encoding, admit, shared.budget)
        self.deadlines = Deadlines()
        self.goodbye = Goodbye(self.table, self.settings, self.output)
        self.spending = Spending(limits)
        self.unread = ReadBuffer(shared.budget)
