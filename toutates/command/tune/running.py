"""``toutates tune``: reads what is wanted, tunes the model, and writes what came of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from toutates.bench.calls import Refused
from toutates.bench.data import DataSettings
from toutates.bench.link import Unreachable
from toutates.bench.load import LoadFailed
from toutates.bench.measuring import Questions, Target
from toutates.command.config import effective_configuration, print_warnings, require_model_dir
from toutates.command.settings import settings_of
from toutates.models.repository import scan_model
from toutates.server.options import EXIT_FAILURE, EXIT_OK
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.tune.constraints import OBJECTIVES, Constraint, read_constraint
from toutates.tune.measuring import Bench
from toutates.tune.report import to_json, to_lines
from toutates.tune.report_html import write_html
from toutates.tune.server import CONFIG_NAME, Server, ServerFailed, copy_model
from toutates.tune.space import Space, make_space
from toutates.tune.tuning import Tuning, Wanted, tune

__all__ = ["run_tune"]

_PBTXT: Final = "config.pbtxt"
_BEFORE: Final = f"{CONFIG_NAME}.before"
#: Of the server that candidates are loaded into.
_PASSED_ON: Final = ("execution-providers", "custom-op-libraries", "allow-pickle")


def run_tune(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    # An absolute path has the model's name; "." has none.
    model_dir = Path(os.path.abspath(parsed.model_dir))
    require_model_dir(model_dir)
    print_warnings(model_dir)
    wanted = Wanted(_objective(parsed.objective), _constraints(parsed.constraint), parsed.points)
    settings = settings_of(parsed)
    questions = _questions(parsed, model_dir.name)
    libraries = settings["custom-op-libraries"] or ()

    def configuration(folder: Path, number: int | None, form: str) -> str:
        return effective_configuration(folder, number, form, libraries, allow_pickle=settings["allow-pickle"])

    try:
        text = configuration(model_dir, parsed.version, "yaml")
    except (ConfigurationError, ModelLoadError) as error:
        return _failed(str(error))
    version = next(
        one for one in reversed(scan_model(model_dir).versions) if parsed.version in (None, one.number)
    )  # the same one as above
    base = yaml.safe_load(text)
    if "ensemble" in base:
        return _failed(f"'{model_dir.name}' is an ensemble, which has nothing to tune; name the folder of a member")
    target = _target(parsed, model_dir, version.path)
    load = f"{parsed.concurrency} requests at a time of {parsed.batch or 1} rows, {parsed.seconds_per_point:g} s each"
    tuning = Tuning(model_dir.name, wanted, load)
    with _terminates_cleanly(), tempfile.TemporaryDirectory(prefix="toutates-tune-") as folder:
        repository = Path(folder, "models")
        place = copy_model(model_dir, version.path, version.number, repository)
        server = Server(repository, model_dir.name, place, Path(folder, "log"), _passed_on(parsed))
        bench = Bench(server, questions, parsed.seconds_per_point, parsed.concurrency)
        space = make_space(base, _cores(), batches=bool(base.get("batching")), least_rows=parsed.batch or 1)
        try:
            with contextlib.closing(bench):
                fault = _run(bench, space, tuning)
            if not fault and tuning.chosen is not None:
                server.write(tuning.chosen)
                texts = {
                    name: configuration(place.parent, version.number, form)
                    for name, form in ((CONFIG_NAME, "yaml"), (_PBTXT, "pbtxt"))
                }
        except KeyboardInterrupt:
            tuning.stopped = True
            tuning.chosen = None
            fault = ""
    for line in to_lines(tuning):
        print(line)
    if fault:
        _failed(fault)
    elif tuning.chosen is not None:
        _write(target, texts, beside_model=parsed.write)
    _reports(parsed, tuning)
    return EXIT_FAILURE if fault or tuning.stopped or tuning.missed else EXIT_OK


def _run(bench: Bench, space: Space, tuning: Tuning) -> str:
    """Tune; returns what went wrong, or ""."""

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        bench.begin(space.base)
        tune(bench, space, tuning, tell)
    except (ServerFailed, Refused, Unreachable, LoadFailed) as error:
        tuning.chosen = None
        return f"'{tuning.model}' cannot be measured: {error}"
    return ""


@contextlib.contextmanager
def _terminates_cleanly() -> Iterator[None]:
    """SIGTERM ends the block as an interrupt does, so that the server and its files go."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _objective(text: str) -> str:
    if text not in OBJECTIVES:
        raise ConfigurationError(
            "is no objective", key="--objective", value=text, remedy=f"write {' or '.join(OBJECTIVES)}"
        )
    return text


def _constraints(texts: Sequence[str]) -> list[Constraint]:
    constraints = []
    for text in texts:
        try:
            constraints.append(read_constraint(text))
        except ValueError as error:
            raise ConfigurationError(str(error), key="--constraint", value=text) from None
    return constraints


def _questions(parsed: argparse.Namespace, model: str) -> Questions:
    shapes = {}
    for text in parsed.shape:
        name, _, numbers = text.rpartition(":")
        try:
            shapes[name] = [int(number) for number in numbers.split(",")]
        except ValueError:
            shapes[name] = [-1]
        if not name or min(shapes[name]) < 0:
            raise ConfigurationError("is no shape", key="--shape", value=text, remedy="write INPUT:1,64")
    data = DataSettings(parsed.data, parsed.batch, shapes, parsed.string_length)
    return Questions((Target(model),), data=data)


def _passed_on(parsed: argparse.Namespace) -> list[str]:
    return [f"--{name}={text}" for name in _PASSED_ON for text in getattr(parsed, name.replace("-", "_")) or ()]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _target(parsed: argparse.Namespace, model_dir: Path, version_dir: Path) -> Path:
    """Where the result is written. It is looked at before minutes of measuring, and made after them.

    Raises:
        ConfigurationError: something is in the way.
    """
    if parsed.write:
        if parsed.output:
            raise ConfigurationError("cannot be had with --write", key="--output", remedy="leave one out")
        target, files = version_dir, [_BEFORE] if (version_dir / CONFIG_NAME).exists() else []
        key = "--write"
    else:
        target, files = Path(os.path.abspath(parsed.output or f"{model_dir.name}-tuned")), [CONFIG_NAME, _PBTXT]
        key = "--output"
        if target.parent == model_dir.parent or model_dir in (target, *target.parents):
            raise ConfigurationError(
                "lies in the model repository, where a server would take it for a model",
                key=key,
                value=str(target),
                remedy="name another folder by --output, or add --write",
            )
        if target.exists() and not target.is_dir():
            raise ConfigurationError("is no folder", key=key, value=str(target))
    for name in files:
        if (target / name).exists():
            raise ConfigurationError(
                f"already has a {name}, which is not overwritten", key=key, value=str(target), remedy="move it"
            )
    return target


def _write(target: Path, texts: dict[str, str], *, beside_model: bool) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        if beside_model:
            own = target / CONFIG_NAME
            if own.exists():
                own.replace(target / _BEFORE)
                print(f"before:  {target / _BEFORE}")
            texts = {CONFIG_NAME: texts[CONFIG_NAME]}
        for name, text in texts.items():
            fresh = target / f".{name}.new"  # renamed, so that no server reads half of it
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(target / name)
            print(f"written: {target / name}")
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", key="--output", value=str(target)) from None


def _reports(parsed: argparse.Namespace, tuning: Tuning) -> None:
    makers: dict[str, Any] = {"json": lambda: json.dumps(to_json(tuning), indent=1) + "\n"}
    makers["html"] = lambda: write_html(tuning)
    for name, make in makers.items():
        if path := getattr(parsed, name):
            try:
                Path(path).write_text(make(), encoding="utf-8")
            except OSError as error:
                raise ConfigurationError(f"cannot be written: {error.strerror}", key=f"--{name}", value=path) from None


def _failed(text: str) -> int:
    for line in text.splitlines():
        print(f"toutates: error: {line}", file=sys.stderr)
    return EXIT_FAILURE
