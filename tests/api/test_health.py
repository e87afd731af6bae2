"""Health.Watch on a worker over real sockets: an entry in a dict per call, told of changes in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.api.support import plane_of
from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    settings,
    window_update,
)
from tests.net.running import RawClient, Running, running
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc import health
from toutates.api.grpc.health import Health
from toutates.h2grpc.budget import CALL_BYTES
from toutates.protocol.health_pb2 import HealthCheckResponse

WATCH = block(request("/grpc.health.v1.Health/Watch"))
SERVING = message(HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString())
NOT_SERVING = message(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString())
MANY = 3_000


@dataclass
class Served:
    """A worker with the health service; ``planned`` has an entry for each callback that the service asked for."""

    server: Running
    readiness: Readiness
    planned: list[Callable[[], None]]

    def update(self, *, ready: bool) -> None:
        self.server.call(partial(self.readiness.update, serving=ready))

    def open_calls(self) -> int:
        return sum(transport.connection.open_calls for transport in self.server.worker.transports.open.values())


@pytest.fixture
def served() -> Iterator[Served]:
    readiness = Readiness(serving=True)
    planned: list[Callable[[], None]] = []

    def call_soon(callback: Callable[[], None]) -> None:
        planned.append(callback)
        server.worker.call_soon(callback)

    with running(None, *Health(plane_of(readiness=readiness), call_soon).methods) as server:
        yield Served(server, readiness, planned)


def watches(count: int) -> bytes:
    """Requests to watch, on the first so many streams."""
    return b"".join(
        headers(stream_id, WATCH) + data(stream_id, message(b""), END_STREAM) for stream_id in range(1, 2 * count, 2)
    )


def read(client: RawClient, count: int) -> list[tuple[int, bytes]]:
    """(stream, payload) of the next so many DATA frames."""
    out: list[tuple[int, bytes]] = []
    for frame in client:
        if frame.type == DATA:
            out.append((frame.stream_id, frame.payload))
            if len(out) == count:
                break
    return out


def test_a_watch_takes_no_task_and_hears_of_every_change(served: Served) -> None:
    with RawClient(served.server) as client:
        client.send(watches(2))
        assert read(client, 2) == [(1, SERVING), (3, SERVING)]
        assert not served.server.service.streams
        served.update(ready=False)
        assert sorted(read(client, 2)) == [(1, NOT_SERVING), (3, NOT_SERVING)]
        served.update(ready=False)  # no change
        served.update(ready=True)
        assert sorted(read(client, 2)) == [(1, SERVING), (3, SERVING)]


def test_watchers_hear_that_the_server_exits_and_their_calls_end(served: Served) -> None:
    with RawClient(served.server) as client:
        client.send(watches(2))
        read(client, 2)
        served.server.call(served.readiness.begin_exit)
        for _ in range(2):
            assert client.until(DATA).payload == NOT_SERVING
            assert b"shutting down" in client.until(HEADERS).payload
        client.send(headers(5, WATCH) + data(5, message(b""), END_STREAM))
        assert read(client, 1) == [(5, NOT_SERVING)]
        assert b"shutting down" in client.until(HEADERS).payload
        served.server.until(lambda: not served.open_calls())


def test_many_watchers_are_told_in_slices_between_which_others_are_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SLICE_NS", -1)  # every look at the clock ends a slice
    with RawClient(served.server) as client:
        client.send(watches(MANY))
        assert len(read(client, MANY)) == MANY
        before = len(served.planned)
        served.update(ready=False)
        assert sorted(read(client, MANY)) == [(number, NOT_SERVING) for number in range(1, 2 * MANY, 2)]
        assert len(served.planned) - before >= MANY // health.TOLD_AT_ONCE


def test_watchers_are_forgotten_when_their_call_or_connection_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SLICE_NS", -1)
    monkeypatch.setattr(health, "TOLD_AT_ONCE", 1)  # so that each watcher is told in a callback of its own
    server = served.server
    with RawClient(server) as client:
        client.send(watches(MANY))
        read(client, MANY)
        assert server.call(lambda: server.service.shared.budget.used) == MANY * CALL_BYTES
        client.send(rst_stream(1) + rst_stream(3))
        server.until(lambda: served.open_calls() == MANY - 2)
        served.update(ready=False)
        read(client, MANY - 2)
        assert len(served.planned) == MANY - 2
    server.until(lambda: server.service.shared.budget.used == 0)
    served.update(ready=True)
    assert len(served.planned) == MANY - 2


def test_a_watcher_without_a_window_is_told_what_holds_once_it_has_one(served: Served) -> None:
    """One message waits for it, however often the server changes."""
    with RawClient(served.server, PREFACE + settings((4, 0))) as client:
        client.send(watches(1))
        server = served.server
        server.until(lambda: served.open_calls() == 1)
        for ready in (False, True, False):
            served.update(ready=ready)
        [transport] = server.worker.transports.open.values()
        assert server.call(lambda: transport.connection.awaits_window) == len(SERVING)
        client.send(window_update(1, 100))
        assert read(client, 2) == [(1, SERVING), (1, NOT_SERVING)]
