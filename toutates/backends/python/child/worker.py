"""The process of an instance: reads frames, runs the model, and writes the outputs to shared memory."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import mmap
import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from toutates.backends.python.child import frames, pb_utils
from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.model_config import ModelConfig
from toutates.backends.python.child.requests import InferenceResponse, ReceivedRequest
from toutates.backends.python.child.tensors import NUMPY_OF_NAME, TYPES, Tensor

__all__ = ["serve"]


class Channel:
    """The socket to the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = bytearray()
        self._lock = threading.Lock()
        # What the model forks shall not answer in its place, nor keep the socket open after its end.
        os.register_at_fork(after_in_child=control.close)

    def receive(self) -> tuple[int, bytes]:
        """The next frame; ends the process where the server has closed the socket."""
        while True:
            if len(self._buffer) >= 5:
                length, kind = frames.HEAD.unpack_from(self._buffer)
                if len(self._buffer) >= 5 + length:
                    content = bytes(self._buffer[5 : 5 + length])
                    del self._buffer[: 5 + length]
                    return kind, content
            try:
                data = self._control.recv(262_144)
            except OSError:
                data = b""
            if not data:
                os._exit(0)
            self._buffer += data

    def send(self, kind: int, content: bytes = b"") -> None:
        """Send a frame; ends the process where nobody takes it."""
        try:
            self._control.sendall(frames.HEAD.pack(len(content), kind) + content)
        except OSError:
            os._exit(0)

    def ask(self, **question: Any) -> Any:
        """Ask the server while it waits for the end of ``execute``; any thread may. Returns its answer."""
        with self._lock:
            self.send(frames.QUERY, json.dumps(question).encode())
            kind, content = self.receive()
        if kind != frames.ANSWER:
            os._exit(70)
        return json.loads(content)


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
        self._layouts: dict[int, _Layout] = {}
        self._model: Any = None
        self._class: Any = None
        self._loop: Any = None
        self._name = ""
        self._path = ""
        self._inputs: list[tuple[str, str]] = []
        self._outputs: list[tuple[str, str, list[int]]] = []
        self._output_names: dict[str, int] = {}
        self._batched = self._one_by_one = self._stacked = False
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
            kind, content = channel.receive()
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
        self._path, self._name = given["path"], given["instance"]
        pb_utils._model_dir = given["version_dir"]
        sys.modules["triton_python_backend_utils"] = pb_utils
        sys.path[:0] = [given["version_dir"], given["model_dir"]]
        name = f"{given['version']}.{os.path.splitext(os.path.basename(self._path))[0]}"
        spec = importlib.util.spec_from_file_location(name, self._path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        self._class = getattr(module, "TritonPythonModel", None)
        if self._class is None:
            raise TritonModelException(f"'{os.path.basename(self._path)}' has no class TritonPythonModel")
        config = given["config"]
        complete = getattr(self._class, "auto_complete_config", None) if given["complete"] else None
        if complete is None:
            return b"null"
        completed = complete(ModelConfig(config))
        if not isinstance(completed, ModelConfig):
            raise ValueError(
                f"auto_complete_config function in model '{given['model']}' must return a valid pb.ModelConfig object."
            )
        return json.dumps(completed.as_dict()).encode()

    def _initialize(self, content: bytes) -> bytes:
        given = json.loads(content)
        self._inputs = [tuple(entry) for entry in given["inputs"]]
        self._outputs = [tuple(entry) for entry in given["outputs"]]
        self._output_names = {name: at for at, (name, _, _) in enumerate(self._outputs)}
        self._batched, self._one_by_one, self._stacked = given["batched"], given["one_by_one"], given["stacked"]
        self._model = self._class()
        initialize = getattr(self._model, "initialize", None)
        if initialize is not None:
            initialize(given["args"])
        return b"null"

    def _finalize(self) -> None:
        finalize = getattr(self._model, "finalize", None)
        if finalize is None:
            self._channel.send(frames.DONE, b"null")
            return
        try:
            finalize()
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
            known = [(NUMPY_OF_NAME[datatype], tuple(shape)) for (_, datatype, _), shape in zip(self._outputs, outputs)]
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

        return ReceivedRequest(tensors, about, wanted)

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
        if self._one_by_one and len(requests) > 1:
            outcomes: list[Any] = []
            for position in range(len(requests)):
                outcomes += self._call([requests[position]])
        else:
            outcomes = self._call(requests)
        requests.clear()
        said = self._write(outcomes, firsts, sizes, places)
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

    def _call(self, requests: list[ReceivedRequest]) -> list[Any]:
        """What the model answers: a response, or the text of an error, for each request."""
        try:
            execute = getattr(self._model, "execute", None)
            if execute is None:
                raise TritonModelException(f"Python model {self._path} does not implement `execute` method.")
            responses = execute(requests)
            if type(responses) is not list and inspect.isawaitable(responses):
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    asyncio.set_event_loop(self._loop)
                responses = self._loop.run_until_complete(responses)
            if not isinstance(responses, list):
                raise _Wrong(f"Expected a list in the execute return, found type '{type(responses)}'.")
            if len(responses) != len(requests):
                raise _Wrong(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                    f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
                )
            for response in responses:
                if not isinstance(response, InferenceResponse):
                    raise _Wrong(
                        "Expected an 'InferenceResponse' object in the execute function return list, found type "
                        f"'{type(response)}'."
                    )
            return list(responses)
        except Exception as error:
            text = f"Failed to process the request(s) for model '{self._name}', message: {describe(error)}"
            return [text] * len(requests)

    # --- outputs -----------------------------------------------------------------------------------------------------

    def _write(
        self, outcomes: list[Any], firsts: Sequence[int], sizes: Sequence[int], places: list[Any] | None
    ) -> dict[str, Any]:
        if places is not None and self._write_in_place(outcomes, firsts, sizes, places):
            return {}
        answers: list[dict[str, Any]] = []
        arrays: list[Any] = []
        at = 0
        for outcome, rows in zip(outcomes, sizes):
            answer = self._answer(outcome, rows)
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

    def _write_in_place(
        self, outcomes: list[Any], firsts: Sequence[int], sizes: Sequence[int], places: list[Any]
    ) -> bool:
        """Copy outputs to where the server expects them; False where one has another form, or there is an error."""
        names, count = self._output_names, len(places)
        for outcome, first, rows in zip(outcomes, firsts, sizes):
            if type(outcome) is not InferenceResponse or outcome._error is not None or outcome._parameters is not None:
                return False
            found = 0
            for tensor in outcome._tensors:
                index = names.get(tensor._name)
                if index is None:
                    continue
                place, array = places[index], tensor._array
                if array is None or array.dtype != place.dtype or TYPES[tensor._number] != self._outputs[index][1]:
                    return False
                part = place[first : first + rows] if self._batched else place[0, ...]
                if array.shape != part.shape:
                    return False
                part[...] = array
                found += 1
            if found != count:
                return False
        return True

    def _answer(self, outcome: Any, rows: int) -> dict[str, Any]:
        """An error, or by number of the output: datatype, shape, and content, whose place is not known yet."""
        if isinstance(outcome, str):
            return {"error": [1, outcome]}
        error = outcome.error()
        if error is not None:
            return {"error": [int(error.code()), str(error.message())]}
        outputs: dict[int, list[Any]] = {}
        for tensor in outcome.output_tensors():
            if not isinstance(tensor, Tensor):
                return {"error": [1, f"Expected a 'Tensor' among the outputs, found type '{type(tensor)}'."]}
            index = self._output_names.get(tensor.name())
            if index is not None:
                datatype = TYPES[tensor.triton_dtype()]
                content = tensor.encoded() if datatype == "BYTES" else np.ascontiguousarray(tensor.memory())
                outputs[index] = [datatype, tensor.shape(), content]
        answer: dict[str, Any] = {"outputs": outputs}
        if outcome._parameters:
            answer["parameters"] = outcome._parameters
        return answer


class _Wrong(Exception):
    """What ``execute`` returned is no answer; the text is complete."""


def describe(error: BaseException) -> str:
    """The text of an error of the model's code, with its lines, as Triton has it."""
    if isinstance(error, _Wrong):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
    if lines:
        text += "\n\nAt:\n" + "".join(f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in lines)
    return text


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


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
