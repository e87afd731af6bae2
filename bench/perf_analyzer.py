"""perf_analyzer: Triton's own load generator, on the C++ client that many production clients are built on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from bench.client import Outcome, run_client
from bench.errors import NoFigure
from bench.protocols import GRPC
from bench.question import Question

__all__ = ["PerfAnalyzer", "parse_report"]

_COUNT = re.compile(r"^\s+Request count: (\d+)$", re.MULTILINE)
_RATE = re.compile(r"^\s+Throughput: ([\d.]+(?:e\+\d+)?) infer/sec", re.MULTILINE)
_P50, _P99 = (re.compile(rf"^\s+p{share} latency: (\d+) usec$", re.MULTILINE) for share in (50, 99))
_WINDOWS = 3
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
        seconds: how long the windows are together.
    """

    program: str
    libraries: str
    concurrency: int
    own_connections: bool
    seconds: float

    @property
    def name(self) -> str:
        return f"pa{self.concurrency}" + ("-own" if self.own_connections else "")

    @property
    def protocol(self) -> str:
        return GRPC

    @property
    def timed(self) -> bool:
        return True

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``. perf_analyzer looks at each answer's status, not at its length.

        It measures windows of a length until three agree, and is told that all do. It could also be told a number of
        requests, but then it sometimes never ends although all are answered.
        """
        environment = {**os.environ, "LD_LIBRARY_PATH": self.libraries}
        environment.pop(_SHARE, None)
        if self.own_connections:
            environment[_SHARE] = "1"
        # A window without an answer would be an error.
        window_ms = int(1000 * max(self.seconds / _WINDOWS, question.run_seconds * self.concurrency * 2))
        command = [self.program, "-m", question.model.name, "-i", "grpc", "-u", address, "-b", "1"]
        command += ["--concurrency-range", str(self.concurrency), "--measurement-interval", str(window_ms)]
        command += ["--stability-percentage", "999", "--max-trials", str(_WINDOWS)]
        return parse_report(run_client(command, environment))


def parse_report(report: str) -> Outcome:
    """What perf_analyzer prints.

    Raises:
        NoFigure: it is not understood.
    """
    found = [pattern.search(report) for pattern in (_COUNT, _RATE, _P50, _P99)]
    values = [float(match[1]) for match in found if match]
    if len(values) != len(found):
        raise NoFigure(f"perf_analyzer's report is not understood:\n{report}")
    count, rate, p50_us, p99_us = values
    return Outcome(int(count), rate, p50_us, p99_us)
