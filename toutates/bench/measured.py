"""What a measurement came to, over its repeats: figures, conditions on them, text and JSON."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from toutates.bench.latencies import Latencies
from toutates.bench.outcome import Outcome

__all__ = ["Condition", "Measured", "read_condition"]

_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
#: Of Student's t distribution, for an interval of 95 %, by the repeats.
_T: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
_T_OF_MORE: Final = 2.0
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
    if match[1].startswith("p") and match[1] not in _SHARES:
        raise ValueError(f"expected one of {', '.join(_SHARES)}")
    bound = float(match[3]) * (_UNITS.get(match[4], 1.0) if match[4] != "%" else 0.01)
    return Condition(text, match[1], match[2] == ">", bound)


@dataclass(slots=True)
class Measured:
    """Loads that were alike.

    Attributes:
        outcomes: of each repeat.
        open_loop: whether requests came at times of their own.
        texts: the first text of each status but OK, by its number.
        checked: answers that were compared.
        wrong: how some of them differed.
    """

    outcomes: list[Outcome]
    open_loop: bool
    texts: dict[int, str] = field(default_factory=dict)
    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Requests answered with OK per second, of each repeat."""
        return [one.total.answered / one.seconds for one in self.outcomes]

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
            found |= {name: float(intended.quantile(share)) for name, share in _SHARES.items()}
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
        busy = max(one.client_cpu for one in self.outcomes)
        if busy > _BUSY:
            return f"the client took {busy:.0%} of a core, and was the bottleneck"
        if self.open_loop:
            intended, _ = self.latencies()
            p99 = intended.quantile(0.99) if intended.count else 0
            lag = max(one.lag.quantile(0.99) for one in self.outcomes if one.lag.count)
            if lag > max(_LAG_NS, _LAG_SHARE * p99):
                return f"the client itself was {lag / 1e6:.1f} ms late with one request of a hundred"
        return ""

    def to_json(self) -> dict[str, Any]:
        """All figures, latencies in microseconds."""
        intended, sent = self.latencies()
        return {
            "requests_per_second": statistics.mean(self.rates()),
            "requests_per_second_interval": _interval(self.rates()),
            "repeats": self.rates(),
            "latency_us": _quantiles(intended),
            "latency_from_sending_us": _quantiles(sent),
            "statuses": dict(self.statuses()),
            "texts": {str(status): text for status, text in self.texts.items()},
            "checked": self.checked,
            "wrong": self.wrong,
            "client_cpu": max(one.client_cpu for one in self.outcomes),
            "client_lag_p99_us": max(
                (one.lag.quantile(0.99) / 1e3 for one in self.outcomes if one.lag.count), default=0
            ),
            "doubt": self.doubt(),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        rates = self.rates()
        told = f"  requests/s   {statistics.mean(rates):,.0f}"
        yield told + (f" +- {_interval(rates):,.0f}" if len(rates) > 1 else "")
        intended, sent = self.latencies()
        if intended.count:
            yield f"  latency, us  {_row(intended)}"
            if self.open_loop and intended.quantile(0.99) > 1.05 * sent.quantile(0.99):
                yield f"    from sent  {_row(sent)}"
        for name, count in sorted(self.statuses().items()):
            if name != "OK":
                yield f"  {name}: {count:,}"
        for text in dict.fromkeys(self.texts.values()):
            yield f"    {text}"
        if self.checked:
            yield f"  answers      {self.checked:,} compared, {len(self.wrong)} wrong"
        for text in self.wrong[:3]:
            yield f"    {text}"
        lag = max((one.lag.quantile(0.99) for one in self.outcomes if one.lag.count), default=0)
        late = f", {lag / 1e3:,.0f} us late at p99" if self.open_loop else ""
        yield f"  client       {max(one.client_cpu for one in self.outcomes):.0%} of a core{late}"


def _interval(values: Sequence[float]) -> float:
    """Half of the interval that holds the mean with 95 %."""
    if len(values) < 2:
        return 0.0
    return _T.get(len(values), _T_OF_MORE) * statistics.stdev(values) / math.sqrt(len(values))


def _quantiles(latencies: Latencies) -> dict[str, float]:
    if not latencies.count:
        return {}
    return {
        **{name: latencies.quantile(share) / 1e3 for name, share in _SHARES.items()},
        "max": latencies.quantile(1) / 1e3,
    }


def _row(latencies: Latencies) -> str:
    return "  ".join(f"{name} {value:,.0f}" for name, value in _quantiles(latencies).items())
