"""Calls of other models by a model in a thread of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from toutates.backends.python.calls import Pending, begin_call, is_ready
from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.requests import Caller, InferenceRequest, InferenceResponse, TritonError
from toutates.backends.python.child.tensors import Tensor
from toutates.backends.python.loads import LoadsModels
from toutates.engine import tensor as engine_tensor
from toutates.engine.servable import RequestAbout
from toutates.models.table import ModelTable
from toutates.protocol.datatypes import BY_NAME
from toutates.system.errors import RequestError

__all__ = ["ThreadCaller", "note_loading"]


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

    def begin(self, request: InferenceRequest) -> tuple[Pending, threading.Event]:
        """See ``Caller``."""
        done = threading.Event()
        inputs = {
            tensor.name(): engine_tensor.Tensor.of(
                tensor.as_numpy() if tensor.datatype == "BYTES" else tensor.memory().copy(), BY_NAME[tensor.datatype]
            )
            for tensor in request.inputs()
        }
        version = "" if request.model_version in (-1, "") else str(request.model_version)
        names = sorted(request.requested_output_names())
        said = request.said()
        about = RequestAbout(said.get("id", ""), None, said.get("parameters", {})) if said else None
        return begin_call(self._get_table, request.model_name, version, inputs, names, done.set, about), done

    def result(self, call: tuple[Pending, threading.Event]) -> InferenceResponse:
        """See ``Caller``."""
        pending, done = call
        done.wait()
        if pending.error is not None:
            return InferenceResponse([], TritonError(pending.error.text, pending.error.code))
        return InferenceResponse(
            [Tensor.received(name, tensor.datatype.name, tensor.array().copy()) for name, tensor in pending.outputs],
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
