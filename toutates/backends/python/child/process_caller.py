"""Calls of other models by a model in a process: the server makes them, and tensors are in shared memory."""

from __future__ import annotations

import json
import mmap
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toutates.backends.python.child import frames
from toutates.backends.python.child.channel import Channel, Expected
from toutates.backends.python.child.errors import TritonModelException, check_process
from toutates.backends.python.child.requests import (
    Caller,
    InferenceRequest,
    InferenceResponse,
    Responses,
    TritonError,
)
from toutates.backends.python.child.tensors import NUMPY_OF_NAME, Tensor

__all__ = ["ProcessCaller"]

#: Forms of calls, and of their outcomes, that are remembered.
_MAX_FORMS = 256
_MIN_BLOCK_BYTES = 64 * 1024

#: Its number, where it is, and how large.
_Block = tuple[int, int, int]


class _Call:
    """A call that is under way."""

    __slots__ = ("block", "expected", "number", "used")

    def __init__(self, number: int, expected: Expected, block: _Block, used: int) -> None:
        self.number, self.expected, self.block, self.used = number, expected, block, used


class _ProcessResponses(Responses):
    """The responses of a call as the server tells them.

    Args:
        caller: has the blocks.
        channel: to the server.
        call: it; a response where it could not be begun.
    """

    def __init__(self, caller: ProcessCaller, channel: Channel, call: Any) -> None:
        self._caller, self._channel, self._call = caller, channel, call
        self._read = 0

    def next(self) -> tuple[InferenceResponse, bool]:
        """See ``Responses``."""
        call = self._call
        if not isinstance(call, _Call):
            return call, False
        said = self._channel.wait_part(call.expected)
        _, what, size = frames.RETURN_HEAD.unpack_from(said)
        is_last = what != frames.RETURNED_PART
        if not is_last:
            contents = len(said) - frames.RETURN_HEAD.size - size
            self._read += max(contents, frames.LEAST_RESPONSE_BYTES)
            self._caller.note_read(call, self._read)
        if is_last:
            self._caller.free(call.block)
        at = frames.RETURN_HEAD.size
        if what == frames.RETURNED_ERROR:
            code, text = json.loads(said[at:])
            return InferenceResponse([], TritonError(text, code)), False
        told = json.loads(said[at : at + size])
        if "error" in told:
            code, text = told["error"]
            return InferenceResponse([], TritonError(text, code)), not is_last
        outputs = []
        for name, datatype, shape, offset, length in told["outputs"]:
            content = said[at + size + offset : at + size + offset + length]
            if datatype == "BYTES":
                outputs.append(Tensor.received_strings(name, content, shape))
            else:
                array = np.frombuffer(content, NUMPY_OF_NAME[datatype]).reshape(shape)
                outputs.append(Tensor.received(name, datatype, array))
        return InferenceResponse(outputs, None, told["parameters"]), not is_last

    def cancel(self) -> None:
        """See ``Responses``."""
        if isinstance(self._call, _Call):
            self._channel.ask(cancel=self._call.number)


class ProcessCaller(Caller):
    """Makes calls by asking the server. Any number may be under way, each with a block of memory of its own.

    The block has the inputs, and then, behind them, the outputs, if there is room.

    Args:
        channel: to the server.
        shared: memory that it sees as well.
    """

    def __init__(self, channel: Channel, shared: mmap.mmap) -> None:
        self._channel = channel
        self._shared = shared
        #: of the blocks
        self._lock = threading.Lock()
        self._blocks: list[_Block] = []
        self._free: list[_Block] = []
        self._forms: dict[Any, bytes] = {}
        self._outcomes: dict[bytes, Any] = {}
        #: that runs batches
        self._thread = 0

    def begin(self, request: InferenceRequest) -> Any:
        """See ``Caller``."""
        return self._begin(request, is_many=False)

    def begin_many(self, request: InferenceRequest) -> Responses:
        """See ``Caller``."""
        return _ProcessResponses(self, self._channel, self._begin(request, is_many=True))

    def free(self, block: _Block) -> None:
        """A block may be used by another call."""
        with self._lock:
            self._free.append(block)

    def note_read(self, call: _Call, size: int) -> None:
        """Tell the server how many bytes of the responses of a call the model has read."""
        self._count_read(call.block[1] + call.used, size)

    def _count_read(self, at: int, size: int) -> None:
        self._shared[at : at + frames.READ_COUNTER_BYTES] = size.to_bytes(frames.READ_COUNTER_BYTES, sys.byteorder)

    def _begin(self, request: InferenceRequest, *, is_many: bool) -> Any:
        check_process()
        inputs: list[Any] = []
        contents: list[Any] = []
        at = 0
        for tensor in request.inputs():
            datatype = tensor.datatype
            is_bytes = datatype == "BYTES"
            content: Any = tensor.encoded() if is_bytes else np.ascontiguousarray(tensor.memory())
            size = len(content) if is_bytes else content.nbytes
            inputs.append((tensor.name(), datatype, tuple(tensor.shape()), at, size))
            contents.append(content)
            at += -(-size // 64) * 64
        form = self._form(request, tuple(inputs), at, is_many)
        block = self._take_block(2 * at)
        if not block[2]:
            text = f"Failed to increase the shared memory pool size by {at} bytes"
            return InferenceResponse([], TritonError(text, TritonError.INTERNAL))
        for (_, _, _, start, size), content in zip(inputs, contents):
            begin = block[1] + start
            if isinstance(content, bytes):
                self._shared[begin : begin + size] = content
            elif size:
                np.ndarray(content.shape, content.dtype, self._shared, begin)[...] = content
        if is_many:
            self._count_read(block[1] + at, 0)
        said = request.said()
        said_bytes = json.dumps(said).encode() if said else b""
        number, expected = self._channel.call(block[0], said_bytes, form, is_many=is_many)
        return _Call(number, expected, block, at)

    def result(self, call: Any) -> InferenceResponse:
        """See ``Caller``."""
        if not isinstance(call, _Call):
            return call  # type: ignore[no-any-return]
        said = self._channel.wait(call.expected)
        response = self._read(said)
        with self._lock:
            self._free.append(call.block)
        return response

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """See ``Caller``."""
        said = self._channel.ask(ready=[model_name, model_version])
        if "error" in said:
            raise TritonModelException(f"Failed to check model readiness: {said['error'][1]}")
        return bool(said["ready"])

    def load(self, model_name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """See ``Caller``."""
        check_process()
        size = sum(map(len, files.values()))
        block = self._take_block(size)
        if not block[2]:
            raise TritonModelException(f"Failed to increase the shared memory pool size by {size} bytes")
        places, at = [], 0
        for path, content in files.items():
            self._shared[block[1] + at : block[1] + at + len(content)] = content
            places.append((path, at, len(content)))
            at += len(content)
        said = self._channel.ask(load=[model_name, config, block[0], places])
        with self._lock:
            self._free.append(block)
        _check(said)

    def unload(self, model_name: str, *, dependents: bool) -> None:
        """See ``Caller``."""
        _check(self._channel.ask(unload=[model_name, dependents]))

    def begin_batch(self) -> None:
        """A batch begins, in this thread: no call of the one before has a block any more."""
        self._thread = threading.get_ident()
        if sum(size for _, _, size in self._blocks) > frames.KEPT_ROOM_BYTES:
            self._blocks = []  # as the server has it
        self._free = list(self._blocks)

    def _form(self, request: InferenceRequest, inputs: Sequence[Any], used: int, is_many: bool) -> bytes:
        """What a call says beside its numbers; the same bytes for the same."""
        version = "" if request.model_version in (-1, "") else str(request.model_version)
        outputs = tuple(sorted(request.requested_output_names()))
        is_beside = threading.get_ident() != self._thread
        key = request.model_name, version, outputs, inputs, is_many, is_beside
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            call = {"model": key[0], "version": version, "outputs": outputs, "inputs": inputs, "used": used}
            if is_many:
                call["many"] = True
            if is_beside:
                call["beside"] = True
            form = self._forms[key] = json.dumps(call).encode()
        return form

    def _take_block(self, size: int) -> _Block:
        """A block of at least a size; one of no bytes where there is no memory."""
        with self._lock:
            for at, block in enumerate(self._free):
                if block[2] >= size:
                    return self._free.pop(at)
        said = self._channel.ask(block=max(size, _MIN_BLOCK_BYTES))
        block = said[0], said[1], said[2]
        if block[2]:
            with self._lock:
                self._blocks.append(block)
        return block

    def _read(self, said: bytes) -> InferenceResponse:
        """The response that the server has told; outputs are copied, because others will be in their place."""
        _, what, offset = frames.RETURN_HEAD.unpack_from(said)
        form = said[frames.RETURN_HEAD.size :]
        if what == frames.RETURNED_ERROR:
            code, text = json.loads(form)
            return InferenceResponse([], TritonError(text, code))
        parameters = None
        places = self._outcomes.get(form)
        if what == frames.RETURNED_PARAMETERS:
            places, parameters = json.loads(form)
        elif places is None:
            if len(self._outcomes) >= _MAX_FORMS:
                self._outcomes.clear()
            places = self._outcomes[form] = json.loads(form)
        outputs = []
        for name, datatype, shape, at, size in places:
            start = offset + at
            if datatype == "BYTES":
                outputs.append(Tensor.received_strings(name, self._shared[start : start + size], shape))
            else:
                array = np.ndarray(shape, NUMPY_OF_NAME[datatype], self._shared, start)
                outputs.append(Tensor.received(name, datatype, array.copy()))
        return InferenceResponse(outputs, None, parameters)


def _check(said: Any) -> None:
    if "error" in said:
        raise TritonModelException(said["error"][1])
