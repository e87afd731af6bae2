"""Makes the exporter of traces, if there is a collector and OpenTelemetry is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toutates.infer.tracing.configuration import TraceOptions
from toutates.system.errors import ConfigurationError

if TYPE_CHECKING:
    from toutates.infer.tracing.exporter import TraceExporter

__all__ = ["open_exporter"]


def open_exporter(options: TraceOptions, version: str) -> tuple[TraceExporter | None, str]:
    """Make the exporter; return it and "", or None and why there is none.

    OpenTelemetry is imported here, before the server serves, because the import takes 0.1 to 0.5 s.

    Args:
        options: the settings of traces.
        version: the version of this server.

    Raises:
        ConfigurationError: a flag asks for traces, and OpenTelemetry is not installed.
    """
    if options.endpoint is None:
        return None, options.unavailable
    remedy = "install toutates[otel]"
    try:
        from toutates.infer.tracing.exporter import TraceExporter
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("opentelemetry")
        problem = "opentelemetry is not installed" if missing else f"opentelemetry cannot be imported: {error}"
        if options.asked_for:
            raise ConfigurationError(problem, key=options.asked_for, remedy=remedy) from error
        return None, f"{problem}; {remedy}"
    return TraceExporter(options.endpoint, version), ""
