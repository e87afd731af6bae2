"""Calls of ModelStreamInfer over real sockets, with an inference that answers when and in the order the test says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.h2grpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    WINDOW_UPDATE,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    window_update,
)
from tests.net.running import WIDE, RawClient, Running, running
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc import stream_infer as module
from toutates.api.grpc.statuses import STATUSES
from toutates.api.grpc.stream_infer import InferStreams
from toutates.h2grpc import Limits, MessageReceived, Method
from toutates.net import GrpcService
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from toutates.system.errors import ExecutionFailed, InvalidRequest, MalformedMessage, OwnRequestsFirst

METHOD = "/test.Own/Infer"


def opening(stream: int = 1, *fields: tuple[str, str]) -> bytes:
    return headers(stream, block(request(METHOD, *fields)))


def asking(*names: str, stream: int = 1, flags: int = 0) -> bytes:
    return b"".join(data(stream, message(ModelInferRequest(id=name).SerializeToString()), flags) for name in names)


@dataclass
class Inferences:
    """Inferences whose requests wait until the test answers them; all is done on the worker's thread."""

    server: Running
    readiness: Readiness
    waiting: dict[str, MessageReceived] = field(default_factory=dict)
    #: how often each request was begun
    begun: list[str] = field(default_factory=list)
    #: bytes of the answers that requests get at once; None for none
    at_once: int | None = None
    grpc: Any = None
    #: so many requests that wait are as many as there may be, if one at least is of the same connection
    most: int | None = None

    def infer(self, received: MessageReceived) -> None:
        name = ModelInferRequest.FromString(received.message).id
        self.begun.append(name)
        if name.startswith("wrong"):
            raise InvalidRequest("not this one")
        if name == "broken":
            raise MalformedMessage("no request")
        if name == "bug":
            raise RuntimeError("not for the caller")
        if name.startswith("apart"):
            received.responder.set_apart(received)
        if self.most is not None and len(self.waiting) >= self.most and received.responder.has_its_share(received, 1):
            raise OwnRequestsFirst("full")
        self.waiting[name] = received
        if self.at_once is not None:
            self._answer(name, self.at_once)

    def answer(self, *names: str, size: int = 0) -> None:
        for name in names:
            self.server.call(lambda name=name: self._answer(name, size))  # type: ignore[misc]

    def _answer(self, name: str, size: int) -> None:
        received = self.waiting.pop(name)
        response = ModelInferResponse(id=name, raw_output_contents=[bytes(size)]).SerializeToString()
        received.responder.reply(received, (response[:3], response[3:]), len(response))
        self.server.worker.flush()

    def fail(self, name: str) -> None:
        def fail() -> None:
            received = self.waiting.pop(name)
            version = type("V", (), {"model": "m"})
            plan: Any = type("P", (), {"version": version, "request": type("R", (), {"asked_version": "7"})})
            received.responder.fail(
                received, plan, ModelInferRequest(id=name).SerializeToString(), ExecutionFailed("x")
            )
            self.server.worker.flush()

        self.server.call(fail)

    @property
    def budget(self) -> int:
        """Bytes that are counted for peers that are slow."""
        return int(self.grpc.shared.budget.used)


@contextmanager
def serving(limits: Limits | None = None) -> Iterator[tuple[Inferences, Running]]:
    made: list[InferStreams] = []
    readiness = Readiness(serving=True)
    inferences = Inferences(cast(Any, None), readiness)

    def serve(worker: Any, grpc: GrpcService) -> GrpcService:
        made.append(InferStreams(worker, readiness, cast(Any, inferences.infer)))
        inferences.grpc = GrpcService(worker, grpc.methods, "", STATUSES)
        return cast(GrpcService, inferences.grpc)

    method = Method(METHOD, message=lambda one: made[0].take(one), half_close=lambda call: made[0].half_close(call))
    with running(limits, method, serve=serve) as server:
        inferences.server = server
        yield inferences, server


def answers(client: RawClient, count: int) -> list[ModelStreamInferResponse]:
    """The next answers, each a DATA frame."""
    out: list[ModelStreamInferResponse] = []
    while len(out) < count:
        payload = client.until(DATA).payload
        assert int.from_bytes(payload[1:5], "big") == len(payload) - 5
        out.append(ModelStreamInferResponse.FromString(payload[5:]))
    return out


def ids(found: Sequence[ModelStreamInferResponse]) -> list[str]:
    return [answer.infer_response.id for answer in found]


def status(client: RawClient) -> bytes:
    for frame in client:
        if frame.type == HEADERS and frame.flags & END_STREAM:
            return frame.payload
    raise AssertionError("the stream has no end")


def test_answers_leave_in_the_order_of_their_requests_whatever_the_order_of_their_ends() -> None:
    with serving() as (inferences, _), RawClient(_) as client:
        client.send(opening() + asking("a", "b", "wrong", "c", "d"))
        inferences.server.until(lambda: "d" in inferences.waiting)
        inferences.answer("d", "b")
        inferences.fail("c")
        assert inferences.budget > 0  # what waits for its turn is counted
        inferences.answer("a")
        found = answers(client, 5)
        assert ids(found) == ["a", "b", "wrong", "c", "d"]
        assert [one.error_message for one in found] == ["", "", "not this one", "x", ""]
        assert [dict(one.infer_response.parameters) != {} for one in found] == [True, True, False, True, True]
        assert (found[3].infer_response.model_name, found[3].infer_response.model_version) == ("m", "7")
        assert inferences.budget == 0
        client.send(asking("e", flags=END_STREAM))
        inferences.server.until(lambda: "e" in inferences.waiting)
        inferences.answer("e")
        assert ids(answers(client, 1)) == ["e"]
        assert b"grpc-status" in status(client)


def test_a_whole_stream_may_fail_with_its_first_failure() -> None:
    with serving() as (inferences, _), RawClient(_) as client:
        client.send(opening(1, ("triton_grpc_error", "true")) + asking("wrong", "a", "b"))
        assert ids(answers(client, 1)) == ["wrong"]
        inferences.fail("b")
        assert b"13" in status(client)
        assert not inferences.waiting["a"].open
        inferences.answer("a")  # which nobody hears of


@pytest.mark.parametrize(("name", "code"), [("broken", b"13"), ("bug", b"13")])
def test_what_is_no_request_and_a_bug_of_ours_end_the_call_and_no_other(name: str, code: bytes) -> None:
    with serving() as (inferences, _), RawClient(_) as client:
        client.send(opening() + asking(name, "a"))
        assert code in status(client)
        client.send(opening(3) + asking("b", stream=3))
        inferences.server.until(lambda: "b" in inferences.waiting)
        inferences.answer("b")
        assert ids(answers(client, 1)) == ["b"]
        client.send(rst_stream(3))


def test_a_stream_takes_so_many_requests_and_the_next_when_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNDER_WAY", 3)
    names = [f"{number:03}" for number in range(200)]
    with serving(Limits(stream_window=65_535)) as (inferences, server), RawClient(server) as client:
        client.send(opening() + asking(*names) + opening(3) + asking("other", stream=3))
        server.until(lambda: "other" in inferences.waiting)  # which does not wait
        assert inferences.begun == [*names[:3], "other"]
        assert inferences.budget > 197 * 10
        for at, name in enumerate(names):
            server.until(lambda name=name: name in inferences.waiting)  # type: ignore[misc]
            assert len(inferences.begun) <= at + 4
            inferences.answer(name)
            assert ids(answers(client, 1)) == [name]
        assert inferences.budget == 0
        client.send(rst_stream(1) + rst_stream(3))


def test_the_window_of_messages_that_wait_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNDER_WAY", 1)
    big = data(1, message(ModelInferRequest(id="big", raw_input_contents=[bytes(16_000)]).SerializeToString()))
    with serving(Limits(stream_window=65_535)) as (inferences, server), RawClient(server) as client:
        client.send(opening() + asking("first") + big * 4)
        server.until(lambda: inferences.budget > 4 * 16_000)
        client.send(opening(3) + asking("x", stream=3, flags=END_STREAM))
        server.until(lambda: "x" in inferences.waiting)
        inferences.answer("x")
        for frame in client:
            assert frame.type != WINDOW_UPDATE or frame.stream_id != 1
            if frame.stream_id == 3 and frame.flags & END_STREAM:
                break
        inferences.at_once = 0
        inferences.answer("first")
        assert ids(answers(client, 5)) == ["first", *["big"] * 4]
        client.send(rst_stream(1))


def test_requests_that_a_full_model_does_not_take_wait_for_half_of_their_streams_answers() -> None:
    names = ["a", "b", "c", "d", "apart", "e", "f"]
    with serving() as (inferences, server), RawClient(server) as client:
        inferences.most = 4
        client.send(opening() + asking(*names, flags=0))
        client.send(opening(3) + asking("g", stream=3, flags=END_STREAM))  # waits for the other stream
        server.until(lambda: "g" in inferences.begun)
        # One that waits for another stream is begun again after a moment.
        assert list(dict.fromkeys(inferences.begun)) == ["a", "b", "c", "d", "apart", "g"]
        assert inferences.budget > 0
        inferences.answer("a", "b")
        server.until(lambda: "g" in inferences.waiting)
        assert "apart" not in inferences.waiting  # three are to go, so that there is room for one more
        inferences.answer("c")
        server.until(lambda: len(inferences.waiting) == 4)
        assert list(inferences.waiting) == ["d", "g", "apart", "e"]
        inferences.most = None
        inferences.answer("g", "d")
        server.until(lambda: "f" in inferences.waiting)
        inferences.answer("e", "f")
        received = inferences.waiting["apart"]
        server.call(lambda: received.responder.respond(received, (b"",), 0, more=False))
        server.call(server.worker.flush)
        assert sorted(ids(answers(client, 8)))[:6] == ["", "a", "b", "c", "d", "e"]
        assert inferences.budget == 0
        client.send(rst_stream(1))


def test_what_waits_for_its_own_stream_goes_with_it() -> None:
    with serving() as (inferences, server), RawClient(server) as client:
        inferences.most = 1
        client.send(opening() + asking("a", "b", "c") + opening(3) + asking("d", stream=3))
        server.until(lambda: "d" in inferences.begun)
        client.send(rst_stream(3) + rst_stream(1))
        server.until(lambda: not inferences.waiting["a"].open)
        server.rounds()
        assert inferences.budget == 0
        assert set(inferences.begun) == {"a", "b", "d"}


def test_a_caller_who_does_not_read_stops_his_own_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 100_000)
    with serving() as (inferences, server), RawClient(server) as client:
        inferences.at_once = 30_000
        names = [f"{number:02}" for number in range(40)]
        # The client gives no window beyond the protocol's 65,535 bytes.
        client.send(opening() + asking(*names))
        server.until(lambda: len(inferences.begun) >= 6)
        server.rounds()
        assert len(inferences.begun) == 6  # 65,535 bytes sent, and more than 100,000 that wait
        with RawClient(server) as neighbour:
            inferences.at_once = 10
            neighbour.send(opening() + asking("n"))
            assert ids(answers(neighbour, 1)) == ["n"]
            neighbour.send(rst_stream(1))
        inferences.at_once = 30_000
        client.send(window_update(0, 2_000_000) + window_update(1, 2_000_000))
        server.until(lambda: inferences.begun == [*names[:6], "n", *names[6:]])
        client.send(rst_stream(1))


def test_a_caller_who_does_not_read_what_a_decoupled_model_sends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 200_000)
    with serving() as (inferences, server), RawClient(server) as client:
        client.send(opening() + asking("a"))
        server.until(lambda: "a" in inferences.waiting)
        received = inferences.waiting["a"]

        def respond() -> bool:
            received.responder.respond(received, (bytes(50_000),), 50_000, more=True)
            server.worker.flush()
            return received.open

        server.call(lambda: received.responder.set_apart(received))
        count = 0
        while server.call(respond):
            count += 1
        assert count == 5  # 65,535 bytes were sent
        assert server.worker.limit_hits["unread_responses"] == 1
        assert b"8" in status(client)
        assert inferences.budget == 0


def test_a_reset_in_the_middle_leaves_nothing() -> None:
    with serving() as (inferences, server), RawClient(server) as client:
        client.send(opening() + asking("a", "b", "c"))
        server.until(lambda: "c" in inferences.waiting)
        inferences.answer("c")
        client.send(rst_stream(1))
        server.until(lambda: not inferences.waiting["a"].open)
        assert inferences.budget == 0
        inferences.answer("a", "b")


def test_a_connection_that_is_cut_leaves_nothing() -> None:
    with serving() as (inferences, server):
        with RawClient(server) as client:
            client.send(opening() + asking("a", "b"))
            server.until(lambda: "b" in inferences.waiting)
            inferences.answer("b")
        server.until(lambda: not inferences.waiting["a"].open)
        assert inferences.budget == 0
        inferences.answer("a")


def test_a_server_that_exits_refuses_requests_in_band_and_ends_streams_with_their_last_answer() -> None:
    with serving() as (inferences, server), RawClient(server) as client:
        client.send(opening() + asking("a") + opening(3) + asking("wrong", stream=3))
        server.until(lambda: "a" in inferences.waiting)
        server.call(inferences.readiness.begin_exit)
        assert ids(answers(client, 1)) == ["wrong"]
        assert b"14" in status(client)  # the stream that had nothing to do
        client.send(asking("late"))
        server.until(lambda: inferences.budget > 0)
        inferences.answer("a")
        found = answers(client, 2)
        assert ids(found) == ["a", "late"]
        assert found[1].error_message == ("GRPC server is shutting down and has stopped accepting new requests.")
        assert b"14" in status(client)


def test_a_call_without_a_message_ends_well() -> None:
    with serving() as (_, server), RawClient(server) as client:
        client.send(headers(1, block(request(METHOD)), END_HEADERS | END_STREAM))
        assert b"grpc-status" in status(client)


def test_a_slow_socket_stops_messages_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)
    limits = Limits(max_unsent_bytes=100_000)
    with serving(limits) as (inferences, server), RawClient(server, WIDE, receive_buffer=4_096) as client:
        inferences.at_once = 1_000_000
        client.send(opening() + asking(*map(str, range(100))))
        server.until(lambda: server.worker.transports.open)
        [transport] = server.call(lambda: list(server.worker.transports.open.values()))
        server.until(lambda: transport.congested)
        server.rounds()
        assert len(inferences.begun) < 30
        client.send(rst_stream(1))
