"""Cost against one quantity: size of the request, number of models, idle connections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import models
from bench.client import Load
from bench.errors import NoFigure
from bench.h2load import H2load
from bench.idle import idle_connections
from bench.measure import Measurer
from bench.protocols import GRPC
from bench.question import Question
from bench.raw_server import RawLoad
from bench.results import Cell, Results
from bench.round_robin import RoundRobin
from bench.servers import raw
from bench.start import Starter, in_turn

__all__ = ["IDLE_CONNECTIONS", "MODEL_COUNTS", "sweep_connections", "sweep_models", "sweep_payload"]

MODEL_COUNTS = (1, 10, 100)
IDLE_CONNECTIONS = (0, 100, 1000, 10_000)
# Beside those that are held idle: the load's, the servers' logs, libraries.
_SPARE_FILES = 500


def sweep_payload(
    folder: Path, starter: Starter, measurer: Measurer, loads: Sequence[H2load], rounds: int, sizes: Sequence[int]
) -> None:
    """Requests of 256 bytes to 100 MiB with answers of 4 bytes, and the reverse; beside the least that they take.

    Toutates is measured with a row fixed in config.yaml, and with a row left open.
    """
    made = models.payload_models(folder / "models", sizes) + models.answer_models(folder / "models", sizes)
    questions = [Question(model) for model in made]
    numbers = {model.name: number for number, model in enumerate(made)}
    with starter.beside(raw()).servers(made, folder) as servers:
        for number in range(1, rounds + 1):
            for question in questions:
                model = question.model
                is_open = "dynamic" in model.name
                way = "in, row open" if is_open else "in" if model.row[0] > 1 else "out"
                for load in loads:
                    size = 4 * max(model.row[0], model.output_row[0])
                    over = "" if load.protocol == GRPC else ", REST"
                    cell = Cell("payload", f"{way}, {load.connections} connections{over}", load.name, size)
                    for server in in_turn(servers, number):
                        if server.kind.name == "raw":
                            measurer.measure(server, cell, RawLoad(load.connections, numbers), question, number)
                        elif not server.speaks(load.protocol):
                            continue
                        elif server.kind.reads_config or not is_open:
                            measurer.measure(server, cell, load, question, number)


def sweep_models(folder: Path, starter: Starter, measurer: Measurer, rounds: int) -> None:
    """1, 10 and 100 models loaded, asked in turn over 16 connections."""
    for count in MODEL_COUNTS:
        made = models.numbered_mlps(folder / str(count) / "models", count)
        questions = [Question(model) for model in made]
        load = RoundRobin(questions, connections=16)
        with starter.servers(made, folder / str(count)) as servers:
            for number in range(1, rounds + 1):
                for server in in_turn(servers, number):
                    measurer.measure(server, Cell("models", "mlp", load.name, count), load, questions[0], number)


def sweep_connections(
    folder: Path, starter: Starter, measurer: Measurer, load: Load, rounds: int, results: Results, open_files: int
) -> None:
    """A load beside 0 to 10,000 connections that are open and idle.

    Args:
        open_files: how many a process may have.
    """
    model = models.mlp(folder / "models")
    question = Question(model)
    counts = [count for count in IDLE_CONNECTIONS if count + _SPARE_FILES <= open_files]
    if missing := set(IDLE_CONNECTIONS) - set(counts):
        most = max(missing)
        results.leave_out(
            f"{most:,} idle connections", f"the limit of open files is {open_files}; ulimit -Hn {most + _SPARE_FILES}"
        )
    with starter.servers([model], folder) as servers:
        for number in range(1, rounds + 1):
            for count in counts:
                for server in in_turn(servers, number):
                    cell = Cell("connections", "mlp", load.name, count)
                    try:
                        with idle_connections(server.address, count):
                            measurer.measure(server, cell, load, question, number)
                    except NoFigure as error:
                        measurer.refuse(server, cell, number, error)
