"""A servable that stands before another one: what it does not do itself is the other's."""

from __future__ import annotations

from toutates.engine.counters import VersionCounters
from toutates.engine.servable import Consumer, Host, Port, Servable
from toutates.engine.statistics import VersionStatistics
from toutates.protocol.signature import Signature

__all__ = ["AroundServable"]


class AroundServable:
    """See ``engine.servable.Servable``. Its ports deal with each request by itself.

    Args:
        servable: what computes.
    """

    def __init__(self, servable: Servable) -> None:
        self._servable = servable

    @property
    def computing(self) -> Servable:
        """What computes."""
        return self._servable

    @property
    def signature(self) -> Signature:
        """See ``Servable``."""
        return self._servable.signature

    @property
    def counters(self) -> VersionCounters:
        """See ``Servable``."""
        return self._servable.counters

    @property
    def ready(self) -> bool:
        """See ``Servable``."""
        return self._servable.ready

    def port(self, consumer: Consumer) -> Port:
        """See ``Servable``."""
        return self._servable.port(consumer)

    def statistics(self) -> VersionStatistics:
        """See ``Servable``."""
        return self._servable.statistics()

    def describe(self, most: int) -> list[str]:
        """See ``Servable``."""
        return self._servable.describe(most)

    async def run(self, host: Host) -> None:
        """See ``Servable``."""
        await self._servable.run(host)

    def close(self, *, workers_ended: bool = False) -> None:
        """See ``Servable``."""
        self._servable.close(workers_ended=workers_ended)

    def free(self) -> None:
        """See ``Servable``."""
        self._servable.free()
