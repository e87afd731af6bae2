"""What models that are asked little get beside one that is asked for far too much: their p99, alone and beside it.

    python -m bench.hot_model

One server, on all cores but the client's, has three models of different size with a latency target. Two of them are
cold: an open loop asks them now and then. A second client, on connections of its own, asks the hot one, at some rates
up to far more than the server can do. Alone and beside are measured in turns. Beside the p99 stands what a latency is
made of in the mean: the wait for an executor and the time with one, by the server's statistics, and all else, which is
the worker's time, the way there and back, and the client's own lag.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import grpc
from tritonclient.grpc import service_pb2 as pb

from bench.goodput import on_cores
from bench.question import METHOD, Question
from bench.servers import Server, running, toutates
from bench.sized_models import configured, sized_model
from toutates.bench.arrivals import POISSON
from toutates.bench.load import Asked, Load, LoadResult, run_load

__all__ = ["Beside", "main", "measure", "table"]

_STATISTICS: Final = "/inference.GRPCInferenceService/ModelStatistics"
#: Microseconds of a run of one row, rows of a batch.
_MODELS: Final = {"small": (50, 64), "middle": (500, 16), "large": (5_000, 2)}
#: Requests per second, where a model is cold.
_COLD: Final = {"small": 150.0, "middle": 50.0, "large": 10.0}
#: Which model is hot, and at how many requests per second: about what the server can do of it, and several times that.
_HOT: Final = (("small", 3_000.0), ("small", 9_000.0), ("large", 200.0), ("large", 600.0))
_TARGET_MS: Final = 50
_CONNECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Beside:
    """A cold model, without or beside a hot one.

    Attributes:
        model: the cold one.
        hot: the hot one; "" for none.
        hot_per_second: requests to it that were offered.
        hot_answered_per_second: of these.
        answered: share of the cold requests that were answered.
        mean_ms, p50_ms, p99_ms: of their latencies, from the intended time.
        waited_ms, ran_ms: of these, in the mean, for an executor, and with one.
        lag_ms: how late the client of the cold ones was itself, 99th percentile.
    """

    model: str
    hot: str
    hot_per_second: float
    hot_answered_per_second: float
    answered: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    waited_ms: float
    ran_ms: float
    lag_ms: float


def measure(folder: Path, python: str, seconds: float, rounds: int, flags: Sequence[str] = ()) -> list[Beside]:
    """Ask cold models alone, and beside each hot one, in turns.

    Args:
        folder: empty, for models and the server's log.
        python: the interpreter of the server.
        seconds: length of a load.
        rounds: how often.
        flags: of the server.

    Raises:
        Unavailable: the server did not start.
        LoadFailed: a load could not be made.
    """
    cores = sorted(os.sched_getaffinity(0))
    sized = [sized_model(folder / "sized", name, *size) for name, size in _MODELS.items()]
    models = configured(sized, folder / "models", f"latency_target_ms: {_TARGET_MS}\n")
    questions = {model.name: Question(model) for model in models}
    kind = toutates("toutates", "this checkout", python, ["--processing-cores", "1", *flags])
    found: list[Beside] = []
    with on_cores(cores[:-1]):
        server = running(kind, models, folder / "server")
        with server as started:
            for number in range(rounds):
                for hot in dict.fromkeys(hot for hot, _ in _HOT):
                    cold = [name for name in _MODELS if name != hot]
                    for rate in (0.0, *(rate for name, rate in _HOT if name == hot)):
                        seed = 100 * number + len(found)
                        found += _beside(started, questions, cold, hot, rate, seconds, seed, cores[-1])
                        print(f"  {hot} at {rate:,.0f} a second, round {number + 1}", file=sys.stderr, flush=True)
    return found


def _beside(
    server: Server,
    questions: dict[str, Question],
    cold: Sequence[str],
    hot: str,
    rate: float,
    seconds: float,
    seed: int,
    core: int,
) -> list[Beside]:
    """The cold models beside a hot one at a rate, which is 0 for none."""
    host, _, port = server.address.rpartition(":")

    def load(names: Sequence[str], per_second: Sequence[float], longer_s: float) -> Load:
        asked = [Asked(METHOD, questions[name].message, weight) for name, weight in zip(names, per_second, strict=True)]
        return Load(
            host, int(port), asked, _CONNECTIONS, sum(per_second), seconds + longer_s, POISSON, seed=seed,
            cores=(core,), ahead=True, patience_s=2.0,
        )  # fmt: skip

    results: list[LoadResult] = []
    beside = threading.Thread(target=lambda: results.append(run_load(load([hot], [rate], 2.0))))
    if rate:
        beside.start()
    before = _times_ns(server)
    outcome = run_load(load(cold, [_COLD[name] for name in cold], 0.0)).outcome
    after = _times_ns(server)
    answered = 0.0
    if rate:
        beside.join()
        answered = results[0].outcome.total.answered / results[0].outcome.seconds
    found = []
    for name, one in zip(cold, outcome.requests, strict=True):
        requests, waited, ran = (new - old for new, old in zip(after[name], before[name], strict=True))
        took = one.from_intended
        found.append(
            Beside(
                model=name,
                hot=hot,
                hot_per_second=rate,
                hot_answered_per_second=answered,
                answered=one.answered / max(one.offered, 1),
                mean_ms=took.mean() / 1e6,
                p50_ms=took.quantile(0.5) / 1e6,
                p99_ms=took.quantile(0.99) / 1e6,
                waited_ms=waited / max(requests, 1) / 1e6,
                ran_ms=ran / max(requests, 1) / 1e6,
                lag_ms=outcome.lag.quantile(0.99) / 1e6,
            )
        )
    return found


def _times_ns(server: Server) -> dict[str, tuple[int, int, int]]:
    """Of each model: requests that were answered, and how long these waited for an executor, and had one."""
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary(
            _STATISTICS,
            request_serializer=pb.ModelStatisticsRequest.SerializeToString,
            response_deserializer=pb.ModelStatisticsResponse.FromString,
        )
        found = {}
        for one in ask(pb.ModelStatisticsRequest()).model_stats:
            own = one.inference_stats
            ran = own.compute_input.ns + own.compute_infer.ns + own.compute_output.ns
            found[one.name] = own.success.count, own.queue.ns, ran
        return found


def table(rows: Sequence[Beside]) -> str:
    """A table in Markdown: medians of the rounds, and p99 as a multiple of that alone."""
    lines = [
        "| cold model | beside | answered of the hot one, per second | answered | p99 alone, ms | p99, ms | times "
        "| mean, ms | of it for an executor | with one | all else | client late, p99 ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, float], list[Beside]] = {}
    for row in rows:
        groups.setdefault((row.model, row.hot, row.hot_per_second), []).append(row)
    for (model, hot, rate), group in groups.items():
        if not rate:
            continue

        def median(name: str, of: Sequence[Beside] = group) -> float:
            return float(statistics.median(getattr(one, name) for one in of))

        alone = median("p99_ms", groups[model, hot, 0.0])
        mean, waited, ran = median("mean_ms"), median("waited_ms"), median("ran_ms")
        cells = (
            *(model, f"{hot}, {rate:,.0f} per second", f"{median('hot_answered_per_second'):,.0f}"),
            *(f"{median('answered'):.1%}", f"{alone:.1f}", f"{median('p99_ms'):.1f}"),
            *(f"{median('p99_ms') / alone:.1f}", f"{mean:.2f}", f"{waited:.2f}", f"{ran:.2f}"),
            *(f"{mean - waited - ran:.2f}", f"{median('lag_ms'):.2f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.hot_model", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="interpreter of the server")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a load (default: 8)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often each is measured (default: 1)")
    parser.add_argument("--flags", default="", metavar="FLAGS", help="of the server, beside --processing-cores 1")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("client and server need a core each")
    with tempfile.TemporaryDirectory(prefix="toutates-hot-") as folder:
        rows = measure(Path(folder), options.python, options.seconds, options.rounds, options.flags.split())
    print(json.dumps([asdict(row) for row in rows]) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
