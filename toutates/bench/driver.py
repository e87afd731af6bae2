"""Sends requests over some connections and takes the answers: at the times of a schedule, or one for each answer.

One thread, no event loop: whatever a client does beside sending and receiving, the server would be charged with.
"""

from __future__ import annotations

import contextlib
import gc
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from toutates.bench.answer import LOST, ClientSide, ConnectionFailed
from toutates.bench.arrivals import Schedule
from toutates.bench.endpoint import Endpoint
from toutates.bench.link import CHUNK, Link, Unreachable, connect
from toutates.bench.outcome import NEVER, UNANSWERED, Record
from toutates.bench.sequences import SequenceSource

__all__ = ["Driver", "Unreachable"]

#: Connections that are read from between two looks at what is to be sent.
_READ_AT_ONCE: Final = 4
#: Requests that are taken up between two looks at the sockets, so that answers are read while many are to be sent.
_BURST: Final = 64
#: The head start that the first request gets.
_BEGIN_NS: Final = 10_000_000
#: Of so many answers with status OK, the first is kept to be checked.
_SAMPLED: Final = 97
_MOST_SAMPLES: Final = 2_000
#: Of the bytes of kept answers; the first answer is kept whatever its size.
_MOST_SAMPLE_BYTES: Final = 1 << 26
#: Between two reports of how far a load is.
_REPORT_NS: Final = 250_000_000
_FOREVER: Final = 1 << 62
_SCHEDSTAT: Final = Path("/proc/self/schedstat")


class Driver:
    """A load's client.

    Args:
        endpoint: the server.
        connections: over which requests are sent in turn.
        requests: what can be sent, as the connections' protocol wants it.
        make: a connection's side of the protocol.

    Raises:
        Unreachable: the server cannot be reached, or does not speak the protocol.

    Attributes:
        samples: the number of a request and its answer, as it came, of some with status OK.
        texts: the first text of each status.
        stopping: whether the load is to end at once, with what there is.
        report: is told now and then how many calls were answered with OK, and how many ended otherwise.
    """

    def __init__(
        self, endpoint: Endpoint, connections: int, requests: Sequence[Any], make: Callable[[], ClientSide]
    ) -> None:
        self.samples: list[tuple[int, bytes]] = []
        self.texts: dict[int, str] = {}
        self.stopping = False
        self.report: Callable[[int, int], None] | None = None
        self._requests = requests
        self._right = self._others = self._sample_bytes = 0
        self._endpoint, self._make = endpoint, make
        self._context: ssl.SSLContext | None = endpoint.tls.context(endpoint.protocol) if endpoint.tls else None
        self._links = list(connect(endpoint, make, self._context, connections))
        self._poll = select.epoll()
        for link in self._links:
            link.register(self._poll)
        self._by_fd = {link.sock.fileno(): link for link in self._links}
        self._ring = deque(self._links)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.sock.close()
        self._poll.close()

    def forget(self) -> None:
        """Forget what was answered so far, which was to warm up."""
        self.samples.clear()
        self.texts.clear()
        self._right = self._others = self._sample_bytes = 0

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
        with _undisturbed(), _Spent() as spent:
            begin = time.perf_counter_ns() + _BEGIN_NS
            taken = left = 0
            end_ns = round((seconds + patience_s) * 1e9)
            stop_ns = round(seconds * 1e9)
            report_ns = 0 if self.report else _FOREVER

            def take(number: int, status: int, now: int) -> None:
                nonlocal left
                left += 1
                answered[number] = now - begin
                statuses[number] = status

            while left < count:
                now = time.perf_counter_ns() - begin
                if taken == count and now >= stop_ns:
                    spent.stop()
                if now > end_ns or not self._links or self.stopping:
                    break
                if now >= report_ns:
                    report_ns = now + _REPORT_NS
                    self._report()
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
            now = time.perf_counter_ns() - begin
        if self.stopping or not self._links:  # what was to be sent later was not
            count = taken
            seconds = min(seconds, max(now, 1) / 1e9)
        # What the client did not even take up when the time was over, it noticed then at the earliest.
        noticed[taken:] = [end_ns] * (count - taken)
        return Record(
            schedule.choices[:count],
            schedule.times_ns[:count],
            np.array(noticed[:count], np.int64),
            np.array(sent[:count], np.int64),
            np.array(answered[:count], np.int64),
            np.array(statuses[:count], np.int64),
            cpu_seconds=spent.cpu_s,
            seconds=seconds,
            waited_seconds=spent.waited_s,
        )

    def run_closed(
        self, order: Sequence[int], under_way: int, seconds: float, patience_s: float, most: int | None = None
    ) -> Record:
        """A closed loop: a request for each answer, over and over.

        Args:
            order: which requests are sent, in turn.
            under_way: how many are without an answer at a time.
            seconds: after which none is sent any more.
            patience_s: how long the last answers are waited for.
            most: requests, after which none is sent any more either; None for no such end.
        """
        choices: list[int] = []
        sent: list[int] = []
        answered: list[int] = []
        statuses: list[int] = []
        requests, size = self._requests, len(order)
        due, left = under_way, 0
        with _undisturbed(), _Spent() as spent:
            begin = time.perf_counter_ns()
            stop_ns, end_ns = round(seconds * 1e9), round((seconds + patience_s) * 1e9)
            report_ns = 0 if self.report else _FOREVER

            def take(number: int, status: int, now: int) -> None:
                nonlocal due, left
                due += 1
                left += 1
                answered[number] = now - begin
                statuses[number] = status

            while self._links and not self.stopping:
                now = time.perf_counter_ns() - begin
                if now >= stop_ns:
                    spent.stop()
                    if now >= end_ns or left == len(sent):
                        break
                    due = 0
                if most is not None:
                    if left == most:
                        break
                    due = min(due, most - len(sent))
                if now >= report_ns:
                    report_ns = now + _REPORT_NS
                    self._report()
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
            now = time.perf_counter_ns() - begin
        length = now / 1e9 if left == most else self._length(seconds, now)
        return _closed_record(choices, sent, answered, statuses, spent, length)

    def run_sequences(self, source: SequenceSource, under_way: int, seconds: float, patience_s: float) -> Record:
        """A closed loop of sequences, each of whose requests is sent when the one before is answered.

        Args:
            source: makes the requests.
            under_way: how many sequences there are at a time.
            seconds: after which no sequence is begun; those under way are sent to their ends.
            patience_s: how long these ends and the last answers are waited for.
        """
        choices: list[int] = []
        sent: list[int] = []
        answered: list[int] = []
        statuses: list[int] = []
        slots: list[int] = []
        ready = deque(range(under_way))
        left = 0
        with _undisturbed(), _Spent() as spent:
            begin = time.perf_counter_ns()
            stop_ns, end_ns = round(seconds * 1e9), round((seconds + patience_s) * 1e9)
            report_ns = 0 if self.report else _FOREVER

            def take(number: int, status: int, now: int) -> None:
                nonlocal left
                left += 1
                answered[number] = now - begin
                statuses[number] = status
                if status:
                    source.give_up(slots[number])
                ready.append(slots[number])

            while self._links and not self.stopping:
                now = time.perf_counter_ns() - begin
                if now >= stop_ns:
                    spent.stop()
                    if now >= end_ns or (left == len(sent) and not any(map(source.is_open, ready))):
                        break
                if now >= report_ns:
                    report_ns = now + _REPORT_NS
                    self._report()
                used = set()
                for _ in range(len(ready)):
                    slot = ready.popleft()
                    if now >= stop_ns and not source.is_open(slot):
                        continue
                    link = self._free_link()
                    if link is None:
                        ready.appendleft(slot)
                        break
                    choice, request = source.next(slot)
                    link.protocol.begin(request)
                    link.numbers.append(len(sent))
                    slots.append(slot)
                    choices.append(choice)
                    sent.append(now)
                    answered.append(NEVER)
                    statuses.append(UNANSWERED)
                    used.add(link)
                for link in used:
                    link.flush()
                self._receive(((stop_ns if now < stop_ns else end_ns) - now) / 1e9, take)
            now = time.perf_counter_ns() - begin
        return _closed_record(choices, sent, answered, statuses, spent, self._length(seconds, now))

    def _length(self, seconds: float, now: int) -> float:
        """How long a load lasted: as planned, unless it was stopped or lost its server."""
        return min(seconds, max(now, 1) / 1e9) if self.stopping or not self._links else seconds

    def _report(self) -> None:
        if self.report is not None:
            self.report(self._right, self._others)

    def _free_link(self) -> Link | None:
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
            select.select([self._poll], (), (), min(wait_s, 0.25))
        for fd, events in self._poll.poll(0, _READ_AT_ONCE):
            link = self._by_fd[fd]
            if events & ~select.EPOLLOUT:
                self._read(link, take)
            if link.sock.fileno() != -1:
                link.flush()

    def _read(self, link: Link, take: Callable[[int, int, int], None]) -> None:
        try:
            data = link.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, error.strerror or str(error), take)
            return
        now = time.perf_counter_ns()
        try:
            answers = link.protocol.receive(link.decrypt(data)) if data else link.protocol.receive_end()
        except ConnectionFailed as error:
            self._drop(link, str(error), take)
            return
        numbers = link.numbers
        for stream_id, status, message in answers:
            number = numbers[stream_id >> 1]
            numbers[stream_id >> 1] = NEVER
            take(number, status, now)
            if status:
                self._others += 1
                self.texts.setdefault(status, link.protocol.texts.get(status, ""))
                continue
            if self._right % _SAMPLED == 0 and len(self.samples) < _MOST_SAMPLES:
                self._keep(number, bytes(message))
            self._right += 1
        if answers:
            link.answered += len(answers)
        if not data or (link.protocol.ended and not link.protocol.under_way):
            self._drop(link, link.protocol.ended, take)

    def _keep(self, number: int, message: bytes) -> None:
        """Keep an answer, to be checked."""
        if not self.samples or self._sample_bytes + len(message) <= _MOST_SAMPLE_BYTES:
            self.samples.append((number, message))
            self._sample_bytes += len(message)

    def _drop(self, link: Link, why: str, take: Callable[[int, int, int], None]) -> None:
        """A connection has ended, and its calls are lost. One that answered calls is made anew."""
        now = time.perf_counter_ns()
        for number in link.numbers:
            if number != NEVER:
                self.texts.setdefault(LOST, why)
                self._others += 1
                take(number, LOST, now)
        self._poll.unregister(link.sock)
        del self._by_fd[link.sock.fileno()]
        link.sock.close()
        self._links.remove(link)
        self._ring.remove(link)
        if link.answered:
            try:
                (again,) = connect(self._endpoint, self._make, self._context)
            except Unreachable as error:
                self.texts[LOST] = f"{why}; then {error}"
                return
            again.register(self._poll)
            self._links.append(again)
            self._ring.append(again)
            self._by_fd[again.sock.fileno()] = again


def _closed_record(
    choices: list[int], sent: list[int], answered: list[int], statuses: list[int], spent: _Spent, seconds: float
) -> Record:
    when = np.array(sent, np.int64)
    return Record(
        np.array(choices, np.int64),
        when,
        when,
        when,
        np.array(answered, np.int64),
        np.array(statuses, np.int64),
        cpu_seconds=spent.cpu_s,
        seconds=seconds,
        waited_seconds=spent.waited_s,
    )


class _Spent:
    """What the client has used of the processor until ``stop``, or until the end of the block.

    Attributes:
        cpu_s: seconds of CPU.
        waited_s: seconds that its thread could have run, and waited for a core.
    """

    def __init__(self) -> None:
        self.cpu_s = self.waited_s = 0.0
        self._running = True

    def __enter__(self) -> _Spent:
        self._cpu, self._waited = time.process_time(), _waited_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The load is over."""
        if self._running:
            self._running = False
            self.cpu_s, self.waited_s = time.process_time() - self._cpu, _waited_s() - self._waited


def _waited_s() -> float:
    """How long this thread has waited for a core in its life; 0 where the kernel does not count it."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


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
