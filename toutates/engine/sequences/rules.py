"""The rules of a sequence batcher: how many sequences it serves, what it waits for, and when it gives one up."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SequenceRules"]


@dataclass(frozen=True, slots=True)
class SequenceRules:
    """How the sequences of a model are scheduled (Triton's ``sequence_batching``).

    Attributes:
        instances: how many batches may run at once. A sequence stays with one of them.
        slots: sequences that each instance serves at once; others wait in the backlog.
        batch_rows: most rows of a batch.
        by_slot: whether row i of a batch is slot i, with null rows for slots that have no request (``direct``). If not,
            the oldest requests run together, in any row (``oldest``).
        idle_ns: a sequence without a request for so long is given up.
        delay_ns: how long the oldest request may wait for others; 0 for not at all.
        enough_rows: a batch of so many requests does not wait.
        iterative: whether the model may ask for a request once more. A sequence then ends with its request, and a
            request without an id gets one.
        in_order: whether no request of an instance runs before another that could run before it. Of ``oldest``.
    """

    instances: int
    slots: int
    batch_rows: int
    by_slot: bool
    idle_ns: int
    delay_ns: int = 0
    enough_rows: int = 1
    iterative: bool = False
    in_order: bool = False
