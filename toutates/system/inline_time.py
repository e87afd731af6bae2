"""How long a thread may yet run batches inline, beside its own work.

A worker serves every connection of its thread, so the inline runs of one of its rounds are bounded in time, those of
all models together: a client may ask hundreds of models at once. The worker sets the time at the beginning of each
round (``net.worker``). Whoever runs a batch inline takes off what the run took, and nobody begins one once nothing is
left: executors then have the batches (``engine.supertensor``). It is here because ``net`` and ``engine`` may not import
each other. A thread without rounds has no bound in time.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["INLINE_TIME", "NO_BOUND_NS"]

#: More than a thread spends in its life.
NO_BOUND_NS: Final = 2**62


class InlineTime(threading.local):
    """Each thread has its own.

    Attributes:
        left_ns: what is left, nanoseconds; 0 or less for nothing. The run that begins last may take more than there is.
    """

    left_ns: int = NO_BOUND_NS


INLINE_TIME: Final = InlineTime()
