"""Whether an ensemble and its members agree on tensors: names, datatypes, shapes and batches, in Triton's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toutates.backends.ensemble.graph import Graph, Step
from toutates.backends.ensemble.levels import find_levels
from toutates.models.table import Member, Need
from toutates.protocol.input_checks import shape_text
from toutates.protocol.signature import TensorSpec

__all__ = ["disagreements"]


@dataclass(frozen=True, slots=True)
class _End:
    """One model's idea of an ensemble tensor.

    Attributes:
        model: whose it is.
        datatype: as a configuration names it.
        dims: without the batch dimension.
        batched: whether the model is batched.
    """

    model: str
    datatype: str
    dims: tuple[int, ...]
    batched: bool

    @property
    def whole(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims


def disagreements(graph: Graph, members: Mapping[Need, Member]) -> list[str]:
    """What is wrong between an ensemble and its members; nothing if all agree.

    Args:
        graph: of the ensemble.
        members: by need; without those that are not known.
    """
    found: list[str] = []
    ends: dict[str, list[_End]] = {}

    def add(tensor: str, model: str, spec: TensorSpec, shape: tuple[int, ...], *, batched: bool) -> None:
        ends.setdefault(tensor, []).append(_End(model, spec.datatype.config_name, shape, batched))

    own = graph.signature
    for spec in (*own.inputs, *own.outputs):
        add(spec.name, graph.model, spec, spec.graph_shape, batched=own.batched)
    for step in graph.steps:
        if step.need not in members:
            continue
        member = members[step.need]
        found += _at_step(graph, step, member)
        for mapping, specs in (
            (step.inputs, member.signature.inputs),
            (step.outputs, member.signature.outputs),
        ):
            by_name = {spec.name: spec for spec in specs}
            for name, tensor in mapping.items():
                if name in by_name:
                    spec = by_name[name]
                    add(tensor, step.model, spec, spec.shape, batched=member.signature.batched)
    found += find_levels(graph, members)[1]
    for tensor, all_ends in ends.items():
        found += _between(graph.model, tensor, all_ends)
    return found


def _at_step(graph: Graph, step: Step, member: Member) -> Iterator[str]:
    name = graph.model
    if 0 < member.batch_size < graph.batch_size:
        yield (
            f"ensemble {name} allows maximum batch size {graph.batch_size}, but it contains model {step.model} which "
            f"only allows maximum batch size to be {member.batch_size}"
        )
    inputs = {spec.name for spec in member.signature.inputs}
    outputs = {spec.name for spec in member.signature.outputs}
    for own, tensor in step.inputs.items():
        if own not in inputs:
            yield (
                f"in ensemble {name}, ensemble tensor {tensor} is mapping to non-existing input {own} in model "
                f"{step.model}"
            )
    for own, tensor in step.outputs.items():
        if own not in outputs:
            yield (
                f"in ensemble {name}, ensemble tensor {tensor} is mapped from non-existing output {own} in model "
                f"{step.model}"
            )
    for spec in member.signature.inputs:
        if spec.name not in step.inputs and not spec.optional:
            yield f"in ensemble {name}, input {spec.name} in model {step.model} is not mapped to any ensemble tensors"


def _between(ensemble: str, tensor: str, ends: Sequence[_End]) -> Iterator[str]:
    """What the first end and each other do not agree on."""
    first = ends[0]
    for other in ends[1:]:
        if other.datatype != first.datatype:
            yield (
                f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent data type: {first.datatype} is "
                f"inferred from model {first.model} while {other.datatype} is inferred from model {other.model}"
            )
        if not _fit(first.dims, other.dims) and not _fit(first.whole, other.whole):
            yield (
                f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent shape: {shape_text(first.whole)} is "
                f"inferred from model {first.model} while {shape_text(other.whole)} is inferred from model "
                f"{other.model}"
            )


def _fit(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
