"""The frames between the server and the process of an instance: a length, a kind, and the content.

The server asks, and the process answers. While it runs ``execute`` the process may ask too (``QUERY``), and gets one
``ANSWER`` for each question before it asks the next. Calls of other models (``CALL``) may be under way in any number,
and come back (``RETURN``) in any order. Tensors are in shared memory, and frames say where.

The process of a decoupled model may ask, call and send responses at any time, also between two batches. Its responses
have their tensors in the frame.

| kind | from | content |
|---|---|---|
| CONFIGURE | server | JSON: where model.py is, the configuration, whether it may complete it |
| INITIALIZE | server | JSON: the arguments of ``initialize``, names and datatypes of the tensors |
| LAYOUT | server | JSON: its number, row shapes by input, row shapes of the outputs where they are fixed; no answer |
| EXECUTE | server | EXECUTE_HEAD, offsets of inputs and fixed outputs, first row and rows of each request, JSON |
| GATHERED | server | JSON: rows of each request, and for each of its inputs offset, bytes, shape |
| FINALIZE | server | nothing |
| ANSWER | server | JSON |
| DONE | process | JSON, or for EXECUTE: nothing, when every output is where it belongs |
| FAILED | process | JSON: the text of an error |
| QUERY | process | JSON: what is asked for |
| CALL | process | CALL_HEAD, JSON: id and parameters, if any, JSON: model, version, outputs, inputs and their places |
| RESPONSE | process | RESPONSE_HEAD, JSON: error, or outputs and their places; their contents. Of decoupled models |
| RETURN | server | RETURN_HEAD, JSON: code and text of an error, or outputs and their places; these and parameters |
"""

from __future__ import annotations

import struct

__all__ = [
    "ANSWER",
    "CALL",
    "CALL_HEAD",
    "CONFIGURE",
    "DONE",
    "EXECUTE",
    "EXECUTE_HEAD",
    "FAILED",
    "FINALIZE",
    "GATHERED",
    "HEAD",
    "INITIALIZE",
    "KEPT_ROOM_BYTES",
    "LAYOUT",
    "LEAST_RESPONSE_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_LAYOUTS",
    "MAX_METRICS",
    "MAX_METRIC_LINE",
    "MAX_RESPONSE_BYTES",
    "METRICS_BYTES",
    "METRICS_HEAD",
    "METRICS_NUMBERS_AT",
    "QUERY",
    "READ_COUNTER_BYTES",
    "RECEIVE_BYTES",
    "RESPONSE",
    "RESPONSE_CONTENT",
    "RESPONSE_FINAL",
    "RESPONSE_HEAD",
    "RETURN",
    "RETURNED",
    "RETURNED_ERROR",
    "RETURNED_LAST",
    "RETURNED_PARAMETERS",
    "RETURNED_PART",
    "RETURN_HEAD",
]

#: length of the content, kind
HEAD = struct.Struct("<IB")
#: whether there is JSON about the requests at the end, number of the layout, requests, rows, room of the batch
EXECUTE_HEAD = struct.Struct("<?IIII")

#: number of the call, number of the block that it has, bytes of what it says beside its tensors
CALL_HEAD = struct.Struct("<III")
#: number of the call, what follows (RETURNED...), where the outputs are
RETURN_HEAD = struct.Struct("<IBQ")
#: number of the request, counted from the start of the process; RESPONSE_... flags; bytes of JSON
RESPONSE_HEAD = struct.Struct("<IBI")
RESPONSE_FINAL, RESPONSE_CONTENT = 1, 2
#: The last two are of calls that take any number of responses: JSON of so many bytes as the head says in place of an
#: offset, and the contents.
RETURNED, RETURNED_ERROR, RETURNED_PARAMETERS, RETURNED_PART, RETURNED_LAST = range(5)

#: Behind the inputs of such a call, in its block: bytes of the responses that the model has read, an unsigned integer
#: in the order of the machine. Each response counts as so many bytes at least.
READ_COUNTER_BYTES = 8
LEAST_RESPONSE_BYTES = 1024

CONFIGURE, INITIALIZE, LAYOUT, EXECUTE, GATHERED, FINALIZE, ANSWER, DONE, FAILED, QUERY, CALL, RETURN = range(1, 13)
RESPONSE = 13

#: What is read of a socket at once. More would be memory that the system maps and takes back for every read.
RECEIVE_BYTES = 65_536
MAX_FRAME_BYTES = 64 * 1024 * 1024
#: The tensors of one response of a decoupled model.
MAX_RESPONSE_BYTES = MAX_FRAME_BYTES - 1024 * 1024
#: Layouts that both sides remember; then both forget all of them.
MAX_LAYOUTS = 1024
#: Memory for outputs, and for calls, up to this size stays with an instance from one batch to the next.
KEPT_ROOM_BYTES = 16 * 1024 * 1024

#: The metrics of an instance (``metric_table``): how often its definitions were written anew, and their bytes.
METRICS_HEAD = struct.Struct("<QQ")
#: Where its numbers begin.
METRICS_NUMBERS_AT = 128 * 1024
METRICS_BYTES = METRICS_NUMBERS_AT + 32 * 1024
#: Series of an instance, and bytes of a definition.
MAX_METRICS = 1_000
MAX_METRIC_LINE = 8_192
