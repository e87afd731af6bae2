"""Every limit of time, with a clock that the test turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.h2grpc.frames import (
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    OPENING,
    REQUEST_BLOCK,
    STREAM_BLOCK,
    block,
    data,
    headers,
    message,
    unary,
    window_update,
)
from tests.h2grpc.support import Judge, Server
from toutates.h2grpc import Limits, PlainCall, ServerConnection
from toutates.h2grpc.budget import CALL_BYTES, MemoryBudget
from toutates.h2grpc.headers import ResponseBlock
from toutates.net.housekeeping import LONGEST_INTERVAL_NS, VISITS_AT_ONCE, Duty, Finding, Housekeeper, Traffic
from toutates.net.transport import Transport

SECOND = 10**9


@dataclass(eq=False)
class FakeLink(Transport):
    """A transport without a socket."""

    server: Server
    connection: ServerConnection
    opened_ns: int = 0
    last_read_ns: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    unsent_bytes: int = 0
    closing: bool = False
    paused: bool = False

    def take(self, octets: bytes, now_ns: int) -> None:
        self.last_read_ns = now_ns
        self.received_bytes += len(octets)
        self.server.receive(octets)
        self.sent_bytes += len(self.server.sent())


class House:
    """A housekeeper and its clock."""

    def __init__(self, limits: Limits, budget: int = 10**9) -> None:
        self.limits = limits
        self.keeper = Housekeeper(limits, MemoryBudget(budget))
        self.now_ns = self.visited_ns = 0

    def link(self, opening: bytes = OPENING, age_factor: float = 1.0) -> FakeLink:
        server = Server(self.limits, admit=Judge())
        link = FakeLink(server, server.connection, self.now_ns, self.now_ns)
        link.take(opening, self.now_ns)
        self.keeper.add(link, self.now_ns, age_factor)
        return link

    def pass_time(self, seconds: float) -> Iterator[tuple[float, FakeLink, Finding]]:
        """Time goes by; what the visits found, and when."""
        until_ns = self.now_ns + int(seconds * SECOND)
        while self.visited_ns + self.keeper.pause_ns <= until_ns:
            self.now_ns = self.visited_ns = self.visited_ns + self.keeper.pause_ns
            for link, finding in list(self.keeper.visit(self.now_ns)):
                assert isinstance(link, FakeLink)
                yield self.now_ns / SECOND, link, finding
        self.now_ns = until_ns

    def first(self, seconds: float) -> tuple[float, Finding]:
        at, _, finding = next(self.pass_time(seconds))
        return at, finding


@pytest.mark.parametrize("opening", [b"", OPENING[:10], OPENING[:24]])
def test_handshake_has_to_come_in_time(opening: bytes) -> None:
    house = House(Limits(handshake_timeout_s=20))
    house.link(opening)
    at, finding = house.first(60)
    assert 20 <= at <= 22
    assert (finding.duty, finding.limit) == (Duty.END, "handshake_timeout")


def test_peer_that_is_not_read_owes_nothing() -> None:
    house = House(Limits(stall_timeout_s=60, keepalive_time_s=30, keepalive_timeout_s=20))
    link = house.link()
    link.take(unary(1)[:30], 0)
    link.paused = True
    assert list(house.pass_time(200)) == []
    link.paused = False
    assert house.first(100)[1].duty is Duty.PING


def test_connection_that_does_nothing_wrong_is_left_alone() -> None:
    house = House(Limits(keepalive_time_s=math.inf))
    link = house.link()
    link.take(headers(1, STREAM_BLOCK), 0)  # a stream is silent for an hour
    assert list(house.pass_time(3_600)) == []


UNFINISHED = {
    "frame": unary(1)[:30],
    "frame head": b"\0\0",
    "header block": headers(1, REQUEST_BLOCK[:5], 0),
    "request": headers(1, REQUEST_BLOCK),
    "message": headers(1, REQUEST_BLOCK) + data(1, message(b"hello")[:7]),
}


@pytest.mark.parametrize("octets", UNFINISHED.values(), ids=UNFINISHED)
def test_request_that_has_begun_has_to_go_on(octets: bytes) -> None:
    house = House(Limits(stall_timeout_s=60))
    house.link().take(octets, 0)
    at, finding = house.first(100)
    assert 60 <= at <= 64
    assert (finding.duty, finding.limit) == (Duty.END, "stall_timeout")
    assert finding.text == "the rest of a request did not come in time"


def test_slow_upload_is_not_stalled_and_a_dribble_is() -> None:
    house = House(Limits(stall_timeout_s=60, stream_window=2**30, connection_window=2**30))
    slow, dribble = house.link(), house.link()
    for link in (slow, dribble):
        link.take(headers(1, REQUEST_BLOCK) + data(1, message(bytes(10**6))[:5]), 0)
    found: list[tuple[float, FakeLink, Finding]] = []
    for _ in range(20):
        slow.take(data(1, bytes(15_000)), house.now_ns)
        dribble.take(data(1, bytes(100)), house.now_ns)
        found += house.pass_time(10)
    assert [link for _, link, _ in found][:1] == [dribble]
    assert slow not in [link for _, link, _ in found]


def test_responses_have_to_be_read() -> None:
    house = House(Limits(stall_timeout_s=60, keepalive_time_s=math.inf))
    link = house.link()
    for _ in range(4):
        link.server.call(unary(link.connection.calls_begun * 2 + 1)).reply(bytes(100_000))
        link.sent_bytes += len(link.server.sent())
    found: list[tuple[float, FakeLink, Finding]] = []
    for _ in range(3):  # reads one whole response's worth every 20 seconds
        found += house.pass_time(20)
        link.take(window_update(0, 100_000) + window_update(1, 10**6) + window_update(3, 10**6), house.now_ns)
    assert found == []
    assert link.connection.awaits_window
    at, finding = house.first(100)
    assert 120 <= at <= 124
    assert (finding.duty, finding.limit, finding.text) == (
        Duty.END,
        "stall_timeout",
        "responses were not read in time",
    )


def test_bytes_that_the_socket_does_not_take_count_as_unread() -> None:
    house = House(Limits(stall_timeout_s=60))
    link = house.link()
    link.unsent_bytes = 10
    assert house.first(100)[1].text == "responses were not read in time"


def test_silent_peer_is_asked_and_closed_if_it_does_not_answer() -> None:
    house = House(Limits(keepalive_time_s=300, keepalive_timeout_s=20))
    alive, dead = house.link(), house.link()
    pinged = {}
    for at, link, finding in house.pass_time(310):
        assert finding.duty is Duty.PING
        pinged[link] = at
    assert set(pinged) == {alive, dead}
    assert all(300 <= at <= 304 for at in pinged.values())
    alive.last_read_ns = house.now_ns  # its answer
    found = list(house.pass_time(30))
    assert {(link, finding.duty, finding.limit) for _, link, finding in found} == {
        (dead, Duty.DROP, "keepalive_timeout")
    }
    at = found[0][0]
    assert 320 <= at <= 326


def test_idle_connection_is_told_to_leave_and_a_busy_one_is_not() -> None:
    house = House(Limits(max_idle_s=100))
    idle, busy, waiting = house.link(), house.link(), house.link()
    waiting.take(unary(1), 0)  # its call is never answered
    found: list[tuple[float, FakeLink, Finding]] = []
    for number in range(9):
        busy.server.call(unary(2 * number + 1)).reply(b"answer")
        busy.last_read_ns = house.now_ns
        found += house.pass_time(25)
    assert [(link, finding.duty, finding.limit) for _, link, finding in found[:1]] == [
        (idle, Duty.LEAVE, "connection_idle")
    ]
    assert {link for _, link, _ in found} == {idle}
    assert 100 <= found[0][0] <= 104
    assert [finding.duty for _, _, finding in found[1:]] == [Duty.FINISH_LEAVING]


def test_old_connection_is_told_to_leave_and_ended_once_its_grace_is_over() -> None:
    house = House(Limits(max_age_s=100, max_age_grace_s=30, keepalive_time_s=math.inf))
    link = house.link()
    link.take(unary(1), 0)
    left, finished, ended = list(house.pass_time(150))[:3]
    assert (left[2].duty, left[2].limit) == (Duty.LEAVE, "connection_age")
    assert 100 <= left[0] <= 104
    assert finished[2].duty is Duty.FINISH_LEAVING
    assert (ended[2].duty, ended[2].limit) == (Duty.END, "connection_age_grace")
    assert 30 <= ended[0] - left[0] <= 34


PLAIN = block([(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "test")])
ANSWER = ResponseBlock([(b":status", b"200")])


class PlainClient:
    """Requests of plain HTTP on one connection of a house, whose driver does what is found."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.link = house.link()
        self._open: list[PlainCall] = []

    def begin(self) -> None:
        stream_id = 2 * self.link.connection.calls_begun + 1
        [call] = self.link.server.receive(headers(stream_id, PLAIN, END_HEADERS | END_STREAM))
        assert isinstance(call, PlainCall)
        self._open.append(call)

    def end(self) -> None:
        """The oldest request is answered."""
        self.link.connection.responder.respond(self._open.pop(0), ANSWER, (b"x",), 1)

    def pass_time(self, seconds: float) -> list[tuple[float, Duty]]:
        """What was found, GOAWAYs among it as ``FINISH_LEAVING``."""
        found: list[tuple[float, Duty]] = []
        for at, _, finding in self.house.pass_time(seconds):
            if finding.duty is Duty.LEAVE:
                self.link.connection.begin_shutdown(finding.text)
            elif finding.duty is Duty.FINISH_LEAVING:
                self.link.connection.finish_shutdown()
            found.append((at, finding.duty))
        return found

    @property
    def goodbyes(self) -> int:
        self.link.connection.say_goodbye()
        return [one.type for one in self.link.server.frames()].count(GOAWAY)


@pytest.mark.parametrize(("grace_s", "length"), [(math.inf, 2), (30, 2), (30, 5), (1, 0.5)])
def test_old_connection_that_goes_on_beside_other_requests_is_told_and_then_has_its_grace(
    grace_s: float, length: float
) -> None:
    client = PlainClient(House(Limits(max_age_s=100, max_age_grace_s=grace_s, keepalive_time_s=math.inf)))
    found: list[tuple[float, Duty]] = []
    while len(found) < 2:  # one request or more is under way at any moment, and rarely two of them
        client.begin()
        found += client.pass_time(0.1)
        if client.house.now_ns > 2 * SECOND:
            client.end()
        found += client.pass_time(length)
        assert client.house.now_ns < 200 * SECOND, "it is never told"
    (left_at, left), (told_at, told), *ends = found
    assert (left, told) == (Duty.LEAVE, Duty.FINISH_LEAVING)
    assert 5.5 <= told_at - left_at <= 8
    assert client.goodbyes == 1
    ends += client.pass_time(100)  # the last request takes as long
    if grace_s < math.inf:
        at, duty = ends[0]
        assert duty is Duty.END
        assert grace_s <= at - told_at <= grace_s + 2.1
    else:
        assert ends == []


@pytest.mark.parametrize("silence_s", [0, 3, 5])
def test_request_that_is_waited_for_has_all_of_the_grace(silence_s: float) -> None:
    client = PlainClient(House(Limits(max_age_s=100, max_age_grace_s=4, keepalive_time_s=math.inf)))
    client.begin()
    client.end()
    found: list[tuple[float, Duty]] = []
    while not found:
        found = client.pass_time(0.5)
    assert [duty for _, duty in found] == [Duty.LEAVE]
    assert client.pass_time(silence_s) == []
    client.begin()
    began_at = client.house.now_ns / SECOND
    assert client.pass_time(3.5) == []
    assert client.goodbyes == 0
    at, duty = client.pass_time(4)[0]
    assert duty is Duty.END
    assert 4 <= at - began_at <= 7


def test_ages_may_vary_so_that_clients_do_not_all_come_back_at_once() -> None:
    house = House(Limits(max_age_s=1_000, keepalive_time_s=math.inf))
    links = [house.link(age_factor=factor) for factor in (0.9, 1.0, 1.1)]
    left = [(link, at) for at, link, finding in house.pass_time(1_200) if finding.duty is Duty.LEAVE]
    assert [link for link, _ in left] == links
    assert [at // 10 * 10 for _, at in left] == [900, 1_000, 1_100]


def test_many_connections_are_visited_a_few_at_a_time_and_each_once_per_round() -> None:
    house = House(Limits(handshake_timeout_s=20))
    links = [house.link(b"") for _ in range(4 * VISITS_AT_ONCE)]
    found: list[FakeLink] = []
    while house.now_ns < 20 * SECOND + 2 * LONGEST_INTERVAL_NS:
        house.now_ns += house.keeper.pause_ns
        now = [link for link, _ in house.keeper.visit(house.now_ns)]
        assert len(now) <= VISITS_AT_ONCE
        for link in now:
            assert isinstance(link, FakeLink)
            link.closing = True
            found.append(link)
    assert len(found) == len(set(found)) == len(links)


def test_connection_that_holds_most_is_closed_when_all_hold_too_much() -> None:
    house = House(Limits(stall_timeout_s=math.inf), budget=100_000)
    small, large = house.link(), house.link()
    for number in range(15):
        small.take(headers(2 * number + 1, REQUEST_BLOCK), 0)
    large.unsent_bytes = 60_000
    assert list(house.pass_time(10)) == []
    large.unsent_bytes = 80_000
    [(_, link, finding), *_] = house.pass_time(3)
    assert (link, finding.duty, finding.limit) == (large, Duty.DROP, "server_buffer")
    assert finding.text == f"80000 of {80_000 + 15 * CALL_BYTES} bytes held for slow peers, 100000 allowed"


def test_as_many_connections_as_it_takes_are_closed_at_once_the_largest_first() -> None:
    house = House(Limits(stall_timeout_s=math.inf), budget=100_000)
    links = [house.link() for _ in range(200)]
    for number, link in enumerate(links):
        link.unsent_bytes = 1_000 + number  # 220 KB together
    found: list[tuple[float, FakeLink]] = []
    for at, link, finding in house.pass_time(LONGEST_INTERVAL_NS / SECOND * 1.5):
        assert (finding.duty, finding.limit) == (Duty.DROP, "server_buffer")
        found.append((at, link))
        house.keeper.remove(link)
    assert [link for _, link in found] == links[::-1][: len(found)]
    assert sum(link.unsent_bytes for link in links[: -len(found)]) <= 100_000
    assert found[-1][0] - found[0][0] < 0.1, "it takes several rounds of visits"


def test_connections_that_are_gone_are_not_visited() -> None:
    house = House(Limits(handshake_timeout_s=1))
    house.keeper.remove(house.link(b""))
    assert list(house.pass_time(10)) == []
    assert house.keeper.pause_ns == SECOND // 4


def test_traffic_of_connections_open_and_gone_is_added_up() -> None:
    traffic = Traffic()
    limits = Limits()
    house = House(limits)
    house.keeper = Housekeeper(limits, MemoryBudget(10**9), traffic)
    first, second = house.link(), house.link()
    first.take(unary(1) + unary(3), 0)
    assert list(house.pass_time(10)) == []
    list(house.pass_time(3))
    assert (traffic.connections, traffic.streams, traffic.open_calls) == (2, 2, 2)
    assert traffic.received_bytes == first.received_bytes + second.received_bytes
    assert traffic.sent_bytes == first.sent_bytes + second.sent_bytes
    first.take(unary(5), 0)
    house.keeper.remove(first)
    list(house.pass_time(5))
    assert (traffic.connections, traffic.streams, traffic.open_calls) == (2, 3, 0)
    assert traffic.received_bytes == first.received_bytes + second.received_bytes
