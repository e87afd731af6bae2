"""``toutates bench``: reads what to measure, measures it, and says what came of it."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.comparison import block_order, compare_blocks
from toutates.bench.endpoint import HTTP, Endpoint
from toutates.bench.knee import Trial, find_knee
from toutates.bench.link import Unreachable
from toutates.bench.load import Load, LoadFailed
from toutates.bench.measured import Measured
from toutates.bench.measuring import Prepared, measure, prepare
from toutates.bench.progress import Progress
from toutates.bench.report import Point, Report, counted, name_of_load
from toutates.bench.report_csv import write_csv
from toutates.bench.report_files import check_report_file, write_report_file
from toutates.bench.report_html import write_html
from toutates.bench.server_figures import Meter
from toutates.command.bench.reading import Wanted, read_flags
from toutates.command.interrupts import sigterm_interrupts, uninterrupted
from toutates.server.options import EXIT_FAILURE, EXIT_OK
from toutates.system.text import one_line

__all__ = ["bench"]

#: Requests under way of the load that a search for a knee begins with, and connections at least.
_SATURATING = 64
_CONNECTIONS = 16


def bench(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    wanted = read_flags(parsed)
    _check_files(parsed)
    names = ", ".join(target.model for target in wanted.questions.targets)
    title = f"{names} at {wanted.endpoint}" + (f" and {wanted.other}" if wanted.other else "")
    report = Report(title, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    with sigterm_interrupts(), contextlib.ExitStack() as stack:
        run = _Run(wanted, report, stack)
        try:
            run.measure()
        except KeyboardInterrupt:
            report.notes.append("stopped before its time")
        except (Unreachable, Refused, LoadFailed) as error:
            print(f"toutates: error: {one_line(error)}", file=sys.stderr)
            if not report.points:
                return EXIT_FAILURE
            report.notes.append(one_line(error))
    report.failed += [
        f"{text} ({point.name})" if len(report.points) > 1 else text
        for point in report.points
        for text in point.measured.failed(wanted.conditions)
    ]
    _write(parsed, report)
    broken = any(one.measured.broken or one.measured.stopped for one in report.points) or report.notes
    no_knee = report.knee is not None and not report.knee.rate
    fine = not (report.failed or report.doubt() or report.wrong() or broken or no_knee) and report.answered()
    return EXIT_OK if fine else EXIT_FAILURE


class _Run:
    """Measures what is wanted, and puts it into the report."""

    def __init__(self, wanted: Wanted, report: Report, stack: contextlib.ExitStack) -> None:
        self._wanted, self._report, self._stack = wanted, report, stack
        self._progress = Progress(sys.stderr, wanted.loads[0].seconds)
        self._processes = wanted.loads[0].processes

    def measure(self) -> None:
        """Measure."""
        wanted = self._wanted
        prepared = self._prepare(wanted.endpoint)
        meter = prepared.meter(wanted.metrics, self._progress)
        if wanted.other:
            self._compare(prepared, meter)
        elif wanted.targets:
            self._search(prepared, meter)
        else:
            self._range(prepared, meter)
        self._report.notes += meter.notes

    def _prepare(self, endpoint: Endpoint) -> Prepared:
        prepared = prepare(endpoint, self._wanted.questions)
        self._stack.callback(_close, prepared)
        return prepared

    def _range(self, prepared: Prepared, meter: Meter) -> None:
        for load in self._wanted.loads:
            measured = self._one(prepared, load, meter, self._wanted.repeats, name_of_load(load))
            self._add(prepared, load, measured)
            threshold = self._wanted.threshold
            if measured.stopped or (threshold and measured.failed([threshold])):
                break

    def _search(self, prepared: Prepared, meter: Meter) -> None:
        wanted, report = self._wanted, self._report
        report.targets = wanted.targets
        first = wanted.loads[0]
        many = max(_SATURATING, first.under_way)
        least = many if wanted.endpoint.protocol == HTTP else _CONNECTIONS
        full = replace(first, rate=None, under_way=many, connections=max(least, first.connections))
        saturated = self._one(prepared, full, meter, 1, f"{many} requests at a time")
        self._add(prepared, full, saturated)
        most = sum(saturated.rates())
        if not most or saturated.stopped:
            return

        def offer(rate: float) -> Measured:
            return self._one(prepared, replace(full, rate=rate), meter, 1, f"{rate:,.0f} requests/s")

        def tell(trial: Trial) -> None:
            self._say(f"  {trial.rate:,.0f} requests/s: {_told(trial)}")

        report.knee = find_knee(offer, wanted.targets, most, tell, wanted.within)
        if report.knee.rate and report.knee.measured and not report.knee.trials[-1].measured.stopped:
            load = replace(full, rate=report.knee.rate)
            measured = self._one(prepared, load, meter, wanted.repeats, "at the knee")
            self._add(prepared, load, measured)

    def _compare(self, first: Prepared, meter: Meter) -> None:
        wanted, report = self._wanted, self._report
        assert wanted.other is not None
        second = self._prepare(wanted.other)
        sides = [(first, meter), (second, second.meter(None, self._progress))]
        load = wanted.loads[0]
        rng = np.random.default_rng(load.seed)
        if wanted.most_processes > 1:  # all loads are to be made by as many
            for prepared, own in sides:
                if self._one(prepared, load, own, 1, "processes").stopped:
                    raise KeyboardInterrupt
        names = [*(["rate"] if load.rate is None else []), "p50", "p99"]
        whole = [Measured([], load.rate is not None) for _ in sides]
        blocks: list[list[tuple[int, dict[str, float]]]] = []
        try:
            for number in range(wanted.repeats):
                block: list[tuple[int, dict[str, float]]] = []
                for which in block_order(rng):
                    prepared, own = sides[which]
                    label = f"block {number + 1} of {wanted.repeats}, {'AB'[which]}"
                    part = self._one(prepared, replace(load, seed=load.seed + number), own, 1, label)
                    whole[which].join(part)
                    block.append((which, part.figures()))
                    if part.stopped or part.broken:
                        raise KeyboardInterrupt
                blocks.append(block)
                rates = [sum(one["rate"] for place, one in block if place == which) / 2 for which in (0, 1)]
                self._say(f"  block {number + 1} of {wanted.repeats}: {rates[0]:,.0f} and {rates[1]:,.0f} requests/s")
        finally:
            for (prepared, _), measured in zip(sides, whole, strict=True):
                if measured.outcomes:
                    self._add(prepared, load, measured)
            if len(blocks) > 1:
                report.differences = compare_blocks(names, blocks)

    def _one(self, prepared: Prepared, load: Load, meter: Meter, repeats: int, label: str) -> Measured:
        self._progress.says(label)
        tell: Callable[[Measured], None] | None = None
        if repeats > 1:

            def tell(measured: Measured) -> None:
                number = len(measured.outcomes)
                self._say(f"  {label}, repeat {number} of {repeats}: {measured.rates()[-1]:,.0f} requests/s")

        load = replace(load, processes=self._processes)
        measured = measure(prepared, load, repeats, meter, tell, self._wanted.most_processes)
        self._processes = max(self._processes, measured.processes)
        return measured

    def _add(self, prepared: Prepared, load: Load, measured: Measured) -> None:
        if measured.outcomes:
            batch = self._wanted.questions.data.batch or 1
            made = replace(load, processes=measured.processes)
            self._report.points.append(Point(str(prepared.endpoint), made, measured, batch))

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _told(trial: Trial) -> str:
    doubt = trial.measured.doubt()
    return f"{trial.fault}; {doubt}" if trial.fault and doubt else trial.fault or "holds"


def _close(prepared: Prepared) -> None:
    """Leave the server as it was."""
    with uninterrupted():
        prepared.close()


_FILES: Final = {"csv": write_csv, "html": write_html}


def _check_files(parsed: argparse.Namespace) -> None:
    """Whether the files can be written, before anything is measured."""
    for name in _FILES:
        if path := getattr(parsed, name):
            check_report_file(f"--{name}", path)


def _write(parsed: argparse.Namespace, report: Report) -> None:
    """Print the report, and write its files."""
    _print(parsed, report)
    for name, make in _FILES.items():
        if path := getattr(parsed, name):
            write_report_file(f"--{name}", path, make(report))


def _print(parsed: argparse.Namespace, report: Report) -> None:
    if parsed.json:
        print(json.dumps(report.to_json(), indent=1))
        return
    for point in report.points:
        load = point.load
        processes = f", {load.processes} processes" if load.processes > 1 else ""
        count = len(point.measured.outcomes)
        print(
            f"{report.title if len(report.points) == 1 else point.server}: {point.name}, "
            f"{counted(load.connections, 'connection')}{processes}, {count} x {load.seconds:g} s"
        )
        for line in point.measured.lines():
            print(line)
    for line in report.verdict():
        print(line)
