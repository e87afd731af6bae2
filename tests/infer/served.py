"""The path of an inference without sockets, executors or clocks: a test sends bytes, runs batches, and reads bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tests.infer.calls import KnownCall, KnownTransport
from tests.infer.ports import TWO, KnownPort, KnownServable
from tests.tables import entry_of, table_of_entries, version_of
from toutates.infer.service import InferService
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.system.errors import RequestError

__all__ = ["KnownWorker", "Served"]


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
        tensors: of the model.
        packed: whether rows are given as bytes.
        inflight: see InferService.
        labels: of the model's outputs.
        regions: see InferService.
        make: makes the service.
    """

    def __init__(
        self,
        tensors: Any = TWO,
        *,
        packed: bool = True,
        inflight: Any = None,
        labels: Any = None,
        regions: Any = None,
        make: Callable[..., InferService] = InferService,
    ) -> None:
        self.worker = KnownWorker()
        self.transport = KnownTransport()
        self.servable = KnownServable(tensors, packed)
        self.version = self.version_of(self.servable, labels=labels or {})
        self.table = self.table_of(self.version)
        self.service = make(cast(Any, self.worker), self.transport, lambda: self.table, inflight, None, regions)
        self.handle = cast(Callable[[KnownCall], None], self.service.handler)
        # The first request is always observed. Here that is one that nobody sees, so that 255 others are not.
        first: Any = KnownCall()
        self.service.observer.begin(first, 1)
        self.service.observer.refused(first, RequestError())

    @staticmethod
    def version_of(servable: KnownServable, number: int = 1, **more: Any) -> Any:
        return version_of(servable, number=number, **more)

    @staticmethod
    def table_of(*versions: Any) -> Any:
        return table_of_entries({"m": map(entry_of, versions)})

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
