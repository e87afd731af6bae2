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
from typing import Any, Final, TypeAlias

from toutates.bench.answer import LOST, Answer, ClientSide, ConnectionFailed
from toutates.bench.arrivals import Schedule
from toutates.bench.endpoint import Endpoint
from toutates.bench.link import CHUNK, Link, Unreachable, connect
from toutates.bench.outcome import Record
from toutates.bench.request_log import RequestLog
from toutates.bench.source import Source
from toutates.bench.tally import Tally
from toutates.system.text import one_line

__all__ = ["Driver", "Unreachable"]

#: Connections that are read from between two looks at what is to be sent.
_READ_AT_ONCE: Final = 4
#: In a closed loop nothing is to be sent but for answers.
_ALL_AT_ONCE: Final = 256
#: Requests that are taken up between two looks at the sockets, so that answers are read while many are to be sent.
_BURST: Final = 64
#: Requests of a schedule that are made numbers of Python at a time.
_PIECE: Final = 1 << 14
#: The head start that the first request gets.
_BEGIN_NS: Final = 10_000_000
#: After so many answers with status OK another one is kept, to be checked; at first after fewer.
_SAMPLED: Final = 97
_MOST_SAMPLES: Final = 2_000
#: Of the bytes of kept answers; the first answer is kept whatever its size.
_MOST_SAMPLE_BYTES: Final = 1 << 26
#: Between two reports of how far a load is.
_REPORT_NS: Final = 250_000_000
_FOREVER: Final = 1 << 62
_LONGEST_WAIT_S: Final = 0.25
_MOST_TEXT: Final = 500
_SCHEDSTAT: Final = Path("/proc/self/schedstat")

#: Is given the answers that came over a connection at a time, in nanoseconds.
Take: TypeAlias = Callable[[Link, Sequence[Answer], int], None]


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
        requests: what can be sent.
        samples: which contents a request had and its answer, as it came, of some with status OK.
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
        self.requests = requests
        self._right = self._others = self._sample_bytes = self._next_sample = 0
        #: Which contents a request had, by its number.
        self._choice_of: Callable[[int], int] = int
        self._endpoint, self._make = endpoint, make
        self._context: ssl.SSLContext | None = endpoint.tls.context(endpoint.protocol) if endpoint.tls else None
        self._poll = select.epoll()  # before all connections: ``select`` takes no descriptor from 1,024 on
        try:
            self._links = list(connect(endpoint, make, self._context, connections))
        except BaseException:
            self._poll.close()
            raise
        for link in self._links:
            link.register(self._poll)
        self._by_fd = {link.sock.fileno(): link for link in self._links}
        self._ring = deque(self._links)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.close()
        self._poll.close()

    def forget(self) -> None:
        """Forget what was answered so far, which was to warm up.

        Raises:
            Unreachable: a connection with calls without an answer, which is made anew, cannot be.
        """
        for link in list(self._links):
            if link.protocol.under_way:  # their answers would be taken for those of the next load
                self._remove(link)
                self._add()
        self.samples.clear()
        self.texts.clear()
        self._right = self._others = self._sample_bytes = self._next_sample = 0

    def run_schedule(self, schedule: Schedule, seconds: float, patience_s: float, tally: Tally | None = None) -> Record:
        """An open loop: send each request at its time, whatever became of those before.

        Args:
            schedule: what is to be sent when.
            seconds: length of the schedule.
            patience_s: how long the last answers are waited for.
            tally: that requests are counted in after a while, which the record is without.
        """
        count = len(schedule.times_ns)
        log = RequestLog(lambda first, most: schedule.choices[first : first + most], closed=False, tally=tally)
        self._choice_of = lambda number: int(schedule.choices[number])
        waiting: deque[tuple[int, int]] = deque()
        requests = self.requests
        # A piece of the schedule as numbers of Python, and the number of its first request.
        times, choices, base = list[int](), list[int](), 0
        with _undisturbed(), _Spent() as spent:
            begin = time.perf_counter_ns() + _BEGIN_NS
            taken = left = 0
            end_ns = round((seconds + patience_s) * 1e9)
            stop_ns = round(seconds * 1e9)
            report_ns = 0 if self.report else _FOREVER

            def take(link: Link, answers: Sequence[Answer], at: int) -> None:
                nonlocal left
                left += len(answers)
                log.answer(answers, at - begin)

            while left < count:
                log.count_old()
                if taken == base + len(times) and taken < count:
                    base = taken
                    times = schedule.times_ns[base : base + _PIECE].tolist()
                    choices = schedule.choices[base : base + _PIECE].tolist()
                now = time.perf_counter_ns() - begin
                if taken == count and now >= stop_ns:
                    spent.stop()
                if now > end_ns or not self._links or self.stopping:
                    break
                if now >= report_ns:
                    report_ns = now + _REPORT_NS
                    self._report()
                at = taken - base
                stop = min(len(times), at + _BURST)
                first = at
                while at < stop and times[at] <= now:
                    waiting.append((taken, choices[at]))
                    taken += 1
                    at += 1
                if at > first:
                    log.notice(times[first:at], now)
                used = set()
                while waiting and (link := self._free_link()) is not None:
                    number, choice = waiting.popleft()
                    link.protocol.begin(requests[choice], number)
                    log.send(number, now)
                    used.add(link)
                for link in used:
                    link.flush()
                # At the end of a piece the next one is looked at at once.
                until = times[at] if at < len(times) else now if taken < count else end_ns
                self._wait((until - time.perf_counter_ns() + begin) / 1e9)
                self._receive(_READ_AT_ONCE, take)
            now = time.perf_counter_ns() - begin
        if self.stopping or not self._links:  # what was to be sent later was not
            return log.record(spent.cpu_s, spent.waited_s, min(seconds, max(now, 1) / 1e9))
        # What the client did not even take up when the time was over, it noticed then at the earliest.
        while taken < count:
            late = schedule.times_ns[taken : taken + _PIECE].tolist()
            log.notice(late, end_ns)
            taken += len(late)
        return log.record(spent.cpu_s, spent.waited_s, seconds)

    def run_closed(
        self, source: Source, under_way: int, seconds: float, patience_s: float, tally: Tally | None = None
    ) -> Record:
        """A closed loop: a request for each answer, over the same connection, over and over.

        Args:
            source: of requests.
            under_way: how many are without an answer at a time.
            seconds: after which none is begun any more.
            patience_s: how long the last answers are waited for.
            tally: that requests are counted in after a while, which the record is without.
        """
        log = RequestLog(source.choices, closed=True, tally=tally)
        self._choice_of = lambda number: int(source.choices(number, 1)[0])
        free, left, over = under_way, 0, False
        with _undisturbed(), _Spent() as spent:
            begin = time.perf_counter_ns()
            stop_ns, end_ns = begin + round(seconds * 1e9), begin + round((seconds + patience_s) * 1e9)
            report_ns = begin if self.report else _FOREVER

            def send(link: Link, most: int) -> int:
                """Begin so many calls at most; returns how many."""
                requests = source.take(min(most, link.protocol.room), over=over)
                number = log.count
                for request in requests:
                    link.protocol.begin(request, number)
                    number += 1
                count = len(requests)
                log.begin(count, time.perf_counter_ns() - begin)
                link.flush()
                return count

            def take(link: Link, answers: Sequence[Answer], at: int) -> None:
                nonlocal free, left, over
                log.answer(answers, at - begin)
                left += len(answers)
                source.answered(answers)
                over = over or at >= stop_ns
                free += len(answers)
                free -= send(link, free)

            while self._links and not self.stopping:
                now = time.perf_counter_ns()
                if now >= stop_ns:
                    over = True
                    spent.stop()
                    if now >= end_ns:
                        break
                if now >= report_ns:
                    report_ns = now + _REPORT_NS
                    self._report()
                if free:  # at the beginning, and where a connection had no room or was lost
                    share = -(-free // len(self._links))
                    for link in self._turned():
                        free -= send(link, min(share, free))
                if left == log.count:
                    break
                log.count_old()
                self._receive(_ALL_AT_ONCE, take, ((end_ns if over else min(stop_ns, report_ns)) - now) / 1e9)
            ended_ns = time.perf_counter_ns() - begin
        # Where the source came to its end, the load did.
        whole = over and not self.stopping and self._links
        lasted = seconds if whole else min(seconds, max(ended_ns, 1) / 1e9)
        return log.record(spent.cpu_s, spent.waited_s, lasted)

    def _report(self) -> None:
        if self.report is not None:
            self.report(self._right, self._others)

    def _free_link(self) -> Link | None:
        """The next connection that has room for a call."""
        return next((link for link in self._turned() if link.protocol.room), None)

    def _turned(self) -> Iterator[Link]:
        """All connections, each time beginning with the one behind the last that was taken."""
        ring = self._ring
        for _ in range(len(ring)):
            link = ring[0]
            ring.rotate(-1)
            yield link

    def _wait(self, seconds: float) -> None:
        """Wait until something has come, no longer than so."""
        if seconds > 0:
            # epoll counts in milliseconds, select in microseconds.
            select.select([self._poll], (), (), min(seconds, _LONGEST_WAIT_S))

    def _receive(self, most: int, take: Take, wait_s: float = 0.0) -> None:
        """Pass on what has come on so many connections, with its time; before, wait until something has."""
        for fd, events in self._poll.poll(min(max(wait_s, 0.0), _LONGEST_WAIT_S), most):
            link = self._by_fd.get(fd)
            if link is None:  # lost in this turn
                continue
            if events & ~select.EPOLLOUT:
                self._read(link, take)
            if events & select.EPOLLOUT:
                link.flush()

    def _read(self, link: Link, take: Take) -> None:
        try:
            data = link.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, error.strerror or str(error), take)
            return
        now = time.perf_counter_ns()
        protocol = link.protocol
        try:
            answers = protocol.receive(link.decrypt(data)) if data else protocol.receive_end()
        except ConnectionFailed as error:
            self._drop(link, str(error), take)
            return
        if answers:
            self._count(link, answers)
            take(link, answers, now)
        else:
            link.flush()  # what the server itself asks for
        if not data or (protocol.ended and not protocol.under_way):
            self._drop(link, protocol.ended, take)

    def _count(self, link: Link, answers: Sequence[Answer]) -> None:
        """Count answers, note the texts of errors, and keep now and then one to be checked."""
        link.answered += len(answers)
        right = len(answers)
        for _, status, _ in answers:
            if status:
                right -= 1
                if status not in self.texts:
                    self.texts[status] = one_line(link.protocol.texts.get(status, ""), _MOST_TEXT)
        self._others += len(answers) - right
        if right and self._right >= self._next_sample and len(self.samples) < _MOST_SAMPLES:
            self._next_sample = self._right + min(len(self.samples) + 1, _SAMPLED)
            number, message = next((number, message) for number, status, message in answers if not status)
            if not self.samples or self._sample_bytes + len(message) <= _MOST_SAMPLE_BYTES:
                self.samples.append((self._choice_of(number), bytes(message)))
                self._sample_bytes += len(message)
        self._right += right

    def _drop(self, link: Link, why: str, take: Take) -> None:
        """A connection has ended, and its calls are lost. One that answered calls is made anew."""
        now = time.perf_counter_ns()
        self._remove(link)
        lost = [(number, LOST, b"") for number in link.protocol.under_way]
        link.protocol.ended = link.protocol.ended or why
        if lost:
            self.texts.setdefault(LOST, one_line(why, _MOST_TEXT))
            self._others += len(lost)
            take(link, lost, now)
        if link.answered:
            try:
                self._add()
            except Unreachable as error:
                self.texts[LOST] = one_line(f"{why}; then {error}", _MOST_TEXT)

    def _remove(self, link: Link) -> None:
        self._poll.unregister(link.sock)
        del self._by_fd[link.sock.fileno()]
        link.close()
        self._links.remove(link)
        self._ring.remove(link)

    def _add(self) -> None:
        (link,) = connect(self._endpoint, self._make, self._context)
        link.register(self._poll)
        self._links.append(link)
        self._ring.append(link)
        self._by_fd[link.sock.fileno()] = link


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
