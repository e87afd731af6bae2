"""Calls that the main thread answers: the way there and back, and what bounds it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from toutates.api import control_queue as module
from toutates.api.control_queue import ControlQueue
from toutates.api.grpc.main_thread import on_main_thread
from toutates.h2grpc import Status, UnaryHandler
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import InvalidRequest, Unavailable

Response = pb.RepositoryModelUnloadResponse
Answer = Callable[[pb.RepositoryModelUnloadRequest], Awaitable[Response]]
REQUEST = pb.RepositoryModelUnloadRequest(model_name="m").SerializeToString()
EXITING = (Status.UNAVAILABLE, "Server exiting")


class Asked:
    """A call, and the answer that came: bytes, or a status and its text."""

    def __init__(self, message: bytes = REQUEST) -> None:
        self.message = message
        self.start, self.end = 0, len(message)
        self.came = trio.Event()
        self.answer: Any = None

    def reply(self, message: bytes) -> None:
        self.answer = message
        self.came.set()

    def fail(self, status: Status, text: str) -> None:
        self.answer = status, text
        self.came.set()


class AtOnce:
    """A worker whose turn is always, and whose rounds end at once."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def at_round_end(self, callback: Callable[[], None]) -> None:
        callback()


def handler_of(queue: ControlQueue, answer: Answer, **options: Any) -> UnaryHandler:
    worker: Any = AtOnce()
    return on_main_thread(queue, worker, pb.RepositoryModelUnloadRequest, answer, **options)


def ask(handler: UnaryHandler, message: bytes = REQUEST) -> Asked:
    asked: Any = Asked(message)
    handler(asked)
    answered: Asked = asked
    return answered


def in_queue(check: Callable[[ControlQueue], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await check(ControlQueue(nursery))

    trio.run(main)


@pytest.mark.parametrize("large", [False, True])
def test_a_call_gets_what_its_function_returns(large: bool) -> None:
    async def answer(request: pb.RepositoryModelUnloadRequest) -> Response:
        assert request.model_name == "m"
        await trio.lowlevel.checkpoint()
        return Response()

    async def check(queue: ControlQueue) -> None:
        asked = ask(handler_of(queue, answer, large=large))
        await asked.came.wait()
        assert asked.answer == b""

    in_queue(check)


class InRounds(AtOnce):
    """A worker whose round ends when the test says so."""

    def __init__(self) -> None:
        self.round_end: list[Callable[[], None]] = []

    def at_round_end(self, callback: Callable[[], None]) -> None:
        self.round_end.append(callback)


def test_the_main_thread_is_woken_once_for_the_calls_of_a_round() -> None:
    woken: list[Callable[..., object]] = []

    class Token:
        def run_sync_soon(self, callback: Callable[..., object], *arguments: object) -> None:
            woken.append(callback)
            callback(*arguments)

    async def answer(request: pb.RepositoryModelUnloadRequest) -> Response:
        return Response()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            token: Any = Token()
            worker: Any = InRounds()
            handler = on_main_thread(
                ControlQueue(nursery, token=token), worker, pb.RepositoryModelUnloadRequest, answer
            )
            for _ in range(2):
                calls = [ask(handler) for _ in range(3)]
                assert not woken
                [end] = worker.round_end
                end()
                for call in calls:
                    await call.came.wait()
                assert len(woken) == 1
                worker.round_end, woken[:] = [], []

    trio.run(main)


@pytest.mark.parametrize(
    ("raised", "answer"),
    [
        (InvalidRequest("no such thing"), (Status.INVALID_ARGUMENT, "no such thing")),
        (ValueError("secret"), (Status.INTERNAL, "internal error")),
    ],
)
def test_a_call_gets_the_status_of_what_its_function_raises(raised: Exception, answer: tuple[Status, str]) -> None:
    async def fail(request: pb.RepositoryModelUnloadRequest) -> Response:
        raise raised

    async def check(queue: ControlQueue) -> None:
        asked = ask(handler_of(queue, fail))
        await asked.came.wait()
        assert asked.answer == answer

    in_queue(check)


async def never(request: pb.RepositoryModelUnloadRequest) -> Response:
    await trio.sleep_forever()


def test_a_message_that_cannot_be_parsed_is_an_internal_error() -> None:
    async def check(queue: ControlQueue) -> None:
        asked = ask(handler_of(queue, never), b"\x0a\xff")
        await asked.came.wait()
        assert asked.answer[0] is Status.INTERNAL
        assert "not a RepositoryModelUnloadRequest" in asked.answer[1]

    in_queue(check)


def test_the_worker_refuses_what_the_main_thread_need_not_hear_of() -> None:
    def refuse() -> None:
        raise Unavailable("not here")

    async def check(queue: ControlQueue) -> None:
        with pytest.raises(Unavailable, match="not here"):
            ask(handler_of(queue, never, refuse=refuse))
        with pytest.raises(InvalidRequest, match="is too large"):
            ask(handler_of(queue, never), bytes(65_537))

    in_queue(check)


def test_as_many_calls_wait_as_may_and_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    too_many = (Status.RESOURCE_EXHAUSTED, "too many changes of models are waiting; try again later")

    async def check(queue: ControlQueue) -> None:
        monkeypatch.setattr(module, "MAX_WAITING", 2)
        handler = handler_of(queue, never)
        waiting = [ask(handler), ask(handler)]
        refused = ask(handler)
        await refused.came.wait()
        assert refused.answer == too_many
        monkeypatch.setattr(module, "MAX_WAITING", 100)
        monkeypatch.setattr(module, "MAX_WAITING_BYTES", 3 * len(REQUEST))
        waiting.append(ask(handler))
        refused = ask(handler)
        await refused.came.wait()
        assert refused.answer == too_many
        assert [asked.answer for asked in waiting] == [None] * 3
        queue.close()
        assert [asked.answer for asked in waiting] == [EXITING] * 3

    in_queue(check)


def test_room_comes_back_with_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 1)

    async def answer(request: pb.RepositoryModelUnloadRequest) -> Response:
        return Response()

    async def check(queue: ControlQueue) -> None:
        for _ in range(3):
            asked = ask(handler_of(queue, answer))
            await asked.came.wait()
            assert asked.answer == b""

    in_queue(check)


def test_calls_that_come_while_the_server_exits_are_told_so() -> None:
    async def main() -> ControlQueue:
        async with trio.open_nursery() as nursery:
            queue = ControlQueue(nursery)
            queue.close()
            asked = ask(handler_of(queue, never))
            with trio.CancelScope(shield=True):
                await asked.came.wait()
            assert asked.answer == EXITING
        return queue

    queue = trio.run(main)
    assert ask(handler_of(queue, never)).answer == EXITING  # the main thread's Trio has ended


def test_the_bytes_of_a_request_are_not_kept_once_it_is_parsed() -> None:
    async def check(queue: ControlQueue) -> None:
        parsed, end = trio.Event(), trio.Event()

        async def answer(request: pb.RepositoryModelUnloadRequest) -> Response:
            parsed.set()
            await end.wait()
            return Response()

        message = bytes(bytearray(REQUEST))  # one that nobody else holds
        holders = sys.getrefcount(message)
        asked = ask(handler_of(queue, answer, large=True), message)
        assert sys.getrefcount(message) > holders
        asked.message = b""
        await parsed.wait()
        assert sys.getrefcount(message) == holders
        end.set()

    in_queue(check)
