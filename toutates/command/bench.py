"""``toutates bench``: reads what to measure, measures it, and says what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from toutates.bench.arrivals import Arrivals
from toutates.bench.driver import Unreachable
from toutates.bench.load import Load, LoadFailed
from toutates.bench.measured import Condition, read_condition
from toutates.bench.measuring import Target, measure
from toutates.bench.questions import Refused
from toutates.server.options import EXIT_FAILURE, EXIT_OK
from toutates.system.address import parse_address
from toutates.system.errors import ConfigurationError

__all__ = ["bench"]

_ARRIVALS = {"constant": 0.0, "poisson": 1.0}


def bench(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    address = parse_address(parsed.address.removeprefix("grpc://"), "ADDR")
    targets = _targets(parsed.model, parsed.shape)
    conditions = [_condition(text) for text in parsed.fail_if]
    if parsed.rate is not None and not 0 < parsed.rate <= 10_000_000:
        raise ConfigurationError("must be above 0 and at most 10000000", key="--rate", value=str(parsed.rate))
    load = Load(
        address.host,
        address.port,
        (),
        parsed.connections,
        parsed.rate,
        parsed.seconds,
        variation=_variation(parsed.arrivals),
        under_way=parsed.concurrency,
        seed=parsed.seed,
    )
    try:
        measured = measure(
            targets,
            load,
            parsed.repeats,
            checks=not parsed.no_check,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (Unreachable, Refused, LoadFailed) as error:
        print(f"toutates: error: {error}", file=sys.stderr)
        return EXIT_FAILURE
    failed = measured.failed(conditions)
    doubt = measured.doubt()
    if parsed.json:
        print(json.dumps({**measured.to_json(), "failed": failed}, indent=1))
    else:
        way = f"{parsed.rate:g} requests/s" if parsed.rate else f"{parsed.concurrency} requests at a time"
        names = ", ".join(target.model for target in targets)
        print(f"{names} at {address}: {way}, {parsed.connections} connections, {parsed.repeats} x {parsed.seconds:g} s")
        for line in measured.lines():
            print(line)
        for text in failed:
            print(f"FAILED: {text}")
        if doubt:
            print(f"NO VERDICT: {doubt}")
    return EXIT_FAILURE if failed or doubt or measured.wrong or not measured.statuses()["OK"] else EXIT_OK


def _targets(models: Sequence[str], shapes: Sequence[str]) -> list[Target]:
    by_model: dict[str, dict[str, list[int]]] = {}
    for text in shapes:
        name, _, numbers = text.rpartition(":")
        model, _, tensor = name.rpartition(".")
        try:
            axes = [int(number) for number in numbers.split(",")]
        except ValueError:
            axes = [-1]
        if not tensor or min(axes) < 0:
            raise ConfigurationError(
                "is no shape", key="--shape", value=text, remedy="write INPUT:1,64 or MODEL.INPUT:1,64"
            )
        by_model.setdefault(model, {})[tensor] = axes
    targets = []
    for text in models:
        name, equals, number = text.partition("=")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = -1
        if not name or not 0 < weight < 1e9:
            raise ConfigurationError(
                "is no model with its weight", key="--model", value=text, remedy="write NAME or NAME=2.5"
            )
        targets.append(Target(name, "", weight, {**by_model.get("", {}), **by_model.get(name, {})}))
    if unknown := by_model.keys() - {"", *(target.model for target in targets)}:
        raise ConfigurationError(
            "names a model that is not asked", key="--shape", value=sorted(unknown)[0], remedy="add it by --model"
        )
    return targets


def _variation(text: str) -> float:
    if text in _ARRIVALS:
        return _ARRIVALS[text]
    kind, _, number = text.partition(":")
    try:
        if kind != "gamma":
            raise ValueError
        return Arrivals(float(number)).variation
    except ValueError:
        raise ConfigurationError(
            "is no kind of arrivals", key="--arrivals", value=text, remedy="write constant, poisson or gamma:4"
        ) from None


def _condition(text: str) -> Condition:
    try:
        return read_condition(text)
    except ValueError as error:
        raise ConfigurationError(str(error), key="--fail-if", value=text) from None
