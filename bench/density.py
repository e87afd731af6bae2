"""What many small models in one server take: memory, CPU and threads by their number, and what one of them gets.

    python -m bench.density --models 1 100 1000 10000

Each number of models is a server of its own. The models are alike, of 37 KB, with a config.yaml each; the first one is
asked over gRPC by ``toutates bench`` in a closed loop.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import models, process
from bench.servers import Server, running, toutates

__all__ = ["Density", "main", "measure", "table"]


@dataclass(frozen=True, slots=True)
class Density:
    """A server with so many models.

    Attributes:
        models: how many.
        resident_mib: of its memory, once all are loaded.
        start_cpu_s: CPU time until then, the interpreter's included.
        threads: that it has.
        p50_us: the median latency of one model, microseconds.
        request_cpu_us: CPU time of the server per request of that model, microseconds.
    """

    models: int
    resident_mib: float
    start_cpu_s: float
    threads: int
    p50_us: float
    request_cpu_us: float


def measure(count: int, folder: Path, python: str, seconds: float) -> Density:
    """Start a server with so many models and ask the first one.

    Args:
        count: of models.
        folder: empty, for them and the server's log.
        python: the interpreter of the server.
        seconds: for how long requests are sent.

    Raises:
        Unavailable: the server did not start.
        RuntimeError: the load found an answer wrong, or failed.
    """
    served = models.numbered_mlps(folder / "models", count)
    kind = toutates("toutates", "this checkout", python, ())
    with running(kind, served, folder / "server") as server:
        start_cpu_s = process.cpu_time(server.pid).total
        resident_mib = process.resident_mib(server.pid)
        _ask(server, served[0].name, seconds / 4)
        before_s = process.cpu_time(server.pid).total
        answer = _ask(server, served[0].name, seconds)
        took_s = process.cpu_time(server.pid).total - before_s
        requests = sum(answer["statuses"].values())
        threads = len(list(Path(f"/proc/{server.pid}/task").iterdir()))
        return Density(count, resident_mib, start_cpu_s, threads, answer["latency_us"]["p50"], took_s / requests * 1e6)


def _ask(server: Server, model: str, seconds: float) -> dict[str, dict[str, float]]:
    """The result of ``toutates bench``."""
    shape = ("--concurrency", "16", "--connections", "16", "--seconds", f"{seconds:g}", "--repeats", "1", "--json")
    command = (sys.executable, "-m", "toutates", "bench", server.address, "--model", model, *shape)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"toutates bench ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    answer: dict[str, dict[str, float]] = json.loads(done.stdout)
    return answer


def table(rows: Sequence[Density]) -> str:
    """A table in Markdown; what a model takes is the difference to the row above."""
    lines = [
        "| models | memory, MiB | KiB per model | CPU of the start, s | ms per model | threads | p50, µs "
        "| CPU per request, µs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for at, row in enumerate(rows):
        kib = ms = ""
        if at:
            more, above = row.models - rows[at - 1].models, rows[at - 1]
            kib = f"{(row.resident_mib - above.resident_mib) * 1024 / more:.0f}"
            ms = f"{(row.start_cpu_s - above.start_cpu_s) * 1e3 / more:.2f}"
        cells = (
            *(f"{row.models:,}", f"{row.resident_mib:.0f}", kib, f"{row.start_cpu_s:.1f}", ms, str(row.threads)),
            *(f"{row.p50_us:.0f}", f"{row.request_cpu_us:.1f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.density", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, nargs="+", default=[1, 100, 1000, 10_000], metavar="N")
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="interpreter of the server")
    parser.add_argument("--seconds", type=float, default=4.0, help="for how long one model is asked (default: 4)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = []
    for count in sorted(set(options.models)):
        with tempfile.TemporaryDirectory(prefix="toutates-density-") as folder:
            rows.append(measure(count, Path(folder), options.python, options.seconds))
        print(table(rows).splitlines()[-1], file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows]) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
