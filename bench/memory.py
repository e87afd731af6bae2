"""Whether memory grows: after a start, after requests, after connections."""

from __future__ import annotations

import time
from pathlib import Path

from bench import models, process
from bench.client import Load
from bench.errors import NoFigure
from bench.idle import idle_connections
from bench.measure import Measurer
from bench.question import Question
from bench.results import Cell, MemoryFigure, Results
from bench.servers import Server
from bench.start import Starter

__all__ = ["CONNECTIONS", "watch_memory"]

CONNECTIONS = 10_000
# Opened at once; ten times as many come and go.
_AT_ONCE = 1000
_CLOSING_SECONDS = 30.0


def watch_memory(
    folder: Path, starter: Starter, measurer: Measurer, load: Load, requests: int, results: Results
) -> None:
    """Resident memory of each server after its start, ``requests`` and twice ``requests`` requests, and connections."""
    model = models.mlp(folder / "models")
    question = Question(model)
    with starter.servers([model], folder) as servers:
        for server in servers:
            try:
                _note(results, server, "start")
                for total in (requests, 2 * requests):
                    answer_bytes = question.check(server.address)
                    load.run(server.address, question, requests, answer_bytes)
                    question.check(server.address)
                    _note(results, server, f"{total:,} requests")
                _open_and_close(server)
                _note(results, server, f"{CONNECTIONS:,} connections")
            except NoFigure as error:
                measurer.refuse(server, Cell("memory", model.name, load.name), 1, error)
            measurer.save()


def _open_and_close(server: Server) -> None:
    """Raises ``NoFigure`` if the server still holds connections half a minute after they were closed."""
    files = process.open_files(server.pid)
    for _ in range(CONNECTIONS // _AT_ONCE):
        with idle_connections(server.address, _AT_ONCE):
            pass
    deadline = time.monotonic() + _CLOSING_SECONDS
    while process.open_files(server.pid) > files:
        if time.monotonic() > deadline:
            raise NoFigure(f"{process.open_files(server.pid) - files} connections are still open on the server's side")
        time.sleep(0.1)


def _note(results: Results, server: Server, stage: str) -> None:
    server.check_alive()
    figure = MemoryFigure(server.name, stage, process.resident_mib(server.pid), process.open_files(server.pid))
    results.memory.append(figure)
