"""Calls of other models that a process asks for: tensors both ways in shared memory. Nothing it says is trusted."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toutates.backends.python.arena import Arena
from toutates.backends.python.calls import MAX_CALLS, CallForm, ManyPending, Pending, Response, Waits, is_ready
from toutates.backends.python.child import frames
from toutates.backends.python.loads import LoadsModels
from toutates.backends.python.parameters import checked_parameters
from toutates.engine.servable import Content, RequestAbout, view_of
from toutates.models.table import ModelTable
from toutates.protocol.datatypes import BY_NAME
from toutates.system.errors import RequestError

__all__ = ["ProcessCalls"]

#: Inputs, or outputs, of one call.
MAX_CALL_BYTES: Final = 2**31
#: Forms of calls, and of their outcomes, that are remembered; and bytes of one.
_MAX_FORMS: Final = 256
_MAX_FORM_BYTES: Final = 8_192
_INTERNAL: Final = 1
_INVALID: Final = 3


@dataclass(slots=True)
class _Form:
    """What a process says of calls of one form: who is called, and what with.

    Attributes:
        calls: begins them.
        inputs: of each: where it is in the block, bytes, whether it is BYTES.
        used: bytes of the block that are inputs'.
        is_many: whether the call takes any number of responses.
        is_beside: whether another thread than the one of the batch makes it, for whatever it works on.
        outcome: row shapes and sizes of the outputs of the last one, and what was said of these.
    """

    calls: CallForm
    inputs: Sequence[tuple[int, int, bool]]
    used: int
    is_many: bool = False
    is_beside: bool = False
    outcome: tuple[object, Sequence[int], bytes] = (None, (), b"")


class _Call(NamedTuple):
    """A call that is under way: its outcome, its block, that one's number and place, and its form."""

    pending: Pending
    block_number: int
    block: npt.NDArray[Any]
    offset: int
    form: _Form


class ProcessCalls:
    """Answers the questions about other models of one instance's process, and makes its calls.

    Used by its executor's thread. Only that thread touches the memory and the socket of the process: outcomes of calls
    that others have run are told to it by an event.

    Args:
        arena: shared with the process.
        get_table: returns the models that may be called; None for none.
        loads: loads and unloads models; None where nobody does.

    Attributes:
        event: the descriptor of what wakes the thread when there is an outcome.
        waits: whether anybody waits for the batch that the process runs; None where it does more than that.
    """

    def __init__(
        self, arena: Arena, get_table: Callable[[], ModelTable] | None, loads: LoadsModels | None = None
    ) -> None:
        self._arena = arena
        self._get_table = get_table
        self._loads = loads
        self.event = -1
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        #: memory of calls and where it is, by the number that the process knows
        self._blocks: list[tuple[npt.NDArray[Any], int]] = []
        self._calls: dict[int, _Call] = {}
        #: numbers of calls whose outcome has come from another thread
        self._done: deque[int] = deque()
        #: memory of outputs that did not fit into their block, by its number, until it has the next call
        self._large: dict[int, npt.NDArray[Any]] = {}
        self._forms: dict[bytes, _Form] = {}
        self._thread = 0
        self.waits: Waits | None = None

    def __del__(self) -> None:
        if self.event >= 0:
            os.close(self.event)

    def begin(self) -> None:
        """A batch begins. Calls of the one before that nobody has waited for are nobody's any more."""
        self._thread = threading.get_ident()
        if self._calls:
            self._forget_calls()
        if self._large:
            self._large.clear()
        if self._blocks and sum(block.nbytes for block, _ in self._blocks) > frames.KEPT_ROOM_BYTES:
            self._blocks.clear()

    def end(self) -> None:
        """The process is gone."""
        self._blocks.clear()
        self._forget_calls()
        self._large.clear()

    @property
    def under_way(self) -> bool:
        """Whether outcomes of calls may come."""
        return bool(self._calls)

    # --- questions ---------------------------------------------------------------------------------------------------

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer a question."""
        if "block" in question:
            block = self._room(question["block"]) if len(self._blocks) < MAX_CALLS else None
            if block is None:
                return 0, 0, 0
            offset = self._arena.offset(block)
            self._blocks.append((block, offset))
            return len(self._blocks) - 1, offset, block.nbytes
        if "cancel" in question:
            return self._cancel(question["cancel"])
        if "ready" in question:
            return self._ready(question["ready"])
        return self._load(question)

    def _load(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Load or unload a model, as it says."""
        if self._loads is None:
            return _error(_INTERNAL, "models are not loaded here")
        try:
            if "unload" in question:
                model, dependents = question["unload"]
                self._loads.unload(str(model), dependents=bool(dependents))
                return {}
            model, config, block, places = question["load"]
            files = {str(path): _part(self._blocks[block][0], at, size).tobytes() for path, at, size in places}
            self._loads.load(str(model), None if config is None else str(config), files)
        except RequestError as error:
            return _error(_INVALID, str(error))
        except (IndexError, TypeError, ValueError) as error:
            return _error(_INVALID, f"the question is malformed: {type(error).__name__}")
        return {}

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, content: bytes) -> bytes | None:
        """Begin a call.

        Returns:
            What RETURN has, where the outcome is there already.

        Raises:
            KeyError, TypeError, ValueError, IndexError, struct.error: what the process says of it makes no sense.
        """
        number, block_number, said = frames.CALL_HEAD.unpack_from(content)
        block, offset = self._blocks[block_number]
        if number in self._calls:
            raise ValueError
        if len(self._calls) >= MAX_CALLS:
            return _failed(number, _INTERNAL, f"more than {MAX_CALLS} calls are under way")
        at = frames.CALL_HEAD.size + said
        form = self._form(content[at:])
        about = _about(content[at - said : at]) if said else None
        contents: list[Content] = []
        for start, size, is_bytes in form.inputs:
            part = _part(block, start, size)
            # Strings are checked and then read, so nobody may change them meanwhile.
            contents.append(part.tobytes() if is_bytes else part)
        if self._get_table is None:
            return _failed(number, _INTERNAL, "there are no other models")
        note = self._note_part if form.is_many else self._note
        read = _read_counter(block, form.used) if form.is_many else None
        waits = None if form.is_beside else self.waits
        pending = form.calls.begin(
            self._get_table, contents, note, number, about, waits=waits, caller=self, is_many=form.is_many
        )
        if read is not None and isinstance(pending, ManyPending):
            pending.read_bytes = lambda: int(read[0])
        self._large.pop(block_number, None)
        call = _Call(pending, block_number, block, offset, form)
        if pending.is_done and not form.is_many:
            return self._outcome(number, call)
        self._calls[number] = call
        return None

    def outcomes(self) -> Iterator[bytes]:
        """What RETURN has, of all calls whose outcomes have come from other threads."""
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            pass
        while self._done:
            number = self._done.popleft()
            call = self._calls.get(number)
            if call is not None and isinstance(call.pending, ManyPending):
                yield from self._parts(number, call.pending)
            elif call is not None and call.pending.is_done:
                del self._calls[number]
                yield self._outcome(number, call)

    def _note(self, pending: Pending) -> None:
        """Note that a call has its outcome. Called in any thread."""
        if threading.get_ident() == self._thread and not self._calls:
            return  # ``call`` sees it
        self._done.append(pending.number)
        os.eventfd_write(self.event, 1)

    def _note_part(self, pending: Pending) -> None:
        """Note one response of a call that takes any number of them. Called in any thread."""
        self._done.append(pending.number)
        os.eventfd_write(self.event, 1)

    def _parts(self, number: int, pending: ManyPending) -> Iterator[bytes]:
        """What RETURN has, of the responses that have come of a call that takes any number of them."""
        while pending.responses:
            response = pending.responses.popleft()
            if not response.more:
                del self._calls[number]
            yield _part_of_many(number, response)

    def _cancel(self, number: Any) -> None:
        """The model wants no more responses of a call."""
        call = self._calls.get(number) if isinstance(number, int) else None
        if call is not None and isinstance(call.pending, ManyPending):
            call.pending.is_wanted = False

    def _forget_calls(self) -> None:
        for number, call in self._calls.items():
            self._cancel(number)
            if isinstance(call.pending, ManyPending):
                call.pending.responses.clear()
        self._calls.clear()

    def _form(self, said: bytes) -> _Form:
        form = self._forms.get(said)
        if form is None:
            call = json.loads(said)
            inputs: list[tuple[str, str, tuple[int, ...]]] = []
            places: list[tuple[int, int, bool]] = []
            for name, datatype, shape, at, size in call["inputs"]:
                kind = BY_NAME[datatype]
                sizes = tuple([int(one) for one in shape])
                if min(sizes, default=0) < 0 or (kind.size and size != prod(sizes) * kind.size):
                    raise ValueError
                inputs.append((str(name), kind.name, sizes))
                places.append((int(at), int(size), not kind.size))
            names = [str(name) for name in call["outputs"]]
            used = int(call["used"])
            if used < 0:
                raise ValueError
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            calls = CallForm(str(call["model"]), str(call["version"]), inputs, names)
            form = _Form(calls, places, used, bool(call.get("many")), bool(call.get("beside")))
            if len(said) <= _MAX_FORM_BYTES:
                self._forms[said] = form
        return form

    def _outcome(self, number: int, call: _Call) -> bytes:
        """Put the outputs of a call where the process finds them, and say where."""
        pending = call.pending
        if pending.error is not None:
            return _failed(number, pending.error.code, pending.error.text)
        contents = pending.contents
        sizes = [len(content) for content in contents]
        needed = sum([-(-size // 64) * 64 for size in sizes])
        memory, at = call.block, call.form.used
        if at + needed > memory.nbytes:
            larger = self._room(needed)
            if larger is None:
                return _failed(number, _INTERNAL, f"Failed to increase the shared memory pool size by {needed} bytes")
            self._large[call.block_number] = larger
            memory, at = larger, 0
        start = (call.offset if memory is call.block else self._arena.offset(memory)) + at
        view = memory.data
        for content, size in zip(contents, sizes, strict=True):
            view[at : at + size] = view_of(content)
            at += -(-size // 64) * 64
        said = self._said(call.form, pending, sizes)
        if pending.parameters is not None:
            whole = json.dumps([json.loads(said), dict(pending.parameters)]).encode()
            return frames.RETURN_HEAD.pack(number, frames.RETURNED_PARAMETERS, start) + whole
        return frames.RETURN_HEAD.pack(number, frames.RETURNED, start) + said

    def _said(self, form: _Form, pending: Pending, sizes: Sequence[int]) -> bytes:
        """Names, datatypes, shapes and places of outputs; the same bytes for the same."""
        row_shapes, known_sizes, said = form.outcome
        regular = pending.forms is None and pending.known is not None and pending.given is pending.known.wanted
        if regular and row_shapes is pending.row_shapes and known_sizes == sizes:
            return said
        places, at = [], 0
        for (name, tensor), size in zip(pending.outputs(), sizes, strict=True):
            places.append((name, tensor.datatype.name, tensor.shape, at, size))
            at += -(-size // 64) * 64
        said = json.dumps(places).encode()
        if regular:
            form.outcome = pending.row_shapes, sizes, said
        return said

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


def _part(block: npt.NDArray[Any], at: int, size: int) -> npt.NDArray[Any]:
    """Some of a block.

    Raises:
        ValueError: it is not in there.
    """
    if not 0 <= at <= at + size <= block.nbytes:
        raise ValueError
    return block[at : at + size]


def _about(said: bytes) -> RequestAbout:
    """What a call says beside its tensors.

    Raises:
        ValueError: it makes no sense.
    """
    given = json.loads(said)
    if not isinstance(given, dict):
        raise ValueError
    return RequestAbout(str(given.get("id", "")), None, checked_parameters(given.get("parameters", {})))


def _error(code: int, text: str) -> dict[str, Any]:
    return {"error": [code, text]}


def _read_counter(block: npt.NDArray[Any], used: int) -> npt.NDArray[Any]:
    """Where the process counts what its model has read of the responses of a call: behind its inputs, one UINT64."""
    return _part(block, used, frames.READ_COUNTER_BYTES).view(np.uint64)


def _part_of_many(number: int, response: Response) -> bytes:
    """What RETURN has of one of many responses, with the contents of its outputs."""
    contents: list[memoryview] = []
    told: dict[str, Any] = {"parameters": None if response.parameters is None else dict(response.parameters)}
    if response.error is not None:
        told["error"] = (response.error.code, response.error.text)
    else:
        places, at = [], 0
        for name, tensor in response.outputs:
            view = view_of(tensor.content)
            places.append((name, tensor.datatype.name, tensor.shape, at, len(view)))
            contents.append(view)
            at += len(view)
        told["outputs"] = places
        if at > frames.MAX_RESPONSE_BYTES:
            told["error"] = _INTERNAL, f"the response has {at} bytes, at most {frames.MAX_RESPONSE_BYTES} are passed on"
            contents = []
    said = json.dumps(told).encode()
    what = frames.RETURNED_PART if response.more else frames.RETURNED_LAST
    return b"".join((frames.RETURN_HEAD.pack(number, what, len(said)), said, *contents))


def _failed(number: int, code: int, text: str) -> bytes:
    return frames.RETURN_HEAD.pack(number, frames.RETURNED_ERROR, 0) + json.dumps([code, text]).encode()
