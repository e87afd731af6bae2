"""What a measurement came to, over its repeats: figures, conditions on them, text and JSON."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toutates.bench.intervals import Interval, mean_interval
from toutates.bench.latencies import Latencies
from toutates.bench.outcome import Outcome
from toutates.bench.server_figures import ServerFigures

__all__ = ["SHARES", "Condition", "Measured", "read_condition", "read_target"]

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
_CONDITION: Final = re.compile(r"(p\d+(?:\.\d+)?|rate|errors)\s*([<>])\s*(\d+(?:\.\d+)?)\s*(us|ms|s|%)?")
_UNITS: Final = {"us": 1e3, "ms": 1e6, "s": 1e9}
#: A client that needs more of its core is what the figures are about.
_BUSY: Final = 0.95
#: What one request of a hundred may be late by, whatever its latency, and as a share of that.
_LAG_NS: Final = 500_000
_LAG_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Condition:
    """What must not be.

    Attributes:
        text: as it was given.
        figure: a key of ``Measured.figures``.
        above: whether the figure must not be above the bound; else not below it.
        bound: nanoseconds, requests per second, or a share.
    """

    text: str
    figure: str
    above: bool
    bound: float


def read_condition(text: str) -> Condition:
    """A condition such as ``p99>10ms``, ``rate<1000`` or ``errors>1%``.

    Raises:
        ValueError: it is none.
    """
    match = _CONDITION.fullmatch(text.strip())
    if (
        match is None
        or match[1].startswith("p") is not (match[4] in _UNITS)
        or (match[4] == "%") is not (match[1] == "errors")
    ):
        raise ValueError("expected a condition such as p99>10ms, rate<1000 or errors>1%")
    if match[1].startswith("p") and match[1] not in SHARES:
        raise ValueError(f"expected one of {', '.join(SHARES)}")
    bound = float(match[3]) * (_UNITS.get(match[4], 1.0) if match[4] != "%" else 0.01)
    return Condition(text, match[1], match[2] == ">", bound)


def read_target(text: str) -> Condition:
    """What is to hold, such as ``p99=10ms`` or ``errors=1%``: the condition under which it does not.

    Raises:
        ValueError: it is none.
    """
    name, equals, bound = text.partition("=")
    if not equals or name.strip("< ") == "rate":
        raise ValueError("expected a target such as p99=10ms or errors=1%")
    try:
        return read_condition(f"{name.strip('< ')}>{bound.strip()}")
    except ValueError:
        raise ValueError(f"expected a target such as p99=10ms or errors=1%, with one of {', '.join(SHARES)}") from None


@dataclass(slots=True)
class Measured:
    """Loads that were alike.

    Attributes:
        outcomes: of each repeat.
        open_loop: whether requests came at times of their own.
        texts: the first text of each status but OK, by its number.
        checked: answers that were compared.
        wrong: how some of them differed.
        server: what the server counted, of each repeat.
        stopped: whether it was ended before its time.
        broken: why a repeat could not be made, or "".
        processes: that made each load together.
    """

    outcomes: list[Outcome]
    open_loop: bool
    texts: dict[int, str] = field(default_factory=dict)
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    server: list[ServerFigures] = field(default_factory=list)
    stopped: bool = False
    broken: str = ""
    processes: int = 1

    def of_server(self, name: str) -> Interval | None:
        """A figure of the server over the repeats; None if nobody counts it."""
        values = [value for one in self.server if (value := getattr(one, name)) is not None]
        return mean_interval(values) if values else None

    def client_us(self) -> float:
        """CPU of all clients for each request that was ended, in microseconds."""
        ended = sum(one.total.offered for one in self.outcomes)
        return sum(one.client_seconds for one in self.outcomes) * 1e6 / max(1, ended)

    def quantile_interval(self, share: float) -> Interval | None:
        """A quantile of latency over the repeats, in nanoseconds; None of nothing."""
        found = [one.total.from_intended for one in self.outcomes]
        values = [float(one.quantile(share)) for one in found if one.count]
        return mean_interval(values) if values else None

    def join(self, other: Measured) -> None:
        """Take the repeats of another measurement of such loads."""
        self.outcomes += other.outcomes
        self.server += other.server
        self.texts = {**other.texts, **self.texts}
        self.checked += other.checked
        self.wrong += other.wrong
        self.stopped |= other.stopped
        self.broken = self.broken or other.broken
        self.processes = max(self.processes, other.processes)

    def of_requests(self, places: Sequence[int]) -> Measured:
        """The same loads with some of their requests alone.

        Args:
            places: of these among the requests that each load consists of.
        """
        return replace(
            self, outcomes=[replace(one, requests=[one.requests[at] for at in places]) for one in self.outcomes]
        )

    def rates(self) -> list[float]:
        """Requests answered with OK per second, of each repeat."""
        # A closed loop waits for what is under way at its end: these answers count, and so does the time they take. An
        # open loop may have offered more than the server answers meanwhile: what it answers later is no rate.
        return [
            one.answered_meanwhile / one.seconds
            if self.open_loop
            else one.total.answered / max(one.seconds, one.last_answer_s)
            for one in self.outcomes
        ]

    def latencies(self) -> tuple[Latencies, Latencies]:
        """From the intended time, and from sending."""
        intended, sent = Latencies(), Latencies()
        for one in self.outcomes:
            intended.add(one.total.from_intended)
            sent.add(one.total.from_sent)
        return intended, sent

    def statuses(self) -> Counter[str]:
        """How many requests ended with each status."""
        return sum((one.total.statuses for one in self.outcomes), Counter())

    def figures(self) -> dict[str, float]:
        """What conditions are about: nanoseconds, requests per second, and the share of requests without an answer."""
        statuses = self.statuses()
        found = {"rate": statistics.mean(self.rates()), "errors": 1 - statuses["OK"] / max(1, statuses.total())}
        intended, _ = self.latencies()
        if intended.count:
            found |= {name: float(intended.quantile(share)) for name, share in SHARES.items()}
        return found

    def failed(self, conditions: Sequence[Condition]) -> list[str]:
        """The conditions that are met, and so fail. A latency of which there is none is too long."""
        figures = self.figures()
        return [
            one.text
            for one in conditions
            if (figures.get(one.figure, float("inf")) > one.bound) is one.above
            and figures.get(one.figure, float("inf")) != one.bound
        ]

    def doubt(self) -> str:
        """Why the figures are the client's and not the server's; "" if they are not."""
        if not self.outcomes:
            return ""
        busy = max(one.client_cpu for one in self.outcomes)
        if busy > _BUSY:
            return (
                f"the client took {busy:.0%} of a core, and was the bottleneck; give it another machine, or more "
                f"--processes than {self.processes}"
            )
        starved = max(self.outcomes, key=lambda one: one.client_cpu + one.client_waited)
        if starved.client_cpu + starved.client_waited > _BUSY:
            return (
                f"the client took {starved.client_cpu:.0%} of a core and waited for one for "
                f"{starved.client_waited:.0%} of the time: the machine has too much to do"
            )
        if self.open_loop:
            intended, _ = self.latencies()
            p99 = intended.quantile(0.99) if intended.count else 0
            lag = max((one.lag.quantile(0.99) for one in self.outcomes if one.lag.count), default=0)
            if lag > max(_LAG_NS, _LAG_SHARE * p99):
                return f"the client itself was {lag / 1e6:.1f} ms late with one request of a hundred"
        return ""

    def to_json(self) -> dict[str, Any]:
        """All figures, latencies in microseconds."""
        intended, sent = self.latencies()
        rate = mean_interval(self.rates())
        return {
            "requests_per_second": rate.mean,
            "requests_per_second_interval": _known(rate.half),
            "repeats": self.rates(),
            "offered_per_second": statistics.fmean(one.total.offered / one.seconds for one in self.outcomes),
            "latency_us": _quantiles(intended),
            "latency_intervals_us": {
                name: _known(found.half / 1e3)
                for name, share in SHARES.items()
                if (found := self.quantile_interval(share)) is not None
            },
            "latency_from_sending_us": _quantiles(sent),
            "histogram_us": [[end / 1e3, count] for end, count in intended.points()],
            "statuses": dict(self.statuses()),
            "texts": {str(status): text for status, text in self.texts.items()},
            "checked": self.checked,
            "wrong": self.wrong,
            "server": {
                name: {"mean": found.mean, "interval": _known(found.half)}
                for name in _OF_SERVER
                if (found := self.of_server(name)) is not None
            },
            "client_cpu": max(one.client_cpu for one in self.outcomes),
            "client_waited": max(one.client_waited for one in self.outcomes),
            "client_cpu_us_per_request": self.client_us(),
            "client_lag_p99_us": self._lag_ns() / 1e3,
            "stopped": self.stopped,
            "broken": self.broken,
            "doubt": self.doubt(),
        }

    def _lag_ns(self) -> int:
        return max((one.lag.quantile(0.99) for one in self.outcomes if one.lag.count), default=0)

    def lines(self) -> Iterator[str]:
        """For people."""
        rates = self.rates()
        yield f"  requests/s   {_with_interval(mean_interval(rates))}"
        intended, sent = self.latencies()
        if intended.count:
            yield f"  latency, us  {_row(intended)}"
            if len(self.outcomes) > 1:
                told = (f"{name} +- {found.half / 1e3:,.0f}" for name, found in self._intervals())
                yield f"    intervals  {'  '.join(told)}"
            if self.open_loop and intended.quantile(0.99) > 1.05 * sent.quantile(0.99):
                yield f"    from sent  {_row(sent)}"
        for name, count in sorted(self.statuses().items()):
            if name != "OK":
                yield f"  {name}: {count:,}"
        for text in dict.fromkeys(self.texts.values()):
            yield f"    {text}"
        if self.checked:
            yield f"  answers      {self.checked:,} compared, {len(self.wrong)} wrong"
        for text in dict.fromkeys(self.wrong[:3]):
            yield f"    {text}"
        server = [
            f"{label} {_with_interval(found)}{unit}"
            for name, (label, unit) in _OF_SERVER.items()
            if (found := self.of_server(name)) is not None and label
        ]
        if server:
            yield f"  server       {', '.join(server)}"
        late = f", {self._lag_ns() / 1e3:,.0f} us late at p99" if self.open_loop else ""
        waited = max(one.client_waited for one in self.outcomes)
        waiting = f", waited for one {waited:.0%} of the time" if waited > 0.05 else ""
        busy = max(one.client_cpu for one in self.outcomes)
        yield f"  client       {busy:.0%} of a core{waiting}, {self.client_us():.1f} us a request{late}"
        if self.stopped:
            yield "  STOPPED before its time: these are the figures until then"
        if self.broken:
            yield f"    {self.broken}"

    def _intervals(self) -> Iterator[tuple[str, Interval]]:
        for name, share in SHARES.items():
            if (found := self.quantile_interval(share)) is not None:
                yield name, found


#: What is shown of a server, with its unit; "" for what the text leaves out.
_OF_SERVER: Final = {
    "cpu_us": ("CPU", " us a request"),
    "resident_mib": ("memory", " MiB"),
    "batch_rows": ("batches of", " rows"),
    "queue_us": ("in the queue", " us"),
    "input_us": ("", " us"),
    "infer_us": ("computing", " us"),
    "output_us": ("", " us"),
}


def _known(value: float) -> float | None:
    """NaN is nothing in JSON."""
    return None if math.isnan(value) else value


def _with_interval(found: Interval) -> str:
    digits = 0 if abs(found.mean) >= 100 else 1
    half = "" if math.isnan(found.half) else f" +- {found.half:,.{digits}f}"
    return f"{found.mean:,.{digits}f}{half}"


def _quantiles(latencies: Latencies) -> dict[str, float]:
    if not latencies.count:
        return {}
    return {
        **{name: latencies.quantile(share) / 1e3 for name, share in SHARES.items()},
        "max": latencies.quantile(1) / 1e3,
    }


def _row(latencies: Latencies) -> str:
    return "  ".join(f"{name} {value:,.0f}" for name, value in _quantiles(latencies).items())
