"""Calls that end before their answer does: by their deadline, by their caller, by the loss of their connection.

A test per stage of a request's way, on the wire; docs/architecture.md has the table. Whatever the stage: the caller
hears of a deadline at once, nobody hears anything afterwards, those who shared the batch have their answers, and
nothing of the call is left.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from h2.settings import SettingCodes

from tests.e2e.held import Runs
from tests.e2e.process import ServerProcess
from tests.e2e.wire import Answer, Client, client_of, framed
from tests.server.inside import Inside, serve
from tests.waiting import DEADLINES_S, PATIENCE_S, wait_until
from toutates.engine.lane import PackedLane
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse

pytestmark = pytest.mark.long

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
LIVE: Final = "/inference.GRPCInferenceService/ServerLive"
WATCH: Final = "/grpc.health.v1.Health/Watch"
DEADLINE_EXCEEDED: Final = ("4", "Deadline Exceeded")
CANCEL: Final = 8
#: The kind of frame that a status comes in.
HEADERS: Final = 1

WAYS: Final = ["deadline", "reset", "loss"]
#: Long enough for whatever comes before the deadline; the test says when it has passed.
HOUR: Final = ("grpc-timeout", "1H")
#: Of a request whose run is held; any number that no other request has.
LONG: Final = 3


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    """Two models: "slow", in batches of two rows and a ring of two batches, and one of rows of any length."""
    for name in ("slow", "dynamic"):
        os.symlink(repository / name, tmp_path / name)
    return tmp_path


def slow(steps: int, rows: int = 1) -> bytes:
    """A request that is answered with its number of steps. Each step is a matrix product, of some milliseconds."""
    message = ModelInferRequest(model_name="slow", id=str(steps))
    message.inputs.add(name="INPUT", datatype="INT64", shape=[rows, 1])
    message.raw_input_contents.append(np.full(rows, steps, np.int64).tobytes())
    return message.SerializeToString()


def dynamic(length: int) -> bytes:
    """A request whose response is as large as itself: ``length`` numbers of four bytes."""
    message = ModelInferRequest(model_name="dynamic")
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1, length])
    message.raw_input_contents.append(bytes(4 * length))
    return message.SerializeToString()


def begin(client: Client, message: bytes, *headers: tuple[str, str]) -> int:
    """Start a call and send all of its request."""
    stream = client.start(INFER, headers)
    client.send(stream, framed(message))
    return stream


def assert_answered(answer: Answer, steps: int) -> None:
    assert answer.status == ("0", "")
    response = ModelInferResponse.FromString(answer.data[5:])
    assert response.id == str(steps)
    assert response.raw_output_contents[0] == steps.to_bytes(8, "little")


def assert_connected(client: Client) -> None:
    assert client.call(LIVE, b"").status == ("0", "")


class Leaver:
    """The client whose call ends early, in one of three ways.

    Args:
        client: its connection.
        way: one of WAYS.
    """

    def __init__(self, inside: Inside, client: Client, way: str) -> None:
        self.inside = inside
        self.client = client
        self.way = way
        #: for the headers of its call
        self.headers: Sequence[tuple[str, str]] = [HOUR] if way == "deadline" else []

    def leave(self, stream: int) -> None:
        """End the call; one with a deadline has its status when this returns."""
        if self.way == "deadline":
            self.inside.let_an_hour_pass()
            assert self.client.answer(stream).status == DEADLINE_EXCEEDED
            assert not self.client.answers[stream].data
        elif self.way == "reset":
            self.client.connection.reset_stream(stream, CANCEL)
            self.client.flush()
        else:
            self.client.sock.close()

    def assert_nothing_came(self, stream: int) -> None:
        """No answer after the end, and the connection as it was."""
        if self.way != "loss":
            before = self.client.answers[stream].data
            assert_connected(self.client)
            assert self.client.answers[stream].data == before
            assert self.client.terminated is None


@contextmanager
def leaver_of(inside: Inside, way: str) -> Iterator[Leaver]:
    with client_of(inside.port) as client:
        yield Leaver(inside, client, way)


def counts(inside: Inside, model: str = "slow") -> tuple[int, int, int]:
    """Requests that were answered, that failed, and whose callers left."""
    counters = inside.version(model).servable.counters.requests()
    return counters.success, counters.fail, counters.cancel


def assert_counts(inside: Inside, expected: tuple[int, int, int], model: str = "slow") -> None:
    """The worker counts a moment after the batch has left its ring."""
    wait_until(lambda: sum(counts(inside, model)) >= sum(expected))
    assert counts(inside, model) == expected


def batches(inside: Inside, model: str = "slow") -> dict[int, int]:
    """How many batches ran, by rows."""
    return {rows: batch.count for rows, batch in inside.version(model).servable.counters.batches().items()}


def run(models: Path, visit: Callable[[Inside], None]) -> None:
    assert serve(models, visit) == 0


# --- while the request arrives


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [100, 6_000_000], ids=["of one frame", "larger than the window"])
def test_a_call_that_ends_while_its_request_arrives(models: Path, way: str, size: int) -> None:
    def visit(inside: Inside) -> None:
        with leaver_of(inside, way) as leaver:
            client = leaver.client
            stream = client.start(INFER, leaver.headers)
            message = framed(dynamic(size // 4))
            client.send(stream, message[: len(message) * 9 // 10], end=False)
            wait_until(lambda: inside.open_streams() == 1)
            leaver.leave(stream)
            inside.wait_quiet()
            leaver.assert_nothing_came(stream)
            assert_counts(inside, (0, 0, 0), "dynamic")
            assert batches(inside, "dynamic") == {}

    run(models, visit)


def kinds_of_frames_that_wait(sock: socket.socket) -> set[int]:
    """Of the frames that have come and were not read."""
    data, kinds = sock.recv(65_536, socket.MSG_PEEK), set()
    while data:
        kinds.add(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return kinds


def test_data_that_comes_after_the_deadline_is_ignored(models: Path) -> None:
    """A client whose clock is slower has not heard of it yet."""

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            stream = client.start(INFER, [("grpc-timeout", "1m")])
            # The status is there and not read yet, so that h2 lets the request pass.
            wait_until(lambda: HEADERS in kinds_of_frames_that_wait(client.sock))
            client.send(stream, framed(slow(1)))
            assert client.answer(stream).status == DEADLINE_EXCEEDED
            inside.wait_quiet()
            assert_connected(client)
            assert_counts(inside, (0, 0, 0))

    run(models, visit)


# --- between its last byte and the batch


@pytest.mark.parametrize("way", ["reset", "loss"])
def test_a_call_whose_end_comes_with_its_request_is_not_run(models: Path, way: str) -> None:
    """All in one read: the call is over before its handler is called."""

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            stream = client.connection.get_next_available_stream_id()
            fields = {":method": "POST", ":scheme": "http", ":path": INFER, ":authority": "test"}
            fields |= {"te": "trailers", "content-type": "application/grpc"}
            client.connection.send_headers(stream, list(fields.items()))
            client.connection.send_data(stream, framed(slow(1)), end_stream=True)
            if way == "reset":
                client.connection.reset_stream(stream, CANCEL)
                client.flush()
                assert_connected(client)
            else:
                client.flush()
                client.sock.close()
            inside.wait_quiet()
            if way == "reset":
                assert_counts(inside, (0, 0, 0))
                assert batches(inside) == {}

    run(models, visit)


@pytest.mark.quick
@pytest.mark.parametrize("timeout", ["0n", "1n", "1u"])
def test_a_deadline_that_has_passed_when_the_request_is_there(models: Path, runs: Runs, timeout: str) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as busy, client_of(inside.port) as client:
            with runs.held():
                running = begin(busy, slow(LONG))
                runs.wait_begun(1)
                late = begin(client, slow(1), ("grpc-timeout", timeout))
                assert client.answer(late).status == DEADLINE_EXCEEDED  # it waited for nobody
            assert_answered(busy.answer(running), LONG)
            inside.wait_quiet()
            wait_until(lambda: counts(inside)[0] == 1)
            # Over before its data came, it was no request yet.
            assert counts(inside) in ((1, 0, 0), (1, 0, 1))
            assert batches(inside) == {1: 1}

    run(models, visit)


# --- in a batch that waits for an executor


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_ends_while_its_batch_waits_is_not_run(models: Path, runs: Runs, way: str) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as busy, leaver_of(inside, way) as leaver:
            with runs.held():
                running = begin(busy, slow(LONG))
                runs.wait_begun(1)
                waiting = begin(leaver.client, slow(1), *leaver.headers)
                wait_until(lambda: inside.occupancy("slow").in_flight == 2)
                leaver.leave(waiting)
                wait_until(lambda: inside.open_streams() == 1)
            assert_answered(busy.answer(running), LONG)
            inside.wait_quiet()
            leaver.assert_nothing_came(waiting)
            assert_counts(inside, (1, 0, 1))
            assert batches(inside) == {1: 1}  # its own did not run

    run(models, visit)


@pytest.mark.parametrize("way", WAYS)
def test_those_who_share_a_batch_that_waits_with_one_that_leaves_are_answered(
    models: Path, runs: Runs, way: str
) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as busy, client_of(inside.port) as other, leaver_of(inside, way) as leaver:
            with runs.held():
                running = begin(busy, slow(LONG))
                runs.wait_begun(1)
                leaving = begin(leaver.client, slow(1), *leaver.headers)
                wait_until(lambda: inside.occupancy("slow").in_flight == 2)
                staying = begin(other, slow(2))
                assert_connected(other)  # its request has been read
                leaver.leave(leaving)
                wait_until(lambda: inside.open_streams() == 2)
            assert_answered(other.answer(staying), 2)
            assert_answered(busy.answer(running), LONG)
            inside.wait_quiet()
            leaver.assert_nothing_came(leaving)
            assert_counts(inside, (2, 0, 1))
            assert batches(inside) == {1: 1, 2: 1}

    run(models, visit)


@pytest.mark.parametrize("way", WAYS)
def test_a_split_call_that_ends_while_it_waits_counts_once(
    models: Path, runs: Runs, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackedLane, "note_wall", lambda *arguments: None)  # or it might be seen to come too late

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as busy, leaver_of(inside, way) as leaver:
            with runs.held():
                running = begin(busy, slow(LONG, rows=2))
                runs.wait_begun(1)
                begin(busy, slow(1))
                wait_until(lambda: inside.occupancy("slow").in_flight == 2)
                # The ring is full: a request of two rows would find one place.
                refused = begin(leaver.client, slow(1, rows=2), *leaver.headers)
                assert leaver.client.answer(refused).status[0] == "8"
            busy.answer(running)
            inside.wait_quiet()
            with runs.held():
                # Three rows take both batches: the first runs, the second waits.
                split = begin(leaver.client, slow(LONG, rows=3), *leaver.headers)
                runs.wait_begun(3)  # the third run is that of its first half
                wait_until(lambda: inside.occupancy("slow").in_flight == 2)
                leaver.leave(split)
                wait_until(lambda: inside.open_streams() == 0)
            inside.wait_quiet()
            leaver.assert_nothing_came(split)
            assert_counts(inside, (2, 0, 1))
            assert batches(inside)[2] == 2
            assert batches(inside)[1] == 1  # the second half was not run

    run(models, visit)


# --- while ONNX Runtime runs


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_ends_while_it_runs_runs_on_unheard(models: Path, runs: Runs, way: str) -> None:
    def visit(inside: Inside) -> None:
        with leaver_of(inside, way) as leaver, client_of(inside.port) as other:
            with runs.held():
                running = begin(leaver.client, slow(LONG), *leaver.headers)
                runs.wait_begun(1)
                leaver.leave(running)
                wait_until(lambda: inside.open_streams() == 0)
                assert inside.occupancy("slow").in_flight == 1  # the caller heard while it ran
            inside.wait_quiet()
            leaver.assert_nothing_came(running)
            assert_counts(inside, (0, 0, 1))
            assert batches(inside) == {1: 1}
            assert_answered(other.answer(begin(other, slow(3))), 3)

    run(models, visit)


@pytest.mark.parametrize("way", WAYS)
def test_those_who_share_a_run_with_one_that_leaves_are_answered(models: Path, runs: Runs, way: str) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as other, leaver_of(inside, way) as leaver:
            with runs.held():
                before = begin(other, slow(1))
                runs.wait_begun(1)
                staying = begin(other, slow(LONG))
                leaving = begin(leaver.client, slow(2), *leaver.headers)
                wait_until(lambda: inside.open_streams() == 3)
                assert_connected(other)
                assert_connected(leaver.client)  # both have been read
                runs.allow()
                runs.wait_begun(2)
                assert_answered(other.answer(before), 1)
                leaver.leave(leaving)
                wait_until(lambda: inside.open_streams() == 1)
            assert_answered(other.answer(staying), LONG)
            inside.wait_quiet()
            leaver.assert_nothing_came(leaving)
            assert_counts(inside, (2, 0, 1))
            assert batches(inside) == {1: 1, 2: 1}

    run(models, visit)


# --- while the response is on its way


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_ends_while_its_response_waits_for_window(models: Path, way: str) -> None:
    """It is answered, and counts as such; what its caller does not take is dropped."""

    def visit(inside: Inside) -> None:
        with leaver_of(inside, way) as leaver:
            client = leaver.client
            client.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            client.flush()
            stream = begin(client, dynamic(50_000), *leaver.headers)
            wait_until(lambda: counts(inside, "dynamic") == (1, 0, 0))
            [transport] = inside.workers[0].transports.open.values()
            assert transport.connection.awaits_window > 200_000
            if way == "deadline":
                inside.let_an_hour_pass()
                # The status was OK and is not taken back: the stream is reset.
                assert client.answer(stream).reset == CANCEL
                assert client.answers[stream].status == ("", "")
            else:
                leaver.leave(stream)
            inside.wait_quiet()
            if way != "loss":
                client.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
            leaver.assert_nothing_came(stream)
            assert_counts(inside, (1, 0, 0), "dynamic")

    run(models, visit)


def test_responses_that_a_lost_connection_left_unread_are_dropped(models: Path) -> None:
    def visit(inside: Inside) -> None:
        with socket.socket() as sock:
            # So that the kernel does not take both answers. After one of them, requests are read still.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            sock.connect(("127.0.0.1", inside.port))
            client = Client(sock)
            large = 2**31 - 1
            client.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: large})
            client.connection.increment_flow_control_window(large - 65_535)
            client.flush()
            for _ in range(2):
                begin(client, dynamic(1_000_000))
            [transport] = inside.workers[0].transports.open.values()
            wait_until(lambda: counts(inside, "dynamic")[0] == 2)
            wait_until(lambda: transport.unsent_bytes > 1_000_000)
        wait_until(lambda: not inside.workers[0].connections)
        inside.wait_round()
        assert not transport.unsent
        assert not transport.unsent_bytes
        inside.wait_quiet()

    run(models, visit)


# --- after the answer


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_ends_after_its_answer(models: Path, way: str) -> None:
    def visit(inside: Inside) -> None:
        with leaver_of(inside, way) as leaver:
            stream = begin(leaver.client, slow(1), *leaver.headers)
            assert_answered(leaver.client.answer(stream), 1)
            if way == "deadline":
                inside.let_an_hour_pass()
            elif way == "reset":
                leaver.client.sock.sendall(b"\0\0\4\3\0" + stream.to_bytes(4, "big") + CANCEL.to_bytes(4, "big"))
            else:
                leaver.leave(stream)
            inside.wait_quiet()
            leaver.assert_nothing_came(stream)
            if way != "loss":
                assert_answered(leaver.client.answer(begin(leaver.client, slow(2))), 2)
            assert_counts(inside, (1 if way == "loss" else 2, 0, 0))

    run(models, visit)


# --- streaming calls


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stage", ["before its request", "in its request", "while it watches"])
def test_a_watch_that_ends(models: Path, way: str, stage: str) -> None:
    def visit(inside: Inside) -> None:
        with leaver_of(inside, way) as leaver:
            client = leaver.client
            stream = client.start(WATCH, leaver.headers)
            request = framed(b"\x0a\x01x")
            if stage == "in its request":
                client.send(stream, request[:4], end=False)
            elif stage == "while it watches":
                client.send(stream, request)
                while not client.answers[stream].data:
                    assert client.receive()
            [transport] = inside.workers[0].transports.open.values()
            wait_until(lambda: transport.connection.open_calls)
            if way == "deadline":
                inside.let_an_hour_pass()
                assert client.answer(stream).status == DEADLINE_EXCEEDED
            else:
                leaver.leave(stream)
            inside.wait_quiet()
            leaver.assert_nothing_came(stream)

    run(models, visit)


# --- real clients


@pytest.mark.parametrize("cause", ["deadline", "cancellation"])
def test_a_real_clients_call_that_ends_in_the_queue_or_in_its_run(
    held_server: tuple[ServerProcess, Runs], cause: str
) -> None:
    support = pytest.importorskip("tests.e2e.support")
    server, runs = held_server
    with support.channel_to(server.address) as channel, support.channel_to(server.address) as other:
        method = channel.unary_unary(INFER)

        def in_order() -> None:
            """The server has read what was sent before."""
            for one in (channel, other):
                support.call(one, LIVE, b"")

        for timeout_s in DEADLINES_S if cause == "deadline" else [PATIENCE_S]:
            before = support.statistics_of(channel, "slow")
            with runs.held():
                begun = runs.begun
                running = method.future(slow(LONG), timeout=timeout_s)
                wait_until(lambda: runs.begun > begun or running.done())  # noqa: B023
                waiting = method.future(slow(7), timeout=timeout_s)
                sharing = other.unary_unary(INFER).future(slow(9), timeout=PATIENCE_S)
                in_order()
                in_time = not running.done() and not waiting.done()
                if cause == "cancellation":
                    running.cancel()
                    waiting.cancel()
                    assert running.cancelled()
                    assert waiting.cancelled()
                    in_order()
                else:
                    for future in (running, waiting):
                        error = future.exception()
                        assert (error.code().name, error.details()) == ("DEADLINE_EXCEEDED", "Deadline Exceeded")
            response = ModelInferResponse.FromString(sharing.result())
            assert response.raw_output_contents[0] == (9).to_bytes(8, "little")
            if in_time:
                break
        assert in_time
        after = support.statistics_of(channel, "slow")
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.fail.count - before.inference_stats.fail.count == 2
    # The run that nobody waited for any more, and the batch of the two.
    assert after.execution_count - before.execution_count == 2
