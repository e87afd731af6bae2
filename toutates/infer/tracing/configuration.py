"""Reads where traces go and what is traced at the start, from flags and from OpenTelemetry's environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from toutates.infer.tracing.settings import LEVELS, OFF, TraceSetting
from toutates.system.errors import ConfigurationError

__all__ = ["LEVEL_NAMES", "NO_ENDPOINT", "TraceOptions", "read_trace_options"]

#: Values of ``--trace-level``.
LEVEL_NAMES: Final = (OFF, *LEVELS)

ENDPOINT_FLAG: Final = "--trace-endpoint"
#: OpenTelemetry's specification, "OpenTelemetry Protocol Exporter": the second is a base, to which a path is added.
_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_BASE_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_PATH: Final = "v1/traces"
#: OpenTelemetry's variables that this server does not read, and what it uses in their place.
_WITHOUT_EFFECT: Final = {
    "OTEL_SDK_DISABLED": "traces are turned off by --trace-level OFF",
    "OTEL_TRACES_EXPORTER": "traces are sent by OTLP, or not at all with --trace-level OFF",
    "OTEL_TRACES_SAMPLER": "--trace-rate and the callers decide what is traced",
}

NO_ENDPOINT: Final = f"there is no collector to send to; start the server with {ENDPOINT_FLAG} or {_BASE_ENDPOINT}"


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The settings of traces that flags and environment give.

    Attributes:
        endpoint: the whole URL of the collector; None if there is no collector.
        unavailable: why there is no collector, told to a caller who turns traces on.
        asked_for: the flag that asks for traces; "" for none, and then a missing collector or library is no error.
        defaults: the trace settings until TraceSetting changes them.
        warnings: variables of the environment that have no effect, one sentence each.
    """

    endpoint: str | None = None
    unavailable: str = NO_ENDPOINT
    asked_for: str = ""
    defaults: TraceSetting = field(default_factory=TraceSetting)
    warnings: tuple[str, ...] = ()


def read_trace_options(
    environment: Mapping[str, str],
    *,
    endpoint: str | None = None,
    levels: Sequence[str] = (),
    rate: int | None = None,
    count: int | None = None,
) -> TraceOptions:
    """Read the settings of traces from the flags that are given, and from the environment.

    Nothing is traced until a flag or TraceSetting asks for it. A collector that only the environment names does not ask
    for it: the variable may be set for every process of the machine.

    Raises:
        ConfigurationError: a flag cannot be used. One that asks for traces that would go nowhere has a warning.
    """
    if OFF in levels and len(levels) > 1:
        raise ConfigurationError(
            f"{OFF} stands alone", key="--trace-level", value=" ".join(levels), remedy="leave out the others, or it"
        )
    given = {ENDPOINT_FLAG: endpoint, "--trace-rate": rate, "--trace-count": count, "--trace-level": levels or None}
    asked_for = "" if OFF in levels else next((flag for flag, value in given.items() if value is not None), "")
    chosen = tuple(level for level in LEVELS if level in levels) or (LEVELS[:1] if asked_for else ())
    defaults = TraceSetting(
        chosen,
        TraceSetting().rate if rate is None else rate,
        TraceSetting().count if count is None else count,
    )
    try:
        url = _checked(ENDPOINT_FLAG, endpoint, whole=False) if endpoint is not None else _from_environment(environment)
    except ConfigurationError as error:
        if endpoint is not None or asked_for:
            raise
        return TraceOptions(None, str(error), "", defaults, (f"nothing can be traced: {error}",))
    if url is None and asked_for:
        problem = f"{asked_for}: nothing is traced, because there is no collector to send traces to"
        warning = f"{problem}; add {ENDPOINT_FLAG} URL, or set {_BASE_ENDPOINT}"
        return TraceOptions(None, NO_ENDPOINT, "", defaults, (warning,))
    warnings = () if url is None else _warnings(environment, by_flag=endpoint is not None)
    return TraceOptions(url, NO_ENDPOINT if url is None else "", asked_for, defaults, warnings)


def _warnings(environment: Mapping[str, str], *, by_flag: bool) -> tuple[str, ...]:
    """Sentences about OpenTelemetry's variables that have no effect."""
    found = [
        f"{name}={environment[name]} has no effect: {reason}"
        for name, reason in _WITHOUT_EFFECT.items()
        if environment.get(name)
    ]
    name = next((name for name in _PROTOCOLS if environment.get(name)), "")
    if by_flag and name and environment[name] != _PROTOCOL:
        found.append(
            f"{name}={environment[name]} has no effect: traces are sent by {_PROTOCOL} to the endpoint that "
            f"{ENDPOINT_FLAG} names"
        )
    return tuple(found)


def _from_environment(environment: Mapping[str, str]) -> str | None:
    variable = next((name for name in (_TRACES_ENDPOINT, _BASE_ENDPOINT) if environment.get(name)), None)
    if variable is None:
        return None
    for name in _PROTOCOLS:
        protocol = environment.get(name)
        if protocol:
            if protocol != _PROTOCOL:
                raise ConfigurationError(
                    f"traces are sent by {_PROTOCOL} only",
                    key=name,
                    value=protocol,
                    remedy=f"unset it and name the collector's port for that, or use {ENDPOINT_FLAG}",
                )
            break
    return _checked(variable, environment[variable], whole=variable == _TRACES_ENDPOINT)


def _checked(key: str, url: str, *, whole: bool) -> str:
    """Check a URL, and complete it with the path of OTLP.

    Args:
        key: the flag or variable that has the URL.
        url: the URL, as given.
        whole: whether it is complete. Otherwise a variable's URL lacks the path, and a flag's does if it has no path.

    Raises:
        ConfigurationError: the URL cannot be used.
    """
    remedy = "write http://HOST:4318 or https://HOST:4318, or a whole URL with its path"
    # A URL with a user may have a password, which must not be shown.
    shown = url if "@" not in url else None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"is not a URL: {error}", key=key, value=shown, remedy=remedy) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not url.isascii() or " " in url:
        raise ConfigurationError("is not an http or https URL", key=key, value=shown, remedy=remedy)
    if parts.username is not None:
        raise ConfigurationError(
            "must not hold a password", key=key, remedy="send it as a header, by OTEL_EXPORTER_OTLP_HEADERS"
        )
    bare = parts.path in ("", "/")
    if whole or (key == ENDPOINT_FLAG and not bare):
        return url
    return f"{url.removesuffix('/')}/{_PATH}"
