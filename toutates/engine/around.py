"""A servable or a backend that stands before another one: what it does not do itself is the other's."""

from __future__ import annotations

from typing import Generic, TypeVar

from toutates.engine.counters import VersionCounters
from toutates.engine.servable import Backend, Consumer, Host, Port, Servable
from toutates.engine.statistics import VersionStatistics
from toutates.protocol.signature import Signature

__all__ = ["AroundBackend", "AroundServable"]

B = TypeVar("B", bound=Backend)


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
    def joins(self) -> bool:
        """See ``Servable``."""
        return self._servable.joins

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


class AroundBackend(Generic[B]):
    """See ``engine.servable.Backend``. Who inherits it runs, and sets the times of the last run.

    Args:
        backend: what computes.
    """

    def __init__(self, backend: B) -> None:
        self._backend = backend
        self.started_ns = 0
        self.ended_ns = 0

    @property
    def on_cpu(self) -> bool:
        """See ``Backend``."""
        return self._backend.on_cpu

    @property
    def one_thread(self) -> bool:
        """See ``Backend``."""
        return self._backend.one_thread

    def close(self) -> None:
        """See ``Backend``."""
        self._backend.close()
