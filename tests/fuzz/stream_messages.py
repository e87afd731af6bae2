"""One call of ModelStreamInfer: messages, answers in any order, a caller who reads or does not, and the end.

Invariant, for any bytes: answers leave in the order of the requests, but for those of decoupled models, which leave as
they come; each request is answered once; no more are under way than may be; what waits is counted, and nothing is when
the call is over; a call whose client sends no more ends with its last answer, once.

A case is a list of steps, a byte each: what happens, and to which request.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc import stream_infer
from toutates.api.grpc.stream_infer import InferStreams
from toutates.h2grpc import make_field
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from toutates.system.errors import ExecutionFailed, InvalidRequest, MalformedMessage

__all__ = ["check", "make_case"]

MOST_UNDER_WAY = 4
MOST_UNSENT_BYTES = 60
STEPS = 12


class Call(SimpleNamespace):
    """A call as h2grpc has it, which is found by identity."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Message:
    """A message as h2grpc hands it over."""

    def __init__(self, call: Any, name: str, decoupled: bool) -> None:
        self.call, self.name, self.decoupled = call, name, decoupled
        self.buffer = self.message = ModelInferRequest(id=name).SerializeToString()
        self.start, self.end = 0, len(self.message)
        self.open = True
        self.answer: bytes | None = None
        self.is_counted = False
        self.deadline_ns = 0
        self.responder: Any = None


class World:
    """A worker with one stream; the driver, the connection and the inference are the test's."""

    def __init__(self, *, fails_as_a_whole: bool) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.readiness = Readiness(serving=True)
        worker: Any = SimpleNamespace(
            limits=SimpleNamespace(stream_window=1_000),
            call_soon=self.soon.append,
            flush=lambda: None,
            limit_hits=Counter(),
            connection_failed=lambda call, error: self.close(error),
        )
        connection = SimpleNamespace(take_message=self._take, keep_message=self._keep_message, keep=self._keep)
        link = SimpleNamespace(connection=connection, congested=False, unsent=b"", unsent_bytes=0)
        field = make_field(b"triton_grpc_error", b"true")
        head = SimpleNamespace(timeout_ns=None, fields=[field] if fails_as_a_whole else [])
        responder = SimpleNamespace(send_headers=lambda call: None, send=self._send, finish=self._finish)
        self.call: Any = Call(
            link=link, head=head, responder=responder, context=None, open=True, outbox=[], outbox_bytes=0,
            receive_window=1_000, deadline_ns=0, on_closed=None, on_drained=None, fail=self._fail,
        )  # fmt: skip
        self.streams = InferStreams(worker, self.readiness, self._infer)
        self.number = 0
        #: taken by the inference and not answered yet
        self.under_way: list[Message] = []
        #: in the order in which they were sent, decoupled ones left out
        self.expected: list[str] = []
        self.sent: list[str] = []
        self.finals: Counter[str] = Counter()
        self.kept_messages: set[str] = set()
        self.kept_bytes = 0
        self.half_closed = False
        self.ends: list[str] = []
        self.reads = True

    # --- what the stream calls ---------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        self.kept_messages.discard(message.name)

    def _keep_message(self, message: Message) -> None:
        assert message.name not in self.kept_messages
        self.kept_messages.add(message.name)

    def _keep(self, call: Any, size: int) -> None:
        assert size >= 0
        self.kept_bytes = size

    def _send(self, call: Any, head: bytes, parts: Sequence[bytes], length: int) -> None:
        assert call.open, "an answer after the end"
        content = b"".join((head, *parts))
        assert len(content) == length
        answer = ModelStreamInferResponse.FromString(content)
        name = answer.infer_response.id
        final = answer.infer_response.parameters["triton_final_response"].bool_param or bool(answer.error_message)
        assert not self.finals[name], "an answer after the last one"
        if final:
            self.finals[name] += 1
        if not name.startswith("d"):
            self.sent.append(name)
        if not self.reads:
            call.outbox.append(content)
            call.outbox_bytes += length

    def _finish(self, call: Any) -> None:
        self.close("finished")

    def _fail(self, status: Any, text: str) -> None:
        self.close("failed")

    def _infer(self, message: Any) -> None:
        assert message.open
        if message.name.endswith("w"):
            raise InvalidRequest("not this one")
        if message.name.endswith("m"):
            raise MalformedMessage("no request")
        if message.decoupled:
            message.responder.set_apart(message)
        self.under_way.append(message)

    # --- what happens ------------------------------------------------------------------------------------------------

    def close(self, why: object) -> None:
        assert self.call.open, "two ends"
        self.ends.append(str(why))
        self.call.open = False
        if self.call.on_closed is not None:
            self.call.on_closed(self.call)
        self.kept_bytes = 0
        self.kept_messages.clear()

    def message(self, kind: int) -> None:
        if not self.call.open or self.half_closed:
            return
        decoupled = kind == 1
        self.number += 1
        name = f"{'d' if decoupled else 'a'}{self.number}{'w' if kind == 2 else 'm' if kind == 3 else ''}"
        if not decoupled:
            self.expected.append(name)
        try:
            self.streams.take(Message(self.call, name, decoupled))  # type: ignore[arg-type]
        except MalformedMessage:
            self.close("malformed")  # as the connection does

    def answer(self, which: int, *, fails: bool, more: bool = False) -> None:
        if not self.under_way:
            return
        at = which % len(self.under_way)
        message = self.under_way[at]
        if not (more and message.decoupled):
            del self.under_way[at]
        if not message.open:
            if message in self.under_way:
                self.under_way.remove(message)
            return  # as ``Answers`` does
        content = ModelInferResponse(id=message.name).SerializeToString()
        version = SimpleNamespace(model="m")
        plan: Any = SimpleNamespace(version=version, request=SimpleNamespace(asked_version="1", parameters={}))
        to: Any = message.responder
        if message.decoupled and fails:
            to.respond_error(message, plan, message.message, ExecutionFailed("x"), more=False)
            if message in self.under_way:
                self.under_way.remove(message)
        elif message.decoupled:
            to.respond(message, (content,), len(content), more=more)
        elif fails:
            to.fail(message, plan, message.message, ExecutionFailed("x"))
        else:
            to.reply(message, (content[:1], content[1:]), len(content))

    def half_close(self) -> None:
        if self.call.open and not self.half_closed:
            self.half_closed = True
            self.streams.half_close(self.call)

    def read(self) -> None:
        self.reads = True
        if self.call.open and self.call.outbox:
            self.call.outbox.clear()
            self.call.outbox_bytes = 0
            self.call.on_drained()

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def look(self) -> None:
        stream = self.call.context
        if stream is None or not self.call.open:
            return
        assert len(stream.order) + len(stream._apart) <= MOST_UNDER_WAY
        assert self.kept_bytes == sum(len(one.answer) for one in stream.order if one.answer is not None)
        assert self.kept_messages == {one.name for one in stream._waiting or ()}
        assert self.sent == self.expected[: len(self.sent)], "answers in another order than their requests"


def make_case(rng: random.Random) -> bytes:
    """Steps, messages and answers more often than ends."""
    likely = (0, 0, 0, 1, 1, 2, 4, 4, 4, 4, 5, 6, 6, 7, 8, 9, 10)
    steps = [rng.choice(likely) if rng.random() < 0.98 else rng.randrange(STEPS) for _ in range(rng.randrange(1, 80))]
    return bytes([rng.randrange(2), *(step + STEPS * rng.randrange(256 // STEPS) for step in steps)])


def check(case: bytes) -> None:
    """See the module."""
    with (
        patch.object(stream_infer, "MAX_UNDER_WAY", MOST_UNDER_WAY),
        patch.object(stream_infer, "MAX_UNSENT_BYTES", MOST_UNSENT_BYTES),
    ):
        _check(case)


def _check(case: bytes) -> None:
    world = World(fails_as_a_whole=bool(case[:1] and case[0] & 1))
    for byte in case[1:]:
        step, which = byte % STEPS, byte // STEPS
        if step <= 3:
            world.message(step)
        elif step <= 6:
            world.answer(which, fails=step == 5, more=step == 6)
        elif step == 7:
            world.reads = False
        elif step == 8:
            world.read()
        elif step == 9:
            world.turn()
        elif step == 10:
            world.half_close() if which > 15 else None
        elif world.call.open and which > 15:
            world.close("cancelled")
        world.look()
    world.half_close()
    while world.soon or world.under_way or world.call.outbox:
        world.read()
        world.turn()
        world.answer(0, fails=False)
        world.look()
        if not world.call.open:
            world.call.outbox.clear()
    assert not world.call.open
    assert len(world.ends) == 1
    assert not world.kept_bytes
    assert not world.kept_messages
    if world.ends == ["finished"]:
        assert world.sent == world.expected
        assert len(world.finals) == world.number
