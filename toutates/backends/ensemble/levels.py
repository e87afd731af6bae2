"""Where the decoupled steps of an ensemble are: whatever depends on one runs once for each of its responses.

Such an ensemble is a chain of decoupled steps, with other steps before, between and behind them. A step's *level* is
the number of decoupled ones that it depends on. It has to depend on those of the lower levels, too: what comes of two
that do not depend on each other cannot be put together, because nobody knows which responses belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toutates.backends.ensemble.graph import Graph, Step
from toutates.models.table import Member, Need

__all__ = ["Levels", "find_levels"]

#: Decoupled steps that something depends on, by number, in the order of the data.
_Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of an ensemble's steps.

    Attributes:
        sources: numbers of the decoupled steps, the lowest level first; () for an ensemble without.
        steps: by level, the bits of the other steps.
    """

    sources: _Scope
    steps: tuple[int, ...]


def find_levels(graph: Graph, members: Mapping[Need, Member]) -> tuple[Levels, list[str]]:
    """The levels of a graph, and what is wrong with them.

    Args:
        graph: of the ensemble.
        members: by need; a step whose member is not known counts as one that is not decoupled.
    """
    problems: list[str] = []
    of_tensor: dict[str, _Scope] = {tensor.name: () for tensor in graph.signature.inputs}
    of_step: dict[int, _Scope] = {}
    left = list(graph.steps)
    while ready := [step for step in left if of_tensor.keys() >= set(step.inputs.values())]:
        for step in ready:
            left.remove(step)
            scope = _joined([of_tensor[tensor] for tensor in step.inputs.values()])
            if scope is None:
                problems.append(
                    f"in ensemble {graph.model}, step of model '{step.model}' receives inputs originated from "
                    "different decoupled models"
                )
                scope = ()
            of_step[step.number] = scope
            written = (*scope, step.number) if _is_decoupled(step, members) else scope
            of_tensor.update(dict.fromkeys(step.outputs.values(), written))
    sources = _joined([of_tensor.get(tensor.name, ()) for tensor in graph.signature.outputs])
    if sources is None and not problems:
        problems.append(
            f"in ensemble {graph.model}, outputs originate from different decoupled models, whose responses do not "
            "belong together"
        )
    sources = sources or ()
    steps = [0] * (len(sources) + 1)
    for number, scope in of_step.items():
        if number not in sources:
            steps[min(len(scope), len(sources))] |= 1 << number
    return Levels(sources, tuple(steps)), problems


def _is_decoupled(step: Step, members: Mapping[Need, Member]) -> bool:
    member = members.get(step.need)
    return member is not None and member.decoupled


def _joined(scopes: Sequence[_Scope]) -> _Scope | None:
    """What depends on all of these depends on; None where some do not depend on each other."""
    longest = max(scopes, key=len, default=())
    return longest if all(longest[: len(scope)] == scope for scope in scopes) else None
