"""What the server adds to each request of a sequence: control inputs, and the state that the last request has left."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

from toutates.engine.result import Outputs
from toutates.engine.sequences.scheduler import Identifier
from toutates.protocol.datatypes import Datatype
from toutates.protocol.signature import Signature

__all__ = ["Control", "ControlKind", "RowStates", "SequenceTensors", "State"]


class ControlKind(Enum):
    """What a control input tells of a row. The names are Triton's, without ``CONTROL_SEQUENCE_``."""

    START = "start"
    END = "end"
    #: whether the row is a request, and not a null row
    READY = "ready"
    #: the id of the sequence
    CORRID = "corrid"


@dataclass(frozen=True, slots=True)
class Control:
    """A control input.

    Attributes:
        index: of the input.
        kind: see ``ControlKind``.
        datatype: of the input.
        false, true: bytes of the two values; of CORRID ``false`` alone, which is that of a null row.
    """

    index: int
    kind: ControlKind
    datatype: Datatype
    false: bytes
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
    """The states of one sequence, in the order of ``SequenceTensors.states``. Never changed; to freeze them takes 1 us.

    Attributes:
        shapes: of the row of each, as clients would see it.
        contents: the bytes of each.
        size: of all of these.
    """

    shapes: tuple[tuple[int, ...], ...]
    contents: tuple[bytes, ...]
    size: int


_NOTHING: Final = RowStates((), (), 0)


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
    initial: RowStates = _NOTHING

    @property
    def has_open_states(self) -> bool:
        """Whether the shape of a state may change from request to request."""
        return any(-1 in self.whole.inputs[state.input].shape for state in self.states)

    def states_of(self, outputs: Outputs, first: int, rows: int) -> list[RowStates]:
        """The states that a run has left for the sequences of some rows."""
        batched, specs = self.whole.batched, self.whole.outputs
        shapes = tuple([specs[own.output].to_wire(outputs.row_shapes[own.output]) for own in self.states])
        columns: list[list[bytes]] = []
        for own in self.states:
            size = outputs.row_bytes[own.output]
            if batched and size:
                whole = memoryview(outputs.rows(own.output, first, rows, batched=True))
                columns.append([bytes(whole[at * size : (at + 1) * size]) for at in range(rows)])
            else:
                each = range(first, first + rows)
                columns.append([bytes(outputs.rows(own.output, row, 1, batched=batched)) for row in each])
        return [RowStates(shapes, contents, sum(map(len, contents))) for contents in zip(*columns, strict=True)]
