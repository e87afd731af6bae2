"""What the server adds to each request of a sequence: control inputs, and the state that the last request has left."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from toutates.engine.result import Outputs
from toutates.engine.sequences.scheduler import Identifier
from toutates.protocol.datatypes import Datatype
from toutates.protocol.signature import Signature

__all__ = ["NO_STATES", "Control", "ControlKind", "RowStates", "SequenceTensors", "State"]


class ControlKind(Enum):
    """What a control input tells of a row. The names are Triton's, without ``CONTROL_SEQUENCE_``."""

    START = "start"
    END = "end"
    #: whether the row is a request, and not a null row
    READY = "ready"
    #: the id of the sequence
    CORRID = "corrid"
    #: where the model keeps the state of the sequence; no configuration has it
    SLOT = "slot"


@dataclass(frozen=True, slots=True)
class Control:
    """A control input.

    Attributes:
        index: of the input.
        kind: see ``ControlKind``.
        datatype: of the input.
        false, true: bytes of the two values; of CORRID ``false`` alone, which is that of a null row, and of SLOT none.
    """

    index: int
    kind: ControlKind
    datatype: Datatype
    false: bytes = b""
    true: bytes = b""

    def corrid(self, identifier: Identifier) -> bytes:
        """The bytes of a sequence's id. An integer type of 32 bits has its lower half."""
        if isinstance(identifier, str):
            text = identifier.encode()
            return struct.pack("<I", len(text)) + text
        size = self.datatype.size or 8
        return (identifier & ((1 << 8 * size) - 1)).to_bytes(size, "little")


@dataclass(slots=True, eq=False)
class RowStates:
    """The states of one sequence, in the order of ``SequenceTensors.states``.

    Attributes:
        shapes: of the row of each, as clients would see it.
        contents: the bytes of each.
        size: of all of these.
    """

    shapes: tuple[tuple[int, ...], ...]
    contents: tuple[bytearray, ...]
    size: int


NO_STATES: Final = RowStates((), (), 0)


@dataclass(frozen=True, slots=True)
class State:
    """A state that a model has between the requests of a sequence.

    Attributes:
        input, output: indices of the input that takes it and of the output that gives it.
    """

    input: int
    output: int


@dataclass(frozen=True, slots=True)
class SequenceTensors:
    """The tensors of a model with sequences.

    Attributes:
        signature: what clients see.
        whole: what the model computes: the inputs and outputs of ``signature``, each with its index, and after them
            control inputs, inputs of states, and outputs of states that clients do not see.
        controls: the control inputs, by index.
        states: by index of the input, after the controls.
        initial: the states of a sequence that begins.
    """

    signature: Signature
    whole: Signature
    controls: tuple[Control, ...] = ()
    states: tuple[State, ...] = ()
    initial: RowStates = NO_STATES

    @property
    def model_keeps_states(self) -> bool:
        """Whether the model itself has a state for each slot. Its rows never share a run."""
        return any(control.kind is ControlKind.SLOT for control in self.controls)

    @property
    def has_open_states(self) -> bool:
        """Whether the shape of a state may change from request to request."""
        return any(-1 in self.whole.inputs[state.input].shape for state in self.states)

    def states_of(self, outputs: Outputs, first: int, before: Sequence[RowStates | None]) -> list[RowStates]:
        """The states that a run has left for the sequences of some rows.

        Those of the sizes that they had are written where they were. Allocators keep what states that come and go leave
        behind, each thread for itself: that was half as much again.

        Args:
            outputs: of the run.
            first: the first row.
            before: of each row, the states that its sequence had, which nothing reads any more; None for none, and
                NO_STATES for a row whose states nobody wants.
        """
        batched, specs = self.whole.batched, self.whole.outputs
        shapes = tuple([specs[own.output].to_wire(outputs.row_shapes[own.output]) for own in self.states])
        sizes = tuple([outputs.row_bytes[own.output] for own in self.states])
        if not batched or 0 in sizes:
            return [self._row_states(outputs, row, shapes) for row in range(first, first + len(before))]
        total = sum(sizes)
        columns = [
            memoryview(outputs.rows(own.output, first, len(before), batched=True)).cast("B") for own in self.states
        ]
        found: list[RowStates] = []
        for at, states in enumerate(before):
            if states is NO_STATES:
                found.append(states)
                continue
            rows = [column[at * size : (at + 1) * size] for column, size in zip(columns, sizes, strict=True)]
            if states is None or states.size != total or tuple(map(len, states.contents)) != sizes:
                found.append(RowStates(shapes, tuple(map(bytearray, rows)), total))
                continue
            states.shapes = shapes
            for content, row in zip(states.contents, rows, strict=True):
                content[:] = row
            found.append(states)
        return found

    def _row_states(self, outputs: Outputs, row: int, shapes: tuple[tuple[int, ...], ...]) -> RowStates:
        """The states of one row, some of which are texts, or all there is."""
        contents = [bytearray(outputs.rows(own.output, row, 1, batched=self.whole.batched)) for own in self.states]
        return RowStates(shapes, tuple(contents), sum(map(len, contents)))
