"""Requests whose tensors are in shared memory, and the thread beside their worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.infer.calls import KnownCall
from tests.infer.ports import signature_of
from tests.infer.served import Served
from toutates.h2grpc import Limits
from toutates.h2grpc.message_memory import MemoryPool
from toutates.infer.regions import Kind
from toutates.protocol.grpc_service_pb2 import ModelInferRequest

__all__ = ["FOLDER", "SIZE", "ConnectedCall", "Shared", "Side", "is_used"]

SIZE: Final = 65_536
FOLDER: Final = Path("/dev/shm")


class Side:
    """The thread beside a worker: does its jobs at once, or when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.holds = False

    def put(self, connection: object, job: Any) -> None:
        self.jobs.append(job)
        if not self.holds:
            self.run()

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()()


class Connection:
    """Answers the calls that came on it."""

    def reply(self, call: KnownCall, parts: Sequence[Any], length: int) -> None:
        KnownCall.reply(call, call, parts, length)


@dataclass(eq=False)
class ConnectedCall(KnownCall):
    connection: Any = None

    @property
    def responder(self) -> Any:
        return self.connection


class Shared(Served):
    """A model "m" of one input and one output of four INT32, whose requests have both in a region."""

    def __init__(self, regions: Any, names: str = "A", **more: Any) -> None:
        super().__init__(signature_of(*names), regions=regions, **more)
        self.bound(4_096)
        worker: Any = self.worker
        worker.message_memory = MemoryPool()
        worker.objects = self.side = Side()
        self.round_end: list[Any] = []
        worker.at_round_end = self.round_end.append

    def bound(self, most_bytes: int) -> None:
        """Bound the size of messages."""
        worker: Any = self.worker
        worker.limits = Limits(max_message_size=most_bytes)

    def ask(self, message: ModelInferRequest | bytes) -> KnownCall:
        call = super().ask(message)
        self.end_round()
        return call

    def end_round(self) -> None:
        while self.round_end:
            self.round_end.pop()()

    def ask_together(self, *messages: ModelInferRequest) -> list[ConnectedCall]:
        """Requests of one connection in one round."""
        connection, calls = Connection(), []
        for message in messages:
            data = message.SerializeToString()
            calls.append(ConnectedCall(data, 0, len(data), connection=connection))
            self.handle(calls[-1])
        self.end_round()
        return calls

    def message(self, identifier: str = "x", rows: int = 1) -> ModelInferRequest:
        message = ModelInferRequest(model_name="m", id=identifier)
        tensor = message.inputs.add(name="A", datatype="INT32", shape=[rows, 4])
        output = message.outputs.add(name="out0")
        for parameters, offset in ((tensor.parameters, 0), (output.parameters, SIZE // 2)):
            parameters["shared_memory_region"].string_param = "r"
            parameters["shared_memory_byte_size"].int64_param = 16 * rows
            parameters["shared_memory_offset"].int64_param = offset
        return message


def is_used(regions: Any) -> bool:
    [region] = regions.status(Kind.SYSTEM, "r")
    return bool(region.uses)
