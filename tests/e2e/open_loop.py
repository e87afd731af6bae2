"""An open-loop load in a process of its own: requests go out at their times, whatever becomes of those before.

    python -m tests.e2e.open_loop PORT MODEL REQUESTS_PER_SECOND SECONDS [DEADLINE_MS]

prints a JSON object: ``Report``. The message is one row of 64 floats.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Final

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

from tests.e2e.process import ROOT
from tests.e2e.support import pb
from tests.e2e.wire import framed

__all__ = ["CONNECTIONS", "Report", "offer"]

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
CONNECTIONS: Final = 8
#: For the answers to the last requests.
_PATIENCE_S: Final = 120.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_STREAM, _END_HEADERS = 1, 4


@dataclass(slots=True)
class Report:
    """What became of a load.

    Attributes:
        sent: requests.
        seconds: from the first request to the last.
        statuses: answers by grpc-status.
        good_times: seconds that each answer with status 0 took, from when its request was due; sorted.
        refused_times: the same for status 8.
        good_in_time: answers with status 0 that came before the last request was due.
        late: seconds that the sender was late at most, which has to be little for the load to be what it says.
    """

    sent: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    good_times: list[float] = field(default_factory=list)
    refused_times: list[float] = field(default_factory=list)
    good_in_time: int = 0
    late: float = 0.0

    @property
    def goodput(self) -> float:
        """Good answers per second."""
        return self.good_in_time / self.seconds

    @staticmethod
    def percentile(times: list[float], share: float) -> float:
        """Of sorted times; infinite where there are none."""
        if not times:
            return math.inf
        return times[min(len(times) - 1, int(share * len(times)))]


def offer(port: int, model: str, rate: float, seconds: float, deadline_ms: int | None = None) -> Report:
    """Run a load in a process of its own."""
    arguments = [str(port), model, str(rate), str(seconds), *([str(deadline_ms)] if deadline_ms else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.open_loop", *arguments],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=seconds + 3 * _PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    return Report(**json.loads(done.stdout))


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


class _Connection:
    """One connection; requests are the same bytes each."""

    def __init__(self, port: int, message: bytes, deadline_ms: int | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = {":method": "POST", ":scheme": "http", ":path": INFER, ":authority": "test", "te": "trailers"}
        fields["content-type"] = "application/grpc"
        if deadline_ms is not None:
            fields["grpc-timeout"] = f"{deadline_ms}m"
        self._block = Encoder().encode([NeverIndexedHeaderTuple(*pair) for pair in fields.items()])
        self._body = framed(message)
        self._decoder = Decoder()
        self._next_id = 1
        self._received = b""
        self.due: dict[int, float] = {}
        window = struct.pack(">I", 2**31 - 65_536)
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_WINDOW_UPDATE, 0, 0, window))

    def send(self, due: float) -> None:
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self.due[stream_id] = due
        headers = _frame(_HEADERS, _END_HEADERS, stream_id, self._block)
        self.socket.sendall(headers + _frame(_DATA, _END_STREAM, stream_id, self._body))

    def receive(self) -> list[tuple[str, float]]:
        """Read once; the statuses that came, each with the time its request was due."""
        data = self.socket.recv(1_048_576)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._received += data
        ended: list[tuple[str, float]] = []
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                break
            kind, flags = self._received[3], self._received[4]
            stream_id = int.from_bytes(self._received[5:9], "big")
            payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            if kind == _HEADERS:
                fields = dict(self._decoder.decode(payload, raw=True))
                if flags & _END_STREAM:
                    ended.append((fields[b"grpc-status"].decode(), self.due.pop(stream_id)))
        return ended


def _run(port: int, model: str, rate: float, seconds: float, deadline_ms: int | None) -> Report:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(bytes(4 * 64))
    message = request.SerializeToString()
    connections = [_Connection(port, message, deadline_ms) for _ in range(CONNECTIONS)]
    poll = select.epoll()
    by_number = {connection.socket.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    report = Report()
    statuses: Counter[str] = Counter()
    count = int(rate * seconds)
    begun = time.perf_counter()
    end = begun + count / rate
    while report.sent < count or any(connection.due for connection in connections):
        now = time.perf_counter()
        while report.sent < count and (due := begun + report.sent / rate) <= now:
            report.late = max(report.late, now - due)
            connections[report.sent % CONNECTIONS].send(due)
            report.sent += 1
        wait = begun + report.sent / rate - time.perf_counter() if report.sent < count else 1.0
        for number, _ in poll.poll(max(wait, 0)):
            for status, due in by_number[number].receive():
                now = time.perf_counter()
                statuses[status] += 1
                if status == "0":
                    report.good_times.append(now - due)
                    report.good_in_time += now < end
                elif status == "8":
                    report.refused_times.append(now - due)
        if time.perf_counter() > end + _PATIENCE_S:
            raise TimeoutError(f"{sum(len(connection.due) for connection in connections)} requests have no answer")
    report.seconds = count / rate
    report.statuses = dict(statuses)
    report.good_times.sort()
    report.refused_times.sort()
    return report


if __name__ == "__main__":
    _port, _model, _rate, _seconds, *_deadline = sys.argv[1:]
    _report = _run(int(_port), _model, float(_rate), float(_seconds), int(_deadline[0]) if _deadline else None)
    print(json.dumps(asdict(_report)))
