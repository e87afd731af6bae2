"""Requests, responses and errors of ``triton_python_backend_utils``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.senders import DecoupledSender, ResponseSender
from toutates.backends.python.child.tensors import Tensor, text_of

__all__ = [
    "RESCHEDULED_TEXT",
    "Caller",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "PreferredMemory",
    "ReceivedRequest",
    "ResponseIterator",
    "Responses",
    "TritonError",
    "get_input_tensor_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "set_caller",
    "unload_model",
]


class TritonError:
    """An error that a model answers a request with.

    Args:
        message: its text, which the client gets unchanged.
        code: one of this class's constants.
    """

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = 1) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        """Its text."""
        return self._message

    def code(self) -> int:
        """Its code."""
        return self._code


class InferenceResponse:
    """A model's answer to one request.

    Args:
        output_tensors: in any order; those that were not asked for are left out.
        error: in place of tensors.
        parameters: for the client, ``bool``, ``int`` and ``str`` by name.
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if output_tensors is None:
            raise TypeError("InferenceResponse(output_tensors: list[Tensor], error: TritonError, parameters: dict)")
        self._tensors = output_tensors
        if None in self._tensors:
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._error = error
        self._parameters = None if parameters is None else _checked_parameters(parameters) or None

    def output_tensors(self) -> Sequence[Tensor]:
        """Its tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error; None for a success."""
        return self._error

    def parameters(self) -> str:
        """Its parameters, JSON."""
        return json.dumps(self._parameters or {})


def _checked_parameters(parameters: Any) -> dict[str, Any]:
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)


class PreferredMemory:
    """Where outputs of a call should be; a hint that this server does not need.

    Args:
        preferred_memory_type: TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU.
        preferred_device_id: number of the GPU.
    """

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type, self.preferred_device_id = preferred_memory_type, preferred_device_id


class Caller:
    """How the models of this process call other models; each form of isolation has its own."""

    def begin(self, request: InferenceRequest) -> Any:
        """Begin a call; returns what ``result`` takes."""
        raise TritonModelException("BLS is only supported during the 'execute' function.")

    def result(self, call: Any) -> InferenceResponse:
        """Wait for the outcome of a call."""
        raise NotImplementedError

    def call(self, request: InferenceRequest) -> InferenceResponse:
        """Begin a call, and wait for its outcome."""
        return self.result(self.begin(request))

    def begin_many(self, request: InferenceRequest) -> Responses:
        """Begin a call that takes any number of responses."""
        raise TritonModelException("BLS is only supported during the 'execute' function.")

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a model answers now."""
        raise TritonModelException("BLS is only supported during the 'execute' function.")

    def load(self, model_name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Have the server load a model; TritonModelException if it cannot."""
        raise TritonModelException("BLS is only supported during the 'execute' function.")

    def unload(self, model_name: str, *, dependents: bool) -> None:
        """Have the server unload a model; TritonModelException if it cannot."""
        raise TritonModelException("BLS is only supported during the 'execute' function.")


_callers = [Caller()]


def set_caller(caller: Caller) -> None:
    """Have calls of other models made by this caller."""
    _callers[0] = caller


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model answers now; TritonModelException for one that is not there."""
    return _callers[0].is_ready(model_name, model_version)


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Have the server load a model, or load it anew; with explicit model control, and in ``execute`` only.

    Args:
        model_name: who.
        config: a configuration in JSON in place of the repository's; "" for that one.
        files: contents by path, each path after "file:", in place of the repository's; they need a ``config``.

    Raises:
        TritonModelException: it cannot be loaded. What was served of it before is served still.
    """
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    given = {}
    for path, content in (files or {}).items():
        if not isinstance(path, str) or not isinstance(content, (bytes, bytearray, memoryview)):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
            )
        given[path] = bytes(content)
    try:
        _callers[0].load(str(model_name), config or None, given)
    except TritonModelException as error:
        raise TritonModelException(f"Failed to load model: {error}") from None


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have the server unload a model; with explicit model control, and in ``execute`` only.

    Args:
        model_name: who.
        unload_dependents: whether the models that it is made of go too.

    Raises:
        TritonModelException: it cannot be unloaded.
    """
    try:
        _callers[0].unload(str(model_name), dependents=bool(unload_dependents))
    except TritonModelException as error:
        raise TritonModelException(f"Failed to unload model: {error}") from None


class Responses:
    """The responses of a call as they come; each form of isolation has its own."""

    def next(self) -> tuple[InferenceResponse, bool]:
        """Wait for the next response; returns it, and whether others may follow."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Want no more of them. The last one still comes."""
        raise NotImplementedError


class ResponseIterator:
    """The responses of a call that may have any number of them, each when it has come.

    Iterating again begins with the first one. The last one has no tensors where the model has said by itself that there
    are no more.

    Args:
        responses: of the call.
    """

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._got: list[InferenceResponse] = []
        self._at = 0
        self._has_more = True

    def __iter__(self) -> ResponseIterator:
        self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._at == len(self._got):
            if not self._has_more:
                raise StopIteration
            response, self._has_more = self._responses.next()
            self._got.append(response)
        self._at += 1
        return self._got[self._at - 1]

    def cancel(self) -> None:
        """Have the model that was called see that nobody waits for more."""
        self._responses.cancel()


class InferenceTrace:
    """The trace of a request; requests of Python models have none."""

    def get_context(self) -> str | None:
        """Text that hands the trace on; None without one."""
        return None


class InferenceRequest:
    """A request to a model.

    Args:
        request_id: its id.
        correlation_id: the sequence's, a number or a text.
        inputs: the tensors.
        requested_output_names: outputs to return.
        model_name, model_version: who is asked; -1 is the newest. Texts may be ``bytes`` of UTF-8.
        flags: TRITONSERVER_REQUEST_FLAG_*.
        timeout: microseconds.
        preferred_memory, trace: taken and not needed.
        parameters: ``bool``, ``int`` and ``str`` by name.
    """

    __slots__ = (
        "_about",
        "_correlation_id",
        "_flags",
        "_inputs",
        "_names",
        "_parameters",
        "_request_id",
        "_timeout",
        "model_name",
        "model_version",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Any = 0,
        inputs: Any = None,
        requested_output_names: Any = None,
        model_name: Any = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None or correlation_id is None:
            raise TypeError("InferenceRequest needs inputs, requested_output_names and model_name")
        if isinstance(requested_output_names, (str, bytes)):
            raise TypeError("requested_output_names is a list of names")
        names = set()
        for name in requested_output_names:
            names.add(name if name.__class__ is str else text_of(name, "a requested output's name"))
        if model_name.__class__ is not str:
            model_name = text_of(model_name, "model_name")
        if request_id.__class__ is not str:
            request_id = text_of(request_id, "request_id")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        who = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        if None in inputs:
            raise TritonModelException(f"Input tensor {who}")
        if "" in names:
            raise TritonModelException(f"Requested output name {who}")
        self._request_id, self._correlation_id, self._flags, self._timeout = request_id, correlation_id, flags, timeout
        self._inputs, self._names = list(inputs), names
        self._parameters = _checked_parameters({} if parameters is None else parameters)
        self.model_name, self.model_version = model_name, model_version

    def inputs(self) -> Sequence[Tensor]:
        """Its tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Its id."""
        return self._request_id

    def correlation_id(self) -> Any:
        """The id of its sequence, a number or a text; 0 for none."""
        return self._correlation_id

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_* that are set."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set TRITONSERVER_REQUEST_FLAG_*."""
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds; 0 for none."""
        return self._timeout

    def requested_output_names(self) -> set[str]:
        """Outputs that are asked for."""
        return self._names

    def parameters(self) -> str:
        """Its parameters, JSON."""
        return json.dumps(self._parameters)

    def said(self) -> dict[str, Any]:
        """What it says beside its tensors, as the protocol has it; {} for nothing."""
        parameters = dict(self._parameters)
        if self._correlation_id:
            parameters["sequence_id"] = self._correlation_id
        if self._flags:
            parameters["sequence_start"], parameters["sequence_end"] = bool(self._flags & 1), bool(self._flags & 2)
        if self._timeout:
            parameters["timeout"] = self._timeout
        said: dict[str, Any] = {"parameters": parameters} if parameters else {}
        if self._request_id:
            said["id"] = self._request_id
        return said

    def exec(self, decoupled: bool = False) -> Any:
        """Have another model answer; an InferenceResponse, which says whether it failed. In ``execute`` only."""
        if decoupled:
            return ResponseIterator(_callers[0].begin_many(self))
        return _callers[0].call(self)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """The same. Calls that are awaited together are under way together."""
        caller = _callers[0]
        if decoupled:
            return ResponseIterator(caller.begin_many(self))
        call = caller.begin(self)
        await asyncio.sleep(0)  # others begin theirs
        return await asyncio.get_running_loop().run_in_executor(None, caller.result, call)

    def trace(self) -> InferenceTrace:
        """Its trace."""
        return InferenceTrace()


class ReceivedRequest(InferenceRequest):
    """A request that a model is to answer. What it says beside its tensors is asked for when the model reads it.

    Args:
        tensors: makes its input tensors.
        about: tells what the server knows of it.
        wanted: whether its caller still waits.
        sender: sends its responses, where the model is decoupled.

    Attributes:
        is_rescheduled: whether the model asks for it once more.
    """

    __slots__ = ("_ask", "_make", "_wanted", "is_rescheduled", "sender")

    def __init__(
        self,
        tensors: Callable[[], Sequence[Tensor]],
        about: Callable[[], dict[str, Any]],
        wanted: Callable[[], bool],
        sender: DecoupledSender | None = None,
    ) -> None:
        self._make: Any = tensors
        self._ask, self._wanted = about, wanted
        self._inputs: Any = None
        self._about: dict[str, Any] | None = None
        self.sender: Any = sender
        self.is_rescheduled = False

    def inputs(self) -> Sequence[Tensor]:
        """Its tensors."""
        if self._inputs is None:
            self._inputs = self._make()
            self._make = None
        return self._inputs  # type: ignore[no-any-return]

    def _known(self) -> dict[str, Any]:
        if self._about is None:
            self._about = self._ask()
        return self._about

    def request_id(self) -> str:
        """Its id."""
        return str(self._known().get("id", ""))

    def correlation_id(self) -> Any:
        """The id of its sequence, a number or a text; 0 for none."""
        return self._known().get("parameters", {}).get("sequence_id", 0)

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_* that are set."""
        parameters = self._known().get("parameters", {})
        return int(bool(parameters.get("sequence_start"))) + 2 * int(bool(parameters.get("sequence_end")))

    def set_flags(self, flags: int) -> None:
        """Refused: a request that was received has the flags that its client gave it."""
        raise TritonModelException("The flags of a request that was received cannot be changed.")

    def set_release_flags(self, flags: int) -> None:
        """Say before ``execute`` returns whether the request is to come once more.

        Args:
            flags: TRITONSERVER_REQUEST_RELEASE_ALL, or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.
        """
        if flags not in (_RELEASE_ALL, _RELEASE_RESCHEDULE):
            raise TritonModelException("Unable to set the release flags of a request. Unsupported flag provided.")
        self.is_rescheduled = flags == _RELEASE_RESCHEDULE

    def timeout(self) -> int:
        """Microseconds; 0 for none."""
        return int(self._known().get("parameters", {}).get("timeout", 0))

    def requested_output_names(self) -> set[str]:
        """Outputs that are asked for."""
        return set(self._known().get("outputs", ()))

    def parameters(self) -> str:
        """Its parameters, JSON: those that have no meaning of their own in the protocol."""
        given = self._known().get("parameters", {})
        return json.dumps({key: value for key, value in given.items() if key not in _PROTOCOL_PARAMETERS})

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return not self._wanted()

    def get_response_sender(self) -> Any:
        """What sends the response, where ``execute`` returns None in its place; all of them of a decoupled model."""
        if self.sender is None:
            self.sender = ResponseSender(self._wanted)
        return self.sender


_RELEASE_ALL, _RELEASE_RESCHEDULE = 1, 2
#: What becomes of a request that is to come once more, and does not.
RESCHEDULED_TEXT = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)
#: Parameters that Triton takes for itself.
_PROTOCOL_PARAMETERS = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "triton_enable_empty_final_response")
)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name; None if the request has none."""
    for tensor in inference_request.inputs():
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name; None if the response has none."""
    for tensor in inference_response.output_tensors():
        if tensor._name == name:
            return tensor
    return None
