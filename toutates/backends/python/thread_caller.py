"""Calls of other models by a model in a thread of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from toutates.backends.python.calls import CallForm, ManyPending, Pending, Response, Waits, is_ready
from toutates.backends.python.child.errors import TritonModelException, check_process
from toutates.backends.python.child.requests import (
    Caller,
    InferenceRequest,
    InferenceResponse,
    Responses,
    TritonError,
)
from toutates.backends.python.child.tensors import Tensor
from toutates.backends.python.loads import LoadsModels
from toutates.engine.servable import Content, RequestAbout
from toutates.models.table import ModelTable
from toutates.system.errors import RequestError

__all__ = ["ThreadCaller", "note_loading", "note_waits"]

#: Forms of calls that are remembered.
_MAX_FORMS: Final = 256

_whose = threading.local()


def note_loading(*, is_loading: bool) -> None:
    """Note whether this thread is loading a model: then it must not wait for the load of another one."""
    _whose.is_loading = is_loading


def note_waits(waits: Waits | None) -> Waits | None:
    """Note whether anybody waits for what this thread does from now on; returns what was noted before.

    None is for threads of which nobody knows that.
    """
    before: Waits | None = getattr(_whose, "waits", None)
    _whose.waits = waits
    return before


def _response(said: Response) -> InferenceResponse:
    """What has come, as models know it."""
    if said.error is not None:
        return InferenceResponse([], TritonError(said.error.text, said.error.code))
    return InferenceResponse(
        [Tensor.received(name, tensor.datatype.name, tensor.array().copy()) for name, tensor in said.outputs],
        None,
        None if said.parameters is None else dict(said.parameters),
    )


class _ThreadResponses(Responses):
    """The responses of a call as they come.

    Args:
        pending: the call.
        come: is released for each.
    """

    def __init__(self, pending: ManyPending, come: threading.Semaphore) -> None:
        self._pending, self._come = pending, come
        self._read = read = [0]
        pending.read_bytes = lambda: read[0]

    def next(self) -> tuple[InferenceResponse, bool]:
        """See ``Responses``."""
        self._come.acquire()
        said = self._pending.responses.popleft()
        self._read[0] += said.size
        return _response(said), said.more

    def cancel(self) -> None:
        """See ``Responses``."""
        self._pending.is_wanted = False


class ThreadCaller(Caller):
    """Makes calls on the calling thread, which may run them itself.

    Args:
        get_table: returns the models that may be called.
        loads: loads and unloads models; None where nobody does.
    """

    def __init__(self, get_table: Callable[[], ModelTable], loads: LoadsModels | None = None) -> None:
        self._get_table = get_table
        self._loads = loads
        self._forms: dict[Any, CallForm] = {}

    def begin(self, request: InferenceRequest) -> tuple[Pending, threading.Lock]:
        """See ``Caller``."""
        done = threading.Lock()
        done.acquire()
        return self._begin(request, lambda _: done.release(), is_many=False), done

    def begin_many(self, request: InferenceRequest) -> Responses:
        """See ``Caller``."""
        come = threading.Semaphore(0)
        pending = self._begin(request, lambda _: come.release(), is_many=True)
        assert isinstance(pending, ManyPending)
        return _ThreadResponses(pending, come)

    def _begin(self, request: InferenceRequest, on_done: Callable[[Pending], object], *, is_many: bool) -> Pending:
        check_process()
        inputs: list[tuple[str, str, tuple[int, ...]]] = []
        contents: list[Content] = []
        for tensor in request.inputs():
            datatype = tensor.datatype
            inputs.append((tensor.name(), datatype, tuple(tensor.shape())))
            if datatype == "BYTES":
                contents.append(tensor.encoded())
            else:
                contents.append(np.array(tensor.memory(), order="C").reshape(-1).view(np.uint8))
        version = "" if request.model_version in (-1, "") else str(request.model_version)
        names = tuple(sorted(request.requested_output_names()))
        key = request.model_name, version, tuple(inputs), names
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            form = self._forms[key] = CallForm(request.model_name, version, inputs, names)
        said = request.said()
        about = RequestAbout(said.get("id", ""), None, said.get("parameters", {})) if said else None
        waits = getattr(_whose, "waits", None)
        return form.begin(self._get_table, contents, on_done, 0, about, waits=waits, caller=self, is_many=is_many)

    def result(self, call: tuple[Pending, threading.Lock]) -> InferenceResponse:
        """See ``Caller``."""
        pending, done = call
        done.acquire()
        return _response(Response(pending.outputs(), pending.error, pending.parameters, False))

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """See ``Caller``."""
        try:
            return is_ready(self._get_table, model_name, model_version)
        except RequestError as error:
            raise TritonModelException(f"Failed to check model readiness: {error}") from error

    def load(self, model_name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """See ``Caller``."""
        try:
            self._loader().load(model_name, config, files)
        except RequestError as error:
            raise TritonModelException(str(error)) from error

    def unload(self, model_name: str, *, dependents: bool) -> None:
        """See ``Caller``."""
        try:
            self._loader().unload(model_name, dependents=dependents)
        except RequestError as error:
            raise TritonModelException(str(error)) from error

    def _loader(self) -> LoadsModels:
        check_process()
        if self._loads is None or getattr(_whose, "is_loading", False):
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return self._loads
