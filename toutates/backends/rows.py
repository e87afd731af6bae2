"""The requests of a batch, for backends that see requests and not only rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.engine.lane import Batch
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Consumer
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringRows
from toutates.system.errors import RequestError, TooLate

__all__ = ["Callers", "Contents", "Row", "about", "contents_of", "rows_of", "run_wanted"]

#: One request of a batch: its first row, its rows, the number of its port, and itself.
Row = tuple[int, int, int, PendingRequest]


def rows_of(batch: Batch) -> list[Row]:
    """The requests of a batch, by their rows."""
    requests: list[Row] = [
        (request[1], request[2], port, request) for port, own in enumerate(batch.pending) for request in own
    ]
    requests.sort(key=itemgetter(0, 1))
    return requests


#: Of a request that is not run, because its caller does not wait any more.
_LEFT: Final = TooLate("Deadline Exceeded")


def run_wanted(
    batch: Batch, ports: Sequence[Consumer], run: Callable[[Batch, list[Row]], Outputs | Separate]
) -> Outputs | Separate:
    """Run the requests of a batch whose callers still wait: a model that sees requests may work on each for long.

    Args:
        batch: the batch.
        ports: the consumers, by number of their port.
        run: runs some requests of the batch, at least one.
    """
    requests: list[Row] = []
    left: list[Row] = []
    now_ns = time.monotonic_ns()
    for row in rows_of(batch):
        (requests if ports[row[2]].is_wanted(row[3][0], now_ns) else left).append(row)
    if not left:
        return run(batch, requests)
    outcomes = [(port, request, _LEFT) for _, _, port, request in left]
    return _with_others(run(batch, requests) if requests else Separate([]), batch, requests, outcomes)


class Callers:
    """Those of the requests of a batch: whether any has not left, in any thread. Who is answered has not left.

    Args:
        requests: of the batch.
        ports: the consumers, by number of their port.
    """

    def __init__(self, requests: Sequence[Row], ports: Sequence[Consumer]) -> None:
        self._requests, self._ports = requests, ports
        self._were_there = False

    def __call__(self) -> bool:
        """Whether any of them waits, or did when the batch had run."""
        now_ns, ports = time.monotonic_ns(), self._ports
        waits = any(ports[port].is_wanted(request[0], now_ns) for _, _, port, request in self._requests)
        return waits or self._were_there  # in this order: an answer comes behind ``end``

    def end(self) -> None:
        """The batch has run, and its requests are about to be answered."""
        self._were_there = self()
        self._requests = ()


def _with_others(
    outcome: Outputs | Separate,
    batch: Batch,
    requests: list[Row],
    others: Sequence[tuple[int, PendingRequest, RequestError]],
) -> Separate:
    """The outcome of ``requests`` of a batch, and that of its other requests, as one."""
    if isinstance(outcome, Separate):
        return Separate([*others, *outcome.outcomes])
    parts = [(port, request, outcome.part(first, rows, batch.rows)) for first, rows, port, request in requests]
    return Separate([*others, *parts])


def about(row: Row, ports: Sequence[Consumer], signature: Signature) -> dict[str, Any]:
    """What a request says beside its tensors."""
    _, _, port, request = row
    said = ports[port].about(request[0])
    asked = range(len(signature.outputs)) if said.outputs is None else said.outputs
    return {
        "id": said.identifier,
        "outputs": [signature.outputs[index].name for index in asked],
        "parameters": dict(said.parameters),
    }


#: A request, and the bytes of each of its inputs.
Contents = tuple[Row, list[npt.NDArray[Any]]]


def contents_of(
    batch: Batch, requests: list[Row]
) -> tuple[list[Contents], list[tuple[int, PendingRequest, RequestError]]]:
    """The contents of the requests of a batch of arrays, and those requests whose BYTES are wrong."""
    pieces = {(first, rows): arrays for first, rows, arrays in batch.pieces}
    contents: list[Contents] = []
    refused: list[tuple[int, PendingRequest, RequestError]] = []
    for row in requests:
        try:
            contents.append((row, [_content(piece) for piece in pieces[row[0], row[1]]]))
        except RequestError as error:
            refused.append((row[2], row[3], error))
    return contents, refused


def _content(piece: npt.NDArray[Any] | StringRows) -> npt.NDArray[Any]:
    """The bytes of some rows of an input, as they are sent.

    Raises:
        InvalidRequest: BYTES whose elements are not as many as the shape asks for.
    """
    if not isinstance(piece, StringRows):
        return np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
    starts, lengths = piece.where()
    if not len(starts):
        return np.empty(0, np.uint8)
    end = int(starts[-1]) + int(lengths[-1])
    start = int(starts[0]) - 4
    return np.frombuffer(piece.content, np.uint8, end - start, start)
