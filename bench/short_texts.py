"""One short text in a request, of a static model: what a server takes for it beside tokenizing and the vector.

h2load sends the same request over and over. What tokenizing and the vector take is told by the server's ``/metrics``:
the time in which it has called the tokenizer, and in which it has computed batches, of whatever size they came to. It
is the clock's time and not the CPU's: on a machine with other work both are too long, and the rest is too short.
"""

from __future__ import annotations

import http.client
import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import process
from bench.client import percentile, run_client
from bench.errors import NoFigure
from bench.h2load import check_report, latencies
from bench.results import Cell, Failure, Figure, Results
from bench.servers import Server
from bench.start import in_turn

__all__ = ["CONNECTIONS", "SHORT_TEXT", "measure_short_texts", "metrics_of"]

#: Name of the cells, in place of a distribution of lengths.
SHORT_TEXT = "one"
CONNECTIONS = (1, 16, 64, 128)
_REQUESTS = 20_000
_REQUESTS_ALONE = 4_000
_WARM_UP = 2_000
#: A server may answer with metrics that were made for somebody else a moment before.
_METRICS_PAUSE_S = 1.0
_TEXT = "how do I reset my password"
_NAMES = {
    "read": "toutates_text_read_seconds_total",
    "texts": "toutates_text_read_total",
    "run": "inference_model_execution_seconds_sum",
    "batches": "nv_inference_exec_count",
}


def measure_short_texts(
    servers: Sequence[Server], model: str, program: str, part: str, results: Results, number: int
) -> None:
    """Load the servers in turns with each number of connections.

    Args:
        servers: that serve the model.
        model: a static one.
        program: h2load.
        part: of the cells.
        results: gets the figures.
        number: of the round.
    """
    for connections in CONNECTIONS:
        cell = Cell(part, SHORT_TEXT, f"{connections}x1")
        for server in in_turn(list(servers), number):
            try:
                results.figures.append(_measure(server, model, program, connections, cell, number))
            except NoFigure as error:
                results.failures.append(Failure(server.name, cell, number, str(error)))


def _measure(server: Server, model: str, program: str, connections: int, cell: Cell, number: int) -> Figure:
    count = _REQUESTS if connections > 1 else _REQUESTS_ALONE
    body = json.dumps({"model": model, "input": _TEXT, "encoding_format": "base64"}).encode()
    answer_bytes = _answer_bytes(server, body)
    _load(server, program, connections, body, _WARM_UP, answer_bytes)
    server.check_alive()
    metrics = metrics_of(_fresh_metrics(server), model)
    process.reset_peak(server.pid)
    used = process.cpu_time(server.pid)
    seconds, times = _load(server, program, connections, body, count, answer_bytes)
    used = process.cpu_time(server.pid) - used
    server.check_alive()
    after = metrics_of(_fresh_metrics(server), model)
    spent = {name: after[name] - metrics[name] for name in _NAMES}
    if spent["texts"] != count:
        raise NoFigure(f"the server has read {spent['texts']:.0f} texts of {count}")
    return Figure(
        server=server.name,
        cell=cell,
        round=number,
        requests=count,
        user_us=used.user / count * 1e6,
        system_us=used.system / count * 1e6,
        requests_per_second=count / seconds,
        p50_us=percentile(times, 0.5),
        p99_us=percentile(times, 0.99),
        mean_batch=count / spent["batches"],
        peak_mib=process.peak_mib(server.pid),
        tokenizing_us=spent["read"] / count * 1e6,
        inference_us=spent["run"] / count * 1e6,
    )


def metrics_of(text: str, model: str) -> dict[str, float]:
    """The sums of some metrics of a model in Prometheus' text format, by short names; times are seconds."""
    found = {}
    for name, metric in _NAMES.items():
        pattern = rf'^{metric}\{{[^}}]*model="{re.escape(model)}"[^}}]*\}} (\S+)$'
        found[name] = sum(map(float, re.findall(pattern, text, re.MULTILINE)))
    return found


def _load(
    server: Server, program: str, connections: int, body: bytes, count: int, answer_bytes: int
) -> tuple[float, list[int]]:
    with tempfile.TemporaryDirectory(prefix="toutates-h2load-") as scratch:
        file, log = Path(scratch, "body"), Path(scratch, "log")
        file.write_bytes(body)
        command = [program, "--h1", "-n", str(count), "-c", str(connections), "-d", str(file), f"--log-file={log}"]
        report = run_client(
            [*command, "-H", "content-type: application/json", f"http://{server.http_address}/v1/embeddings"]
        )
        return check_report(report, count, answer_bytes), sorted(latencies(log.read_bytes()))


def _answer_bytes(server: Server, body: bytes) -> int:
    connection = http.client.HTTPConnection(server.http_address, timeout=60)
    try:
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise NoFigure(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise NoFigure(f"status {answer.status}: {data[:200]!r}")
    return len(data)


def _fresh_metrics(server: Server) -> str:
    time.sleep(_METRICS_PAUSE_S)
    connection = http.client.HTTPConnection(server.http_address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
