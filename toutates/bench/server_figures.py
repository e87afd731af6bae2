"""What a load cost the server: CPU, memory, batches and time in the queue, by what the server and the system count.

Batches and times come from the server's statistics (ModelStatistics, or /stats of REST), CPU and memory from /proc if
the server is on this machine. What these do not tell is taken from the server's metrics, where their URL is given.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from toutates.bench.calls import SERVICE, Refused, ask, fetch, fetch_json, read
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.link import Unreachable
from toutates.bench.load import Watcher
from toutates.bench.metadata import model_path
from toutates.protocol.grpc_service_pb2 import ModelStatisticsRequest, ModelStatisticsResponse

__all__ = ["Counts", "Meter", "ServerFigures", "parse_metrics", "process_of_port"]

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_LISTENING: Final = "0A"
_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'\b(\w++)="((?:[^"\\]|\\.)*+)"')


@dataclass(slots=True)
class Counts:
    """Counters at one moment. None is what nobody counts.

    Attributes:
        cpu_s: seconds of CPU of the server.
        resident_bytes: memory, no counter.
        requests: that were answered.
        rows, runs: of models, whose quotient is the batch size.
        queue_us, input_us, infer_us, output_us: that requests spent in the queue, and in the parts of computing.
    """

    cpu_s: float | None = None
    resident_bytes: float | None = None
    requests: float | None = None
    rows: float | None = None
    runs: float | None = None
    queue_us: float | None = None
    input_us: float | None = None
    infer_us: float | None = None
    output_us: float | None = None

    def or_else(self, other: Counts) -> Counts:
        """What this one does not know, another one may."""
        return Counts(
            *(
                getattr(other, one.name) if getattr(self, one.name) is None else getattr(self, one.name)
                for one in fields(self)
            )
        )


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Of one load. None is what nobody counts.

    Attributes:
        cpu_us: of CPU for each answered request.
        resident_mib: memory at the end.
        batch_rows: rows of each run of a model, on average.
        queue_us, input_us, infer_us, output_us: of each request, on average.
    """

    cpu_us: float | None = None
    resident_mib: float | None = None
    batch_rows: float | None = None
    queue_us: float | None = None
    input_us: float | None = None
    infer_us: float | None = None
    output_us: float | None = None

    @classmethod
    def between(cls, before: Counts, after: Counts, answered: int) -> ServerFigures:
        """Of a load that was answered so often, with counters before and after it."""

        def grown(name: str) -> float | None:
            first, last = getattr(before, name), getattr(after, name)
            return None if first is None or last is None or last < first else last - first

        def each(name: str, count: float | None) -> float | None:
            value = grown(name)
            return value / count if value is not None and count else None

        requests = grown("requests") or answered
        cpu_s = grown("cpu_s")
        resident = after.resident_bytes
        return cls(
            cpu_s * 1e6 / answered if cpu_s and answered else None,
            resident / 2**20 if resident else None,
            each("rows", grown("runs")),
            *(each(name, requests) for name in ("queue_us", "input_us", "infer_us", "output_us")),
        )


class Meter(Watcher):
    """Reads the counters before and after each load.

    Args:
        endpoint: the server.
        models: names and versions of those that are asked.
        metrics: where its metrics are: an endpoint and a path; None for nowhere.
        metadata: of calls.
        watcher: is told how far loads are, too.

    Attributes:
        notes: why something is not counted.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        models: Sequence[tuple[str, str]],
        metrics: tuple[Endpoint, str] | None,
        metadata: Mapping[str, str],
        watcher: Watcher | None = None,
    ) -> None:
        self.notes: list[str] = []
        self._endpoint, self._models, self._metrics, self._metadata = endpoint, models, metrics, metadata
        self._watcher = watcher or Watcher()
        self._pid = process_of_port(endpoint.host, endpoint.port)
        self._before = self._after = Counts()
        self._asks_statistics = True

    def begins(self) -> None:
        """See ``Watcher``."""
        self._before = self._read()
        self._watcher.begins()

    def goes_on(self, seconds: float, answered: int, failed: int) -> None:
        """See ``Watcher``."""
        self._watcher.goes_on(seconds, answered, failed)

    def ends(self) -> None:
        """See ``Watcher``."""
        self._after = self._read()
        self._watcher.ends()

    def figures(self, answered: int) -> ServerFigures:
        """Of the last load, which was answered so often."""
        return ServerFigures.between(self._before, self._after, answered)

    def _read(self) -> Counts:
        # What is asked for is counted up to now; metrics may be a second old.
        found = Counts()
        if self._asks_statistics:
            try:
                found = self._statistics()
            except (Refused, Unreachable):  # not of every server
                self._asks_statistics = False
        if self._pid:
            found = found.or_else(_of_process(self._pid))
        if self._metrics is not None:
            endpoint, path = self._metrics
            try:
                told = fetch(endpoint, "GET", path).decode(errors="replace")
            except (Refused, Unreachable) as error:
                self.notes.append(f"the server's metrics cannot be read: {error}")
                self._metrics = None
            else:
                found = found.or_else(parse_metrics(told, self._models))
        return found

    def _statistics(self) -> Counts:
        counts = Counts(*[None] * 2, *[0.0] * 7)
        for name, version in self._models:
            for one in self._ask(name, version):
                for key, value in one.items():
                    setattr(counts, key, getattr(counts, key) + value)
        return counts

    def _ask(self, name: str, version: str) -> Iterator[dict[str, float]]:
        if self._endpoint.protocol == GRPC:
            asked = ModelStatisticsRequest(name=name, version=version).SerializeToString()
            told = read(
                ModelStatisticsResponse, ask(self._endpoint, SERVICE + "ModelStatistics", asked, self._metadata)
            )
            for one in told.model_stats:
                stats = one.inference_stats
                yield {
                    "requests": stats.success.count,
                    "rows": one.inference_count,
                    "runs": one.execution_count,
                    "queue_us": stats.queue.ns / 1e3,
                    "input_us": stats.compute_input.ns / 1e3,
                    "infer_us": stats.compute_infer.ns / 1e3,
                    "output_us": stats.compute_output.ns / 1e3,
                }
            return
        document = fetch_json(self._endpoint, model_path(name, version) + "/stats", self._metadata)
        try:
            for said in document["model_stats"]:
                yield _said(said)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Refused("the server's statistics cannot be read") from None


def _said(told: Mapping[str, Any]) -> dict[str, float]:
    stats = told["inference_stats"]
    times = {
        "queue_us": "queue",
        "input_us": "compute_input",
        "infer_us": "compute_infer",
        "output_us": "compute_output",
    }
    return {
        "requests": float(stats["success"].get("count", 0)),
        "rows": float(told.get("inference_count", 0)),
        "runs": float(told.get("execution_count", 0)),
        **{key: float(stats[name].get("ns", 0)) / 1e3 for key, name in times.items()},
    }


#: What of Triton's metrics counts a model's, and which of ours and of Prometheus's clients the process's.
_OF_MODELS: Final = {
    "nv_inference_request_success": "requests",
    "nv_inference_count": "rows",
    "nv_inference_exec_count": "runs",
    "nv_inference_queue_duration_us": "queue_us",
    "nv_inference_compute_input_duration_us": "input_us",
    "nv_inference_compute_infer_duration_us": "infer_us",
    "nv_inference_compute_output_duration_us": "output_us",
}
_OF_PROCESS: Final = {"process_cpu_seconds_total": "cpu_s", "process_resident_memory_bytes": "resident_bytes"}
_OF_PROCESSES: Final = {"toutates_" + name: key for name, key in _OF_PROCESS.items()}


def parse_metrics(text: str, models: Sequence[tuple[str, str]]) -> Counts:
    """Read metrics in Prometheus's text format, of Toutates, Triton and others that have the same names.

    Args:
        text: of them.
        models: names and versions that count; version "" for all.
    """
    found: dict[str, float] = {}
    of_processes: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, number = match[1], dict(_LABEL.findall(match[2] or "")), match[3]
        with contextlib.suppress(ValueError):
            value = float(number)
            if (key := _OF_MODELS.get(name)) and any(
                labels.get("model") == model and version in ("", labels.get("version")) for model, version in models
            ):
                found[key] = found.get(key, 0.0) + value
            elif key := _OF_PROCESSES.get(name):
                of_processes[key] = of_processes.get(key, 0.0) + value
            elif key := _OF_PROCESS.get(name):
                found[key] = value
    return Counts(**{**found, **of_processes})


def process_of_port(host: str, port: int) -> int | None:
    """The process of this machine that listens on a port; None if there is none that may be looked at."""
    try:
        addresses = {str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    if not any(address.startswith("127.") or address == "::1" for address in addresses):
        return None
    inodes = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == _LISTENING and parts[1].endswith(f":{port:04X}"):
                    inodes.add(f"socket:[{parts[9]}]")
    if not inodes:
        return None
    owners = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for link in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link) in inodes:
                        owners.append(int(entry.name))
                        break
    # Of a server of several processes that inherited the socket, the parent has the least number.
    return min(owners, default=None)


def _of_process(pid: int) -> Counts:
    """CPU and memory of a process and its descendants."""
    children: dict[int, list[int]] = {}
    stats: dict[int, list[str]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # The name in parentheses may hold anything.
                parts = (entry / "stat").read_text().rpartition(")")[2].split()
                stats[int(entry.name)] = parts
                children.setdefault(int(parts[1]), []).append(int(entry.name))
    if pid not in stats:
        return Counts()
    family = [pid]
    for member in family:
        family += children.get(member, [])
    ticks = sum(sum(map(int, stats[one][11:15])) for one in family if one in stats)
    pages = sum(int(stats[one][21]) for one in family if one in stats)
    return Counts(cpu_s=ticks / _TICKS, resident_bytes=pages * _PAGE)
