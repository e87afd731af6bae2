"""Versions whose answers are kept in the response cache, and those that cannot have one."""

from __future__ import annotations

from dataclasses import replace

from toutates.engine.cache.servable import CachingServable
from toutates.engine.cache.store import LEAST_CACHE_BYTES, ResponseCache
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.table import ServedVersion
from toutates.system.errors import ConfigurationError

__all__ = ["LEAST_CACHE_BYTES", "ResponseCache", "check_cache_settings", "with_cache"]


def check_cache_settings(model: str, configuration: VersionConfiguration) -> None:
    """Refuse a cache for a version whose answers depend on more than their request.

    Raises:
        ConfigurationError: it has sequences, or may answer any number of times.
    """
    settings, given = configuration.settings, configuration.given
    if not settings.response_cache:
        return
    reason = ""
    if settings.sequences is not None:
        reason = f"model {model} with sequence batching scheduler"
    elif given is not None and given.model_transaction_policy.decoupled:
        reason = f"model {model} with 'decoupled' transaction policy"
    if reason:
        raise ConfigurationError(
            f"Response Cache does not currently support {reason}. Please disable the response cache.",
            source=configuration.source,
            key="response_cache",
            remedy="remove it",
        )


def with_cache(served: ServedVersion, cache: ResponseCache) -> ServedVersion:
    """The version with the cache before it."""
    takes_parameters = served.takes_parameters or (lambda: False)
    caching = CachingServable(served.servable, cache, served.model, served.number, takes_parameters)
    return replace(served, servable=caching)
