"""h2load: one request over and over, at the rate a C++ client can send it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import Outcome, percentile, run_client
from bench.errors import NoFigure
from bench.protocols import GRPC, JSON
from bench.question import METHOD, Question

__all__ = ["H2load", "check_report", "latencies"]

_REQUESTS = re.compile(r"requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored")
_CODES = re.compile(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx")
_DATA = re.compile(r"\((\d+)\) data$", re.MULTILINE)
_FINISHED = re.compile(r"finished in ([\d.]+)(us|ms|s|m),")
#: By how much the JSON of answers may differ in length: batches sum in another order, and so last digits differ.
_JSON_TOLERANCE = 0.25
_UNIT_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class H2load:
    """A load of h2load.

    Its log of every request costs the client up to 8% of its rate where that is highest, and the server nothing.

    Attributes:
        program: where h2load is.
        connections: TCP connections.
        streams: requests under way at once on each of them; 1 over HTTP/1.1.
        protocol: GRPC, or a form of REST, which is sent over HTTP/1.1.
    """

    program: str
    connections: int
    streams: int
    protocol: str = GRPC

    @property
    def name(self) -> str:
        shape = f"{self.connections}x{self.streams}"
        return shape if self.protocol == GRPC else f"{self.protocol}{shape}"

    @property
    def concurrency(self) -> int:
        return self.connections * self.streams

    @property
    def timed(self) -> bool:
        return False

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``."""
        with tempfile.TemporaryDirectory(prefix="toutates-h2load-") as scratch:
            file, log = Path(scratch, "body"), Path(scratch, "log")
            if self.protocol == GRPC:
                path, body = METHOD, question.body
                fields: Sequence[str] = ("content-type: application/grpc", "te: trailers")
                how = ["-m", str(self.streams)]
            else:
                request = question.rest(self.protocol)
                path, body, fields, how = request.path, request.body, request.fields, ["--h1"]
            file.write_bytes(body)
            command = [self.program, "-n", str(requests), "-c", str(self.connections), *how]
            command += ["-d", str(file), f"--log-file={log}"]
            for field in fields:
                command += ["-H", field]
            report = run_client([*command, f"http://{address}{path}"])
            tolerance = _JSON_TOLERANCE if self.protocol == JSON else 0.0
            seconds = check_report(report, requests, answer_bytes, tolerance)
            times = sorted(latencies(log.read_bytes()))
        if len(times) != requests:
            raise NoFigure(f"h2load logged {len(times)} of {requests} requests")
        return Outcome(requests, requests / seconds, percentile(times, 0.5), percentile(times, 0.99))


def check_report(report: str, requests: int, answer_bytes: int, tolerance: float = 0.0) -> float:
    """What h2load prints at the end; returns the seconds that the load took.

    Args:
        report: its standard output.
        requests: that were asked for.
        answer_bytes: of each answer.
        tolerance: share of these by which all answers together may be more or less.

    Raises:
        NoFigure: a request failed, or the answers have not the right length together.
    """
    counts, codes, data, finished = (pattern.search(report) for pattern in (_REQUESTS, _CODES, _DATA, _FINISHED))
    if not (counts and codes and data and finished):
        raise NoFigure(f"h2load's report is not understood:\n{report}")
    if [int(count) for count in counts.groups()] != [requests, requests, requests, 0, 0]:
        raise NoFigure(f"h2load: {counts[0]} (asked for {requests})")
    if int(codes[1]) != requests:
        raise NoFigure(f"h2load: {codes[0]}")
    if abs(int(data[1]) - requests * answer_bytes) > tolerance * requests * answer_bytes:
        raise NoFigure(f"answers add up to {data[1]} bytes instead of {requests} x {answer_bytes}")
    return float(finished[1]) * _UNIT_SECONDS[finished[2]]


def latencies(log: bytes) -> list[int]:
    """Microseconds until the end of each response: the third column of h2load's log.

    Raises:
        NoFigure: the log is not understood, or a request in it has no status 200.
    """
    fields = log.split()
    if not fields or len(fields) % 3:
        raise NoFigure("h2load's log is not three columns; version 1.52 writes start, status, microseconds")
    if set(fields[1::3]) != {b"200"}:
        raise NoFigure("h2load's log has requests that failed")
    return [int(microseconds) for microseconds in fields[2::3]]
