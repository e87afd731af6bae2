"""What became of a load: latencies from the intended time and from sending, statuses, and the client's own lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from toutates.bench.client_connection import LOST
from toutates.bench.latencies import Latencies
from toutates.h2grpc import Status

__all__ = ["NEVER", "UNANSWERED", "Outcome", "OutcomeOfRequest", "Record", "summarise"]

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
    """

    choices: npt.NDArray[np.int64]
    intended_ns: npt.NDArray[np.int64]
    noticed_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    answered_ns: npt.NDArray[np.int64]
    statuses: npt.NDArray[np.int64]
    cpu_seconds: float
    seconds: float


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

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        latencies = {name: getattr(self, name).to_json() for name in ("from_intended", "from_sent")}
        counts = {name: getattr(self, name) for name in ("offered", "answered", "in_time")}
        return {**counts, "statuses": dict(self.statuses), **latencies}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        latencies = {name: Latencies.from_json(given[name]) for name in ("from_intended", "from_sent")}
        return cls(**{**given, "statuses": Counter(given["statuses"]), **latencies})


@dataclass(slots=True)
class Outcome:
    """What became of a load.

    Attributes:
        seconds: see ``Record``.
        requests: of each of the requests that it consists of.
        lag: the client's, of every request.
        client_cpu: of the client, as a share of one core.
    """

    seconds: float
    requests: list[OutcomeOfRequest]
    lag: Latencies
    client_cpu: float

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

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        requests = [one.to_json() for one in self.requests]
        return {**asdict(self), "requests": requests, "lag": self.lag.to_json()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        requests = [OutcomeOfRequest.from_json(one) for one in given["requests"]]
        return cls(given["seconds"], requests, Latencies.from_json(given["lag"]), given["client_cpu"])


def summarise(record: Record, kinds: int, bound_ns: int) -> Outcome:
    """The outcome of a load.

    Args:
        record: of the load.
        kinds: how many requests it consists of.
        bound_ns: answers that take longer, from the intended time, are late.
    """
    outcomes = []
    right = record.statuses == Status.OK
    took_ns = record.answered_ns - record.intended_ns
    for kind in range(kinds):
        own = record.choices == kind
        answered = own & right
        outcome = OutcomeOfRequest(int(own.sum()), int(answered.sum()), int((answered & (took_ns <= bound_ns)).sum()))
        codes, counts = np.unique(record.statuses[own], return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            outcome.statuses[_NAMES.get(code, str(code))] += count
        outcome.from_intended.record(took_ns[answered])
        outcome.from_sent.record((record.answered_ns - record.sent_ns)[answered])
        outcomes.append(outcome)
    lag = Latencies()
    lag.record(record.noticed_ns - record.intended_ns)
    return Outcome(record.seconds, outcomes, lag, record.cpu_seconds / record.seconds)
