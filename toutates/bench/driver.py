"""Sends requests over some connections and takes the answers: at the times of a schedule, or one for each answer.

One thread, no event loop: whatever a client does beside sending and receiving, the server would be charged with.
"""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from toutates.bench.arrivals import Schedule
from toutates.bench.client_connection import LOST, ClientConnection, ConnectionFailed, Request
from toutates.bench.outcome import NEVER, UNANSWERED, Record

__all__ = ["Driver", "Unreachable"]

_CONNECT_SECONDS: Final = 10.0
_CHUNK: Final = 1 << 15
#: Connections that are read from between two looks at what is to be sent.
_READ_AT_ONCE: Final = 4
#: Requests that are taken up between two looks at the sockets, so that answers are read while many are to be sent.
_BURST: Final = 64
#: The head start that the first request gets.
_BEGIN_NS: Final = 10_000_000
#: Of so many answers with status OK, the first is kept to be checked.
_SAMPLED: Final = 97
_MOST_SAMPLES: Final = 2_000


class Unreachable(Exception):
    """No connection to the server, or none that is greeted."""


class _Link:
    """A connection with its socket.

    Attributes:
        protocol: what is said over it.
        numbers: of the requests, by the stream's number over two.
    """

    __slots__ = ("_is_blocked", "_poll", "_unsent", "numbers", "protocol", "sock")

    def __init__(self, host: str, port: int, poll: select.epoll) -> None:
        self.protocol = ClientConnection()
        self.numbers: list[int] = []
        self._unsent = b""
        self._is_blocked = False
        self._poll = poll
        self.sock = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def greet(self) -> None:
        """Exchange SETTINGS."""
        self.sock.sendall(self.protocol.data_to_send())
        while not self.protocol.greeted:
            data = self.sock.recv(_CHUNK)
            if not data:
                raise ConnectionFailed("the server closed the connection")
            self.protocol.receive(data)
        self.sock.setblocking(False)
        self._poll.register(self.sock, select.EPOLLIN)

    def flush(self) -> None:
        """Send what there is, as far as the socket takes it."""
        out = self._unsent + self.protocol.data_to_send()
        if not out:
            return
        try:
            sent = self.sock.send(out)
        except BlockingIOError:
            sent = 0
        except OSError:  # which a read will say
            sent = len(out)
        self._unsent = out[sent:]
        if bool(self._unsent) is not self._is_blocked:
            self._is_blocked = not self._is_blocked
            self._poll.modify(self.sock, select.EPOLLIN | (select.EPOLLOUT if self._is_blocked else 0))


class Driver:
    """A load's client.

    Args:
        address: host and port.
        connections: over which requests are sent in turn.
        requests: what can be sent.

    Raises:
        Unreachable: the server cannot be reached, or does not speak HTTP/2.

    Attributes:
        samples: the number of a request and the message of its answer, of some with status OK.
        texts: the first text of each status.
    """

    def __init__(self, address: tuple[str, int], connections: int, requests: Sequence[Request]) -> None:
        self.samples: list[tuple[int, bytes]] = []
        self.texts: dict[int, str] = {}
        self._requests = requests
        self._right = 0
        self._poll = select.epoll()
        self._links: list[_Link] = []
        try:
            for _ in range(connections):
                self._links.append(_Link(*address, self._poll))
                self._links[-1].greet()
        except (OSError, ConnectionFailed) as error:
            self.close()
            raise Unreachable(f"{address[0]}:{address[1]}: {error}") from error
        self._by_fd = {link.sock.fileno(): link for link in self._links}
        self._ring = deque(self._links)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.sock.close()
        self._poll.close()

    def run_schedule(self, schedule: Schedule, seconds: float, patience_s: float) -> Record:
        """An open loop: send each request at its time, whatever became of those before.

        Args:
            schedule: what is to be sent when.
            seconds: length of the schedule.
            patience_s: how long the last answers are waited for.
        """
        times, choices = schedule.times_ns.tolist(), schedule.choices.tolist()
        count = len(times)
        noticed, sent, answered = [NEVER] * count, [NEVER] * count, [NEVER] * count
        statuses = [UNANSWERED] * count
        waiting: deque[int] = deque()
        requests = self._requests
        with _undisturbed():
            begin = time.perf_counter_ns() + _BEGIN_NS
            cpu = time.process_time()
            taken = left = 0
            end_ns = round((seconds + patience_s) * 1e9)
            spent: float | None = None

            def take(number: int, status: int, now: int) -> None:
                nonlocal left
                left += 1
                answered[number] = now - begin
                statuses[number] = status

            while left < count:
                now = time.perf_counter_ns() - begin
                if spent is None and taken == count:
                    spent = time.process_time() - cpu
                if now > end_ns or not self._links:
                    break
                stop = min(count, taken + _BURST)
                while taken < stop and times[taken] <= now:
                    noticed[taken] = now
                    waiting.append(taken)
                    taken += 1
                used = set()
                while waiting and (link := self._free_link()) is not None:
                    number = waiting.popleft()
                    link.protocol.begin(requests[choices[number]])
                    link.numbers.append(number)
                    sent[number] = now
                    used.add(link)
                for link in used:
                    link.flush()
                until = times[taken] if taken < count else end_ns
                self._receive((until - time.perf_counter_ns() + begin) / 1e9, take)
            spent = time.process_time() - cpu if spent is None else spent
        # What the client did not even take up when the time was over, it noticed then at the earliest.
        noticed[taken:] = [end_ns] * (count - taken)
        return Record(
            schedule.choices,
            schedule.times_ns,
            np.array(noticed, np.int64),
            np.array(sent, np.int64),
            np.array(answered, np.int64),
            np.array(statuses, np.int64),
            cpu_seconds=spent,
            seconds=seconds,
        )

    def run_closed(self, order: Sequence[int], under_way: int, seconds: float, patience_s: float) -> Record:
        """A closed loop: a request for each answer, over and over.

        Args:
            order: which requests are sent, in turn.
            under_way: how many are without an answer at a time.
            seconds: after which none is sent any more.
            patience_s: how long the last answers are waited for.
        """
        choices: list[int] = []
        sent: list[int] = []
        answered: list[int] = []
        statuses: list[int] = []
        requests, size = self._requests, len(order)
        due, left = under_way, 0
        with _undisturbed():
            begin, cpu = time.perf_counter_ns(), time.process_time()
            stop_ns, end_ns = round(seconds * 1e9), round((seconds + patience_s) * 1e9)
            spent: float | None = None

            def take(number: int, status: int, now: int) -> None:
                nonlocal due, left
                due += 1
                left += 1
                answered[number] = now - begin
                statuses[number] = status

            while self._links:
                now = time.perf_counter_ns() - begin
                if now >= stop_ns:
                    spent = time.process_time() - cpu if spent is None else spent
                    if now >= end_ns or left == len(sent):
                        break
                    due = 0
                used = set()
                while due and (link := self._free_link()) is not None:
                    due -= 1
                    choice = order[len(sent) % size]
                    link.protocol.begin(requests[choice])
                    link.numbers.append(len(sent))
                    choices.append(choice)
                    sent.append(now)
                    answered.append(NEVER)
                    statuses.append(UNANSWERED)
                    used.add(link)
                for link in used:
                    link.flush()
                self._receive(((stop_ns if now < stop_ns else end_ns) - now) / 1e9, take)
            spent = time.process_time() - cpu if spent is None else spent
        when = np.array(sent, np.int64)
        return Record(
            np.array(choices, np.int64),
            when,
            when,
            when,
            np.array(answered, np.int64),
            np.array(statuses, np.int64),
            cpu_seconds=spent,
            seconds=seconds,
        )

    def _free_link(self) -> _Link | None:
        """The next connection that has room for a call."""
        ring = self._ring
        for _ in range(len(ring)):
            link = ring[0]
            ring.rotate(-1)
            if link.protocol.has_room:
                return link
        return None

    def _receive(self, wait_s: float, take: Callable[[int, int, int], None]) -> None:
        """Wait for answers, no longer than so, and pass them on with their time."""
        if wait_s > 0:
            # epoll counts in milliseconds, select in microseconds.
            select.select([self._poll], (), (), min(wait_s, 1.0))
        for fd, events in self._poll.poll(0, _READ_AT_ONCE):
            link = self._by_fd[fd]
            if events & ~select.EPOLLOUT:
                self._read(link, take)
            if link.sock.fileno() != -1:
                link.flush()

    def _read(self, link: _Link, take: Callable[[int, int, int], None]) -> None:
        try:
            data = link.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, str(error), take)
            return
        if not data:
            self._drop(link, link.protocol.ended or "the server closed the connection", take)
            return
        now = time.perf_counter_ns()
        try:
            answers = link.protocol.receive(data)
        except ConnectionFailed as error:
            self._drop(link, str(error), take)
            return
        numbers = link.numbers
        for stream_id, status, message in answers:
            number = numbers[stream_id >> 1]
            numbers[stream_id >> 1] = NEVER
            take(number, status, now)
            if status:
                self.texts.setdefault(status, link.protocol.texts.get(status, ""))
                continue
            if self._right % _SAMPLED == 0 and len(self.samples) < _MOST_SAMPLES:
                self.samples.append((number, bytes(message)))
            self._right += 1

    def _drop(self, link: _Link, why: str, take: Callable[[int, int, int], None]) -> None:
        """A connection has ended, and its calls are lost."""
        self.texts.setdefault(LOST, why)
        now = time.perf_counter_ns()
        for number in link.numbers:
            if number != NEVER:
                take(number, LOST, now)
        self._poll.unregister(link.sock)
        del self._by_fd[link.sock.fileno()]
        link.sock.close()
        self._links.remove(link)
        self._ring.remove(link)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the collector of garbage, which would stop the client now and then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
