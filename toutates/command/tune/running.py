"""``toutates tune``: reads what is wanted, tunes the models, and writes what came of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.data import RANDOM
from toutates.bench.link import Unreachable
from toutates.bench.load import LoadFailed
from toutates.bench.measuring import Questions, Target
from toutates.bench.report import counted
from toutates.bench.report_files import check_report_file, write_report_file
from toutates.bench.sequences import Sequences
from toutates.command.config import effective_configuration
from toutates.command.interrupts import sigterm_interrupts
from toutates.command.settings import settings_of
from toutates.command.tune.models import Found, find_models
from toutates.command.tune.reading import Job, read_jobs
from toutates.command.tune.writing import (
    Written,
    before,
    changed_since,
    seen,
    write_beside_models,
    write_files,
)
from toutates.server.options import EXIT_FAILURE, EXIT_OK
from toutates.system.cpu_quota import usable_cpus
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.tune.constraints import Constraint
from toutates.tune.lengths import TEXT_LENGTHS, TOKEN_LENGTHS, write_rows, write_texts
from toutates.tune.measuring import Bench
from toutates.tune.near_copies import near_copies
from toutates.tune.report import to_json, to_lines
from toutates.tune.report_html import write_html
from toutates.tune.server import CONFIG_NAME, PBTXT_NAME, Server, ServerFailed, copy_model
from toutates.tune.space import COPY, Space, axes_of
from toutates.tune.tuning import Tuning, Wanted, tune

__all__ = ["run_tune"]

#: Of the server that candidates are loaded into.
_PASSED_ON: Final = ("execution-providers", "custom-op-libraries", "allow-pickle")
#: For each model, and for all of them.
_POINTS: Final = 32
_MOST_POINTS: Final = 128

Configuration = Callable[[Path, int | None, str], str]


def run_tune(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    jobs, warnings = read_jobs(parsed)
    for warning in warnings:
        print(f"toutates: warning: {warning}", file=sys.stderr)
    for job in jobs:
        for flag, path in (("--json", job.json), ("--html", job.html)):
            if path:
                check_report_file(flag, path)
    settings = settings_of(parsed)
    libraries = settings["custom-op-libraries"] or ()

    def configuration(folder: Path, number: int | None, form: str) -> str:
        return effective_configuration(folder, number, form, libraries, allow_pickle=settings["allow-pickle"])

    code = EXIT_OK
    with sigterm_interrupts():
        for job in jobs:
            own, stopped = _run_job(job, configuration, _passed_on(parsed))
            code = max(code, own)
            if stopped:
                break
    return code


def _run_job(job: Job, configuration: Configuration, passed_on: Sequence[str]) -> tuple[int, bool]:
    """Do one tuning; returns its exit code, and whether it was interrupted."""
    try:
        with _leaving_no_bytecode():
            found = find_models(job.folders, job.version, configuration)
    except (ConfigurationError, ModelLoadError) as error:
        if isinstance(error, ConfigurationError) and error.key == "MODEL_DIR":
            raise
        return _failed(str(error)), False
    constraints = _of_models(job.constraints, found.asked)
    if unknown := [name for name in job.weights if name not in found.asked]:
        raise ConfigurationError(
            "is no model that is asked", key="--weight", value=unknown[0], remedy=f"name {', '.join(found.asked)}"
        )
    if not job.accuracy and all(len(axis.values) < 2 for axis in _space(job, found, {}).axes):
        raise ConfigurationError(
            "has nothing to tune",
            key="MODEL_DIR",
            value=str(job.folders[0]),
            remedy="on this machine its configuration has no key with more than one value",
        )
    targets = _targets(job, found)
    then = seen([folder for one in found.tuned.values() for folder in {one.path, one.version.path}])
    rows = job.data.batch or 1
    load = f"{counted(job.under_way, 'request')} at a time of {counted(rows, 'row')}, {job.seconds:g} s each"
    wanted = Wanted(
        job.objective, constraints, job.points or min(_MOST_POINTS, _POINTS * len(found.tuned)), job.accuracy
    )
    tuning = Tuning(list(found.tuned), found.asked, wanted, load)
    fault, written = "", list[Written]()
    with tempfile.TemporaryDirectory(prefix="toutates-tune-") as folder:
        try:
            repository = Path(folder, "models")
            places = {
                name: copy_model(
                    one.path, one.version.path, one.version.number, repository, as_it_is=name in found.served
                )
                for name, one in found.all().items()
            }
            declared = {name: one.declared for name, one in found.tuned.items() if one.declared is not None}
            server = Server(repository, places, Path(folder, "log"), passed_on, declared)
            fault = _tune(job, found, server, Path(folder), tuning)
            if not fault and tuning.chosen is not None:
                written = _results(tuning, found, server, targets, configuration)
                changed = changed_since(then)
                if changed:
                    fault = f"'{changed[0]}' was changed meanwhile; nothing is written, tune again"
        except KeyboardInterrupt:
            tuning.stopped, tuning.chosen, fault = True, None, ""
        for line in to_lines(tuning):
            print(line)
        try:
            if fault:
                _failed(fault)
            elif tuning.chosen is not None:
                for path in (write_beside_models if job.write else write_files)(written):
                    print(f"{'before: ' if path.suffix == '.before' else 'written:'} {path}")
        finally:  # what was measured is told, though a configuration cannot be written
            _reports(job, tuning)
    return EXIT_FAILURE if fault or tuning.stopped or tuning.missed else EXIT_OK, tuning.stopped


def _tune(job: Job, found: Found, server: Server, folder: Path, tuning: Tuning) -> str:
    """Tune; returns what went wrong, or ""."""

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    base = {name: one.base for name, one in found.tuned.items()}
    questions = _questions(job, found)
    bench = Bench(server, questions, job.seconds, job.under_way, list(found.served))
    try:
        with contextlib.closing(bench):
            bench.start(base)
            if any(bench.facts(name).decoupled for name in found.asked):  # which answer over streams alone
                questions = replace(questions, streams=True)
            bench.begin(_with_lengths(job, found, bench, questions, folder))
            copies = near_copies(bench, base, server.versions, job.accuracy, tuning, tell) if job.accuracy else {}
            if copies and job.data.source == RANDOM:
                tuning.notes.append("accuracy was measured with random data; name real data by --data")
            tune(bench, _space(job, found, copies), tuning, tell)
    except (ServerFailed, Refused, Unreachable, LoadFailed) as error:
        tuning.chosen, tuning.failed = None, True
        # Pictures, for example, are not made by chance.
        made_up = isinstance(error, Refused) and job.data.source == RANDOM and not tuning.trials
        advice = "; if random values are not what it takes, name requests by --data FILE" if made_up else ""
        return f"'{tuning.title}' cannot be measured: {error}{advice}"
    return ""


def _space(job: Job, found: Found, copies: Mapping[str, Sequence[str]]) -> Space:
    axes = []
    for name, one in found.tuned.items():
        ranges = job.ranges.get(name, {})
        least = job.data.batch or 1 if name in found.asked else found.rows_of_ensembles(name)
        keys = one.declared.keys if one.declared is not None else None
        own = axes_of(name, one.base, _cores(), least_rows=least, copies=copies.get(name, ()), ranges=ranges, keys=keys)
        axes += [axis for axis in own if not job.only_ranges or axis.name in ranges]
    return Space({name: one.base for name, one in found.tuned.items()}, axes)


def _questions(job: Job, found: Found) -> Questions:
    targets = tuple(Target(name, weight=job.weights.get(name, 1.0)) for name in found.asked)
    stateful = [name for name in found.asked if found.all()[name].base.get("sequences")]
    if stateful and len(targets) > 1:
        raise ConfigurationError(
            "has sequences, and is tuned by itself", key="MODEL_DIR", value=stateful[0], remedy="name it alone"
        )
    return Questions(targets, data=job.data, sequences=Sequences() if stateful else None)


def _with_lengths(job: Job, found: Found, bench: Bench, questions: Questions, folder: Path) -> Questions:
    """The questions with rows or texts of different length, where the model is asked so and nothing else is said."""
    if len(found.asked) > 1 or job.data.source != RANDOM or job.data.shapes or job.data.string_length:
        return questions
    (name,) = found.asked
    base = found.all()[name].base
    path, rng = folder / "requests.json", np.random.default_rng(1)
    if base["backend"] == "text":
        write_texts(path, bench.facts(name), job.lengths or TEXT_LENGTHS, rng)
    elif base.get("padding"):
        write_rows(path, bench.facts(name), base["padding"], job.lengths or TOKEN_LENGTHS, rng)
    elif job.lengths is not None:
        raise Refused(f"model '{name}' has neither padding nor texts; leave --lengths out")
    else:
        return questions
    return replace(questions, data=replace(job.data, source=str(path)))


def _of_models(constraints: Sequence[Constraint], asked: Sequence[str]) -> list[Constraint]:
    """The constraints, without the model where there is one alone.

    Raises:
        ConfigurationError: a constraint is of another model.
    """
    for one in constraints:
        if one.model and one.model not in asked:
            raise ConfigurationError(
                "is of no model that is asked",
                key="--constraint",
                value=one.text,
                remedy=f"name {' or '.join(asked)} before the colon",
            )
    return [replace(one, model="") for one in constraints] if len(asked) == 1 else list(constraints)


def _passed_on(parsed: argparse.Namespace) -> list[str]:
    return [f"--{name}={text}" for name in _PASSED_ON for text in getattr(parsed, name.replace("-", "_")) or ()]


def _cores() -> int:
    return usable_cpus()


def _targets(job: Job, found: Found) -> dict[str, Path]:
    """Where the result of each model is written. It is looked at before minutes of measuring, and made after them.

    Raises:
        ConfigurationError: something is in the way.
    """
    if job.write:
        for one in found.tuned.values():
            kept = before(one.config_path)
            if one.config_path.exists() and kept.exists():
                raise ConfigurationError(
                    f"already has a {kept.name}, which is not overwritten",
                    key="--write",
                    value=str(kept.parent),
                    remedy="move it",
                )
            _check_folder("--write", one.config_path.parent)
        return {name: one.config_path.parent for name, one in found.tuned.items()}
    several = len(found.tuned) > 1
    output = job.output or Path(os.path.abspath("tuned" if several else f"{next(iter(found.tuned))}-tuned"))
    for one in found.tuned.values():
        if one.path.parent in (output, output.parent) or one.path in output.parents:
            raise ConfigurationError(
                "lies in the model repository, where a server would take it for a model",
                key="--output",
                value=str(output),
                remedy="name another folder by --output, or add --write",
            )
    _check_folder("--output", output)
    targets = {name: output / name if several else output for name in found.tuned}
    for target in targets.values():
        for name in (CONFIG_NAME, PBTXT_NAME):
            if (target / name).exists():
                raise ConfigurationError(
                    f"already has a {name}, which is not overwritten",
                    key="--output",
                    value=str(target),
                    remedy="move it",
                )
    return targets


def _check_folder(flag: str, folder: Path) -> None:
    """Whether files can be put into a folder, which is made if it is not there."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        raise ConfigurationError(
            "is no folder", key=flag, value=str(folder), remedy="name one, or one that is not there yet"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(
            "cannot be written", key=flag, value=str(folder), remedy="name a folder that can be, by --output"
        )


def _results(
    tuning: Tuning, found: Found, server: Server, targets: Mapping[str, Path], configuration: Configuration
) -> list[Written]:
    """What is written of each model that is changed."""
    written = []
    for name, config in (tuning.chosen or {}).items():
        server.write(name, config)
        place, number = server.versions[name], found.tuned[name].version.number
        forms = {CONFIG_NAME: "yaml", PBTXT_NAME: "pbtxt"}
        if found.tuned[name].declared is not None:
            del forms[CONFIG_NAME]
        texts = {file: configuration(place.parent, number, form) for file, form in forms.items()}
        copies = {}
        if config.get(COPY) != found.tuned[name].base.get(COPY):
            copies[config[COPY]] = place / config[COPY]
        written.append(Written(targets[name], texts, copies))
    return written


@contextlib.contextmanager
def _leaving_no_bytecode() -> Iterator[None]:
    """Python models are imported to be looked at, from their own folders."""
    name = "PYTHONDONTWRITEBYTECODE"
    own = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if own is not None:
            os.environ[name] = own


def _reports(job: Job, tuning: Tuning) -> None:
    makers: dict[str, tuple[str, Callable[[], str]]] = {
        "--json": (job.json, lambda: json.dumps(to_json(tuning), indent=1) + "\n"),
        "--html": (job.html, lambda: write_html(tuning)),
    }
    for name, (path, make) in makers.items():
        if path:
            write_report_file(name, path, make())


def _failed(text: str) -> int:
    for line in text.splitlines():
        print(f"toutates: error: {line}", file=sys.stderr)
    return EXIT_FAILURE
