"""Hands requests to instances of a backend whose model is decoupled, and takes their responses from any thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.backends.interface import Array, Responder
from toutates.backends.open_requests import DRAIN_S, UNLOADED, OpenRequests
from toutates.backends.plugins.importing import MAX_REASON
from toutates.backends.plugins.running import PluginFailures, as_objects, encoded
from toutates.backends.python.results import Results
from toutates.backends.rows import rows_of
from toutates.engine.lane import Batch
from toutates.engine.open_request import OpenRequest, Responses
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Consumer, RequestAbout
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest, RequestError
from toutates.system.text import one_line

__all__ = ["DecoupledRunner"]

#: Datatype, shape and content of an output, see ``Results.response``.
_Given = tuple[str, Sequence[int], bytes | npt.NDArray[Any]]


class DecoupledRunner:
    """One instance of a decoupled model version: the backend of one executor (``engine.servable.Backend``).

    Args:
        instance: what answers.
        signature: the version's tensors.
        model: its name, for errors.
        failures: of the backend.
        on_close: called once nothing will follow.

    Attributes:
        ports: the consumers of the version; set once these are known.
        responses: of the version; likewise.
    """

    on_cpu = False  # no worker shall wait in ``Request.send``
    one_thread = False

    def __init__(
        self,
        instance: Responder,
        signature: Signature,
        model: str,
        failures: PluginFailures,
        on_close: Callable[[], None],
    ) -> None:
        self.started_ns = self.ended_ns = 0
        self.ports: Sequence[Consumer] = ()
        self.responses = Responses()
        self._failures = failures
        self._names = [tensor.name for tensor in signature.inputs]
        self._respond = instance.respond
        self._outputs = {tensor.name: index for index, tensor in enumerate(signature.outputs)}
        self._signature = signature
        self._model = model
        self._results = Results(signature, model, stacked=False)
        self._open = OpenRequests()
        self._on_close = on_close

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``engine.servable.Backend``: every request of the batch is open from now on, or refused."""
        above_limit = self._open.refuse_above_limit(batch)
        if above_limit is not None:
            return above_limit
        self.started_ns = time.monotonic_ns()
        refused: list[tuple[int, PendingRequest, Outputs | RequestError]] = []
        opened: list[PluginRequest] = []
        for row, own, port, request in rows_of(batch):
            try:
                inputs = batch.lane.inputs(batch, row, own)
                arrays = {self._names[index]: _owned(array) for index, array in inputs.items()}
            except RequestError as error:
                refused.append((port, request, error))
                continue
            open_request = OpenRequest(self.ports[port], request, self.started_ns, self.responses, self._open.patience)
            opened.append(PluginRequest(self, open_request, self.ports[port], request, arrays))
        self._begin(opened)
        self.ended_ns = time.monotonic_ns()
        return Separate(refused)

    def _begin(self, opened: Sequence[PluginRequest]) -> None:
        first = self._open.begin([request.request for request in opened])
        for at, request in enumerate(opened):
            request.number = first + at
        try:
            self._respond(opened)
        except (Exception, SystemExit) as error:
            failure = self.as_error(error)
            for request in opened:
                request.close(failure)

    def close(self) -> None:
        """Wait for the responses of open requests, for a while, and free what the backend has."""
        until = time.monotonic() + DRAIN_S
        self._open.wait(lambda: time.monotonic() >= until)
        self._on_close()
        self._open.fail(ExecutionFailed(UNLOADED))

    # --- for requests ------------------------------------------------------------------------------------------------

    def ended(self, number: int) -> None:
        """A request has had its last response."""
        self._open.ended(number)

    def as_error(self, error: BaseException) -> RequestError:
        """What a client is told of an exception of the backend's."""
        if isinstance(error, InvalidRequest):
            return InvalidRequest(one_line(error, MAX_REASON))
        return self._failures.of(error)

    def read(self, outputs: object) -> tuple[Outputs | RequestError, int]:
        """A response and its rows, or what is wrong with it."""
        given: dict[int, _Given] = {}
        if not isinstance(outputs, Mapping) or not outputs.keys() <= self._outputs.keys():
            return self._failures.wrong_answer(outputs, self._signature, some=True), 0
        try:
            for name, output in outputs.items():
                index = self._outputs[name]
                given[index] = self._given(index, output)
        except Exception:
            return self._failures.wrong_answer(outputs, self._signature, some=True), 0
        return self._results.response(None, given, None)

    def _given(self, index: int, output: Any) -> _Given:
        datatype = self._signature.outputs[index].datatype
        if not datatype.size:
            strings = encoded(output)
            return datatype.name, strings.shape, strings.content
        if type(output) is not np.ndarray:
            raise TypeError(type(output).__name__)
        # A large output is sent from its own memory; that of a view is somebody else's, who may write to it again.
        owned = output if output.base is None else output.copy()
        return datatype.name if output.dtype == datatype.numpy else str(output.dtype), output.shape, owned


class PluginRequest:
    """One request of a decoupled model (``backends.interface.Request``).

    Args:
        runner: of the instance that answers it.
        request: the same request, as the server sees it.
        consumer: of the port that it came by.
        pending: as it stands in its batch.
        inputs: its own.

    Attributes:
        number: among the open ones of the instance.
    """

    def __init__(
        self,
        runner: DecoupledRunner,
        request: OpenRequest,
        consumer: Consumer,
        pending: PendingRequest,
        inputs: Mapping[str, Array],
    ) -> None:
        self.request = request
        self.inputs = inputs
        self.number = 0
        self._runner = runner
        self._consumer = consumer
        self._context = pending[0]
        self._is_over = False

    @cached_property
    def _about(self) -> RequestAbout:
        return self._consumer.about(self._context)

    @property
    def identifier(self) -> str:
        """See ``Request``."""
        return self._about.identifier

    @property
    def parameters(self) -> Mapping[str, bool | int | float | str]:
        """See ``Request``."""
        return self._about.parameters

    @property
    def cancelled(self) -> bool:
        """See ``Request``."""
        return not self.request.is_wanted

    def send(self, outputs: Mapping[str, Array], *, final: bool = False) -> None:
        """See ``Request``."""
        self._check()
        response, rows = self._runner.read(outputs)
        self._put(response, rows, final=final)

    def fail(self, error: Exception, *, final: bool = True) -> None:
        """See ``Request``."""
        self._check()
        self._put(self._runner.as_error(error), 0, final=final)

    def end(self) -> None:
        """See ``Request``."""
        if not self._is_over:
            self._put(None, 0, final=True)

    def close(self, failure: RequestError) -> None:
        """End it with an error, unless it has ended."""
        if not self._is_over:
            self._put(failure, 0, final=True)

    def _check(self) -> None:
        if self._is_over:
            raise RuntimeError("the request has had its last response")

    def _put(self, response: Outputs | RequestError | None, rows: int, *, final: bool) -> None:
        self._is_over = final
        self.request.respond(response, rows, final=final)
        if final:
            self._runner.ended(self.number)


def _owned(array: npt.NDArray[Any] | StringTensor) -> Array:
    """An input that the next batch does not write to."""
    return as_objects(array) if isinstance(array, StringTensor) else array.copy()
