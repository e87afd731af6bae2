"""What one peer has used of its allowances."""

from __future__ import annotations

from toutates.h2grpc.allowances import Allowance, Meter
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.limits import Limits

__all__ = ["Spending"]


class Spending:
    """Meters of the allowances in ``Limits``, made when the first frame of a kind comes.

    Args:
        limits: with the allowances.
    """

    __slots__ = ("_limits", "_meters")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._meters: dict[str, Meter] = {}

    def spend(self, limit: str, frames: str, now_ns: int, work: int, cost: int = 1) -> None:
        """One more of the frames that a peer has an allowance of.

        Args:
            limit: the field of ``Limits``.
            frames: what they are called where there are too many.
            now_ns: the time, monotonic.
            work: all the calls and KiB that the connection has seen so far.
            cost: how many it counts for; one that makes us work for each of many streams counts for more.

        Raises:
            ConnectionFault: there were too many.
        """
        meter = self._meters.get(limit)
        if meter is None:
            allowance: Allowance = getattr(self._limits, limit)
            meter = self._meters[limit] = Meter(allowance, now_ns, work)
        if not meter.take(now_ns, work, cost):
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {frames}", limit)
