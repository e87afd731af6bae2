"""The seam between what serves requests and what computes the answers: the interfaces of the engine."""

from __future__ import annotations

from typing import Protocol

from toutates.engine.lane import Batch
from toutates.engine.result import Outputs

__all__ = ["Backend"]


class Backend(Protocol):
    """What one executor runs batches with: an ONNX Runtime session, for instance. Used by one thread at a time.

    Attributes:
        started_ns, ended_ns: when the last computation began and ended, monotonic nanoseconds.
        on_cpu: whether all of a run is on the CPU. Only then can it be quick enough for a worker to do it itself.
        one_thread: whether a run uses no thread but the caller's.
    """

    started_ns: int
    ended_ns: int

    @property
    def on_cpu(self) -> bool: ...

    @property
    def one_thread(self) -> bool: ...

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """Run some rows of a batch: all of it, or after that has failed, those of one request.

        Args:
            batch: whose lane gives the inputs (``Lane.inputs``).
            first: the first of the rows.
            rows: how many.

        Raises:
            RequestError: the run failed; the request hears the text.
        """
        ...

    def close(self) -> None:
        """No run will follow."""
        ...
