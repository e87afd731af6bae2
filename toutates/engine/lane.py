"""Lanes: how the rows of one shape lie in a batch's memory.

Rows of different shape (sequence length, image size) cannot share a run, so every combination of row shapes has a lane
of its own, made on demand. There are two kinds:

- **PackedLane**: all inputs have elements of fixed size. A batch is one buffer per input, written to by byte offset,
  and a backend may bind it once per number of rows. This is the SuperTensor's own kind.
- **GatheredLane**: some input is BYTES, or has rows of no bytes at all. A batch is a list of arrays, concatenated
  before the run.

A model without a batch dimension uses the same lanes with batches of one row, the row being the whole tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from toutates.engine.result import Outputs, PendingRequest
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringRows, StringTensor, join_rows

__all__ = [
    "NEVER_DOUBTED",
    "Allocate",
    "Batch",
    "GatheredLane",
    "Lane",
    "LaneState",
    "PackedLane",
    "Piece",
    "Pin",
    "RowShapes",
]

#: Shape of one row by the input's index, for the inputs that a request gives; in the signature's order.
RowShapes = tuple[tuple[int, tuple[int, ...]], ...]

#: Makes an array's memory page-locked, so that a device reads it without a copy.
Pin = Callable[[npt.NDArray[Any]], None]

#: Makes an array whose contents are undefined, of a shape and a type. Raises MemoryError where there is no room.
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]

#: Some rows of one input, for a GatheredLane.
Piece = npt.NDArray[Any] | StringRows

#: A batch never holds more than this, unless a single row does: large rows profit little from company.
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
#: More rows than there are.
NEVER_LENT: Final = 2**62
#: How long a run takes of which there was none.
_UNKNOWN_NS: Final = 2**62
#: No run takes so long.
NEVER_DOUBTED: Final = 2**62
#: What a worker spends on 64 KiB of rows anyway, nanoseconds: it receives and copies, or sends them. As much again is
#: what a thread on another core takes longer for them, because they are in this one's cache: without it, a run that
#: once took long goes on to be called long. Of many rows it is said to be MOST_MOVING_NS, beside which the way to a
#: thread is nothing.
MOVING_NS: Final = 20_000
MOST_MOVING_NS: Final = 1_000_000
#: Outputs up to this size per batch are bound beforehand and copied out in one piece.
MAX_BOUND_OUTPUT_BYTES: Final = 4 * 1024 * 1024
#: The same where a backend keeps the buffers of its own, for each shape of BYTES that it has run.
MAX_KEPT_OUTPUT_BYTES: Final = 65_536
#: Rows of a request that take so much together may be run where they were received (``Batch.lent_at``).
LEAST_LENT_BYTES: Final = 262_144
#: Where BYTES are that stay where they are: nothing is bound to their address.
ANYWHERE: Final = 1


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane at one moment, for a debugging dump.

    Attributes:
        row_shapes: the shape of a row, by input.
        batch_rows: rows that one batch takes at most.
        room: rows that the next batch will have room for.
        batch_bytes: memory of the next batch.
        spare: batches that wait to be used again.
        open_rows: rows in the open batch; None if there is none.
        writing: workers that have reserved rows of the open batch and not committed them.
        run_ns: how long runs take, by the bit length of their number of rows; see ``Lane.run_ns``.
    """

    row_shapes: RowShapes
    batch_rows: int
    room: int
    batch_bytes: int
    spare: int
    open_rows: int | None
    writing: int
    run_ns: tuple[int, ...]


class Batch:
    """Rows of several requests that run together. Guarded by its SuperTensor's lock but for the rows themselves.

    Attributes:
        lane: whose rows these are.
        room: rows that it has room for; ``lane.batch_rows`` at most.
        memory_bytes: memory of its buffers.
        order: grows from each batch to the one opened after it.
        rows: rows reserved; ``room`` at most.
        counted: rows that the ``Budget`` has counted for it: more than ``rows`` while it is open, or fewer while the
            one worker that it belongs to writes them.
        ahead: rows among ``counted`` that were counted ahead, and may never come.
        requests: requests that wait for it, where their number is bounded. A request that was split waits for its first
            batch only.
        held_bytes: memory of arrays that are kept for it.
        has_parts: whether a request has rows in it and in other batches.
        busy: workers that have reserved rows and not committed them yet.
        lent: its rows, where these stay in the message that brought them: C-contiguous, with anything behind them. Such
            a batch belongs to one request, and lets go of the message once it has run.
        lent_at: their address, or ANYWHERE for BYTES, which are in ``pieces``; 0 for rows of its own.
        due_ns: until when it may wait for more rows while it is open, monotonic nanoseconds; see ``batch_queue``.
        pending: by port, the requests that wait for this batch; each list belongs to its port until the commit, and to
            the executor from when it takes the batch, which the lock puts after every port's commit.
    """

    __slots__ = (
        "ahead",
        "arrays",
        "bindings",
        "busy",
        "counted",
        "due_ns",
        "has_parts",
        "held_bytes",
        "lane",
        "lent",
        "lent_at",
        "memory_bytes",
        "order",
        "outputs",
        "pending",
        "pieces",
        "requests",
        "room",
        "rows",
        "views",
    )

    def __init__(self, lane: Lane, ports: int, room: int) -> None:
        self.lane = lane
        self.room = room
        self.memory_bytes = room * lane.row_memory
        self.order = 0
        self.rows = 0
        self.counted = 0
        self.ahead = 0
        self.requests = 0
        self.held_bytes = 0
        self.has_parts = False
        self.busy = 0
        self.lent: memoryview | None = None
        self.lent_at = 0
        self.due_ns = 0
        self.pending: list[list[PendingRequest]] = [[] for _ in range(ports)]
        #: PackedLane: by position, array [room, *row] of the input's dtype; bound outputs likewise
        self.arrays: list[npt.NDArray[Any]] = []
        self.outputs: list[npt.NDArray[Any]] = []
        #: PackedLane: by port and position, the bytes of ``arrays``. Two threads must not slice one view at once.
        self.views: list[list[memoryview]] = []
        #: PackedLane: what backends have bound to ``arrays`` and ``outputs``: (executor, rows) -> binding
        self.bindings: dict[tuple[int, int], Any] = {}
        #: GatheredLane: (first row, rows, arrays by position), in order of arrival
        self.pieces: list[tuple[int, int, Sequence[Piece]]] = []

    @property
    def is_long(self) -> bool:
        """Whether preparing the run takes so long that it must not be done in a worker's thread."""
        return any(isinstance(piece, StringRows) and piece.many for _, _, arrays in self.pieces for piece in arrays)

    def let_go(self) -> None:
        """Let go of the message that the BYTES of a lent batch lie in, also where an error's traceback has them."""
        for _, _, pieces in self.pieces:
            for piece in pieces:
                if isinstance(piece, StringRows):
                    piece.release()

    def add_ports(self, ports: int) -> None:
        """Make lists of pending requests for ``ports`` ports. With the lock held, while the batch is not running."""
        for _ in range(len(self.pending), ports):
            self.pending.append([])
            if self.arrays:
                self.views.append([_bytes_of(array) for array in self.arrays])

    def drop_pending(self) -> None:
        """Forget the pending requests, so that the batch can be used again. Whoever has the old lists keeps them."""
        self.pending = [[] for _ in self.pending]
        self.has_parts = False


class Lane:
    """The rows of one shape; what both kinds of lane share.

    Attributes:
        key: by which a table of lanes knows it.
        packed: whether batches have buffers, as a PackedLane's do.
        computes: whether a run computes rows, and does not only prepare them.
        lasts: whether runs that count as quick last so long that the system may interrupt them.
        batch_rows: rows that one batch of this lane takes at most.
        row_memory: bytes of one row in a batch's buffers.
        bound_output_bytes: those of its outputs among them.
        room: rows that the next batch is to have room for, ``batch_rows`` at most.
        spare: batches that wait to be used again, all with room for ``room`` rows.
        lent: batches without rows of their own that wait to be used again, by the address and the number of the rows.
        wall_ns: how long an executor usually has a batch, nanoseconds, by the bit length of its number of rows; 0 if
            there was none.
        run_ns: how long a run on the CPU takes, nanoseconds, likewise, beyond what receiving and sending large rows
            takes; see ``note_run``. Several executors write it without a lock, and any of their values will do.
    """

    packed: ClassVar[bool]
    computes: bool = True
    lasts: ClassVar[bool] = False

    def __init__(self, signature: Signature, row_shapes: RowShapes, batch_size: int) -> None:
        self.signature = signature
        self.row_shapes = row_shapes
        self.key: Hashable = row_shapes
        self.batch_rows = batch_size if signature.batched else 1
        self.row_memory = self.bound_output_bytes = 0
        self.room = self.batch_rows
        self.spare: list[Batch] = []
        self.lent: dict[tuple[int, int], Batch] = {}
        self.run_ns = [_UNKNOWN_NS] * (batch_size.bit_length() + 1)
        self.wall_ns = [0] * (batch_size.bit_length() + 1)

    def take_whole(self, rows: int) -> None:
        """Give each request a batch of its own, with room for exactly its rows: ``rows`` at most."""
        if self.signature.batched:
            self.batch_rows = rows
        self.room = 1
        more = rows.bit_length() + 1 - len(self.run_ns)
        self.run_ns.extend([_UNKNOWN_NS] * more)
        self.wall_ns.extend([0] * more)

    @property
    def batch_bytes(self) -> int:
        """Memory of a batch that has room for as many rows as one takes."""
        return self.batch_rows * self.row_memory

    def state(self, open_batch: Batch | None) -> LaneState:
        """What can be said of the lane at this moment.

        Args:
            open_batch: of the lane; None if it has none.
        """
        return LaneState(
            row_shapes=self.row_shapes,
            batch_rows=self.batch_rows,
            room=self.room,
            batch_bytes=self.room * self.row_memory,
            spare=len(self.spare),
            open_rows=open_batch.rows if open_batch is not None else None,
            writing=open_batch.busy if open_batch is not None else 0,
            run_ns=tuple(self.run_ns),
        )

    def note_run(self, rows: int, duration_ns: int, moved_bytes: int = 0, doubted_ns: int = NEVER_DOUBTED) -> bool:
        """Note how long the run of a batch of ``rows`` rows took.

        The time known falls at once and rises slowly, because a long one may be the system's scheduler's. Of it goes
        what workers spend on receiving and sending the rows in any case: a run that takes no longer keeps nobody
        waiting.

        Args:
            rows: of the batch.
            duration_ns: of the run.
            moved_bytes: of inputs and outputs that are not in the batch's memory.
            doubted_ns: from so long on it is not noted, because the run may have been interrupted.

        Returns:
            Whether it was noted.
        """
        moving_ns = MOVING_NS * (rows * self.row_memory + moved_bytes >> 16)
        duration_ns = max(0, duration_ns - min(moving_ns, MOST_MOVING_NS))
        if duration_ns >= doubted_ns:
            return False
        size = rows.bit_length()
        known_ns = self.run_ns[size]
        self.run_ns[size] = duration_ns if duration_ns < known_ns else known_ns + (duration_ns - known_ns >> 3)
        return True

    def note_wall(self, rows: int, duration_ns: int) -> None:
        """Note how long an executor had a batch of ``rows`` rows: a moving average, in which old ones fade away."""
        size = rows.bit_length()
        known_ns = self.wall_ns[size]
        self.wall_ns[size] = known_ns + (duration_ns - known_ns >> 3) if known_ns else duration_ns

    def is_quick(self, rows: int, limit_ns: int) -> bool:
        """Whether a batch of about ``rows`` rows takes less than ``limit_ns``; false if there was none yet."""
        return self.run_ns[rows.bit_length()] < limit_ns

    def new_batch(self, ports: int, room: int) -> Batch:
        """A batch with memory of its own for ``room`` rows."""
        raise NotImplementedError

    def new_lent_batch(self, ports: int, rows: int, address: int) -> Batch:
        """A batch for ``rows`` rows that stay where they are, at ``address`` (``Batch.lent_at``)."""
        batch = Batch(self, ports, rows)
        batch.lent_at = address
        return batch

    def inputs(self, batch: Batch, first: int, rows: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
        """The inputs of a run of some rows of ``batch``: an array per input, by the input's index; BYTES as strings.

        Args:
            batch: of this lane.
            first: the first of the rows.
            rows: how many: all of the batch, or those of one of its requests.
        """
        raise NotImplementedError


class _OutputsInPlace(Lane):
    """A lane whose runs may write to buffers that are bound beforehand, as ``PackedLane`` says."""

    known_outputs: Outputs | None
    outputs_in_place: bool | None

    def note_places(self, *, in_place: bool) -> None:
        """Note where a run has left its outputs; that one has left any elsewhere is never forgotten. In any thread."""
        with _PLACES:
            self.outputs_in_place = in_place and self.outputs_in_place is not False


#: Guards what is noted of where outputs are, of all lanes: twice in the life of one at most.
_PLACES: Final = threading.Lock()


class PackedLane(_OutputsInPlace):
    """A lane whose inputs all have elements of fixed size: a batch has one buffer per input.

    Args:
        pin: makes the memory of an input's buffer page-locked; None leaves it as it is.
        allocate: makes the buffers; None for ordinary memory.
        lends: whether rows may be run where they were received, because the backend reads any memory.

    Attributes:
        known_outputs: the form of the outputs, without data, where it is known beforehand; else None.
        outputs_in_place: whether runs write all outputs to the buffers of a batch; False where their form is not known
            beforehand. None where that is to be found out: by a backend, after each run until it knows
            (``note_places``).
        row_bytes: bytes of one row of each input, by position in ``row_shapes``.
        lent_rows: a request of so many rows, or more, may be run where it was received.
    """

    packed: ClassVar[bool] = True

    def __init__(
        self,
        signature: Signature,
        row_shapes: RowShapes,
        batch_size: int,
        pin: Pin | None = None,
        allocate: Allocate | None = None,
        *,
        lends: bool = False,
    ) -> None:
        super().__init__(signature, row_shapes, batch_size)
        self._pin = pin
        self._allocate: Allocate = np.empty if allocate is None else allocate
        tensors = [signature.inputs[index] for index, _ in row_shapes]
        self.row_bytes = tuple(
            prod(shape) * tensor.datatype.size for tensor, (_, shape) in zip(tensors, row_shapes, strict=True)
        )
        row_total = sum(self.row_bytes)
        if signature.batched:
            self.batch_rows = max(1, min(batch_size, MAX_BATCH_BYTES // row_total))
        self.known_outputs = _known_outputs(signature, self.batch_rows, MAX_BOUND_OUTPUT_BYTES)
        self.outputs_in_place = False if self.known_outputs is None else None
        self.bound_output_bytes = sum(self.known_outputs.row_bytes if self.known_outputs else ())
        self.row_memory = row_total + self.bound_output_bytes
        self.room = self.batch_rows
        self.lent_rows = -(-LEAST_LENT_BYTES // row_total) if lends and len(tensors) == 1 else NEVER_LENT

    def new_batch(self, ports: int, room: int) -> Batch:
        batch = Batch(self, ports, room)
        inputs = self.signature.inputs
        for index, shape in self.row_shapes:
            array = self._allocate((room, *shape), inputs[index].datatype.numpy)
            if self._pin is not None:
                self._pin(array)
            batch.arrays.append(array)
        self._make_outputs(batch)
        batch.views = [[_bytes_of(array) for array in batch.arrays] for _ in range(ports)]
        return batch

    def new_lent_batch(self, ports: int, rows: int, address: int) -> Batch:
        batch = super().new_lent_batch(ports, rows, address)
        self._make_outputs(batch)
        return batch

    def _make_outputs(self, batch: Batch) -> None:
        if self.known_outputs is not None and self.outputs_in_place is not False:
            batch.outputs = [
                self._allocate((batch.room, *shape), tensor.datatype.numpy)
                for tensor, shape in zip(self.signature.outputs, self.known_outputs.row_shapes, strict=True)
            ]

    def inputs(self, batch: Batch, first: int, rows: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
        part = self._part(first, rows)
        arrays = batch.arrays if batch.lent is None else [self._lent_array(batch, batch.lent)]
        return {index: arrays[at][part] for at, (index, _) in enumerate(self.row_shapes)}

    def _lent_array(self, batch: Batch, lent: memoryview) -> npt.NDArray[Any]:
        ((index, shape),) = self.row_shapes
        dtype = self.signature.inputs[index].datatype.numpy
        return np.frombuffer(lent, dtype, batch.room * self.row_bytes[0] // dtype.itemsize).reshape(
            (batch.room, *shape)
        )

    def outputs(self, batch: Batch, first: int, rows: int) -> list[npt.NDArray[Any]]:
        """The buffers that such a run may write its outputs to; none where none does (``outputs_in_place``)."""
        part = self._part(first, rows)
        return [array[part] for array in batch.outputs]

    def take_outputs(self, batch: Batch, first: int, rows: int) -> Outputs:
        """What a run has written to ``outputs``, copied: the batch's memory is free whatever becomes of responses."""
        known = self.known_outputs
        assert known is not None
        data = tuple([array[first : first + rows].tobytes() for array in batch.outputs])
        return Outputs(data, known.row_bytes, known.row_shapes, fixed=True)

    def _part(self, first: int, rows: int) -> Any:
        """The index of rows in the buffers, which takes the leading dimension off where the model has no batch."""
        return slice(first, first + rows) if self.signature.batched else (0, ...)  # of a scalar too, an array


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _known_outputs(signature: Signature, rows: int, most_bytes: int) -> Outputs | None:
    """The form of the outputs where the graph fixes them and those of ``rows`` rows are small; else None."""
    tensors = signature.outputs
    if any(-1 in tensor.graph_shape or not tensor.datatype.size for tensor in tensors):
        return None
    if not signature.batched and any(not tensor.graph_shape for tensor in tensors):
        return None  # no shape at all may be a scalar's, or a rank that the graph leaves open
    row_bytes = tuple(prod(tensor.graph_shape) * tensor.datatype.size for tensor in tensors)
    if 0 in row_bytes or sum(row_bytes) * rows > most_bytes:
        return None
    return Outputs((), row_bytes, tuple(tensor.graph_shape for tensor in tensors))


class GatheredLane(_OutputsInPlace):
    """A lane whose batches are lists of arrays, concatenated before a run. BYTES come as StringRows.

    Args:
        lends: as of ``PackedLane``.

    Attributes:
        known_outputs, outputs_in_place: as of ``PackedLane``.
        lends_strings: whether its one input is BYTES, which may be run where they were received.
    """

    packed: ClassVar[bool] = False

    def __init__(self, signature: Signature, row_shapes: RowShapes, batch_size: int, *, lends: bool = False) -> None:
        super().__init__(signature, row_shapes, batch_size)
        self.known_outputs = _known_outputs(signature, self.batch_rows, MAX_KEPT_OUTPUT_BYTES)
        self.outputs_in_place = False if self.known_outputs is None else None
        self.lends_strings = lends and len(row_shapes) == 1 and not signature.inputs[row_shapes[0][0]].datatype.size

    def new_batch(self, ports: int, room: int) -> Batch:
        return Batch(self, ports, room)

    def inputs(self, batch: Batch, first: int, rows: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
        # One request's; requests without rows begin where the next one does.
        pieces = [arrays for start, count, arrays in batch.pieces if (start, count) == (first, rows)][:1]
        if not pieces:
            # All, by row: workers append their pieces without a lock, after the rows were reserved in some other order.
            pieces = [arrays for _, _, arrays in sorted(batch.pieces, key=lambda piece: piece[0])]
        inputs: dict[int, npt.NDArray[Any] | StringTensor] = {}
        # Of several wrong inputs Triton names the last.
        for at, (index, shape) in reversed(list(enumerate(self.row_shapes))):
            arrays: list[Any] = [piece[at] for piece in pieces]
            if self.signature.inputs[index].datatype.size:
                inputs[index] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            else:
                inputs[index] = join_rows(arrays, (rows, *shape) if self.signature.batched else shape)
        return inputs
