"""What the connections of one worker have in common."""

from __future__ import annotations

from collections import Counter

from toutates.h2grpc.allowances import Allowance
from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import Inflater
from toutates.h2grpc.wire import Wire

__all__ = ["Shared"]


class Shared:
    """Used by one thread, which makes it.

    Args:
        buffer_bytes: bytes that the connections may hold for slow peers, together; None for as many as they like.
        limit_hits: how often each limit was met, by its name in ``limits.LIMIT_NAMES``; other threads may read it.
        inflation: what compressed messages may become; None for ``Limits``' default.

    Attributes:
        wire: see there.
        budget: the memory for slow peers.
        inflater: decompresses messages.
    """

    __slots__ = ("budget", "inflater", "limit_hits", "wire")

    def __init__(
        self,
        buffer_bytes: int | None = None,
        limit_hits: Counter[str] | None = None,
        inflation: Allowance | None = None,
    ) -> None:
        self.wire = Wire()
        self.budget = MemoryBudget(2**63 - 1 if buffer_bytes is None else buffer_bytes)
        self.inflater = Inflater(Limits().inflation if inflation is None else inflation)
        self.limit_hits: Counter[str] = Counter() if limit_hits is None else limit_hits
