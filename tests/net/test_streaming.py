"""Streaming calls' handlers, over real sockets."""

from __future__ import annotations

import itertools
import queue
import threading
import time

import pytest
import trio
import trio.testing

from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
)
from tests.net.running import HOUR_NS, HOUR_S, WIDE, RawClient, running
from tests.waiting import PATIENCE_S
from toutates.h2grpc import GrpcError, Limits, Method, Status
from toutates.net import ServerStream

METHOD = "/test.Own/Stream"
OPEN = headers(1, block(request(METHOD)))


def own(handler: object) -> Method:
    return Method(METHOD, stream=handler)  # type: ignore[arg-type]


def test_stream_echoes_messages_one_by_one() -> None:
    with running() as server, RawClient(server) as client:
        client.send(headers(1, block(request("/test.Echo/Stream"))))
        for number in range(200):
            body = b"%d" % number
            client.send(data(1, message(body)))
            assert client.until(DATA).payload == message(body)
        client.send(data(1, b"", END_STREAM))
        assert client.until(HEADERS).flags & END_STREAM
        server.until(lambda: server.streams_ended == ["finished"])
        assert server.call(lambda: not server.service.streams)


def test_message_of_a_stream_is_answered_at_once_though_the_worker_would_wait_for_more_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toutates.net.worker.LINGER_S", HOUR_S)
    monkeypatch.setattr("toutates.net.worker.STAY_NS", HOUR_NS)
    with running() as server, RawClient(server) as client:
        client.send(headers(1, block(request("/test.Echo/Stream"))))
        for number in range(100):
            busy = b"".join(unary(n) for n in range(number * 20 + 3, number * 20 + 23, 2))
            client.send(data(1, message(b"m")) + busy)
            while client.until(DATA).stream_id != 1:
                pass
        monkeypatch.undo()
        server.worker.call_soon(server.worker.task_woken)  # it would stay for an hour


def test_task_that_nothing_on_the_worker_woke_runs_while_unary_calls_keep_it_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker stays with its epoll while requests come, but not for long."""
    monkeypatch.setattr("toutates.net.worker.LINGER_S", HOUR_S)

    async def answer_a_moment_later(stream: ServerStream) -> None:
        async for body in stream:
            await trio.sleep(0.001)
            await stream.send(body)

    # As many unary calls as the machine makes in the meantime: their answers must not fill the client's window.
    with running(None, own(answer_a_moment_later)) as server, RawClient(server, WIDE) as client:
        client.send(OPEN)
        stream_id = 1
        for _ in range(20):
            client.send(data(1, message(b"m")))
            ends = time.monotonic() + PATIENCE_S
            answered = False
            while not answered:  # a unary call at a time, so that there is always another one
                assert time.monotonic() < ends
                stream_id += 2
                client.send(unary(stream_id))
                while (answer := client.until(DATA).stream_id) != stream_id:
                    answered = answered or answer == 1
        monkeypatch.undo()
        server.worker.call_soon(server.worker.task_woken)


def test_handler_that_leaves_the_iteration_early_is_answered_and_warns_of_nothing() -> None:
    async def first_only(stream: ServerStream) -> None:
        async for body in stream:
            await stream.send(body)
            break

    with running(None, own(first_only)) as server, RawClient(server) as client:
        client.send(OPEN + data(1, message(b"one") + message(b"two")))
        assert client.until(DATA).payload == message(b"one")
        assert client.until(HEADERS).flags & END_STREAM
        assert client.until(RST_STREAM).code == 0


def test_handler_without_an_answer_ends_with_headers_and_trailers() -> None:
    async def nothing(stream: ServerStream) -> None:
        assert [body async for body in stream] == [b"one", b"", b"three"]
        assert await stream.receive() is None

    with running(None, own(nothing)) as server, RawClient(server) as client:
        client.send(OPEN + data(1, message(b"one") + message(b"") + message(b"three"), END_STREAM))
        one, two = client.until(HEADERS), client.until(HEADERS)
        assert (one.flags & END_STREAM, two.flags & END_STREAM) == (0, 1)


def test_handler_sends_initial_metadata_before_any_message() -> None:
    async def early(stream: ServerStream) -> None:
        await stream.send_headers([("x-early", "yes")])
        await stream.receive()

    with running(None, own(early)) as server, RawClient(server) as client:
        client.send(OPEN)
        assert b"x-early" in client.until(HEADERS).payload
        client.send(data(1, b"", END_STREAM))
        assert b"grpc-status" in client.until(HEADERS).payload


async def _raise(stream: ServerStream) -> None:
    await stream.receive()
    raise RuntimeError("not for the caller")


async def _raise_grpc(stream: ServerStream) -> None:
    await stream.send(b"one")
    raise GrpcError(Status.ABORTED, "aborted by its handler", [("x-why", "so")])


async def _raise_from_a_nursery(stream: ServerStream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise RuntimeError("in a nursery")


@pytest.mark.parametrize(
    ("handler", "status", "text"),
    [
        (_raise, 13, b"internal error"),
        (_raise_from_a_nursery, 13, b"internal error"),
        (_raise_grpc, 10, b"aborted by its handler"),
    ],
)
def test_failing_handler_ends_its_call_only(handler: object, status: int, text: bytes) -> None:
    with running(None, own(handler)) as server, RawClient(server) as client:
        client.send(OPEN + data(1, message(b"m")))
        last = client.until(HEADERS)
        while not last.flags & END_STREAM:
            last = client.until(HEADERS)
        assert b"%d" % status in last.payload
        assert text in last.payload
        client.send(unary(3))
        assert client.until(DATA).payload == message(b"hello")


@pytest.mark.parametrize("how", ["reset", "connection lost", "connection error", "deadline"])
def test_cancelled_handler_is_cancelled_where_it_waits(how: str) -> None:
    begun = threading.Event()
    ended: list[str] = []

    async def wait(stream: ServerStream) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    with running(None, own(wait)) as server, RawClient(server) as client:
        client.send(headers(1, block(request(METHOD, ("grpc-timeout", "10M")))))
        assert begun.wait(PATIENCE_S)
        if how == "reset":
            client.send(rst_stream(1))
        elif how == "connection lost":
            client.sock.close()
        elif how == "connection error":
            client.send(data(0))
        else:
            server.expire()
            assert b"Deadline Exceeded" in client.until(HEADERS).payload
        server.until(lambda: ended == ["cancelled"])
        server.until(lambda: not server.service.streams)


def test_handler_that_fails_while_it_is_cancelled_leaves_the_worker_alive(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn(stream: ServerStream) -> None:
        async def fail() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("while cleaning up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    with running(None, own(stubborn)) as server, RawClient(server) as client:
        client.send(OPEN)
        server.until(lambda: server.service.streams)
        client.send(rst_stream(1))
        server.until(lambda: not server.service.streams)
        client.send(unary(3))
        assert client.until(DATA).payload == message(b"hello")
    assert "while cleaning up" in caplog.text


def test_call_that_is_opened_and_reset_in_one_go_runs_no_further_than_its_first_checkpoint() -> None:
    with running() as server, RawClient(server) as client:
        for number in range(1, 40, 2):
            client.send(headers(number, block(request("/test.Echo/Stream"))) + rst_stream(number))
        client.send(unary(101))
        client.until(DATA)
        server.until(lambda: not server.service.streams)


def test_slow_handler_slows_its_sender() -> None:
    """What it has not taken stays within the stream's window."""
    go = trio.Event()
    read = 0

    async def slow(stream: ServerStream) -> None:
        nonlocal read
        await go.wait()
        async for body in stream:
            read += len(body)

    limits = Limits(stream_window=65_535, connection_window=1_000_000)
    with running(limits, own(slow)) as server, RawClient(server) as client:
        client.send(OPEN + data(1, message(bytes(10_000))) * 6)
        client.send(frame(6, 0, 0, bytes(8)))
        types = []
        for one in client:
            types.append((one.type, one.stream_id))
            if one.type == 6:
                break
        assert (WINDOW_UPDATE, 1) not in types
        server.call(go.set)
        while client.until(WINDOW_UPDATE).stream_id != 1:
            pass
        server.until(lambda: read == 60_000)


def test_send_waits_while_the_peers_window_is_full() -> None:
    sent = 0

    async def flood(stream: ServerStream) -> None:
        nonlocal sent
        for _ in range(100):
            await stream.send(bytes(10_000))
            sent += 1

    with running(None, own(flood)) as server, RawClient(server) as client:
        client.send(OPEN)
        server.until(lambda: sent >= 10)
        server.rounds()
        # 65,535 bytes went through the window, as many may be queued, and one message more.
        assert sent <= 15
        size = 0
        ended = False
        while not ended:
            for one in client:
                if one.type == DATA:
                    size += len(one.payload)
                    client.send(window_update(1, len(one.payload)) + window_update(0, len(one.payload)))
                elif one.type == HEADERS and one.flags & END_STREAM:
                    ended = True
                    break
        assert size == 100 * 10_005


def test_send_waits_while_the_peer_does_not_read_its_socket() -> None:
    """However large the windows are that it gave."""
    sent = 0

    async def flood(stream: ServerStream) -> None:
        nonlocal sent
        for _ in range(400):
            await stream.send(bytes(100_000))
            sent += 1

    limits = Limits(max_unsent_bytes=1_000_000)
    with running(limits, own(flood)) as server, RawClient(server, WIDE, receive_buffer=10_000) as client:
        client.send(OPEN + data(1, b"", END_STREAM))
        server.until(lambda: sent >= 10)
        server.rounds()
        assert sent < 400
        (transport,) = server.call(lambda: list(server.worker.transports.open.values()))
        assert transport.unsent_bytes < 1_500_000
        size = 0
        for one in client:
            if one.type == DATA:
                size += len(one.payload)
            elif one.type == HEADERS and one.flags & END_STREAM:
                break
        assert size == 400 * 100_005


def test_task_may_use_the_workers_rounds() -> None:
    """A streaming call's task asks for a round's end while the worker sleeps."""

    async def in_a_round(stream: ServerStream) -> None:
        done = trio.Event()
        await trio.testing.wait_all_tasks_blocked()
        server.worker.at_round_end(done.set)
        with trio.fail_after(PATIENCE_S):
            await done.wait()
        await stream.send(b"done")

    with running(None, own(in_a_round)) as server, RawClient(server) as client:
        client.send(OPEN)
        assert client.until(DATA).payload == message(b"done")


def test_callback_that_says_it_woke_a_task_lets_it_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not wait for more requests first."""
    monkeypatch.setattr("toutates.net.worker.LINGER_S", HOUR_S)
    results: queue.SimpleQueue[trio.Event] = queue.SimpleQueue()

    async def wait_for_results(stream: ServerStream) -> None:
        async for body in stream:
            result = trio.Event()
            results.put(result)
            await result.wait()
            await stream.send(body)

    with running(None, own(wait_for_results)) as server, RawClient(server) as client:
        client.send(OPEN)
        for _ in range(30):
            client.send(data(1, message(b"m")))
            server.worker.call_soon(results.get(timeout=PATIENCE_S).set)
            server.worker.call_soon(server.worker.task_woken)
            client.until(DATA)
        monkeypatch.undo()
        server.worker.call_soon(server.worker.task_woken)


def test_task_may_answer_a_unary_call_and_flush() -> None:
    async def answer(stream: ServerStream) -> None:
        call = server.held.pop()
        call.reply(b"from a task")
        server.worker.flush()

    with running(None, own(answer)) as server, RawClient(server) as client:
        client.send(headers(1, block(request("/test.Echo/Hold"))) + data(1, message(b""), END_STREAM))
        server.until(lambda: server.held)
        client.send(headers(3, block(request(METHOD))))
        assert client.until(DATA).payload == message(b"from a task")


# --- grpcio ----------------------------------------------------------------------------------------------------------


def test_grpcio_client_makes_unary_and_streaming_calls() -> None:
    grpc = pytest.importorskip("grpc")
    with running(None, own(_raise_grpc), response_encoding="gzip", count_descriptors=False) as server:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
            echo = channel.unary_unary("/test.Echo/Unary")
            stream = channel.stream_stream("/test.Echo/Stream")
            for body in (b"", b"hello", bytes(range(256)) * 20_000):
                assert echo(body) == body
                assert echo(body, compression=grpc.Compression.Gzip, timeout=PATIENCE_S) == body
                assert echo(body, compression=grpc.Compression.Deflate) == body
                assert list(stream(iter([body] * 3))) == [body] * 3
            assert channel.unary_unary("/test.Echo/Compressible")(bytes(10_000)) == bytes(10_000)
            futures = [echo.future(b"%d" % n) for n in range(500)]
            assert [future.result(PATIENCE_S) for future in futures] == [b"%d" % n for n in range(500)]
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/test.Echo/Nothing")(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/test.Echo/Hold")(b"", timeout=0.05)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            failing = channel.stream_stream(METHOD)(iter([b"m"]))
            assert next(failing) == b"one"
            with pytest.raises(grpc.RpcError) as caught:
                next(failing)
            assert caught.value.code() is grpc.StatusCode.ABORTED
            assert caught.value.details() == "aborted by its handler"
            assert ("x-why", "so") in [tuple(entry) for entry in caught.value.trailing_metadata()]
            cancelled = threading.Event()
            endless = stream(itertools.chain([b"m"], (b"" for _ in iter(cancelled.wait, True))))
            assert next(endless) == b"m"
            endless.cancel()
            server.until(lambda: "cancelled" in server.streams_ended)
            cancelled.set()


def test_grpcio_client_gets_long_error_texts_every_time() -> None:
    grpc = pytest.importorskip("grpc")

    async def long_text(stream: ServerStream) -> None:
        raise GrpcError(Status.INTERNAL, "é%" * 10_000)

    with (
        running(None, own(long_text), count_descriptors=False) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        for _ in range(50):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(METHOD)(b"")
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert caught.value.details().startswith("é%é%")


def test_grpcio_client_survives_a_drain() -> None:
    grpc = pytest.importorskip("grpc")
    with running(count_descriptors=False) as server, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        hold = channel.unary_unary("/test.Echo/Hold").future(b"")
        server.until(lambda: server.held)
        server.drain(PATIENCE_S)
        server.worker.call_soon(lambda: server.held[0].reply(b"answer"))
        assert hold.result(PATIENCE_S) == b"answer"
        server.join()
        assert server.cut_off == 0
