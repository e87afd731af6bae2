"""Traces of the server as a whole: their settings, and the exporter where there is a collector."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from toutates.infer.tracing.configuration import TraceOptions
from toutates.infer.tracing.opening import open_exporter
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.settings import TraceSettings
from toutates.system.placement import Placement, running_on
from toutates.system.version import package_version

__all__ = ["Tracing"]

logger = logging.getLogger(__name__)


class Tracing:
    """What workers need for traces, and what has become of those.

    Args:
        options: where traces go, and what is traced.

    Attributes:
        settings: of TraceSetting.
        put: takes requests that are traced; None where there is no collector.

    Raises:
        ConfigurationError: OpenTelemetry is missing.
    """

    def __init__(self, options: TraceOptions) -> None:
        self._exporter, unavailable = open_exporter(options, package_version())
        for warning in options.warnings:
            logger.warning("%s", warning)
        self._endpoint = options.endpoint
        self.settings = TraceSettings(options.defaults, unavailable)
        self.put: Callable[[TracedRequest], None] | None = None if self._exporter is None else self._exporter.put

    def exporting(self, placement: Placement) -> AbstractAsyncContextManager[None]:
        """Send what is traced within the block to the collector, as far as that takes it."""
        if self._exporter is None:
            return nullcontext()
        setting = self.settings.get()
        if setting.levels:
            logger.info("traces of one in %d requests go to %s", setting.rate, self._endpoint)
        return self._exporter.running(partial(running_on, placement.manager, placement.anywhere))

    def counts(self) -> tuple[int, int]:
        """Requests whose spans were sent, and whose spans were lost."""
        if self._exporter is None:
            return 0, 0
        statistics = self._exporter.statistics()
        return statistics.sent, statistics.dropped + statistics.failed
