"""perf_analyzer: Triton's own load generator, on the C++ client that many production clients are built on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from bench.client import Outcome, run_client
from bench.errors import NoFigure
from bench.question import Question

__all__ = ["PerfAnalyzer", "parse_report"]

_COUNT = re.compile(r"^\s+Request count: (\d+)$", re.MULTILINE)
_MEAN = re.compile(r"^\s+Avg latency: (\d+) usec", re.MULTILINE)
_PERCENTILE = r"^\s+p{} latency: (\d+) usec$"
# How many client objects of a process share one connection; 6 where the variable is not set.
_SHARE = "TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT"


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """A load of perf_analyzer: one thread and one synchronous client for each request under way.

    Attributes:
        program: where perf_analyzer is.
        libraries: for LD_LIBRARY_PATH.
        concurrency: requests under way at once.
        own_connections: whether each client has a connection to itself, as perf_analyzer's documentation advises;
            otherwise six share one.
    """

    program: str
    libraries: str
    concurrency: int
    own_connections: bool

    @property
    def name(self) -> str:
        return f"pa{self.concurrency}" + ("-own" if self.own_connections else "")

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``. perf_analyzer looks at each answer's status, not at its length.

        With a count of requests instead of a length of time, perf_analyzer sends these and no others, so that the
        server's CPU time belongs to a known number of requests. But it looks only once a second whether it is done,
        and its own rate counts that waiting; the rate is therefore taken from the mean latency (Little's law).
        """
        environment = {**os.environ, "LD_LIBRARY_PATH": self.libraries}
        environment.pop(_SHARE, None)
        if self.own_connections:
            environment[_SHARE] = "1"
        command = [self.program, "-m", question.model.name, "-i", "grpc", "-u", address, "-b", "1"]
        command += ["--concurrency-range", str(self.concurrency), "--request-count", str(requests)]
        mean_us, p50_us, p99_us = parse_report(run_client(command, environment), requests)
        return Outcome(requests, requests * mean_us / 1e6 / self.concurrency, p50_us, p99_us)


def parse_report(report: str, requests: int) -> tuple[float, float, float]:
    """Mean, median and 99th percentile of the latency, in microseconds.

    Raises:
        NoFigure: the report is not understood, or tells of another number of requests.
    """
    count, mean = _COUNT.search(report), _MEAN.search(report)
    p50, p99 = (re.search(_PERCENTILE.format(share), report, re.MULTILINE) for share in (50, 99))
    if not (count and mean and p50 and p99):
        raise NoFigure(f"perf_analyzer's report is not understood:\n{report}")
    if int(count[1]) != requests:
        raise NoFigure(f"perf_analyzer counts {count[1]} answers to {requests} requests")
    return float(mean[1]), float(p50[1]), float(p99[1])
