"""Where the test mode of ``system.poison`` fills the engine's buffers and searches outputs.

Buffers of inputs are filled when a batch is taken into use, those of outputs before each run. Outputs are searched on
their way to whoever added the requests, before anything is made of them: by the ports of what computes, so that the
tensors between the steps of an ensemble, states of sequences and calls between models are searched, and once more by
the ports of requests from outside, so that what was kept meanwhile (``engine.cache``) is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakMethod

import numpy as np

from toutates.engine.around import AroundBackend
from toutates.engine.lane import Batch, Lane, PackedLane
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Separate
from toutates.engine.sequences.scheduler import Sequence as Running
from toutates.engine.sequences.tensors import RowStates
from toutates.engine.servable import Backend, Consumer
from toutates.protocol.signature import Signature
from toutates.system.errors import RequestError
from toutates.system.poison import Poison

__all__ = ["PoisonedBackend", "filling", "forgetting", "watching"]

Finish = Callable[[BatchResult], None]
#: Keeps the states of a sequence, None for none.
Keep = Callable[[Running[Any], RowStates | None], None]


class PoisonedBackend(AroundBackend[Backend]):
    """The backend of an executor whose runs find the buffers of their outputs filled.

    Args:
        backend: what computes.
        poison: that they are filled with.
    """

    def __init__(self, backend: Backend, poison: Poison) -> None:
        super().__init__(backend)
        self._poison = poison

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``Backend``."""
        if batch.outputs and isinstance(batch.lane, PackedLane):
            for array in batch.lane.outputs(batch, first, rows):
                self._poison.fill(array)
        try:
            return self._backend.run(batch, first, rows)
        finally:
            self.started_ns, self.ended_ns = self._backend.started_ns, self._backend.ended_ns


def filling(take: WeakMethod[Callable[[Lane, int], Batch]], poison: Poison) -> Callable[[Lane, int], Batch]:
    """What takes a batch into use as ``take`` does, and fills the buffers of its inputs.

    It takes the place of that method, and must not keep the method's object until a collection.
    """

    def filled(lane: Lane, rows: int) -> Batch:
        method = take()
        assert method is not None
        batch = method(lane, rows)
        for array in batch.arrays:
            poison.fill(array)
        return batch

    return filled


def forgetting(keep: WeakMethod[Keep], poison: Poison) -> Keep:
    """What keeps the states of a sequence as ``keep`` does, and fills those that it had before and has no longer.

    It takes the place of that method, as ``filling`` does.
    """

    def keep_and_fill(sequence: Running[Any], states: RowStates | None) -> None:
        method = keep()
        assert method is not None
        before: RowStates | None = sequence.state
        method(sequence, states)
        if before is not None and before is not states:
            for content in before.contents:
                poison.fill(np.frombuffer(content, np.uint8))

    return keep_and_fill


def watching(consumer: Consumer, model: str, signature: Signature, poison: Poison) -> Consumer:
    """A consumer that gets an error in place of outputs that have the pattern.

    Args:
        consumer: what gets everything else.
        model: whose outputs these are, for errors.
        signature: its tensors.
        poison: what outputs are searched for.
    """

    def searching(finish: Finish) -> Finish:
        def search_and_finish(result: BatchResult) -> None:
            outputs = result.shared_outputs
            if outputs is None:
                finish(result)
                return
            refused: list[tuple[PendingRequest, RequestError]] = []
            sound: list[PendingRequest] = []
            for request in result.pending:
                name = _found(outputs, request, signature, poison)
                if name is None:
                    sound.append(request)
                else:
                    refused.append((request, poison.found_in(model, name)))
            if not refused:
                finish(result)
                return
            parts = [BatchResult([request], None, error, result.timing) for request, error in refused]
            if sound:
                parts.append(BatchResult(sound, outputs, None, result.timing))
            for part in parts:
                part.more = result.more
            parts[-1].taken = result.taken  # the last of them says that the result is dealt with
            for part in parts:
                finish(part)

        return search_and_finish

    def sift(result: BatchResult) -> list[BatchResult]:
        found: list[BatchResult] = []
        searching(found.append)(result)
        return found

    finish, finish_here = searching(consumer.finish), searching(consumer.finish_here)
    return replace(consumer, finish=finish, finish_here=finish_here, sift=sift)


def _found(outputs: Outputs, request: PendingRequest, signature: Signature, poison: Poison) -> str | None:
    """The name of an output of one request that has the pattern; None if none has."""
    _, first, rows, _ = request
    for index, tensor in enumerate(signature.outputs):
        if index in outputs.missing or index >= len(outputs.data):
            continue
        content = outputs.rows(index, first, rows, batched=signature.batched)
        size = len(content) if not signature.batched else outputs.row_bytes[index]
        if poison.is_in_rows(content, size, first if signature.batched else 0):
            return tensor.name
    return None
