"""A servable whose ports keep what is added until the test says what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.signatures import signature, spec
from toutates.engine.result import BatchResult, Outputs, Timing
from toutates.system.errors import RequestError

__all__ = ["TWO", "KnownPort", "KnownServable", "signature_of"]


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

    def __init__(self, consumer: Any, packed: bool) -> None:
        self.consumer = consumer
        self.counters = consumer.counters
        self.packed = packed
        self.added: list[Added] = []
        #: of all that were ever added
        self.callers: list[object] = []
        #: what held the bytes of those
        self.buffers: list[object] = []
        self.refusal: BaseException | None = None
        self.commits = 0

    def way(self, row_shapes: object, outputs: object = None) -> Lane:
        return Lane(self.packed)

    def add_packed(self, way: Lane, rows: int, context: Any, buffer: Any, spans: Sequence[int]) -> None:
        assert way.packed
        self._refuse()
        self.callers.append(self.consumer.caller(context))
        self.buffers.append(memoryview(buffer).obj)
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


def signature_of(*names: str, datatype: str = "INT32", shape: Sequence[int] = (4,), batched: bool = True) -> Any:
    """A model with these inputs, and as many outputs ``out0`` and so on."""
    inputs = [spec(name, datatype, shape) for name in names]
    outputs = [spec(f"out{at}", datatype, shape) for at in range(len(names))]
    return signature(inputs, outputs, batched=batched)


TWO = signature_of("A", "B")


class KnownServable:
    def __init__(self, tensors: Any, packed: bool) -> None:
        self.signature = tensors
        self.packed = packed
        self.ports: list[KnownPort] = []

    def port(self, consumer: Any) -> KnownPort:
        self.ports.append(KnownPort(consumer, self.packed))
        return self.ports[-1]
