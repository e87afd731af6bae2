"""A stream whose own requests fill its model waits for them, and nobody else does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.held import Runs, running_held
from tests.e2e.http import peer_of, post
from tests.e2e.process import ServerProcess
from tests.e2e.streams import Conversation, conversation, triton_stream
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, infer, pb, refused, request, triton
from tests.triton_repository import write_config
from tests.waiting import wait_until

ROWS = 4
#: Requests of so many rows that fill the model: 128 batches of 8 rows.
FULL = 8 * 128 // ROWS
MANY = 500
#: Of one answer.
SECONDS = 120


@pytest.fixture(scope="module")
def held(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server, and the runs of its model "slow"."""
    root = tmp_path_factory.mktemp("own_requests")
    for model in ("slow", "addsub"):
        shutil.copytree(repository / model, root / model)
    (root / "slow" / "config.yaml").unlink(missing_ok=True)
    (root / "slow" / "1" / "config.yaml").unlink(missing_ok=True)
    write_config(root, "slow", "max_batch_size: 8\n")
    with running_held(root, tmp_path_factory.mktemp("log")) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log


def slow(number: int = 0, rows: int = ROWS) -> Any:
    return request("slow", Tensor.of("INPUT", "INT64", np.zeros((rows, 1))), id=f"n{number}")


def numbers_of(stream: Conversation, count: int) -> list[str]:
    answers = stream.read(count)
    assert {answer.error_message for answer in answers} == {""}
    return [answer.infer_response.id for answer in answers]


def wait_until_full(address: str) -> None:
    """Until the model takes no request more."""
    with channel_to(address) as channel:

        def is_full() -> bool:
            future = channel.unary_unary(INFER).future(slow().SerializeToString(), timeout=0.05)
            return bool(future.code().name == "RESOURCE_EXHAUSTED")

        wait_until(is_full)


def trailers_of_refusal(channel: Any) -> tuple[int, int]:
    """When a caller who is refused is told to come again: milliseconds and seconds."""
    future = channel.unary_unary(INFER).future(slow().SerializeToString(), timeout=SECONDS)
    assert future.code().name == "RESOURCE_EXHAUSTED"
    trailers = dict(future.trailing_metadata())
    return int(trailers["grpc-retry-pushback-ms"]), int(trailers["retry-after"])


def test_hundreds_of_requests_of_tritonclient_on_one_stream_are_all_answered(held: tuple[ServerProcess, Runs]) -> None:
    process, runs = held
    with runs.held(), triton_stream(process.address) as (client, answers):
        tensor = triton.InferInput("INPUT", [ROWS, 1], "INT64")
        tensor.set_data_from_numpy(np.zeros((ROWS, 1), np.int64))
        for number in range(MANY):
            client.async_stream_infer("slow", [tensor], request_id=str(number))
        wait_until_full(process.address)
        runs.allow(2**40)
        found = [answers.get(timeout=SECONDS) for _ in range(MANY)]
    assert [error for _, error in found if error is not None] == []
    assert [result.get_response().id for result, _ in found] == [str(number) for number in range(MANY)]


def test_what_waits_stops_no_other_stream_of_its_connection_and_leaves_room_for_others(
    held: tuple[ServerProcess, Runs],
) -> None:
    process, runs = held
    with (
        channel_to(process.address) as channel,
        channel_to(process.address) as neighbour,
        runs.held(),
        conversation(channel) as stream,
        conversation(channel) as other,
    ):
        stream.send(*(slow(number) for number in range(MANY)))
        wait_until_full(process.address)
        ones = Tensor.of("INPUT0", "INT32", np.ones((1, 16))), Tensor.of("INPUT1", "INT32", np.ones((1, 16)))
        assert other.ask(request("addsub", *ones)).error_message == ""
        assert infer(channel, request("addsub", *ones)).model_name == "addsub"
        # A request of another connection is refused now, and has room once the stream has answers.
        assert refused(neighbour, slow())[0] == "RESOURCE_EXHAUSTED"
        runs.allow(FULL // 4)
        read = numbers_of(stream, FULL // 4)
        future = neighbour.unary_unary(INFER).future(slow().SerializeToString(), timeout=SECONDS)
        call(neighbour, SERVICE + "ServerReady", b"")  # the server has read what was sent before
        assert not future.done()
        runs.allow(2**40)
        assert pb.ModelInferResponse.FromString(future.result()).model_name == "slow"
        read += numbers_of(stream, MANY - len(read))
        assert read == [f"n{number}" for number in range(MANY)]


def test_several_streams_of_one_connection_that_fill_a_model_together_wait(held: tuple[ServerProcess, Runs]) -> None:
    process, runs = held
    with channel_to(process.address) as channel, runs.held():
        streams = [Conversation(channel) for _ in range(20)]
        for stream in streams:
            stream.send(*(slow(number) for number in range(MANY // 20)))
        wait_until_full(process.address)
        runs.allow(2**40)
        for stream in streams:
            answers = stream.end()
            assert [answer.error_message for answer in answers] == [""] * (MANY // 20)


def test_pipelined_requests_of_one_connection_wait_for_those_before_them(held: tuple[ServerProcess, Runs]) -> None:
    process, runs = held
    rows = 128  # eight such requests fill the model, and two of these are more
    data = b"0" + b",0" * (rows - 1)
    with peer_of(process.port) as peer, runs.held():
        for number in range(12):
            body = b'{"id":"%d","inputs":[{"name":"INPUT","shape":[%d,1],"datatype":"INT64","data":[%b]}]}'
            peer.sock.sendall(post("/v2/models/slow/infer", body % (number, rows, data)))
        wait_until_full(process.address)
        with peer_of(process.port) as other:
            ask = post("/v2/models/slow/infer", body % (0, rows, data))
            assert other.ask(ask).status == 503
            assert other.ask(b"GET /v2/models/addsub/ready HTTP/1.1\r\nHost: here\r\n\r\n").status == 200
        runs.allow(2**40)
        answers = [peer.read() for _ in range(12)]
        assert [(answer.status, json.loads(answer.body)["id"]) for answer in answers] == [
            (200, str(number)) for number in range(12)
        ]
    with peer_of(process.port) as peer, runs.held():  # one that leaves takes what waits with it
        for number in range(12):
            peer.sock.sendall(post("/v2/models/slow/infer", body % (number, rows, data)))
        wait_until_full(process.address)
    with peer_of(process.port) as peer:
        wait_until(lambda: peer.ask(ask).status == 200)


def test_a_stream_is_refused_what_others_have_filled(held: tuple[ServerProcess, Runs]) -> None:
    process, runs = held
    with channel_to(process.address) as others, channel_to(process.address) as channel, runs.held():
        futures = [others.unary_unary(INFER).future(slow().SerializeToString(), timeout=SECONDS) for _ in range(FULL)]
        wait_until_full(process.address)
        with conversation(channel) as stream:
            assert "of at most 1024 rows waiting or running" in stream.ask(slow()).error_message
        told = [trailers_of_refusal(channel) for _ in range(12)]
        assert len({after_ms for after_ms, _ in told}) > 3  # so that callers do not all come back together
        assert all(50 <= after_ms <= 48_000 and after_s == -(-after_ms // 1000) for after_ms, after_s in told)
        with peer_of(process.port) as peer:
            body = '{"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"INT64","data":[0]}]}'
            answer = peer.ask(post("/v2/models/slow/infer", body))
        assert answer.status == 503
        assert 1 <= int(answer.fields["retry-after"]) <= 48
        assert 50 <= int(answer.fields["retry-after-ms"]) <= 48_000
        runs.allow(2**40)
        assert all(future.code().name == "OK" for future in futures)


def test_a_stream_that_waits_ends_with_its_caller_and_leaves_nothing(held: tuple[ServerProcess, Runs]) -> None:
    process, runs = held
    with channel_to(process.address) as channel, runs.held():
        with conversation(channel) as stream:
            stream.send(*(slow(number) for number in range(MANY)))
            wait_until_full(process.address)
        runs.allow(2**40)
        wait_until(lambda: channel.unary_unary(INFER).future(slow().SerializeToString()).code().name == "OK")
