"""Measures a server: asks it for its models' inputs, makes a load several times over, and compares answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from toutates.bench.load import Asked, Load, run_load
from toutates.bench.measured import Measured
from toutates.bench.questions import INFER, Reference, ask, random_request

__all__ = ["Target", "measure"]

#: Different requests to each model.
_OF_EACH: Final = 4


@dataclass(frozen=True, slots=True)
class Target:
    """A model that is asked.

    Attributes:
        model: its name.
        version: of it; "" for the newest.
        weight: how often it is asked, as a share of the sum of all.
        shapes: of its inputs, where they are not to be as the model has them with open axes of 1.
    """

    model: str
    version: str
    weight: float
    shapes: Mapping[str, Sequence[int]]


def measure(
    targets: Sequence[Target], load: Load, repeats: int, *, checks: bool, tell: Callable[[str], None]
) -> Measured:
    """Measure a server.

    Args:
        targets: what is asked.
        load: how; without requests.
        repeats: how often.
        checks: whether answers are compared with the first one to the same request.
        tell: gets a line after each repeat.

    Raises:
        Unreachable, Refused, LoadFailed: the load cannot be made.
    """
    rng = np.random.default_rng(load.seed)
    requests: list[Asked] = []
    references: list[Reference] = []
    for target in targets:
        for _ in range(_OF_EACH):
            message = random_request(load.host, load.port, target.model, target.version, target.shapes, rng)
            references.append(Reference(ask(load.host, load.port, INFER, message)))
            requests.append(Asked(INFER, message, target.weight / _OF_EACH))
    measured = Measured([], load.rate is not None)
    for number in range(repeats):
        result = run_load(replace(load, requests=requests, seed=load.seed + number))
        measured.outcomes.append(result.outcome)
        measured.texts = {**result.texts, **measured.texts}
        if checks:
            measured.checked += len(result.samples)
            measured.wrong += [
                f"model '{targets[choice // _OF_EACH].model}': {difference}"
                for choice, message in result.samples
                if (difference := references[choice].difference(message))
            ]
        tell(f"repeat {number + 1} of {repeats}: {measured.rates()[-1]:,.0f} requests/s")
    return measured
