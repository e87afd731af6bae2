"""The columns that perf_analyzer writes by -f, of each load a line. Times are in microseconds."""

from __future__ import annotations

import csv
import io

from toutates.bench.intervals import Interval
from toutates.bench.report import Point, Report

__all__ = ["write_csv"]

_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def write_csv(report: Report) -> str:
    """The file's text. The client's own share of a request's time is not measured apart, and is 0."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    first = report.points[0].load if report.points else None
    level = "Request Rate" if first is not None and first.rate is not None else "Concurrency"
    writer.writerow(
        [
            level,
            "Inferences/Second",
            "Client Send",
            "Network+Server Send/Recv",
            "Server Queue",
            "Server Compute Input",
            "Server Compute Infer",
            "Server Compute Output",
            "Client Recv",
            *(f"{name} latency" for name in _SHARES),
            "Avg latency",
        ]
    )
    for one in report.points:
        writer.writerow(_row(one))
    return out.getvalue()


def _row(point: Point) -> list[object]:
    measured = point.measured
    intended, _ = measured.latencies()
    mean_us = intended.mean() / 1e3
    server = [_mean(measured.of_server(name)) for name in ("queue_us", "input_us", "infer_us", "output_us")]
    rate = sum(measured.rates()) / len(measured.rates()) * point.batch
    quantiles = [round(intended.quantile(share) / 1e3) if intended.count else 0 for share in _SHARES.values()]
    level = point.load.under_way if point.load.rate is None else point.load.rate
    return [
        f"{level:g}",
        f"{rate:.6g}",
        0,
        round(max(0.0, mean_us - sum(server))),
        *(round(value) for value in server),
        0,
        *quantiles,
        round(mean_us),
    ]


def _mean(found: Interval | None) -> float:
    return found.mean if found else 0.0
