"""How much of its allowances one peer has used."""

from __future__ import annotations

from toutates.h2grpc.allowances import Allowance, Meter
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.limits import Limits

__all__ = ["Spending"]


class Spending:
    """The meters of one connection, a ``Meter`` per allowance of ``Limits``, made at the first frame of its kind.

    Args:
        limits: holds the allowances.
    """

    __slots__ = ("_limits", "_meters")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._meters: dict[str, Meter] = {}

    def spend(self, limit: str, frames: str, now_ns: int, work: int, cost: int = 1) -> None:
        """Count one frame of a kind that has an allowance.

        Args:
            limit: the allowance's field in ``Limits``.
            frames: name of such frames, for the error.
            now_ns: the time, monotonic.
            work: calls of the connection so far, and KiB of large responses sent.
            cost: frames that it counts for; more than 1 if it makes us work for each of many streams.

        Raises:
            ConnectionFault: there were too many.
        """
        meter = self._meters.get(limit)
        if meter is None:
            allowance: Allowance = getattr(self._limits, limit)
            meter = self._meters[limit] = Meter(allowance, now_ns, work)
        if not meter.take(now_ns, work, cost):
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {frames}", limit)
