"""What a process says of its outputs becomes outputs of requests. Nothing of it is taken on trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toutates.backends.python.deviations import Deviations
from toutates.backends.python.error_codes import error_of
from toutates.backends.python.parameters import checked_parameters
from toutates.backends.rows import Row
from toutates.engine.packing import LARGE_OUTPUT_BYTES
from toutates.engine.result import Form, Outputs, Parameters, PendingRequest
from toutates.engine.servable import Consumer
from toutates.protocol.datatypes import BY_NAME, Datatype
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import EncodedStrings, Numbers, StringRows
from toutates.system.errors import ExecutionFailed, InvalidRequest, RequestError, anew

__all__ = ["Results"]

#: Row shapes that are kept, so that answers of the same shapes are written by the same template.
_MAX_FORMS: Final = 256

Array = npt.NDArray[Any]


class Given(NamedTuple):
    """An output as a model has given it; ``content`` has its shape."""

    datatype: Datatype
    content: Array | EncodedStrings


class Answer(NamedTuple):
    """What a model has answered.

    Attributes:
        outputs: by index.
        parameters: of the response; None for none.
    """

    outputs: dict[int, Given]
    parameters: Parameters | None = None


class Results:
    """Reads what the process of an instance says after a batch.

    Args:
        signature: the model's tensors.
        model: its name.
        stacked: whether the model sees a batch as one request.
        deviations: of the version; None where each is an error.
    """

    def __init__(
        self, signature: Signature, model: str, *, stacked: bool, deviations: Deviations | None = None
    ) -> None:
        self._deviations = Deviations(model, strict=True) if deviations is None else deviations
        self._signature = signature
        self._model = model
        self._stacked = stacked
        self._forms: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = {}

    def read(
        self,
        said: Mapping[str, Any],
        room: Array | None,
        requests: Sequence[Row],
        ports: Sequence[Consumer],
    ) -> list[tuple[int, PendingRequest, Outputs | RequestError]]:
        """The outcome of each request.

        Args:
            said: by the process.
            room: memory that its outputs are in.
            requests: of the batch, in the order in which the process knows them.
            ports: the consumers, by number.
        """
        answers = said.get("requests")
        memory = np.empty(0, np.uint8) if room is None else room
        expected = 1 if self._stacked else len(requests)
        if not isinstance(answers, list) or len(answers) != expected:
            error = self._wrong("no answer for each request")
            return [(port, request, error) for _, _, port, request in requests]
        if self._stacked:
            whole = self._read(answers[0], memory, sum(rows for _, rows, _, _ in requests))
            return self.cut(whole, requests, ports)
        return [
            (port, request, self._outcome(answer, memory, rows, ports[port], request))
            for answer, (_, rows, port, request) in zip(answers, requests, strict=True)
        ]

    def cut(
        self,
        whole: Answer | RequestError,
        requests: Sequence[Row],
        ports: Sequence[Consumer],
    ) -> list[tuple[int, PendingRequest, Outputs | RequestError]]:
        """The rows of each request of the one answer for all."""
        if isinstance(whole, RequestError):
            return [(port, request, whole) for _, _, port, request in requests]
        outcomes: list[tuple[int, PendingRequest, Outputs | RequestError]] = []
        if len(requests) == 1:
            [(_, rows, port, request)] = requests
            return [(port, request, self.outputs(whole, rows, ports[port], request))]
        total = sum(rows for _, rows, _, _ in requests)
        divisible = {index: own for index, own in whole.outputs.items() if tuple(own.content.shape[:1]) == (total,)}
        end = 0
        for _, rows, port, request in requests:
            first, end = end, end + rows
            error = self._indivisible(whole, divisible, total, len(requests), ports[port], request)
            if error is not None:
                outcomes.append((port, request, error))
                continue
            parts = {index: Given(kind, _rows(content, first, rows)) for index, (kind, content) in divisible.items()}
            outcomes.append((port, request, self.outputs(Answer(parts, whole.parameters), rows, ports[port], request)))
        return outcomes

    def _indivisible(
        self,
        whole: Answer,
        divisible: Mapping[int, Given],
        rows: int,
        count: int,
        port: Consumer,
        request: PendingRequest,
    ) -> RequestError | None:
        """What a request hears that has asked for an output that has no rows to be given to each; None if it has not.

        Args:
            whole: the one answer for all requests.
            divisible: those of its outputs that have rows.
            rows: of all requests.
            count: of the requests.
            port, request: who asks.
        """
        if len(divisible) == len(whole.outputs):
            return None
        asked = port.about(request[0]).outputs
        for index in whole.outputs.keys() - divisible.keys():
            if asked is None or index in asked:
                kind, content = whole.outputs[index]
                return self._wrong(
                    f"output '{self._signature.outputs[index].name}' as {kind.name} {list(content.shape)} for {rows} "
                    f"rows of {count} requests, which it sees as one (toutates.stacked): it cannot be divided among "
                    f"them, because its first dimension is not {rows}"
                )
        return None

    def _outcome(
        self, answer: Any, memory: Array, rows: int, port: Consumer, request: PendingRequest
    ) -> Outputs | RequestError:
        found = self._read(answer, memory, rows)
        return found if isinstance(found, RequestError) else self.outputs(found, rows, port, request)

    def _read(self, answer: Any, memory: Array, rows: int) -> Answer | RequestError:
        """One answer, or its error."""
        if not isinstance(answer, dict):
            return self._wrong("no answer")
        error, outputs = answer.get("error"), answer.get("outputs")
        if isinstance(error, list) and len(error) == 2:
            return error_of(error)
        if not isinstance(outputs, dict):
            return self._wrong("neither outputs nor an error")
        found: dict[int, Given] = {}
        try:
            for index, tensor in enumerate(self._signature.outputs):
                place = outputs.get(str(index))
                if place is not None:
                    found[index] = self._tensor(tensor, place, memory, rows)
            return Answer(found, self._parameters(answer.get("parameters")))
        except RequestError as refusal:
            return anew(refusal)

    def _parameters(self, given: Any) -> Parameters | None:
        """The parameters of a response.

        Raises:
            ExecutionFailed: they cannot be sent.
        """
        if given is None:
            return None
        try:
            return checked_parameters(given) or None
        except ValueError as error:
            raise self._wrong(str(error)) from error

    def _tensor(self, tensor: TensorSpec, place: Any, memory: Array, rows: int) -> Given:
        """One output.

        Args:
            tensor: what it is to be.
            place: its datatype, shape, and where it is.
            memory: that it is in.
            rows: that it is to have.

        Raises:
            ExecutionFailed: it is something else.
        """
        if not isinstance(place, list) or len(place) != 4:
            raise self._wrong(f"output '{tensor.name}' in no known form")
        datatype, shape, at, size = place
        if not isinstance(shape, list) or not all(isinstance(one, int) and one >= 0 for one in shape):
            raise self._wrong(f"output '{tensor.name}' in no known form")
        kind = BY_NAME.get(datatype) if isinstance(datatype, str) else None
        if kind is None:
            raise self._wrong(f"output '{tensor.name}' in no known form")
        self._check(tensor, datatype, shape, rows)
        if not isinstance(at, int) or not isinstance(size, int) or not 0 <= at <= at + size <= memory.nbytes:
            raise self._wrong(f"output '{tensor.name}' outside of its memory")
        if kind.size:
            content = memory[at : at + size].copy()
            if size != prod(shape) * kind.size:
                raise self._wrong(f"{size} bytes for output '{tensor.name}'")
            values: Array = content.view(kind.numpy).reshape(shape)
            return Given(kind, values)
        return Given(kind, self._strings(tensor, memory[at : at + size].tobytes(), shape))

    def _check(self, tensor: TensorSpec, datatype: str, shape: Sequence[int], rows: int) -> None:
        """Note an output that has another datatype or shape than the configuration declares.

        Raises:
            ExecutionFailed: it has, and the version is strict.
        """
        expected = [rows, *tensor.graph_shape] if self._signature.batched else [*tensor.graph_shape]
        fits = len(shape) == len(expected) and all(
            want in (-1, have) for want, have in zip(expected, shape, strict=True)
        )
        if datatype != tensor.datatype.name or not fits:
            of_rows = f" for {rows} row{'' if rows == 1 else 's'}" if self._signature.batched else ""
            self._deviations.note(
                tensor.name,
                f"output '{tensor.name}' as {datatype} {list(shape)}, expected {tensor.datatype.name} {expected}"
                f"{of_rows}",
            )

    def _strings(self, tensor: TensorSpec, encoded: bytes, shape: Sequence[int]) -> EncodedStrings:
        """An output of BYTES.

        Raises:
            ExecutionFailed: its elements are not as many as its shape asks for.
        """
        try:
            starts, _ = StringRows.received(encoded, shape, tensor=tensor.name, model=self._model).where()
        except InvalidRequest as error:
            raise self._wrong(f"output '{tensor.name}' with wrong strings: {error}") from error
        bounds: Numbers = [*(int(start) - 4 for start in starts), len(encoded)]
        return EncodedStrings(encoded, bounds, tuple(shape))

    def of_arrays(
        self,
        error: Sequence[Any] | None,
        given: Mapping[int, tuple[str, Sequence[int], bytes | Array]],
        parameters: dict[str, Any] | None,
        rows: int,
    ) -> Answer | RequestError:
        """One answer that was given in this process, or its error.

        Args:
            error: code and text; None for none.
            given: datatype, shape and content of each output, by index: bytes of BYTES, else an array.
            parameters: of the response; None for none.
            rows: that the outputs are to have.
        """
        if error is not None:
            return error_of(error)
        found: dict[int, Given] = {}
        try:
            for index, (datatype, shape, content) in given.items():
                tensor = self._signature.outputs[index]
                self._check(tensor, datatype, shape, rows)
                found[index] = Given(
                    BY_NAME[datatype],
                    self._strings(tensor, content, shape) if isinstance(content, bytes) else content,
                )
            return Answer(found, self._parameters(parameters))
        except RequestError as refusal:
            return anew(refusal)

    def outputs(self, answer: Answer, rows: int, port: Consumer, request: PendingRequest) -> Outputs | RequestError:
        """Outputs of a request, with nothing in place of those that the model did not give.

        Large ones are not copied: nobody may change them any more.
        """
        missing: list[int] = []
        if len(answer.outputs) < len(self._signature.outputs):
            asked = port.about(request[0]).outputs
            for index, tensor in enumerate(self._signature.outputs):
                if index not in answer.outputs and (asked is None or index in asked):
                    missing.append(index)
                    try:
                        self._deviations.note(tensor.name, f"no output '{tensor.name}'")
                    except RequestError as refusal:
                        return anew(refusal)
        outputs = self._outputs(answer, rows)
        outputs.missing = missing
        return outputs

    def _outputs(self, answer: Answer, rows: int) -> Outputs:
        batched = self._signature.batched
        forms: dict[int, Form] = {}
        found = answer.outputs
        data: list[bytes | Array | EncodedStrings] = []
        in_arrays = False
        row_bytes: list[int] = []
        row_shapes: list[tuple[int, ...]] = []
        for index, tensor in enumerate(self._signature.outputs):
            own = found.get(index)
            if own is None:
                row_shapes.append(())
                data.append(b"")
                row_bytes.append(0)
                continue
            content, shape = own.content, tuple(own.content.shape)
            has_rows = not batched or shape[:1] == (rows,)
            if own.datatype.name != tensor.datatype.name or not has_rows:
                forms[index] = own.datatype, shape
            row_shapes.append(shape[1:] if batched else shape)
            if isinstance(content, EncodedStrings):
                data.append(content)
                row_bytes.append(0)
            else:
                large = content.nbytes > LARGE_OUTPUT_BYTES
                data.append(np.ascontiguousarray(content).reshape(-1).view(np.uint8) if large else content.tobytes())
                in_arrays |= large
                row_bytes.append(content.nbytes // rows if batched and rows else 0 if batched else content.nbytes)
        form = tuple(row_shapes)
        if form not in self._forms:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            self._forms[form] = form
        outputs = Outputs(tuple(data), tuple(row_bytes), self._forms[form], False, in_arrays, answer.parameters)
        outputs.forms = forms or None
        return outputs

    def response(
        self,
        error: Sequence[Any] | None,
        given: Mapping[int, tuple[str, Sequence[int], bytes | Array]],
        parameters: dict[str, Any] | None,
    ) -> tuple[Outputs | RequestError, int]:
        """One response of a decoupled model, or its error, and its rows. See ``of_arrays``.

        It may lack outputs, and its rows need not be as many as those of its request.
        """
        rows = 1
        if self._signature.batched:
            rows = next((shape[0] for _, shape, _ in given.values() if shape), 0)
        answer = self.of_arrays(error, given, parameters, rows)
        return (answer, 0) if isinstance(answer, RequestError) else (self._partial(answer, rows), rows)

    def read_response(self, said: Any, memory: Array) -> tuple[Outputs | RequestError, int]:
        """The same, as a process says it.

        Args:
            said: error, outputs and their places, parameters.
            memory: that the outputs are in.
        """
        rows = 1
        places = said.get("outputs") if isinstance(said, dict) else None
        if self._signature.batched:
            shapes = [place[1] for place in places.values()] if isinstance(places, dict) else []
            rows = next((shape[0] for shape in shapes if isinstance(shape, list) and shape), 0)
            if not isinstance(rows, int):
                return self._wrong("an output in no known form"), 0
        answer = self._read(said, memory, rows)
        return (answer, 0) if isinstance(answer, RequestError) else (self._partial(answer, rows), rows)

    def _partial(self, answer: Answer, rows: int) -> Outputs:
        """Outputs of a response of which some may be missing."""
        missing = [index for index in range(len(self._signature.outputs)) if index not in answer.outputs]
        whole = self._outputs(answer, rows)
        whole.missing = missing
        return whole

    def _wrong(self, what: str) -> ExecutionFailed:
        return ExecutionFailed(f"model '{self._model}' returned {what}")


def _rows(content: Array | EncodedStrings, first: int, rows: int) -> Array | EncodedStrings:
    if not isinstance(content, EncodedStrings):
        return content[first : first + rows]
    row = prod(content.shape[1:])
    bounds = content.bounds[first * row : (first + rows) * row + 1]
    start = int(bounds[0])
    encoded = content.content[start : int(bounds[-1])]
    return EncodedStrings(encoded, [int(bound) - start for bound in bounds], (rows, *content.shape[1:]))
