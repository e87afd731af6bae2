"""Versions that cannot have a latency target."""

from __future__ import annotations

from toutates.models.config.configuration import VersionConfiguration
from toutates.system.errors import ConfigurationError

__all__ = ["check_latency_target"]


def check_latency_target(model: str, configuration: VersionConfiguration) -> None:
    """Refuse a target for a version whose batches it does not bound, or that no request could meet.

    Raises:
        ConfigurationError: rows wait in pools, belong to sequences, or are those of other models; or a batch may wait
            longer than the target.
    """
    settings, given = configuration.settings, configuration.given
    target_ms = settings.latency_target_ms
    if not target_ms:
        return
    problem = ""
    remedy = "remove it"
    if settings.sequences is not None:
        problem = f"model '{model}' has sequences, whose requests wait for each other"
    elif settings.padding is not None or settings.ragged is not None:
        problem = f"model '{model}' puts rows of different shape together, and what such runs take is not foreseen"
    elif settings.ensemble is not None or (given is not None and given.HasField("ensemble_scheduling")):
        problem = f"model '{model}' is an ensemble"
        remedy = "write it for the models that it is made of"
    elif settings.policies.are_set:
        problem = (
            f"model '{model}' has priorities or timeouts of its queue, so that when a request runs is not foreseen"
        )
    elif settings.max_queue_delay_us >= target_ms * 500:
        problem = f"batches wait {settings.max_queue_delay_us} us for more rows, which is more than half of the target"
        remedy = "write a shorter max_queue_delay_us, or a greater target"
    if problem:
        raise ConfigurationError(
            problem, source=configuration.source, key="latency_target_ms", value=target_ms, remedy=remedy
        )
