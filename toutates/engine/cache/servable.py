"""A version with the response cache before it (``engine.servable.Servable``)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from toutates.engine.around import AroundServable
from toutates.engine.cache.again import Again
from toutates.engine.cache.keys import new_version
from toutates.engine.cache.port import CachedVersion, CachingPort
from toutates.engine.cache.store import Owner, ResponseCache
from toutates.engine.servable import Consumer, Port, Servable
from toutates.engine.statistics import VersionStatistics

__all__ = ["CachingServable"]

logger = logging.getLogger(__name__)


class CachingServable(AroundServable):
    """Any servable that gives one answer per request; only its ports are others.

    Args:
        servable: what computes.
        cache: of the server.
        model: its name.
        number: of the version.
        reads_parameters: whether an answer may depend on what a request says beside its tensors.
    """

    def __init__(
        self, servable: Servable, cache: ResponseCache, model: str, number: int, reads_parameters: Callable[[], bool]
    ) -> None:
        super().__init__(servable)
        self._cache = cache
        self._name = f"model '{model}' version {number}"
        self._owner = Owner(servable.counters.cache)
        self._warned = False
        self._version = CachedVersion(
            cache,
            self._owner,
            new_version(),
            servable.signature,
            reads_parameters,
            self._warn_of_size,
            Again(model, number, servable),
        )

    def port(self, consumer: Consumer) -> Port:
        """See ``Servable``."""
        return CachingPort(self._version, self._servable, consumer)

    def statistics(self) -> VersionStatistics:
        """See ``Servable``."""
        with self._cache.lock:
            counters = replace(self._owner.counters)
        return replace(self._servable.statistics(), cache=counters)

    def describe(self, most: int) -> list[str]:
        """See ``Servable``."""
        with self._cache.lock:
            line = f"response cache: {len(self._owner.keys)} answers; {len(self._version.under_way)} awaited"
        return [line, *self._servable.describe(most)]

    def free(self) -> None:
        """See ``Servable``. Its answers are forgotten."""
        self._cache.forget(self._owner)
        self._servable.free()

    def _warn_of_size(self, size: int) -> None:
        """An answer that is larger than the cache; told once."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "Failed to insert an answer of %s into response cache: it takes %d bytes, and the whole cache has %d; "
                "such answers are computed each time",
                self._name,
                size,
                self._cache.size_bytes,
            )
