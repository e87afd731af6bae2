"""The task that keeps time for the queue of a version with policies, and tells requests that they will not run.

A request whose time is over is told so though all executors are busy. Whoever finds such a request, which may be a
worker with the lock held, leaves that to the task: there may be thousands of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

import trio

from toutates.engine.alarm import Alarm
from toutates.engine.padded.lanes import Entry
from toutates.engine.policies.queue import PolicyQueue
from toutates.engine.policies.scheduler import Dropped
from toutates.engine.result import BatchResult, PendingRequest, Timing
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import QueueTimeout, RequestError, TooLate

__all__ = ["keep_time", "tell_dropped"]

logger = logging.getLogger(__name__)

_NEVER_NS: Final = 2**62
#: Between two slices.
_PAUSE_S: Final = 0.001
#: What Triton answers, without the model or the request.
_LATE: Final = QueueTimeout("Request timeout expired")
#: What nobody hears, unless the caller's deadline has passed and it waits still.
_ABANDONED: Final = TooLate("Deadline Exceeded")


async def keep_time(supertensor: SuperTensor, queue: PolicyQueue) -> None:
    """Look after the queue until cancelled, in slices: others have the lock and the event loop in between."""
    alarm = Alarm()
    with supertensor.lock:
        queue.ring = alarm.ring
    try:
        while True:
            with supertensor.lock:
                # Also where nothing has expired: what others have dropped may have been the last that waited.
                if queue.expire() or queue.dropped:
                    supertensor.dispatch()
                dropped, queue.dropped = queue.dropped, []
                until_ns = queue.next_expiry_ns() or _NEVER_NS
                queue.sleeps_until_ns = until_ns
            supertensor.executors.hand_over()
            tell_dropped(supertensor, dropped)
            if until_ns <= time.monotonic_ns():
                await trio.sleep(_PAUSE_S)
            else:
                await alarm.wait(until_ns)
    finally:
        with supertensor.lock:
            queue.ring = None


def tell_dropped(supertensor: SuperTensor, dropped: Sequence[Dropped[Entry]]) -> None:
    """Hand requests that will not run back to their ports."""
    now_ns = time.monotonic_ns()
    timing = Timing(now_ns, now_ns, now_ns, now_ns)
    outcomes: dict[tuple[int, RequestError], list[PendingRequest]] = {}
    for entry, is_late in dropped:
        outcomes.setdefault((entry.port, _LATE if is_late else _ABANDONED), []).append(
            (entry.context, 0, entry.rows, None)
        )
    for (port, error), pending in outcomes.items():
        try:
            supertensor.deliver(port, BatchResult(pending, None, error, timing))
        except Exception:
            logger.exception("handing an error to port %d failed; %d requests wait for nothing", port, len(pending))
