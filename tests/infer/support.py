"""The path of an inference without sockets, executors or clocks: a test sends bytes, runs batches, and reads bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast

import numpy as np

from toutates.engine.result import BatchResult, Outputs, Timing
from toutates.engine.servable import Consumer
from toutates.infer.inflight import Inflight
from toutates.infer.reading import request_id
from toutates.infer.regions import Regions
from toutates.infer.service import InferService
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import RequestError

__all__ = [
    "PEER",
    "TWO",
    "KnownCall",
    "KnownServable",
    "KnownTransport",
    "KnownWorker",
    "Served",
    "Status",
    "Turned",
    "signature_of",
]

PEER = "192.0.2.1:5"


class Turned:
    """A clock that tests turn; it stands in for the module ``time``."""

    def __init__(self, now_ns: int = 1_000) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return 7_000_000 + self.now_ns


class Status(IntEnum):
    FINE = 0
    WRONG = 1


@dataclass(eq=False)
class KnownCall:
    """All that the path of an inference knows of a call; it is its own responder."""

    buffer: bytes = b""
    start: int = 0
    end: int = 0
    open: bool = True
    deadline_ns: int = 10**18
    context: Any = None
    answer: bytes | None = None
    breaks: int = 0  # answers that fail before one succeeds

    @property
    def responder(self) -> KnownCall:
        return self

    def reply(self, call: KnownCall, parts: Sequence[Any], length: int) -> None:
        assert call is self
        self._break()
        assert self.open
        self.answer = b"".join(parts)
        assert len(self.answer) == length
        self.open = False

    def fail(self) -> None:
        self._break()
        self.open = False

    def _break(self) -> None:
        if self.breaks:
            self.breaks -= 1
            raise ValueError("a bug")

    @property
    def response(self) -> ModelInferResponse:
        assert self.answer is not None
        return ModelInferResponse.FromString(self.answer)

    def values(self, dtype: Any = np.int32) -> list[list[int]]:
        """The numbers of each output."""
        return [np.frombuffer(raw, dtype).tolist() for raw in self.response.raw_output_contents]


@dataclass
class KnownTransport:
    """A transport that notes what it is asked for."""

    failed: list[tuple[KnownCall, type[RequestError], str]] = field(default_factory=list)
    ended: list[KnownCall] = field(default_factory=list)
    traced: tuple[str, str] = ("00-a", "x=1,y=2")
    held_bytes: int = 0

    def fail(self, call: KnownCall, error: RequestError) -> None:
        call.fail()
        self.failed.append((call, type(error), str(error)))

    def end_connection(self, call: KnownCall, error: Exception) -> None:
        self.ended.append(call)

    def status_of(self, error: type[RequestError] | None) -> Status:
        return Status.FINE if error is None else Status.WRONG

    def request_id(self, id_field: bytes) -> str:
        return request_id(id_field)

    def peer(self, call: object) -> str:
        return PEER

    def hold(self, call: object, size: int) -> None:
        self.held_bytes += size

    def trace_context(self, call: object) -> tuple[str, str]:
        return self.traced


@dataclass(frozen=True)
class Lane:
    packed: bool


@dataclass
class Added:
    """Rows of one request."""

    context: Any
    rows: int
    inputs: list[Any]
    held_bytes: int = 0


class KnownPort:
    """A port that keeps what is added until the test says what became of it."""

    def __init__(self, consumer: Consumer, packed: bool) -> None:
        self.consumer = consumer
        self.counters = consumer.counters
        self.packed = packed
        self.added: list[Added] = []
        #: of all that were ever added
        self.callers: list[object] = []
        self.refusal: BaseException | None = None
        self.commits = 0

    def way(self, row_shapes: object, outputs: object = None) -> Lane:
        return Lane(self.packed)

    def add_packed(self, way: Lane, rows: int, context: Any, buffer: Any, spans: Sequence[int]) -> None:
        assert way.packed
        self._refuse()
        self.callers.append(self.consumer.caller(context))
        pairs = zip(spans[::2], spans[1::2], strict=True)
        self.added.append(Added(context, rows, [bytes(buffer[start:end]) for start, end in pairs]))

    def add_gathered(self, way: Lane, rows: int, context: Any, arrays: Sequence[Any], held_bytes: int = 0) -> None:
        assert not way.packed
        self._refuse()
        self.added.append(Added(context, rows, list(arrays), held_bytes))

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def commit(self) -> None:
        self.commits += 1

    def finish(
        self, outputs: Outputs | None, error: RequestError | None = None, timing: Timing | None = None, **part: Any
    ) -> None:
        """Hand over the outcome of a batch that has all rows added so far."""
        pending = []
        first = 0
        for added in self.added:
            pending.append((added.context, first, added.rows, part.get("part")))
            first += added.rows
        self.added = []
        self.consumer.finish_here(BatchResult(pending, outputs, error, timing or Timing(2_000, 2_100, 2_400, 2_500)))

    def run(self, timing: Timing | None = None, fixed: bool = True) -> None:
        """Run a batch: each output is an input, negated."""
        inputs = range(len(self.added[0].inputs))
        whole = [-np.frombuffer(b"".join([added.inputs[at] for added in self.added]), np.int32) for at in inputs]
        width = 4
        outputs = Outputs(
            tuple(array.tobytes() for array in whole), (4 * width,) * len(whole), ((width,),) * len(whole), fixed
        )
        self.finish(outputs, timing=timing)


def signature_of(
    *names: str, datatype: str = "INT32", shape: tuple[int, ...] = (4,), batched: bool = True
) -> Signature:
    """A model with these inputs, and as many outputs ``out0`` and so on."""
    kind = BY_NAME[datatype]
    inputs = tuple(TensorSpec(name, kind, shape) for name in names)
    outputs = tuple(TensorSpec(f"out{at}", kind, shape) for at in range(len(names)))
    return Signature(inputs, outputs, batched=batched)


TWO = signature_of("A", "B")


class KnownServable:
    def __init__(self, signature: Signature, packed: bool) -> None:
        self.signature = signature
        self.packed = packed
        self.ports: list[KnownPort] = []

    def port(self, consumer: Consumer) -> KnownPort:
        self.ports.append(KnownPort(consumer, self.packed))
        return self.ports[-1]


@dataclass
class KnownWorker:
    now_ns: int = 500
    soon: list[Callable[[], None]] = field(default_factory=list)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def at_round_end(self, callback: Callable[[], None]) -> None:
        raise AssertionError("ports of tests commit nothing by themselves")


class Served:
    """A service with one model, ``m``.

    Args:
        signature: of the model.
        packed: whether rows are given as bytes.
        inflight: see InferService.
        labels: of the model's outputs.
        regions: see InferService.
    """

    def __init__(
        self,
        signature: Signature = TWO,
        *,
        packed: bool = True,
        inflight: Inflight | None = None,
        labels: Any = None,
        regions: Regions | None = None,
    ) -> None:
        self.worker = KnownWorker()
        self.transport = KnownTransport()
        self.servable = KnownServable(signature, packed)
        self.version = self.version_of(self.servable, labels=labels or {})
        self.table = self.table_of(self.version)
        self.service = InferService(cast(Any, self.worker), self.transport, lambda: self.table, inflight, None, regions)
        self.handle = cast(Callable[[KnownCall], None], self.service.handler)
        # The first request is always observed. Here that is one that nobody sees, so that 255 others are not.
        first: Any = KnownCall()
        self.service.observer.begin(first, 1)
        self.service.observer.refused(first, RequestError())

    @staticmethod
    def version_of(servable: KnownServable, number: int = 1, **more: Any) -> ServedVersion:
        return ServedVersion("m", number, ModelConfig(), cast(Any, servable), **more)

    @staticmethod
    def table_of(*versions: ServedVersion) -> ModelTable:
        entries = {one.number: VersionEntry(one.number, ModelState.READY, served=one) for one in versions}
        return ModelTable({"m": ModelEntry("m", entries)})

    @property
    def port(self) -> KnownPort:
        return self.servable.ports[-1]

    def call(self, message: ModelInferRequest | bytes, before: bytes = b"before", after: bytes = b"after") -> KnownCall:
        """A call as it lies in a buffer with others."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        return KnownCall(before + data + after, len(before), len(before) + len(data))

    def ask(self, message: ModelInferRequest | bytes) -> KnownCall:
        """Handle a request of a round of its own."""
        self.worker.now_ns += 1
        call = self.call(message)
        self.handle(call)
        return call

    def refusal(self, message: ModelInferRequest | bytes) -> tuple[type[RequestError], str]:
        """Handle a request that is refused."""
        try:
            self.ask(message)
        except RequestError as error:
            return type(error), str(error)
        raise AssertionError("it was not refused")
