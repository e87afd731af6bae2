"""What became of a load: latencies from the intended time and from sending, statuses, and the client's own lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import numpy as np
import numpy.typing as npt

from toutates.bench.answer import LOST
from toutates.bench.latencies import Latencies
from toutates.h2grpc import Status

__all__ = [
    "NEVER",
    "UNANSWERED",
    "Outcome",
    "OutcomeOfRequest",
    "Record",
    "Slice",
    "merge",
    "status_name",
]

#: A time that has not come.
NEVER: Final = -1
#: The status of a request that got no answer while there was patience, beside gRPC's and LOST.
UNANSWERED: Final = -2
_NAMES: Final = {LOST: "LOST", UNANSWERED: "UNANSWERED", **{int(status): status.name for status in Status}}


@dataclass(frozen=True, slots=True)
class Record:
    """Every request of a load; the arrays have one element for each. Times are in nanoseconds from the beginning.

    Attributes:
        choices: which request was sent.
        intended_ns: when it was to be sent. Of a closed loop, when it was sent.
        noticed_ns: when the client took it up to send it. What lies between is the client's lag.
        sent_ns: when it was sent, or NEVER. What lies between is for want of a free stream, which the server grants.
        answered_ns: when its answer was read, or NEVER.
        statuses: gRPC's, LOST or UNANSWERED.
        cpu_seconds: of the client, while the load lasted.
        seconds: that the load lasted, without the wait for the last answers.
        waited_seconds: for which the client could have run, and waited for a core.
    """

    choices: npt.NDArray[np.int64]
    intended_ns: npt.NDArray[np.int64]
    noticed_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    answered_ns: npt.NDArray[np.int64]
    statuses: npt.NDArray[np.int64]
    cpu_seconds: float
    seconds: float
    waited_seconds: float = 0.0

    def without_unanswered(self) -> Record:
        """Of a load that was stopped: without what was under way."""
        kept = self.statuses != UNANSWERED
        return self if kept.all() else self.only(kept)

    def only(self, kept: npt.NDArray[np.bool_]) -> Record:
        """Some of the requests."""
        intended = self.intended_ns[kept]
        return Record(
            self.choices[kept],
            intended,
            intended if self.noticed_ns is self.intended_ns else self.noticed_ns[kept],
            intended if self.sent_ns is self.intended_ns else self.sent_ns[kept],
            self.answered_ns[kept],
            self.statuses[kept],
            cpu_seconds=self.cpu_seconds,
            seconds=self.seconds,
            waited_seconds=self.waited_seconds,
        )


@dataclass(slots=True)
class OutcomeOfRequest:
    """What became of one of the requests that a load consists of, or of all of them.

    Attributes:
        offered: how many were to be sent.
        answered: with status OK.
        in_time: of these, within the bound, counted from the intended time.
        statuses: how many ended with each status, by its name.
        from_intended, from_sent: latencies of those with status OK.
    """

    offered: int = 0
    answered: int = 0
    in_time: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    from_intended: Latencies = field(default_factory=Latencies)
    from_sent: Latencies = field(default_factory=Latencies)

    def add(self, other: OutcomeOfRequest) -> None:
        """Count what another one has, too."""
        self.offered += other.offered
        self.answered += other.answered
        self.in_time += other.in_time
        self.statuses += other.statuses
        self.from_intended.add(other.from_intended)
        self.from_sent.add(other.from_sent)


@dataclass(slots=True)
class Slice:
    """What was answered with OK within one piece of a load's time.

    Attributes:
        answered: how many.
        p50_ns, p99_ns: of their latencies, from the intended time; 0 where nothing was answered.
    """

    answered: int
    p50_ns: int
    p99_ns: int


@dataclass(slots=True)
class Outcome:
    """What became of a load.

    Attributes:
        seconds: see ``Record``.
        requests: of each of the requests that it consists of.
        lag: the client's, of every request.
        client_cpu: of the client, as a share of one core; of several clients the busiest.
        client_waited: for how much of the time the client could have run, and waited for a core; likewise.
        client_seconds: of CPU, of all clients.
        timeline: what was answered in each piece of the load's time, all of one length.
        answered_meanwhile: with status OK, before the load's time was over.
        last_answer_s: when the last request with status OK was answered, seconds from the beginning. A closed loop
            leaves some under way at its end, mostly those that take longest: what they take is not in ``seconds``.
    """

    seconds: float
    requests: list[OutcomeOfRequest]
    lag: Latencies
    client_cpu: float
    client_waited: float = 0.0
    client_seconds: float = 0.0
    timeline: list[Slice] = field(default_factory=list)
    last_answer_s: float = 0.0
    answered_meanwhile: int = 0

    @property
    def total(self) -> OutcomeOfRequest:
        """Of all requests."""
        total = OutcomeOfRequest()
        for one in self.requests:
            total.add(one)
        return total

    def lagged(self, most_ns: int) -> bool:
        """Whether the client took up one request of a hundred later than ``most_ns``: then the load has no verdict."""
        return self.lag.count > 0 and self.lag.quantile(0.99) > most_ns


#: Of a client that had lost its connections by then.
_NOTHING: Final = Slice(0, 0, 0)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a load that several clients made at the same time."""
    first, *others = outcomes
    for other in others:
        first.seconds = max(first.seconds, other.seconds)
        first.lag.add(other.lag)
        first.client_cpu = max(first.client_cpu, other.client_cpu)
        first.client_waited = max(first.client_waited, other.client_waited)
        first.client_seconds += other.client_seconds
        first.answered_meanwhile += other.answered_meanwhile
        first.last_answer_s = max(first.last_answer_s, other.last_answer_s)
        for one, more in zip(first.requests, other.requests, strict=True):
            one.add(more)
        first.timeline = [
            Slice(one.answered + more.answered, max(one.p50_ns, more.p50_ns), max(one.p99_ns, more.p99_ns))
            for one, more in zip_longest(first.timeline, other.timeline, fillvalue=_NOTHING)
        ]
    return first


def status_name(status: int) -> str:
    """gRPC's name of a status, or HTTP's number."""
    return _NAMES.get(status) or f"HTTP {status}"
