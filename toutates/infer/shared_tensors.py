"""The tensors of a kind of requests that are in shared memory: where they are, and how their bytes come and go.

Inputs are read into one buffer, which then takes the way of a received message: copied into a batch, or run where it
is, if it is large. Outputs are written before the response is sent, which says nothing of their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, Final

from toutates.engine.lane import RowShapes
from toutates.engine.lane_table import is_packed
from toutates.engine.on_device import ALIGNMENT as ALIGNED
from toutates.engine.on_device import LEAST_BYTES, DeviceLane, DevicePort, DeviceRows
from toutates.engine.result import BatchResult
from toutates.engine.servable import Buffer, Port
from toutates.infer.regions import Place, Region, Regions, own_name
from toutates.infer.validation import ValidatedRequest
from toutates.models.table import ServedVersion
from toutates.net import Worker
from toutates.system.errors import InvalidRequest, Overloaded

__all__ = ["OutputRoom", "SharedInputs", "SharedTensors"]

#: From here on inputs are read into memory that is kept for large messages, and may be run there.
POOLED_BYTES: Final = 65_536
#: Where inputs begin, so that they are aligned as those of messages are.
ALIGNMENT: Final = 64
#: Contents of a message that the worker copies itself; larger ones keep their message until they are copied beside it.
#: Also what is copied there without letting the worker run.
STEP_BYTES: Final = 1_048_576
#: The most bytes of outputs in shared memory for all requests of a worker. A single request may have more.
MOST_OUTPUT_BYTES: Final = 268_435_456


class OutputRoom:
    """Counts the bytes of outputs that the server keeps until they are written to shared memory.

    Used by one worker's thread.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def take(self, byte_size: int) -> None:
        """A request begins whose outputs have so many bytes at most.

        Raises:
            Overloaded: too many are under way.
        """
        if self._bytes and byte_size and self._bytes + byte_size > MOST_OUTPUT_BYTES:
            raise Overloaded(
                f"requests with {self._bytes} bytes of outputs in shared memory are under way, {byte_size} more are "
                f"asked for, and {MOST_OUTPUT_BYTES} is the most; try again later",
                MOST_OUTPUT_BYTES,
                byte_size,
            )
        self._bytes += byte_size

    def give_back(self, byte_size: int) -> None:
        """Such a request is over."""
        self._bytes -= byte_size


class SharedTensors:
    """What a plan knows of its tensors in shared memory.

    Args:
        regions: the server's.
        version: that answers.
        request: of which some tensors are in shared memory.
        output_room: of the worker's requests.

    Attributes:
        inputs: place and name of each input, by position in the lane; None for one whose bytes the request has.
        outputs: place of each output that is written to shared memory, by its index.
        places: all of them.
        spans: where each input begins and ends in the buffer that they are read into, flat; None where the request has
            the bytes of some.
        byte_size: of all inputs in shared memory.
        room: the most bytes that the outputs in shared memory may have.
        finish: takes the outcome of requests whose outputs are written, or which have none. Set, as the next one is, by
            whoever opens the port.
        runs_apart: whether the port has ``Submitter.run_apart``.
        device_way: the way for requests whose inputs a GPU has; None where the version does not take them so.
        owner: whose regions they are in, where regions have owners; "" until ``owned_by``.
        whose: who sends the requests (``Caller.identity``); "" where nobody knows.
        others: plans of the same requests of other owners, by owner.
    """

    __slots__ = (
        "_classes",
        "_device",
        "_indices",
        "_names",
        "_output_room",
        "_regions",
        "_used",
        "byte_size",
        "device_way",
        "finish",
        "inputs",
        "others",
        "outputs",
        "owner",
        "places",
        "room",
        "runs_apart",
        "spans",
        "whose",
    )

    def __init__(
        self, regions: Regions, version: ServedVersion, request: ValidatedRequest, output_room: OutputRoom
    ) -> None:
        self._regions = regions
        self._output_room = output_room
        signature = version.signature
        self._names = [tensor.name for tensor in signature.outputs]
        self.inputs: list[tuple[Place, str] | None] = [
            (source, signature.inputs[index].name) if isinstance(source, Place) else None
            for index, source in zip(request.inputs, request.sources, strict=True)
        ]
        self.outputs: Mapping[int, Place] = request.places
        self.byte_size = sum(given[0].byte_size for given in self.inputs if given is not None)
        self.room = sum(min(place.byte_size, _most_bytes(version, request, at)) for at, place in self.outputs.items())
        self.owner = self.whose = ""
        self.others: dict[str, Any] = {}
        self._indices = request.inputs
        self._classes = request.classes
        self._device = 0
        self.device_way: DeviceLane | None = None
        self.finish: Callable[[BatchResult], None]
        self.runs_apart = False
        self.places = (*(given[0] for given in self.inputs if given is not None), *self.outputs.values())
        #: the regions of ``places``: as long as a request uses them, those of every request
        self._used: Sequence[Region] = ()
        sizes = [given[0].byte_size for given in self.inputs if given is not None]
        self.spans = _spans(sizes) if len(sizes) == len(self.inputs) else None

    def find_device(self, port: Port, row_shapes: RowShapes, rows: int) -> None:
        """Find the way for inputs that a GPU has.

        Args:
            port: of the plan.
            row_shapes, rows: of its requests.
        """
        is_large = self.byte_size >= LEAST_BYTES and None not in self.inputs
        if is_large and isinstance(port, DevicePort) and is_packed(port.signature, row_shapes):
            self._device = port.device
            self.device_way = port.device_way(row_shapes, rows)

    def on_device(self) -> DeviceRows | None:
        """Where a GPU has all inputs, and may write outputs, of a request whose regions are in use; None if it has not.

        Outputs that share bytes with inputs or with others are written when all have been made, as those elsewhere are.
        """
        inputs: dict[int, int] = {}
        spans: list[tuple[int, int]] = []
        for index, given in zip(self._indices, self.inputs, strict=True):
            address = None if given is None else self._regions.address(given[0], self._device)
            if given is None or address is None or address % ALIGNED:
                return None
            inputs[index] = address
            spans.append((address, address + given[0].byte_size))
        outputs: dict[int, tuple[int, int]] = {}
        for index, place in self.outputs.items():
            start = self._regions.address(place, self._device)
            if start is None or start % ALIGNED or index in self._classes:
                continue
            end = start + place.byte_size
            if all(end <= first or last <= start for first, last in spans):
                outputs[index] = start, place.byte_size
                spans.append((start, end))
        return DeviceRows(inputs, outputs)

    def owned_by(self, owner: str, whose: str) -> SharedTensors:
        """The same tensors in regions of an owner's, whose requests are ``whose``; one before is forgotten."""

        def own(place: Place) -> Place:
            name = place.region.removeprefix(own_name(self.owner, "")) if self.owner else place.region
            return replace(place, region=own_name(owner, name))

        other = copy(self)
        other.whose = whose
        other.owner, other.others = owner, {}  # of its own: plans that lead back to themselves would need a collector
        other.inputs = [None if given is None else (own(given[0]), given[1]) for given in self.inputs]
        other.outputs = {index: own(place) for index, place in self.outputs.items()}
        other.places = tuple(map(own, self.places))
        other._used = ()
        return other

    def acquire(self) -> None:
        """See ``Regions.acquire``; and take room for outputs.

        Raises:
            Overloaded: there is none.
        """
        self._output_room.take(self.room)
        try:
            self._used = self._regions.acquire(self.places, self._used)
        except BaseException:
            self._output_room.give_back(self.room)
            raise

    def release(self) -> None:
        """See ``Regions.release``."""
        self._output_room.give_back(self.room)
        self._regions.release(self._used)

    def read(self, inputs: SharedInputs) -> None:
        """Read what is missing of a request's inputs. Any thread but a worker's may do it.

        Raises:
            InvalidRequest: an object has become too short, or cannot be read.
        """
        if inputs.are_late:
            inputs.copy_contents()
        spans, buffer = inputs.spans, inputs.buffer
        if len(self.inputs) == 1 and buffer.__class__ is bytearray:  # which is all of the only input
            given = self.inputs[0]
            if given is not None:
                self._regions.read(given[0], buffer, given[1])
            return
        with memoryview(buffer) as whole:
            for at, given in enumerate(self.inputs):
                if given is not None:
                    with whole[spans[2 * at] : spans[2 * at + 1]] as view:
                        self._regions.read(given[0], view, given[1])

    def sent(self, indices: Sequence[int], contents: list[list[Any]]) -> list[list[Any]]:
        """What the response has of outputs, given in pieces: nothing of those that were written to their places.

        Args:
            indices: of the outputs.
            contents: the pieces of each.
        """
        places = self.outputs
        return [[b""] if index in places else pieces for index, pieces in zip(indices, contents, strict=True)]

    def write(
        self, contents: Sequence[tuple[int, Sequence[Buffer]]], is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Write outputs to their places. Any thread but a worker's may do it.

        Args:
            contents: index of each output, which has a place, and its pieces.
            is_wanted: whether to go on, asked for each MiB.

        Raises:
            ExecutionFailed: one cannot be written, or nobody wants it. Others may have been.
        """
        for index, pieces in contents:
            self._regions.write(self.outputs[index], pieces, self._names[index], is_wanted)


class SharedInputs:
    """The inputs of one request on their way into a batch. Used by its worker's thread but for ``SharedTensors.read``.

    Args:
        tensors: of the request's plan.
        contents: of the inputs that are not in shared memory, by position.
        worker: has memory for large ones.

    Attributes:
        buffer: holds all inputs, once those in shared memory are read; from ``take`` on.
        spans: where each begins and ends in it, flat.
        byte_size: that the request holds: of the buffer, and of contents that are copied beside the worker.
        are_late: whether contents are.

    Raises:
        InvalidRequest: a request may not have so many bytes.
    """

    __slots__ = ("_contents", "_memory", "_pool", "_tensors", "are_late", "buffer", "byte_size", "spans")

    def __init__(self, tensors: SharedTensors, contents: Sequence[Buffer], worker: Worker) -> None:
        spans = tensors.spans
        if spans is None:
            of_request = iter(contents)
            spans = _spans([len(next(of_request)) if given is None else given[0].byte_size for given in tensors.inputs])
        end = spans[-1] if spans else 0
        most = worker.limits.max_message_size
        if tensors.byte_size and end > most:
            raise InvalidRequest(
                f"the inputs of a request with shared memory have {end} bytes, at most {most} are taken "
                "(--limit message_size)"
            )
        self.spans = spans
        of_message = sum(map(len, contents))
        self.are_late = of_message > STEP_BYTES
        self.byte_size = end + of_message if self.are_late else end
        self._tensors = tensors
        self._contents = contents
        self._pool = worker.message_memory
        self._memory: Any = None
        self.buffer: Any = None

    def take(self) -> None:
        """Take memory. Contents that are not late are there then.

        Raises:
            MemoryError: the system has no more.
        """
        end = self.spans[-1] if self.spans else 0
        self._memory = self._pool.take_whole(end) if end >= POOLED_BYTES else None
        self.buffer = self._pool.small(end) if self._memory is None else self._memory
        if self._contents and not self.are_late:
            self.copy_contents()
            self._contents = ()

    def copy_contents(self) -> None:
        """Copy what is not in shared memory. Their message is let go by ``done``, on the worker's thread."""
        of_request = iter(self._contents)
        with memoryview(self.buffer) as whole:
            for at, given in enumerate(self._tensors.inputs):
                if given is None:
                    content, start = memoryview(next(of_request)).cast("B"), self.spans[2 * at]
                    for first in range(0, len(content), STEP_BYTES):
                        part = content[first : first + STEP_BYTES]
                        whole[start + first : start + first + len(part)] = part

    def contents(self) -> list[memoryview]:
        """A view of each input, by position."""
        whole = memoryview(self.buffer)
        return [whole[start:end] for start, end in zip(self.spans[::2], self.spans[1::2], strict=True)]

    def done(self) -> None:
        """Note that the inputs are in a batch, or will never be. Called once."""
        self.buffer = None
        self._contents = ()
        if self._memory is not None:
            self._pool.give_back(self._memory)
            self._memory = None


def _most_bytes(version: ServedVersion, request: ValidatedRequest, index: int) -> int:
    """The most bytes that an output may have, as far as its shape and type tell; else more than there are."""
    tensor = version.signature.outputs[index]
    if index in request.classes or not tensor.datatype.size or -1 in tensor.graph_shape:
        return 2**64
    return prod(tensor.graph_shape) * tensor.datatype.size * (request.rows if version.signature.batched else 1)


def _spans(sizes: Sequence[int]) -> list[int]:
    """Where inputs of these sizes begin and end in one buffer, flat. Nobody changes it."""
    spans: list[int] = []
    end = 0
    for size in sizes:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + size
        spans += (start, end)
    return spans
