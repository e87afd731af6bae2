"""The requests of a batch, for backends that see requests and not only rows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.engine.lane import Batch
from toutates.engine.result import PendingRequest
from toutates.engine.servable import Consumer
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringRows
from toutates.system.errors import RequestError

__all__ = ["Contents", "Row", "about", "contents_of", "rows_of"]

#: One request of a batch: its first row, its rows, the number of its port, and itself.
Row = tuple[int, int, int, PendingRequest]


def rows_of(batch: Batch) -> list[Row]:
    """The requests of a batch, by their rows."""
    requests: list[Row] = [
        (request[1], request[2], port, request) for port, own in enumerate(batch.pending) for request in own
    ]
    requests.sort(key=itemgetter(0, 1))
    return requests


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
