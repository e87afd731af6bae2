"""What the connections of one driver share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from toutates.h2grpc.allowances import Allowance
from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.frame_heads import FrameHeads
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import MemoryPool
from toutates.h2grpc.messages import Inflater
from toutates.h2grpc.wire import Wire

__all__ = ["Shared"]


class Shared:
    """Made and used by one thread.

    Args:
        budget: counts the memory for slow peers; a number of bytes for one of its own, None for no bound.
        limit_hits: how often each limit was met, by its name in ``limits.LIMIT_NAMES``; other threads may read it.
        inflation: how much compressed messages may become in size; None for the default of ``Limits``.
        pool: has the memory of large messages; None for one of its own.
        http_fields: gives header fields of the answers to peers that speak HTTP/1; None for none.

    Attributes:
        wire: the constants of frames, copied for this thread.
        budget: counts the memory for slow peers.
        inflater: decompresses messages.
        pool: has the memory of large messages.
        frame_heads: for what is received directly.
        http_fields: see above.
    """

    __slots__ = ("budget", "frame_heads", "http_fields", "inflater", "limit_hits", "pool", "wire")

    def __init__(
        self,
        budget: MemoryBudget | int | None = None,
        limit_hits: Counter[str] | None = None,
        inflation: Allowance | None = None,
        pool: MemoryPool | None = None,
        http_fields: Callable[[], bytes] | None = None,
    ) -> None:
        self.wire = Wire()
        self.http_fields = http_fields
        self.budget = (
            budget if isinstance(budget, MemoryBudget) else MemoryBudget(2**63 - 1 if budget is None else budget)
        )
        self.pool = MemoryPool() if pool is None else pool
        self.frame_heads = FrameHeads()
        self.inflater = Inflater(Limits().inflation if inflation is None else inflation)
        self.limit_hits: Counter[str] = Counter() if limit_hits is None else limit_hits
