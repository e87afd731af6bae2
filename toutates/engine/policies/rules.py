"""What a model's configuration says of its queue and of the sizes of its batches: Triton's ``dynamic_batching``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

__all__ = ["BatchingRules", "QueuePolicy"]

#: Parameters of requests have 64 bits. A negative one is the large one of the same bits, as with Triton.
_BITS: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long requests of one priority may wait, and how many.

    Attributes:
        max_size: requests that may wait; 0 for any number.
        timeout_us: a request that has waited for so long is refused or delayed; 0 for never.
        delays: whether it is delayed: it runs after all others of its priority, without a further timeout.
        allow_override: whether a request may say a shorter time.
    """

    max_size: int = 0
    timeout_us: int = 0
    delays: bool = False
    allow_override: bool = False

    def timeout_ns(self, asked_us: int) -> int:
        """For how many nanoseconds a request may wait; 0 for any time.

        Args:
            asked_us: what the request says; 0 for nothing.
        """
        asked_us &= _BITS
        if self.allow_override and 0 < asked_us < self.timeout_us:
            return asked_us * 1_000
        return self.timeout_us * 1_000


def _no_policies() -> Mapping[int, QueuePolicy]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BatchingRules:
    """Which requests may run together, and which of them first.

    Attributes:
        most_rows: of a batch; a request has no more.
        preferred_rows: sizes of batches that do not wait; () for ``most_rows`` alone.
        delay_ns: how long a batch of another size may wait, from when its oldest request came.
        levels: how many priorities there are, 1 for the first to run; 0 for one without a number.
        default_level: of requests that say none of these.
        default_policy: of priorities that have none of their own.
        policies: by priority.
    """

    most_rows: int
    preferred_rows: tuple[int, ...] = ()
    delay_ns: int = 0
    levels: int = 0
    default_level: int = 0
    default_policy: QueuePolicy = QueuePolicy()
    policies: Mapping[int, QueuePolicy] = field(default_factory=_no_policies)

    def level_of(self, priority: int) -> int:
        """The priority that a request has which says ``priority``; 0 for nothing."""
        priority &= _BITS
        return priority if 0 < priority <= self.levels else self.default_level

    def policy_of(self, level: int) -> QueuePolicy:
        """The policy of a priority."""
        return self.policies.get(level, self.default_policy)
