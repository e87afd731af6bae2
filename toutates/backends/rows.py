"""The requests of a batch, for backends that see requests and not only rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
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

__all__ = ["Contents", "Left", "Row", "about", "any_waits", "contents_of", "rows_of", "take_left", "with_left"]

#: One request of a batch: its first row, its rows, the number of its port, and itself.
Row = tuple[int, int, int, PendingRequest]


def rows_of(batch: Batch) -> list[Row]:
    """The requests of a batch, by their rows."""
    requests: list[Row] = [
        (request[1], request[2], port, request) for port, own in enumerate(batch.pending) for request in own
    ]
    requests.sort(key=itemgetter(0, 1))
    return requests


#: What becomes of a request that is not run, because its caller does not wait any more.
Left = tuple[int, PendingRequest, Outputs | RequestError]
_LEFT: Final = TooLate("Deadline Exceeded")


def take_left(requests: list[Row], ports: Sequence[Consumer]) -> list[Left]:
    """Take those requests out whose callers do not wait any more; returns what becomes of them.

    A model that sees requests may work on each for long, so they are not given to it.
    """
    now_ns = time.monotonic_ns()
    left = [row for row in requests if not ports[row[2]].is_wanted(row[3][0], now_ns)]
    for row in left:
        requests.remove(row)
    return [(port, request, _LEFT) for _, _, port, request in left]


def any_waits(requests: Sequence[Row], ports: Sequence[Consumer]) -> bool:
    """Whether the caller of any of these requests waits still."""
    now_ns = time.monotonic_ns()
    return any(ports[port].is_wanted(request[0], now_ns) for _, _, port, request in requests)


def with_left(outcome: Outputs | Separate, batch: Batch, requests: list[Row], left: list[Left]) -> Separate:
    """The outcome of a batch of which some requests were not run.

    Args:
        outcome: of those that were.
        batch: the batch.
        requests: that were run.
        left: what becomes of the others.
    """
    if isinstance(outcome, Separate):
        return Separate([*left, *outcome.outcomes])
    parts = [(port, request, outcome.part(first, rows, batch.rows)) for first, rows, port, request in requests]
    return Separate([*left, *parts])


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
