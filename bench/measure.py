"""One figure: answers checked, the load, answers checked again."""

from __future__ import annotations

import sys
from pathlib import Path

import tritonclient.grpc as triton

from bench import process
from bench.client import Load, Outcome
from bench.errors import NoFigure
from bench.question import Question
from bench.results import Cell, Failure, Figure, Results
from bench.servers import Server

__all__ = ["Measurer", "counts"]

# The kernel counts CPU time in hundredths of a second: from here on, that is less than a tenth of the figure.
_LEAST_CPU_SECONDS = 0.1
# Loads are planned to take this much, so that a faster moment does not bring them below.
_PLANNED_CPU_SECONDS = 0.16
# Where that was not enough, twice as many requests are sent, and so on.
_TRIES = 4
# A trial load this long tells the rate well enough.
_TRIAL_SECONDS = 0.2
_TRIAL_GROWTH = 8
# The most that one run of the model contributes to the first trial.
_FIRST_TRIAL_SECONDS = 0.3


class Measurer:
    """Puts figures, or the reasons for their absence, into the results, and these on the disk.

    Args:
        results: gets them.
        path: the file of the results.
        seconds: how long a load takes, roughly.
    """

    def __init__(self, results: Results, path: Path, seconds: float) -> None:
        self._results = results
        self._path = path
        self._seconds = seconds
        self._planned: dict[tuple[str, Cell], int] = {}

    def measure(self, server: Server, cell: Cell, load: Load, question: Question, round_number: int) -> None:
        """Load a server once. A cell that has failed for this server is left alone in later rounds."""
        if any(failure.server == server.name and failure.cell == cell for failure in self._results.failures):
            return
        try:
            figure = self._figure(server, cell, load, question, round_number)
        except NoFigure as error:
            self.refuse(server, cell, round_number, error)
            return
        self._results.figures.append(figure)
        print(f"  {server.name}, {cell}, round {round_number}: {figure.cpu_us:,.1f} us", file=sys.stderr, flush=True)
        self.save()

    def refuse(self, server: Server, cell: Cell, round_number: int, reason: NoFigure) -> None:
        """Note that a server has no figure for a cell."""
        self._results.failures.append(Failure(server.name, cell, round_number, str(reason)))
        print(f"  {server.name}, {cell}, round {round_number}: NO FIGURE: {reason}", file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        """Write what there is."""
        self._results.save(self._path)

    def _figure(self, server: Server, cell: Cell, load: Load, question: Question, round_number: int) -> Figure:
        address = server.address_of(load.protocol)
        answer_bytes = question.check(address, load.protocol) if server.infers else len(question.plain_answer())
        if not load.timed and (server.name, cell) not in self._planned:
            self._planned[server.name, cell] = self._plan(server, load, question, answer_bytes)
        for _ in range(_TRIES):
            requests = self._planned.get((server.name, cell), 0)
            process.reset_peak(server.pid)
            rows_before, runs_before = counts(server, question)
            outcome, used = self._loaded(server, load, question, requests, answer_bytes)
            rows, runs = counts(server, question)
            if load.timed or used.total >= _LEAST_CPU_SECONDS:
                break
            self._planned[server.name, cell] *= 2
        # A timed load sends before and after it measures, which costs CPU too. Each request is one row.
        answered = rows - rows_before if load.timed else outcome.requests
        if answered < outcome.requests:
            raise NoFigure(f"the server counts {answered} rows, the client {outcome.requests} answers")
        if used.total < _LEAST_CPU_SECONDS:
            raise NoFigure(f"{answered} requests took {used.total:.2f} s of CPU, too little to tell")
        if server.infers:
            question.check(address, load.protocol)
        return Figure(
            server=server.name,
            cell=cell,
            round=round_number,
            requests=answered,
            user_us=used.user / answered * 1e6,
            system_us=used.system / answered * 1e6,
            requests_per_second=outcome.requests_per_second,
            p50_us=outcome.p50_us,
            p99_us=outcome.p99_us,
            mean_batch=(rows - rows_before) / (runs - runs_before) if runs > runs_before else None,
            peak_mib=process.peak_mib(server.pid),
        )

    def _plan(self, server: Server, load: Load, question: Question, answer_bytes: int) -> int:
        """How many requests make the wanted time; finding out fills caches and pools."""
        few = load.concurrency * 16
        requests = max(load.concurrency * 2, min(few, int(_FIRST_TRIAL_SECONDS / question.run_seconds)))
        while True:
            outcome, used = self._loaded(server, load, question, requests, answer_bytes)
            if requests >= outcome.requests_per_second * _TRIAL_SECONDS:
                break
            requests *= _TRIAL_GROWTH
        wanted = outcome.requests_per_second * self._seconds
        if used.total > 0:
            wanted = max(wanted, outcome.requests * _PLANNED_CPU_SECONDS / used.total)
        return max(int(wanted), load.concurrency * 2)

    @staticmethod
    def _loaded(
        server: Server, load: Load, question: Question, requests: int, answer_bytes: int
    ) -> tuple[Outcome, process.CpuTime]:
        server.check_alive()
        before = process.cpu_time(server.pid)
        outcome = load.run(server.address_of(load.protocol), question, requests, answer_bytes)
        # A process that has ended stays in /proc until check_alive() has looked at it.
        used = process.cpu_time(server.pid) - before
        server.check_alive()
        return outcome, used


def counts(server: Server, question: Question) -> tuple[int, int]:
    """Rows computed and runs made so far for a model; zeros where the server does not count.

    Raises:
        NoFigure: it should, but does not answer.
    """
    if not server.counts:
        return 0, 0
    try:
        with triton.InferenceServerClient(server.address) as client:
            statistics = client.get_inference_statistics(question.model.name, client_timeout=30)
    except triton.InferenceServerException as error:
        raise NoFigure(f"the server does not tell its statistics: {error}") from error
    stats = statistics.model_stats[0]
    return int(stats.inference_count), int(stats.execution_count)
