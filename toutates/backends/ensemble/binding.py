"""An ensemble bound to versions of its members: what each step takes and gives, found beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from toutates.backends.ensemble.graph import Graph, Step
from toutates.backends.ensemble.levels import Levels
from toutates.engine.around import AroundServable
from toutates.engine.calls import Calls
from toutates.engine.lane import RowShapes
from toutates.engine.servable import Content
from toutates.models.config.queues import keeps_requests_apart
from toutates.models.table import Need, ServedVersion
from toutates.protocol.datatypes import Datatype
from toutates.protocol.input_checks import check_batch, check_names
from toutates.protocol.names import request_prefix
from toutates.protocol.signature import TensorSpec
from toutates.system.errors import InvalidRequest

__all__ = ["Asked", "Binding", "BoundStep", "Value", "moved"]

#: An ensemble tensor of some requests: its shape as clients would see it, with the batch dimension, its bytes, and the
#: datatype that it has, which may be another than its model declares.
Value = tuple[tuple[int, ...], Content, Datatype]


class Asked(NamedTuple):
    """What a step is asked for: index in the member, and of the ensemble tensor, of each output; the former alone."""

    outputs: Sequence[tuple[int, int]]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """An input of a step: index and description in the member, and where the ensemble tensor is.

    Attributes:
        tensor: index of the ensemble tensor.
        from_batched: whether a batched model writes that.
        source: what writes it, for errors.
    """

    index: int
    spec: TensorSpec
    tensor: int
    from_batched: bool
    source: str


class BoundStep:
    """A step of an ensemble, and the member that runs it.

    Attributes:
        bit: of the step among those of the ensemble.
        needs: bits of the ensemble tensors that it reads.
        writes: bits of those that it writes.
        all: its outputs, ascending.
        calls: of the member.
        batched: whether the member is.
        specs: of the member's outputs, by index.
    """

    __slots__ = ("_asked", "_inputs", "all", "batched", "bit", "calls", "needs", "number", "specs", "writes")

    def __init__(self, graph: Graph, step: Step, member: ServedVersion) -> None:
        signature = member.signature
        at = {tensor: index for index, tensor in enumerate(graph.tensors)}
        self.number = step.number
        self.bit = 1 << step.number
        self.calls: Calls = member.calls
        self.batched = signature.batched
        self.specs = signature.outputs
        self._inputs = [
            _Input(index, spec, at[step.inputs[spec.name]], False, "")
            for index, spec in enumerate(signature.inputs)
            if spec.name in step.inputs
        ]
        by_name = {spec.name: index for index, spec in enumerate(signature.outputs)}
        outputs = [(by_name[name], at[tensor]) for name, tensor in step.outputs.items()]
        self.all = _asked(sorted(outputs, key=itemgetter(0)))
        #: what it was asked for beside that, by bits of the ensemble tensors
        self._asked: dict[int, Asked] = {}
        self.needs = sum({1 << one.tensor for one in self._inputs})
        self.writes = sum(1 << tensor for _, tensor in self.all.outputs)

    def note_sources(self, batched: Sequence[bool], sources: Sequence[str]) -> None:
        """Note what writes each ensemble tensor, and whether that is batched, once all steps are known."""
        self._inputs = [
            _Input(one.index, one.spec, one.tensor, batched[one.tensor], sources[one.tensor]) for one in self._inputs
        ]

    def asked(self, read: int) -> Asked:
        """What the step is asked for where somebody reads these ensemble tensors, given as bits: no other output."""
        wanted = self.writes & read
        if wanted == self.writes:
            return self.all
        found = self._asked.get(wanted)
        if found is None:
            found = self._asked[wanted] = _asked([pair for pair in self.all.outputs if wanted >> pair[1] & 1])
        return found

    def inputs(self, values: Sequence[Value | None]) -> tuple[int, RowShapes, list[Content]]:
        """What the member is called with: rows, their shapes, and the bytes of each input.

        Args:
            values: of the ensemble tensors; None for one that is not there.

        Raises:
            InvalidRequest: an input is missing that the member needs or has another datatype, or the batch dimensions
                differ.
        """
        shapes: list[tuple[int, tuple[int, ...]]] = []
        contents: list[Content] = []
        rows = -1
        for one in self._inputs:
            value = values[one.tensor]
            if value is None:
                continue
            shape = value[0]
            if value[2] is not one.spec.datatype:
                self._check_datatype(one, value[2])
            if one.from_batched is not self.batched:
                shape = self._moved(one, shape)
            if self.batched:
                if not shape:
                    self._refuse(values)
                if rows not in (-1, shape[0]):
                    self._refuse(values)
                rows = shape[0]
                shape = shape[1:]
            shapes.append((one.index, shape))
            contents.append(value[1])
        if len(shapes) < len(self._inputs):
            self._refuse(values)
        return (rows if self.batched else 1), tuple(shapes), contents

    def _check_datatype(self, one: _Input, datatype: Datatype) -> None:
        expected = one.spec.datatype.name
        if datatype.name != expected:
            raise InvalidRequest(
                f"inference input '{one.spec.name}' data-type is '{datatype.name}', but model '{self.calls.model}' "
                f"expects '{expected}'; {one.source} has given it"
            )

    def _moved(self, one: _Input, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with a batch dimension of 1 added, or taken off, where only one of two models is batched."""
        return moved(shape, one.spec.shape, batched=self.batched)

    def _refuse(self, values: Sequence[Value | None]) -> None:
        """Raise what a client would be told who sends this; nothing where only optional inputs are missing."""
        given: list[tuple[str, tuple[int, ...]]] = []
        for one in self._inputs:
            value = values[one.tensor]
            if value is not None:
                shape = value[0] if one.from_batched is self.batched else self._moved(one, value[0])
                given.append((one.spec.name, shape))
        model, prefix = self.calls.model, request_prefix("")
        check_names([name for name, _ in given], self.calls.signature, model, prefix)
        if given:
            check_batch(given, self.calls.signature, model, prefix)


def _asked(outputs: Sequence[tuple[int, int]]) -> Asked:
    return Asked(outputs, tuple([index for index, _ in outputs]))


def moved(shape: tuple[int, ...], dims: Sequence[int], *, batched: bool) -> tuple[int, ...]:
    """A shape with a batch dimension of 1 added, or taken off, where only one of two models is batched.

    Args:
        shape: that one has given.
        dims: that the other declares, without a batch dimension.
        batched: whether the other is.
    """
    fits = len(shape) == len(dims) and all(size in (-1, actual) for size, actual in zip(dims, shape, strict=True))
    if batched:
        return (1, *shape) if fits else shape
    return shape[1:] if not fits and shape[:1] == (1,) else shape


class Binding:
    """An ensemble's steps, bound. The members stay until ``release``.

    Attributes:
        members: the versions.
        steps: by number.
        batched: of each ensemble tensor, whether a batched model writes it.
        most_rows: rows that every member can run at once.
        may_join: whether requests can go through the members together.
        levels: where decoupled steps are.
        groups: of requests under way with it; guarded by the ensemble's lock.
        retired: whether another took its place; likewise.
    """

    def __init__(self, graph: Graph, members: Mapping[Need, ServedVersion], levels: Levels) -> None:
        self.members = members
        self.levels = levels
        of_step = [members[step.need] for step in graph.steps]
        self.steps = [BoundStep(graph, step, member) for step, member in zip(graph.steps, of_step, strict=True)]
        batched = [graph.signature.batched] * len(graph.tensors)
        sources = ["the request"] * len(graph.tensors)
        for step in self.steps:
            for index, tensor in step.all.outputs:
                batched[tensor] = step.batched
                sources[tensor] = f"output '{step.specs[index].name}' of model '{step.calls.model}'"
        for step in self.steps:
            step.note_sources(batched, sources)
        self.batched: Sequence[bool] = batched
        sizes = [member.config.max_batch_size for member in of_step]
        queued = [keeps_requests_apart(member.config) for member in of_step]
        # Answers are kept, or put in order, by request.
        by_request = any(isinstance(member.servable, AroundServable) for member in of_step)
        joinable = graph.signature.batched and not levels.sources and not any(queued) and not by_request
        #: whether rows of several requests may share a run of every member
        self.joins = all([member.servable.joins for member in of_step])
        self.may_join = joinable and self.joins and all(step.batched for step in self.steps)
        self.most_rows = min(size or 1 for size in sizes)
        readers = [member.takes_parameters for member in members.values()]
        #: of members that may read what requests say
        self._readers = [asks for asks in readers if asks is not None]
        taking_turns = [member.takes_turns for member in members.values()]
        self._taking_turns = [takes for takes in taking_turns if takes is not None]
        self.groups = 0
        self.retired = False
        self.held = [member for member in set(members.values()) if member.calls.hold()]

    @property
    def asks(self) -> bool:
        """Whether a member reads what requests say beside their tensors."""
        return any([asks() for asks in self._readers])

    @property
    def takes_turns(self) -> bool:
        """Whether requests of a member take turns by their callers."""
        return bool(self._taking_turns) and any([takes() for takes in self._taking_turns])

    def release(self) -> None:
        """Let go of the members, once."""
        held, self.held = self.held, []
        for member in held:
            member.calls.let_go()
