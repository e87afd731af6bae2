"""What the flags of ``toutates tune``, or a file of Model Analyzer, ask: one tuning, or several one after another."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toutates.bench.data import RANDOM, DataSettings, check_source
from toutates.command.tune.model_analyzer import Asked, OneAsked, read_analyzer_file
from toutates.system.errors import ConfigurationError
from toutates.tune.accuracy import Accuracy, read_accuracy
from toutates.tune.constraints import OBJECTIVES, THROUGHPUT, Constraint, read_constraint
from toutates.tune.copies import NotMade, require_tools
from toutates.tune.lengths import Lengths, read_lengths

__all__ = ["Job", "read_jobs"]

_CONCURRENCY: Final = 64


@dataclass(frozen=True, slots=True)
class Job:
    """One tuning.

    Attributes:
        folders: of the models, or of repositories.
        version: of the one model; None for the newest.
        objective: one of OBJECTIVES.
        constraints: that have to hold.
        accuracy: of copies in other types; None for no copies.
        under_way: requests without an answer.
        weights: how often models are asked, by their names; 1 where nothing is said.
        data: what requests hold.
        lengths: of rows and texts by chance; None for the usual ones.
        seconds: that a load takes.
        points: that are measured at most; None for the usual number.
        ranges: values that are tried, by models and keys.
        only_ranges: whether no other keys are tried.
        output: folder of the results; None for the usual one.
        write: whether they are written beside the models.
        json, html: files of reports; "" for none.
    """

    folders: Sequence[Path]
    version: int | None
    objective: str
    constraints: Sequence[Constraint]
    accuracy: Accuracy | None
    under_way: int
    weights: Mapping[str, float]
    data: DataSettings
    lengths: Lengths | None
    seconds: float
    points: int | None
    output: Path | None
    write: bool
    json: str
    html: str
    ranges: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    only_ranges: bool = False


def read_jobs(parsed: argparse.Namespace) -> tuple[list[Job], list[str]]:
    """Read the flags, and the file that they name; returns what is to be done, and warnings.

    Raises:
        ConfigurationError: something cannot be used.
    """
    if parsed.write and parsed.output:
        raise ConfigurationError("cannot be had with --write", key="--output", remedy="leave one out")
    if parsed.seconds_per_point == 0:
        raise ConfigurationError("must be above 0", key="--seconds-per-point", value="0")
    if parsed.config_file:
        if parsed.model_dirs:
            raise ConfigurationError(
                "names the models itself", key="--config-file", value=parsed.config_file, remedy="leave MODEL_DIR out"
            )
        asked = read_analyzer_file(Path(parsed.config_file))
        return _of_file(parsed, asked), asked.warnings
    if not parsed.model_dirs:
        raise ConfigurationError("is missing", key="MODEL_DIR", remedy="write 'toutates tune models/NAME'")
    # An absolute path has the model's name; "." has none.
    folders = [Path(os.path.abspath(one)) for one in parsed.model_dirs]
    if parsed.version is not None and len(folders) > 1:
        raise ConfigurationError("is of one model", key="--version", value=parsed.version, remedy="name one MODEL_DIR")
    return [_job(parsed, folders)], []


def _job(parsed: argparse.Namespace, folders: Sequence[Path], **own: Any) -> Job:
    told: dict[str, Any] = {
        "folders": folders,
        "version": parsed.version,
        "objective": _objective(parsed.objective or THROUGHPUT),
        "constraints": _constraints(parsed.constraint),
        "accuracy": _accuracy(parsed.accuracy),
        "under_way": parsed.concurrency or _CONCURRENCY,
        "weights": _weights(parsed.weight),
        "data": DataSettings(parsed.data or RANDOM, parsed.batch, _shapes(parsed.shape), parsed.string_length),
        "lengths": _lengths(parsed.lengths),
        "seconds": parsed.seconds_per_point,
        "points": parsed.points,
        "output": Path(os.path.abspath(parsed.output)) if parsed.output else None,
        "write": parsed.write,
        "json": parsed.json or "",
        "html": parsed.html or "",
    }
    job = Job(**{**told, **own})
    check_source(job.data.source)
    return job


def _of_file(parsed: argparse.Namespace, asked: Asked) -> list[Job]:
    """What a file asks; flags go before it."""
    if asked.together:
        first = next(iter(asked.models.values()))
        constraints = [
            Constraint(f"{name}:{told.text}", told.figure, told.bound, told.at_least, name)
            if told.figure != "memory"
            else told
            for name, one in asked.models.items()
            for told in one.constraints
        ]
        loads = {(one.concurrency, one.batch, one.objective) for one in asked.models.values()}
        if len(loads) > 1:
            raise ConfigurationError(
                "differ in concurrency, batch_sizes or objectives, which they share",
                source=Path(parsed.config_file),
                key="profile_models",
                remedy="write these once, for all models",
            )
        flags = {name: value for one in asked.models.values() for name, value in one.flags.items()}
        weights = {name: one.weight for name, one in asked.models.items()}
        ranges = {name: one.ranges for name, one in asked.models.items()}
        return [_of_models(parsed, asked, list(asked.models), first, flags, constraints, ranges, weights)]
    return [
        _of_models(parsed, asked, [name], one, one.flags, one.constraints, {name: one.ranges}, {})
        for name, one in asked.models.items()
    ]


def _of_models(
    parsed: argparse.Namespace,
    asked: Asked,
    names: Sequence[str],
    one: OneAsked,
    flags: Mapping[str, Any],
    constraints: Sequence[Constraint],
    ranges: Mapping[str, Mapping[str, Sequence[int]]],
    weights: Mapping[str, float],
) -> Job:
    folders = [Path(os.path.abspath(asked.repository / name)) for name in names]
    batch = parsed.batch or flags.get("batch") or (one.batch if one.batch > 1 else None)
    shapes = _shapes(parsed.shape or flags.get("shape", ()))
    length = parsed.string_length or flags.get("string_length")
    several = len(asked.models) > 1 and not asked.together

    def own(path: str) -> str:
        return str(Path(path).with_stem(f"{Path(path).stem}-{names[0]}")) if path and several else path

    output = parsed.output or asked.output
    return _job(
        parsed,
        folders,
        objective=_objective(parsed.objective or one.objective),
        constraints=_constraints(parsed.constraint) or constraints,
        under_way=parsed.concurrency or one.concurrency,
        weights=_weights(parsed.weight) or weights,
        data=DataSettings(parsed.data or flags.get("data", RANDOM), batch, shapes, length),
        output=Path(os.path.abspath(output), *([names[0]] if several else [])) if output and not parsed.write else None,
        json=own(parsed.json or ""),
        html=own(parsed.html or ""),
        ranges=ranges,
        only_ranges=bool(flags.get("no_search")),
    )


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


def _accuracy(text: str | None) -> Accuracy | None:
    if text is None:
        return None
    try:
        accuracy = read_accuracy(text)
    except ValueError as error:
        raise ConfigurationError(str(error), key="--accuracy", value=text) from None
    try:
        require_tools()
    except NotMade as error:
        raise ConfigurationError(str(error), key="--accuracy", value=text) from None
    return accuracy


def _lengths(text: str | None) -> Lengths | None:
    try:
        return read_lengths(text) if text is not None else None
    except ValueError as error:
        raise ConfigurationError(str(error), key="--lengths", value=text) from None


def _weights(texts: Sequence[str]) -> dict[str, float]:
    weights = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = 0.0
        if not name or not 0 < weights[name] < float("inf"):
            raise ConfigurationError("is no weight", key="--weight", value=text, remedy="write MODEL=2")
    return weights


def _shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    shapes = {}
    for text in texts:
        name, _, numbers = text.rpartition(":")
        try:
            shapes[name] = [int(number) for number in numbers.split(",")]
        except ValueError:
            shapes[name] = [-1]
        if not name or min(shapes[name]) < 0:
            raise ConfigurationError("is no shape", key="--shape", value=text, remedy="write INPUT:1,64")
    return shapes
