"""The process of an instance: reads frames, runs the model, and writes the outputs to shared memory."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from toutates.backends.python.child import frames, pb_utils
from toutates.backends.python.child.channel import Channel
from toutates.backends.python.child.metric_table import MetricTable
from toutates.backends.python.child.metrics import set_metric_table
from toutates.backends.python.child.model import Model, OutputForms, describe
from toutates.backends.python.child.process_caller import ProcessCaller
from toutates.backends.python.child.requests import ReceivedRequest, set_caller
from toutates.backends.python.child.senders import DecoupledSender
from toutates.backends.python.child.tensors import NUMPY_OF_NAME, Tensor

__all__ = ["serve"]


def serve(control: socket.socket, memory: int) -> None:
    """Serve one instance until the server ends it.

    Args:
        control: to the server.
        memory: descriptor of the shared memory.
    """
    shared = mmap.mmap(memory, 0)
    os.close(memory)
    _Instance(Channel(control), shared).serve()


class _Layout:
    """How the rows of one shape lie in a batch.

    Attributes:
        inputs: name, datatype's name, type in memory, shape of a row.
        outputs: type in memory and row shape of every output, where they have places of their own; else None.
        form: of the numbers in a frame about such a batch: an offset for each input and each such output.
    """

    def __init__(self, inputs: Sequence[tuple[str, str, Any, Any]], outputs: list[tuple[Any, Any]] | None) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.form = struct.Struct(f"<{len(inputs) + len(outputs or ())}Q")


#: References to an array that only a list and a loop's variable hold, as ``sys.getrefcount`` counts them.
def _held() -> int:
    arrays = [np.empty(1)]
    for array in arrays:
        return sys.getrefcount(array)
    return 0


_UNSHARED = _held()


class _Instance:
    def __init__(self, channel: Channel, shared: mmap.mmap) -> None:
        self._channel = channel
        self._shared = shared
        self._caller = ProcessCaller(channel, shared)
        set_caller(self._caller)
        self._layouts: dict[int, _Layout] = {}
        self._model = Model("", "")
        self._inputs: list[tuple[str, str]] = []
        self._outputs = OutputForms([], [])
        self._batched = self._one_by_one = self._stacked = self._decoupled = False
        #: requests of a decoupled model so far
        self._numbered = 0
        #: where outputs go that have no place of their own: offset and bytes
        self._room: tuple[int, int] = (0, 0)
        #: arrays of earlier batches that the model has kept, by offset
        self._kept: dict[int, Any] = {}
        self._about: list[dict[str, Any]] | None = None

    def serve(self) -> None:
        channel = self._channel
        handlers = {
            frames.CONFIGURE: self._configure,
            frames.INITIALIZE: self._initialize,
            frames.EXECUTE: self._execute,
            frames.GATHERED: self._execute_gathered,
        }
        while True:
            kind, content = channel.receive_order() if self._decoupled else channel.receive()
            if kind == frames.RETURN:
                continue  # of a call that nobody has waited for
            if kind == frames.LAYOUT:
                self._remember_layout(json.loads(content))
                continue
            if kind == frames.FINALIZE:
                self._finalize()
                return
            try:
                answer = handlers[kind](content)
            except Exception as error:
                channel.send(frames.FAILED, json.dumps({"text": describe(error)}).encode())
            else:
                channel.send(frames.DONE, answer)
            del content

    # --- the model's life --------------------------------------------------------------------------------------------

    def _configure(self, content: bytes) -> bytes:
        """Import model.py, and let it complete the configuration."""
        given = json.loads(content)
        pb_utils.set_model_dir(given["directories"][0])
        if given["metrics"] is not None:
            memory = memoryview(self._shared)[given["metrics"] : given["metrics"] + frames.METRICS_BYTES]
            set_metric_table(MetricTable(memory), whole_process=True)
        self._model = Model(given["path"], given["instance"])
        self._model.load(given["version"], given["directories"])
        completed = self._model.complete(given["config"], given["model"]) if given["complete"] else None
        return json.dumps(completed).encode()

    def _initialize(self, content: bytes) -> bytes:
        given = json.loads(content)
        self._inputs = [tuple(entry) for entry in given["inputs"]]
        self._outputs = OutputForms([name for name, _ in given["outputs"]], [kind for _, kind in given["outputs"]])
        self._batched, self._one_by_one, self._stacked = given["batched"], given["one_by_one"], given["stacked"]
        self._model.initialize(given["args"])
        self._decoupled = given["decoupled"]
        if self._decoupled:
            self._channel.allow(True)  # for good
        return b"null"

    def _finalize(self) -> None:
        try:
            self._model.finalize()
        except Exception as error:
            self._channel.send(frames.FAILED, json.dumps({"text": describe(error)}).encode())
        else:
            self._channel.send(frames.DONE, b"null")

    # --- batches -----------------------------------------------------------------------------------------------------

    def _remember_layout(self, given: dict[str, Any]) -> None:
        number = given["number"]
        if not number:
            self._layouts.clear()
        inputs = []
        for index, shape in given["inputs"]:
            name, datatype = self._inputs[index]
            inputs.append((name, datatype, NUMPY_OF_NAME[datatype], tuple(shape)))
        outputs = given["outputs"]
        known = None
        if outputs is not None:
            known = [
                (NUMPY_OF_NAME[datatype], tuple(shape)) for datatype, shape in zip(self._outputs.datatypes, outputs)
            ]
        self._layouts[number] = _Layout(inputs, known)

    def _execute(self, content: bytes) -> bytes:
        """Run a batch whose rows lie one after the other."""
        described, number, count, rows, room = frames.EXECUTE_HEAD.unpack_from(content)
        layout = self._layouts[number]
        at = frames.EXECUTE_HEAD.size
        offsets = layout.form.unpack_from(content, at)
        at += layout.form.size
        numbers = struct.unpack_from(f"<{2 * count}I", content, at)
        self._about = json.loads(content[at + 8 * count :]) if described else None
        shared = self._shared
        bases = [
            np.ndarray((room, *shape), dtype, shared, offset)
            for (_, _, dtype, shape), offset in zip(layout.inputs, offsets)
        ]
        places = None
        if layout.outputs is not None:
            places = [
                np.ndarray((room, *shape), dtype, shared, offset)
                for (dtype, shape), offset in zip(layout.outputs, offsets[len(bases) :])
            ]
        if self._stacked:
            numbers = (0, rows)
        requests = self._requests_of(layout, numbers, bases)
        firsts, sizes = numbers[::2], numbers[1::2]
        return self._run(requests, firsts, sizes, places, bases, offsets)

    def _execute_gathered(self, content: bytes) -> bytes:
        """Run a batch whose requests have memory each, BYTES among it."""
        given = json.loads(content)
        self._about = given.get("about")
        names = [self._inputs[index] for index in given["inputs"]]
        bases, offsets = [], []
        for offset, size in given["blocks"]:
            bases.append(np.ndarray((size,), np.uint8, self._shared, offset))
            offsets.append(offset)
        requests = [
            self._request(position, _reading(names, bases[0] if bases else None, pieces))
            for position, (_, pieces) in enumerate(given["requests"])
        ]
        sizes = [rows for rows, _ in given["requests"]]
        firsts = [sum(sizes[:at]) for at in range(len(sizes))]
        return self._run(requests, firsts, sizes, None, bases, offsets)

    def _requests_of(self, layout: _Layout, numbers: Sequence[int], bases: Sequence[Any]) -> list[ReceivedRequest]:
        # A tuple that lives as long as any of the requests: what a model keeps is found by references to ``bases``.
        held = tuple(bases)
        requests = []
        for position in range(len(numbers) // 2):
            first, rows = numbers[2 * position], numbers[2 * position + 1]
            part = slice(first, first + rows) if self._batched else (0, ...)
            requests.append(self._request(position, _slicing(layout.inputs, held, part)))
        return requests

    def _request(self, position: int, tensors: Any) -> ReceivedRequest:
        def about() -> dict[str, Any]:
            if self._about is None:
                self._about = self._channel.ask(about=1)
            return self._about[position] if position < len(self._about) else {}

        def wanted() -> bool:
            return bool(self._channel.ask(wanted=position))

        return self._open_request(position, tensors) if self._decoupled else ReceivedRequest(tensors, about, wanted)

    def _open_request(self, position: int, tensors: Any) -> ReceivedRequest:
        """A request of a decoupled model, which it may use after the batch."""
        number = self._numbered
        self._numbered = (number + 1) % 2**32
        said = self._about[position] if self._about is not None else {}

        def wanted() -> bool:
            return bool(self._channel.ask(open=number))

        def put(response: Any, final: bool) -> None:
            self._respond(number, response, final)

        return ReceivedRequest(tensors, lambda: said, wanted, DecoupledSender(put, wanted))

    def _respond(self, number: int, response: Any, final: bool) -> None:
        """Send a response, the text of an error, or None with ``final``."""
        flags = frames.RESPONSE_FINAL if final else 0
        if response is None:
            self._channel.send(frames.RESPONSE, frames.RESPONSE_HEAD.pack(number, flags, 0))
            return
        answer = self._answer(response)
        contents: list[bytes] = []
        at = 0
        for entry in answer.get("outputs", {}).values():
            content = entry.pop()
            contents.append(content if isinstance(content, bytes) else content.tobytes())
            entry += (at, len(contents[-1]))
            at += len(contents[-1])
        if at > frames.MAX_RESPONSE_BYTES:
            answer = {"error": [1, f"Failed to send a response of {at} bytes, at most {frames.MAX_RESPONSE_BYTES}"]}
            contents = []
        said = json.dumps(answer).encode()
        head = frames.RESPONSE_HEAD.pack(number, flags | frames.RESPONSE_CONTENT, len(said))
        self._channel.send(frames.RESPONSE, b"".join((head, said, *contents)))

    def _run(
        self,
        requests: list[ReceivedRequest],
        firsts: Sequence[int],
        sizes: Sequence[int],
        places: list[Any] | None,
        bases: list[Any],
        offsets: Sequence[int],
    ) -> bytes:
        """Call ``execute``, write what it returns, and say where; nothing to say means that all is in its place."""
        said: dict[str, Any] = {}
        if self._decoupled:
            again = self._model.begin(requests, one_by_one=self._one_by_one, enter=lambda: None)
            if again:
                said["again"] = again
            requests.clear()
        else:
            self._caller.begin_batch()
            self._channel.allow(True)
            outcomes = self._model.answers(requests, one_by_one=self._one_by_one)
            requests.clear()
            said = self._write(outcomes, firsts, sizes, places)
            self._channel.allow(False)
            outcomes.clear()
        self._about = None
        kept = []
        for base in bases:
            # The memory is used again for other rows, unless the model has kept an array over it.
            if sys.getrefcount(base) > _UNSHARED:
                at = next(number for number, own in enumerate(bases) if own is base)
                kept.append(offsets[at])
                self._kept[offsets[at]] = base
        if kept or self._kept:
            base = None
            bases.clear()
            said["kept"], said["released"] = kept, self._released(kept)
        return json.dumps(said).encode() if said else b""

    def _released(self, kept: Sequence[int]) -> list[int]:
        """Offsets of memory that the model had kept and does not any more."""
        arrays = list(self._kept.items())
        self._kept = {}
        released = []
        while arrays:
            offset, array = arrays.pop()
            if offset not in kept and sys.getrefcount(array) <= _UNSHARED - 1:
                released.append(offset)
            else:
                self._kept[offset] = array
        return released

    # --- outputs -----------------------------------------------------------------------------------------------------

    def _write(
        self, outcomes: list[Any], firsts: Sequence[int], sizes: Sequence[int], places: list[Any] | None
    ) -> dict[str, Any]:
        if places is not None and self._outputs.write(outcomes, firsts, sizes, places, batched=self._batched):
            return {}
        answers: list[dict[str, Any]] = []
        arrays: list[Any] = []
        at = 0
        for outcome in outcomes:
            answer = self._answer(outcome)
            for entry in answer.get("outputs", {}).values():
                content = entry.pop()
                entry += (at, len(content) if isinstance(content, bytes) else content.nbytes)
                arrays.append((at, content))
                at += -(-entry[3] // 64) * 64
            answers.append(answer)
        if at > self._room[1]:
            offset, size = self._channel.ask(memory=at)
            self._room = offset, size
            if not self._room[1]:
                text = f"Failed to increase the shared memory pool size by {at} bytes"
                return {"requests": [{"error": [1, text]}] * len(outcomes)}
        for offset, content in arrays:
            if isinstance(content, bytes):
                self._shared[self._room[0] + offset : self._room[0] + offset + len(content)] = content
            elif content.nbytes:
                np.ndarray(content.shape, content.dtype, self._shared, self._room[0] + offset)[...] = content
        if self._room[1] > frames.KEPT_ROOM_BYTES:
            self._room = (0, 0)  # as the server has it
        return {"requests": answers}

    def _answer(self, outcome: Any) -> dict[str, Any]:
        """An error, or by number of the output: datatype, shape, and content, whose place is not known yet."""
        error, outputs, parameters = self._outputs.read(outcome)
        if error is not None:
            return {"error": error}
        answer = {"outputs": {index: [tensor.datatype, *content_of(tensor)] for index, tensor in outputs.items()}}
        return answer if parameters is None else {**answer, "parameters": parameters}


def content_of(tensor: Tensor) -> tuple[list[int], Any]:
    """Shape and content of a tensor: bytes of BYTES, else an array in row-major order."""
    return tensor.shape(), tensor.encoded() if tensor.datatype == "BYTES" else np.ascontiguousarray(tensor.memory())


def _slicing(inputs: Sequence[tuple[str, str, Any, Any]], bases: Sequence[Any], part: Any) -> Any:
    """What makes the tensors of a request from rows of a batch."""

    def tensors() -> list[Tensor]:
        return [Tensor.received(name, datatype, base[part]) for (name, datatype, _, _), base in zip(inputs, bases)]

    return tensors


def _reading(names: Sequence[tuple[str, str]], block: Any, pieces: Sequence[Any]) -> Any:
    """What makes the tensors of a request from pieces of a block: offset in it, bytes, shape."""

    def tensors() -> list[Tensor]:
        found = []
        for (name, datatype), (at, size, shape) in zip(names, pieces):
            content = block[at : at + size] if block is not None else np.empty(0, np.uint8)
            if datatype == "BYTES":
                found.append(Tensor.received_strings(name, content.tobytes(), shape))
            else:
                found.append(Tensor.received(name, datatype, content.view(NUMPY_OF_NAME[datatype]).reshape(shape)))
        return found

    return tensors
