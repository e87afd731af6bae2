"""Large compressed messages, decompressed in the thread beside the worker's, which serves others meanwhile.

zlib does not hold the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toutates.h2grpc.events import InflationDue
from toutates.h2grpc.messages import decompress
from toutates.h2grpc.status import GrpcError, Status
from toutates.net.side_thread import Job

__all__ = ["inflation"]


def inflation(due: InflationDue, take: Callable[[InflationDue, bytes | GrpcError], None]) -> Job:
    """The job of decompressing a message; it is skipped if the message's call has ended meanwhile.

    Args:
        due: the message.
        take: gets what became of it, or the error that its call ends with, on the worker's thread.
    """
    return lambda: partial(take, due, inflate(due)) if due.call.open else None


def inflate(due: InflationDue) -> bytes | GrpcError:
    """What the message becomes, or the error that its call ends with."""
    try:
        return decompress(due.message, due.encoding, due.max_size, due.budget)
    except GrpcError as error:
        return error.with_traceback(None)
    except MemoryError:
        return GrpcError(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
