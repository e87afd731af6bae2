"""Copies of the models in other types whose answers are near enough to be tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from toutates.bench.calls import Refused
from toutates.tune.accuracy import Accuracy
from toutates.tune.copies import KINDS, NotMade, make_copy
from toutates.tune.measuring import Bench
from toutates.tune.space import COPY, ONNX, Configs
from toutates.tune.tuning import Tuning

__all__ = ["copy_name", "near_copies"]


def copy_name(source: str, kind: str) -> str:
    """The name of a copy's file, beside that of the model."""
    return f"{source.removesuffix('.onnx')}.{kind}.onnx"


def near_copies(
    bench: Bench,
    base: Configs,
    versions: Mapping[str, Path],
    accuracy: Accuracy,
    tuning: Tuning,
    tell: Callable[[str], None],
) -> dict[str, list[str]]:
    """Make copies of all ONNX models, and compare their answers one by one.

    Args:
        bench: with the models loaded as they are.
        base: the configurations as they are.
        versions: of each model, the directory that has its file and gets the copies.
        accuracy: that they have to hold.
        tuning: is told what came of each.
        tell: is told what happens.

    Returns:
        Of each model, the names of the files that hold the accuracy.

    Raises:
        Refused, Unreachable, ServerFailed: a model itself does not answer.
    """
    bench.accuracy = accuracy
    return {
        model: found
        for model, config in base.items()
        if config["backend"] in ONNX
        and (found := _of_model(bench, model, versions[model] / config[COPY], accuracy, tuning, tell))
    }


def _of_model(
    bench: Bench, model: str, source: Path, accuracy: Accuracy, tuning: Tuning, tell: Callable[[str], None]
) -> list[str]:
    told = tuning.copies[model] = {}
    if bench.questions.sequences:
        told[source.name] = "what a model with sequences answers depends on what came before, and is not compared"
        return []
    if not source.is_file() or source.suffix != ".onnx":
        told[source.name] = "it is no file of ONNX, of which copies are made"
        return []
    try:
        samples = [one.inputs for one in bench.contents(model)]
    except Refused:
        samples = []
    names = []
    for kind in KINDS:
        name = copy_name(source.name, kind)
        tell(f"{model}: making {name}")
        try:
            make_copy(kind, source, source.with_name(name), samples)
            names.append(name)
        except NotMade as error:
            told[name] = str(error)
    found = []
    for name, value in bench.nearness(model, names, accuracy).items():
        told[name] = value
        if isinstance(value, str):
            tell(f"{model}: {name} cannot be used: {value}")
            continue
        held = accuracy.holds(value)
        found += [name] if held else []
        tell(f"{model}: {name} has {accuracy.shown(value)}, which {'holds' if held else 'does not hold'}")
    return found
