"""Calls of other models by a model in a thread of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from toutates.backends.python.calls import CallForm, Pending, is_ready
from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.requests import Caller, InferenceRequest, InferenceResponse, TritonError
from toutates.backends.python.child.tensors import Tensor
from toutates.backends.python.loads import LoadsModels
from toutates.engine.servable import Content, RequestAbout
from toutates.models.table import ModelTable
from toutates.system.errors import RequestError

__all__ = ["ThreadCaller", "note_loading"]

#: Forms of calls that are remembered.
_MAX_FORMS: Final = 256

_whose = threading.local()


def note_loading(*, is_loading: bool) -> None:
    """Note whether this thread is loading a model: then it must not wait for the load of another one."""
    _whose.is_loading = is_loading


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
        done = threading.Lock()
        done.acquire()
        return form.begin(self._get_table, contents, lambda _: done.release(), 0, about), done

    def result(self, call: tuple[Pending, threading.Lock]) -> InferenceResponse:
        """See ``Caller``."""
        pending, done = call
        done.acquire()
        if pending.error is not None:
            return InferenceResponse([], TritonError(pending.error.text, pending.error.code))
        return InferenceResponse(
            [Tensor.received(name, tensor.datatype.name, tensor.array().copy()) for name, tensor in pending.outputs()],
            None,
            None if pending.parameters is None else dict(pending.parameters),
        )

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
        if self._loads is None or getattr(_whose, "is_loading", False):
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return self._loads
