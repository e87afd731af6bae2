"""What many small models in one server take, by their number: memory, CPU, threads, metrics; and what one of them gets.

    python -m bench --parts density --servers toutates,toutates-3.14t

Each number of models is a server of its own. The models are alike, of 37 KB, with a config.yaml each. Beside it stands
a server that has one of them alone, and the two are asked for that one in turn, so that what other models cost it is
not what the machine does meanwhile. Then every model is asked once or so, and the metrics are read at once.
"""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import models, process
from bench.client import Load
from bench.density_report import ALONE, AMONG, PART
from bench.errors import NoFigure
from bench.measure import Measurer
from bench.models import Model
from bench.question import Question
from bench.results import Cell, DensityFigure, Results
from bench.round_robin import RoundRobin
from bench.servers import Kind, Server, Site
from bench.start import Starter, in_turn

__all__ = ["measure_density"]

#: For how long the CPU of a server is watched that nobody asks, seconds; CPU time is counted in hundredths of one.
_IDLE_S: Final = 10.0
#: Connections over which all models are asked.
_CONNECTIONS: Final = 16
#: How long metrics may take.
_PATIENCE_S: Final = 60.0


def measure_density(
    folder: Path,
    starter: Starter,
    measurer: Measurer,
    results: Results,
    load: Load,
    rounds: int,
    counts: Sequence[int],
) -> None:
    """Start a server for each number of models, and ask it.

    Args:
        folder: for models and logs.
        starter: of servers that load every model of a repository.
        measurer: keeps the results on the disk.
        results: gets the figures.
        load: of one model.
        rounds: how often it is loaded.
        counts: numbers of models.
    """
    watched = starter.each(_with_metrics)
    single = models.numbered_mlps(folder / "alone" / "models", 1)
    for count in sorted(set(counts)):
        place = folder / str(count)
        made = models.numbered_mlps(place / "models", count)
        # Servers are ready when they say so of the first one: they load all before they listen.
        with watched.servers(made[:1], place) as servers:
            for server in servers:
                alike = starter.only(lambda kind, name=server.name: kind.name == name)  # type: ignore[misc]
                try:
                    figure = _at_rest(server, count)
                    question = Question(made[0])
                    # As young as the other one: after millions of requests a server batches otherwise.
                    with alike.servers(single, place / "alone" / server.name) as lonely:
                        for number in range(1, rounds + 1):
                            for asked in in_turn([server, *lonely], number):
                                cell = Cell(PART, AMONG if asked is server else ALONE, load.name, count)
                                measurer.measure(asked, cell, load, question, number)
                    results.density.append(_after_a_burst(server, made, question, figure))
                except NoFigure as error:
                    measurer.refuse(server, Cell(PART, AMONG, load.name, count), 1, error)
                measurer.save()


def _with_metrics(kind: Kind) -> Kind:
    """The same kind, with its metrics on a port that is known: that of REST, which it does not use."""

    def command(site: Site) -> Sequence[str]:
        return [*kind.command(site), "--metrics-addr", f"127.0.0.1:{site.http_port}"]

    return replace(kind, command=command, own_http_port=True, rest=False)


def _at_rest(server: Server, count: int) -> DensityFigure:
    """What a server has taken that nobody has asked for anything."""
    server.check_alive()
    start_cpu_s = process.cpu_time(server.pid).total
    resident_mib = process.resident_mib(server.pid)
    time.sleep(1.0)  # what the start has left to do
    before = process.cpu_time(server.pid)
    time.sleep(_IDLE_S)
    idle_s = (process.cpu_time(server.pid) - before).total
    threads = len(list(Path(f"/proc/{server.pid}/task").iterdir()))  # some are left for ten seconds
    size, seconds = _read_metrics(server)
    told = f"{count:,} models: {resident_mib:,.0f} MiB, {start_cpu_s:.1f} s of CPU, {threads} threads"
    print(f"  {server.name}, {told}", file=sys.stderr, flush=True)
    return DensityFigure(
        server=server.name,
        models=count,
        resident_mib=resident_mib,
        asked_mib=0.0,
        start_cpu_s=start_cpu_s,
        threads=threads,
        idle_cores=idle_s / _IDLE_S,
        metrics_bytes=size,
        metrics_ms=seconds * 1e3,
        burst_metrics_ms=0.0,
    )


def _after_a_burst(server: Server, made: Sequence[Model], question: Question, figure: DensityFigure) -> DensityFigure:
    """The figure with what there is after every model was asked."""
    load = RoundRobin([question.to(model) for model in made], _CONNECTIONS)
    load.run(server.address, question, max(len(made), _CONNECTIONS), 0)
    size, seconds = _read_metrics(server)
    server.check_alive()
    return replace(
        figure,
        asked_mib=process.resident_mib(server.pid),
        metrics_bytes=max(size, figure.metrics_bytes),
        burst_metrics_ms=seconds * 1e3,
    )


def _read_metrics(server: Server) -> tuple[int, float]:
    """Bytes of the metrics, and seconds until they are there.

    Raises:
        NoFigure: they do not come.
    """
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=_PATIENCE_S) as answer:
            size = len(answer.read())
    except OSError as error:
        raise NoFigure(f"the metrics cannot be read: {error}") from error
    return size, time.perf_counter() - began
