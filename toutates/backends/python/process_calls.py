"""Calls of other models that a process asks for: tensors both ways in shared memory. Nothing it says is trusted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.backends.python.arena import Arena
from toutates.backends.python.calls import MAX_CALLS, CallError, Pending, begin_call, is_ready
from toutates.backends.python.loads import LoadsModels
from toutates.backends.python.process import ProcessEnded
from toutates.engine.servable import view_of
from toutates.engine.tensor import Tensor
from toutates.models.table import ModelTable
from toutates.protocol.datatypes import BY_NAME
from toutates.system.errors import RequestError

__all__ = ["ProcessCalls"]

#: Inputs, or outputs, of one call.
MAX_CALL_BYTES: Final = 2**31
_INTERNAL: Final = 1
_INVALID: Final = 3


class ProcessCalls:
    """Answers the questions about calls of one instance's process. Used by its executor's thread.

    Args:
        arena: shared with the process.
        get_table: returns the models that may be called; None for none.
        loads: loads and unloads models; None where nobody does.
    """

    def __init__(
        self, arena: Arena, get_table: Callable[[], ModelTable] | None, loads: LoadsModels | None = None
    ) -> None:
        self._arena = arena
        self._get_table = get_table
        self._loads = loads
        self._deadline: float | None = None
        #: where the process puts inputs, and where it finds outputs
        self._inputs: npt.NDArray[Any] | None = None
        self._outputs: npt.NDArray[Any] | None = None
        self._pending: dict[int, Pending] = {}
        self._number = 0

    def begin(self, deadline: float | None) -> None:
        """A batch begins, which is to be over at a time; None for any."""
        self._deadline = deadline
        # Outcomes that nobody has asked for.
        if self._pending:
            self._pending.clear()

    def end(self) -> None:
        """The process is gone."""
        self._inputs = self._outputs = None
        self._pending.clear()

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer a question.

        Raises:
            ProcessEnded: a call has taken longer than a batch may.
        """
        if "room" in question:
            self._inputs = self._room(question["room"])
            return (0, 0) if self._inputs is None else (self._arena.offset(self._inputs), self._inputs.nbytes)
        if "ready" in question:
            return self._ready(question["ready"])
        if "load" in question or "unload" in question:
            return self._load(question)
        if "result" in question:
            pending = self._pending.pop(question["result"], None) if isinstance(question["result"], int) else None
            return _error(_INVALID, "there is no such call") if pending is None else self._outcome(pending)
        call = question["call"]
        try:
            pending = self._begin(call)
        except (KeyError, TypeError, ValueError) as error:
            return _error(_INVALID, f"the call is malformed: {type(error).__name__}")
        if call.get("wait"):
            return self._outcome(pending)
        if len(self._pending) >= MAX_CALLS:
            return _error(_INTERNAL, f"more than {MAX_CALLS} calls are under way")
        self._number += 1
        self._pending[self._number] = pending
        return {"number": self._number}

    def _load(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Load or unload a model, as it says."""
        if self._loads is None:
            return _error(_INTERNAL, "models are not loaded here")
        try:
            if "unload" in question:
                model, dependents = question["unload"]
                self._loads.unload(str(model), dependents=bool(dependents))
                return {}
            model, config, places = question["load"]
            files = {str(path): self._memory(at, size).tobytes() for path, at, size in places}
            self._loads.load(str(model), None if config is None else str(config), files)
        except RequestError as error:
            return _error(_INVALID, str(error))
        except (TypeError, ValueError) as error:
            return _error(_INVALID, f"the question is malformed: {type(error).__name__}")
        return {}

    def _memory(self, at: Any, size: Any) -> npt.NDArray[Any]:
        """Some of what the process has put into the memory for inputs.

        Raises:
            TypeError, ValueError: it is not in there.
        """
        memory = np.empty(0, np.uint8) if self._inputs is None else self._inputs
        if not 0 <= at <= at + size <= memory.nbytes:
            raise ValueError
        return memory[at : at + size]

    def _begin(self, call: Mapping[str, Any]) -> Pending:
        """Begin a call.

        Raises:
            KeyError, TypeError, ValueError: what the process says of it makes no sense.
        """
        if self._get_table is None:
            raise ValueError
        inputs: dict[str, Tensor] = {}
        for name, datatype, shape, at, size in call["inputs"]:
            kind = BY_NAME[datatype]
            sizes = tuple([int(one) for one in shape])
            if min(sizes, default=0) < 0:
                raise ValueError
            content = self._memory(at, size)
            if kind.size and size != prod(sizes) * kind.size:
                raise ValueError
            # Copied: the call may wait, and the process may put the next one there meanwhile.
            inputs[str(name)] = Tensor(kind, sizes, content.tobytes())
        return begin_call(
            self._get_table, str(call["model"]), str(call["version"]), inputs, [str(name) for name in call["outputs"]]
        )

    def _outcome(self, pending: Pending) -> dict[str, Any]:
        """Wait for the outcome of a call, and say where its outputs are."""
        left = None if self._deadline is None else max(self._deadline - time.monotonic(), 0)
        if not pending.done.wait(left):
            raise ProcessEnded("a model that it has called does not answer")
        if isinstance(pending.error, CallError):
            return _error(pending.error.code, pending.error.text)
        views = [view_of(tensor.content) for _, tensor in pending.outputs]
        needed = sum(-(-len(view) // 64) * 64 for view in views)
        if self._outputs is None or self._outputs.nbytes < needed:
            self._outputs = None
            self._outputs = self._room(needed or 1)
            if self._outputs is None:
                return _error(_INTERNAL, f"Failed to increase the shared memory pool size by {needed} bytes")
        start, at = self._arena.offset(self._outputs), 0
        said: list[Any] = []
        for (name, tensor), view in zip(pending.outputs, views, strict=True):
            self._outputs[at : at + len(view)] = np.frombuffer(view, np.uint8)
            said.append((name, tensor.datatype.name, tensor.shape, start + at, len(view)))
            at += -(-len(view) // 64) * 64
        return {"outputs": said}

    def _room(self, size: Any) -> npt.NDArray[Any] | None:
        if not isinstance(size, int) or not 0 < size <= MAX_CALL_BYTES:
            return None
        try:
            return self._arena.allocate((1 << (size - 1).bit_length(),), np.dtype(np.uint8))
        except MemoryError:
            return None

    def _ready(self, asked: Any) -> Any:
        if self._get_table is None or not isinstance(asked, list) or len(asked) != 2:
            return _error(_INVALID, "the question is malformed")
        try:
            return {"ready": is_ready(self._get_table, str(asked[0]), str(asked[1]))}
        except RequestError as error:
            return _error(_INVALID, str(error))


def _error(code: int, text: str) -> dict[str, Any]:
    return {"error": [code, text]}
