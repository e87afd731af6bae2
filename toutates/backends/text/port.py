"""A consumer's way into a text model: requests with BYTES become requests of texts, and vectors become outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, ClassVar, Final

import numpy as np

from toutates.backends.text.interface import Fault, Scores, SparseVector, TextError, TextOptions
from toutates.backends.text.work import Settled, TextRequest
from toutates.engine.lane import RowShapes
from toutates.engine.padded.port import PooledPort
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Timing
from toutates.engine.servable import Buffer, Consumer, Content
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.strings import StringRows
from toutates.system.errors import ExecutionFailed, InvalidRequest, RequestError

__all__ = ["TextPort", "TextWay"]

_FLAGS: Final = ("truncate", "normalize", "raw_scores", "add_special_tokens")
_SIDES: Final = {"left": True, "right": False}


@dataclass(slots=True, eq=False)
class TextWay:
    """The way of requests of one kind, which mostly have the same parameters: the same object.

    Attributes:
        parameters: of the last request.
        settled: how its texts are computed; None until there was one.
    """

    packed: ClassVar[bool] = False

    parameters: Mapping[str, bool | int | float | str] | None = None
    settled: Settled | None = None


class TextPort(PooledPort):
    """A port of a text model (``engine.servable.Port``), and the sink of what comes through it.

    Args:
        supertensor: of the model.
        consumer: for whom it is.
        put: puts a request into the queue.
        settle: makes options into what the model does.
        dimensions: of a vector, for requests without rows.
    """

    def __init__(
        self,
        supertensor: SuperTensor,
        consumer: Consumer,
        put: Callable[[TextRequest], None],
        settle: Callable[[TextOptions], Settled],
        dimensions: int,
    ) -> None:
        super().__init__(supertensor, consumer)
        self._consumer = consumer
        self._put = put
        self._settle = settle
        self._bounds = supertensor.budget.bounds
        outputs = supertensor.signature.outputs
        self._multi = -1 in outputs[0].shape
        self._is_fixed = not self._multi
        #: the same object for all outputs; see ``Outputs``
        self._row_shapes = tuple([tensor.graph_shape for tensor in outputs])
        self._dimensions = dimensions
        #: the consumer's thread, while it hands out what it has run itself
        self._runs_in = 0

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> TextWay:
        """See ``Port``. A run makes all outputs, whichever are wanted."""
        return TextWay()

    def add_packed(self, way: TextWay, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``. No way is packed."""
        raise NotImplementedError

    def add_contents(self, way: TextWay, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``. No way is packed."""
        raise NotImplementedError

    def add_gathered(self, way: TextWay, rows: int, context: Any, arrays: Sequence[Any], held_bytes: int = 0) -> None:
        """See ``Port``."""
        parameters = self._consumer.about(context).parameters
        settled = way.settled
        if settled is None or parameters is not way.parameters:
            settled = self._settle(_options(parameters))
            way.parameters, way.settled = parameters, settled
        consumer, bounds = self._consumer, self._bounds
        if rows > bounds.rows:
            raise InvalidRequest(f"a request may have at most {bounds.rows} texts, and this one has {rows}")
        # What the answer takes counts too; that of a multi-vector model is counted when it is known.
        result_bytes = 4 * rows * self._dimensions * self._is_fixed
        size, most = held_bytes + result_bytes, bounds.memory_bytes
        if size > most:
            raise InvalidRequest(
                f"the texts and vectors of this request take {size} bytes, of {most} at most; send fewer texts at once"
            )
        texts = [_elements(piece) for piece in arrays]
        request = TextRequest(
            texts[0] if len(texts) == 1 else list(zip(*texts, strict=True)),
            settled,
            self,
            (context, rows),
            partial(consumer.is_wanted, context),
            held_bytes,
            time.monotonic_ns(),
            result_bytes,
            consumer.caller(context),
        )
        if rows:
            self._put(request)
            self._note_added()
        else:
            now_ns = request.arrived_ns
            self.finish([request], Timing(now_ns, now_ns, now_ns, now_ns))

    def _deliver(self, port: int, result: BatchResult) -> None:
        self._runs_in = get_ident()
        try:
            super()._deliver(port, result)
        finally:
            self._runs_in = 0

    # --- as a sink ---------------------------------------------------------------------------------------------------

    def finish(self, requests: Sequence[TextRequest], timing: Timing) -> None:
        """See ``Sink``."""
        consumer = self._consumer
        finish = consumer.finish_here if self._runs_in and self._runs_in == get_ident() else consumer.finish
        pending: list[PendingRequest] = []
        answered: list[TextRequest] = []
        first = 0
        for request in requests:
            context, rows = request.context
            if request.error is not None:
                one: list[PendingRequest] = [(context, 0, rows, None)]
                finish(BatchResult(one, None, _error(request.error, rows), timing))
                continue
            if self._multi:  # of which each has as many rows as its longest text has vectors
                outputs, refusal = self._multi_outputs(request)
                finish(BatchResult([(context, 0, rows, None)], outputs, refusal, timing))
                continue
            pending.append((context, first, rows, None))
            answered.append(request)
            first += rows
        if pending:
            finish(BatchResult(pending, self._outputs(answered, first), None, timing))

    def _outputs(self, requests: Sequence[TextRequest], rows: int) -> Outputs:
        size = self._dimensions
        values = np.zeros((rows, size), np.float32)
        at = 0
        for request in requests:
            for vector in request.vectors:
                if isinstance(vector, SparseVector):
                    values[at, vector.indices] = vector.values
                else:
                    values[at] = vector
                at += 1
        return Outputs((values.tobytes(),), (4 * size,), self._row_shapes, fixed=True)

    def _multi_outputs(self, request: TextRequest) -> tuple[Outputs | None, RequestError | None]:
        size, vectors = self._dimensions, request.vectors
        longest = max([len(vector) for vector in vectors if isinstance(vector, np.ndarray)], default=0)
        if 4 * len(vectors) * longest * size > self._bounds.memory_bytes:
            return None, InvalidRequest(
                f"the vectors of this request's {len(vectors)} texts, padded to the longest one of {longest} tokens, "
                f"take more than {self._bounds.memory_bytes} bytes; send fewer texts at once"
            )
        values = np.zeros((len(vectors), longest, size), np.float32)
        counts = np.zeros(len(vectors), np.int32)
        for at, vector in enumerate(vectors):
            assert isinstance(vector, np.ndarray)
            values[at, : len(vector)] = vector
            counts[at] = len(vector)
        shapes = ((longest, size), ())
        return Outputs((values.tobytes(), counts.tobytes()), (4 * longest * size, 4), shapes), None


def _elements(piece: Any) -> list[bytes]:
    assert isinstance(piece, StringRows)
    content = piece.content
    starts, lengths = piece.where()
    return [bytes(content[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def _error(error: RequestError, rows: int) -> RequestError:
    """The error of a text in a form that has no parts beside its words."""
    if not isinstance(error, TextError):
        return error
    where = f"text {error.index}: " if error.index is not None and rows > 1 else ""
    return (ExecutionFailed if error.fault is Fault.NAN else InvalidRequest)(f"{where}{error}")


def _options(parameters: Mapping[str, bool | int | float | str]) -> TextOptions:
    """What the parameters of a request ask for. Others than those of text models are for somebody else.

    Raises:
        InvalidRequest: one has a value that it cannot have.
    """
    for name in _FLAGS:
        if name in parameters and not isinstance(parameters[name], bool):
            raise InvalidRequest(f"the parameter '{name}' must be a bool, got {parameters[name]!r}")
    prompt = parameters.get("prompt_name")
    if prompt is not None and not isinstance(prompt, str):
        raise InvalidRequest(f"the parameter 'prompt_name' must be a string, got {prompt!r}")
    side = parameters.get("truncation_direction")
    if side is not None and str(side).lower() not in _SIDES:
        raise InvalidRequest(f"the parameter 'truncation_direction' must be 'left' or 'right', got {side!r}")
    raw = parameters.get("raw_scores")
    scores = Scores.AS_CONFIGURED if raw is None else Scores.RAW if raw else Scores.PROBABILITIES
    flags: dict[str, Any] = {name: parameters[name] for name in ("truncate", "normalize") if name in parameters}
    return TextOptions(
        **flags,
        truncate_left=None if side is None else _SIDES[str(side).lower()],
        prompt=prompt,
        add_special_tokens=bool(parameters.get("add_special_tokens", True)),
        scores=scores,
    )
