"""Calls of other models by a model in a process: the server makes them, and tensors are in shared memory."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.requests import Caller, InferenceRequest, InferenceResponse, TritonError
from toutates.backends.python.child.tensors import NUMPY_OF_NAME, Tensor

__all__ = ["ProcessCaller"]


class ProcessCaller(Caller):
    """Makes calls by asking the server.

    Args:
        ask: asks it, while it waits for the end of ``execute``.
        shared: memory that it sees as well.
    """

    def __init__(self, ask: Callable[..., Any], shared: mmap.mmap) -> None:
        self._ask = ask
        self._shared = shared
        #: of the memory for inputs, and for outputs until they are read
        self._lock = threading.Lock()
        self._room: tuple[int, ...] = (0, 0)

    def begin(self, request: InferenceRequest) -> Any:
        """See ``Caller``."""
        with self._lock:
            return self._begin(request, wait=False)

    def result(self, call: Any) -> InferenceResponse:
        """See ``Caller``."""
        with self._lock:
            return self._read(call if "error" in call else self._ask(result=call["number"]))

    def call(self, request: InferenceRequest) -> InferenceResponse:
        """See ``Caller``."""
        with self._lock:
            return self._read(self._begin(request, wait=True))

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """See ``Caller``."""
        said = self._ask(ready=[model_name, model_version])
        if "error" in said:
            raise TritonModelException(f"Failed to check model readiness: {said['error'][1]}")
        return bool(said["ready"])

    def load(self, model_name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """See ``Caller``."""
        places = []
        with self._lock:
            at = sum(map(len, files.values()))
            if at and not self._make_room(at):
                raise TritonModelException(f"Failed to increase the shared memory pool size by {at} bytes")
            at = 0
            for path, content in files.items():
                self._shared[self._room[0] + at : self._room[0] + at + len(content)] = content
                places.append((path, at, len(content)))
                at += len(content)
            self._check(self._ask(load=[model_name, config, places]))

    def unload(self, model_name: str, *, dependents: bool) -> None:
        """See ``Caller``."""
        self._check(self._ask(unload=[model_name, dependents]))

    @staticmethod
    def _check(said: Any) -> None:
        if "error" in said:
            raise TritonModelException(said["error"][1])

    def _make_room(self, size: int) -> bool:
        """Have so much memory for inputs; False if there is none."""
        if size > self._room[1]:
            self._room = tuple(self._ask(room=size))
        return bool(self._room[1])

    def forget(self) -> None:
        """The memory for inputs is the server's again."""
        self._room = (0, 0)

    def _begin(self, request: InferenceRequest, *, wait: bool) -> Any:
        inputs: list[Any] = []
        contents: list[Any] = []
        at = 0
        for tensor in request.inputs():
            is_bytes = tensor.datatype == "BYTES"
            content: Any = tensor.encoded() if is_bytes else np.ascontiguousarray(tensor.memory())
            size = len(content) if is_bytes else content.nbytes
            inputs.append((tensor.name(), tensor.datatype, tensor.shape(), at, size))
            contents.append(content)
            at += -(-size // 64) * 64
        if at and not self._make_room(at):
            return {"error": [1, f"Failed to increase the shared memory pool size by {at} bytes"]}
        for (_, _, _, start, size), content in zip(inputs, contents):
            begin = self._room[0] + start
            if isinstance(content, bytes):
                self._shared[begin : begin + size] = content
            elif size:
                np.ndarray(content.shape, content.dtype, self._shared, begin)[...] = content
        version = "" if request.model_version in (-1, "") else str(request.model_version)
        call = {
            "model": request.model_name,
            "version": version,
            "outputs": sorted(request.requested_output_names()),
            "inputs": inputs,
            "wait": wait,
        }
        return self._ask(call=call)

    def _read(self, said: Any) -> InferenceResponse:
        """The response that the server has told; outputs are copied, because the next ones go to the same place."""
        if "error" in said:
            code, text = said["error"]
            return InferenceResponse([], TritonError(text, code))
        outputs = []
        for name, datatype, shape, offset, size in said["outputs"]:
            content = self._shared[offset : offset + size]
            if datatype == "BYTES":
                outputs.append(Tensor.received_strings(name, content, shape))
            else:
                array = np.frombuffer(bytearray(content), NUMPY_OF_NAME[datatype]).reshape(shape)
                outputs.append(Tensor.received(name, datatype, array))
        return InferenceResponse(outputs)
