"""One process as its parent sees it, with a stand-in at the other end of a real socket pair."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from toutates.api.dataplane.everywhere import Order, Outcome
from toutates.observe.processes.report import Report
from toutates.server.options import Options
from toutates.server.processes import messages
from toutates.server.processes import process as process_module
from toutates.server.processes.channel import Channel, Handlers
from toutates.server.processes.messages import Start
from toutates.server.processes.process import Process

CHANGE = Order("RepositoryModelLoad", b"", changes=True, about="model a")


class Member:
    """The process's end: answers what it is told to, or hangs."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.channel = Channel(self.stream, Handlers(self._answer, lambda name, body: None))
        self.answers = True
        self.asked: list[bytes] = []
        self.start: Start

    async def run(self) -> None:
        head = await self.stream.receive_some(4)
        size, data = struct.unpack(">I", head)[0], b""
        while len(data) < size:
            data += await self.stream.receive_some(size - len(data))
        self.start = pickle.loads(data)
        await self.channel.run()

    async def _answer(self, name: str, body: bytes) -> bytes:
        if not self.answers:
            await trio.sleep_forever()
        if name == messages.REPORT:
            self.asked.append(body)
            return msgspec.msgpack.encode(Report([], complete=True, statistics=[]))
        return msgspec.msgpack.encode(Outcome(0, b"done"))


class Watched:
    """A process without one, and what its parent hears of it."""

    def __init__(self) -> None:
        self.reported, self.again = trio.Event(), trio.Event()
        self.process = Process(
            0,
            Options((Path("models"),)),
            on_change=lambda: None,
            on_report=lambda number, report: self.reported.set(),
            carry=self._carry,
            metrics=self._metrics,
            on_answer_again=self.again.set,
            owns_ports=True,
            stderr=2,
        )

    async def _carry(self, order: Order) -> list[Outcome]:
        return [Outcome(0, order.request)]

    async def _metrics(self, accept: str) -> bytes:
        return accept.encode()


@asynccontextmanager
async def talking() -> AsyncIterator[tuple[Watched, Member]]:
    ours, theirs = socket.socketpair()
    watched, member = Watched(), Member(theirs)

    async def may_start() -> tuple[str, ...] | None:
        return ("known",)

    async def join() -> None:
        pass

    stream: Any = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.run)
            nursery.start_soon(watched.process._talk, stream, may_start, join, trio.Event())
            await watched.reported.wait()
            yield watched, member
            nursery.cancel_scope.cancel()


def test_a_process_that_does_not_answer_is_named_and_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_be_silent_for(seconds: float) -> None:
        monkeypatch.setattr(process_module, "SILENT_S", seconds)

    monkeypatch.setattr(process_module, "REPORT_S", 0.001)
    may_be_silent_for(3.0)  # this process may stand still for a moment

    async def main() -> None:
        async with talking() as (watched, member):
            process = watched.process
            assert member.start.known == ("known",)
            assert process.reason == "it is starting"
            member.channel.tell(messages.SERVING)
            assert await process.work(CHANGE) == Outcome(0, b"done")
            assert process.reason == ""
            member.answers = False
            may_be_silent_for(0.1)
            # Once by what waits already, and once by what comes then.
            for _ in range(2):
                assert await process.work(CHANGE) == Outcome(0, error="Unavailable", text="it does not answer")
            assert process.reason == "it does not answer"
            member.answers = True
            may_be_silent_for(3.0)
            process.lacks["model a"] = "it has not done what others have"
            answered = len(member.asked)
            await watched.again.wait()
            assert member.asked[0] == member.asked[answered] == messages.WHOLE
            assert process.reason == "it has not done what others have"
            await process.work(CHANGE)
            assert process.reason == ""

    trio.run(main)


def test_a_process_can_ask_and_says_why_it_is_not_ready() -> None:
    async def main() -> None:
        async with talking() as (watched, member):
            member.channel.tell(messages.SERVING)
            member.channel.tell(messages.STATE, b"models are broken")
            order = msgspec.msgpack.encode(Order("RepositoryIndex", b"asked"))
            outcomes = messages.OUTCOMES.decode(await member.channel.ask(messages.CARRY, order))
            assert outcomes == [Outcome(0, b"asked")]
            assert await member.channel.ask(messages.METRICS, b"text/plain") == b"text/plain"
            assert watched.process.reason == "models are broken"

    trio.run(main)
