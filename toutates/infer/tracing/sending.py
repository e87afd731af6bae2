"""Sends encoded spans to a collector by OTLP over HTTP, as OpenTelemetry's environment variables say.

OpenTelemetry's own exporter takes spans and no bytes, and its encoder costs too much (``encoding``). Source:
OpenTelemetry's specification, "OTLP/HTTP" and "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import gzip
import logging
import random
import time
import zlib
from collections.abc import Callable, Mapping
from threading import Event
from typing import Final

import requests
from opentelemetry.util.re import parse_env_headers
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

__all__ = ["NotTaken", "OtlpSender"]

logger = logging.getLogger(__name__)

#: Time for all attempts together, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise.
_TIMEOUT_S: Final = 10.0
_MAX_ATTEMPTS: Final = 6
#: Statuses after which the same request may succeed ("OTLP/HTTP Response").
_PASSING: Final = frozenset((429, 502, 503, 504))
_COMPRESSIONS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class NotTaken(Exception):
    """The collector did not take what was sent; the text says why."""


class OtlpSender:
    """Sends to one collector. One thread uses it; any thread may call ``stop``.

    Args:
        endpoint: the collector's whole URL.
        version: the version of this server.
        environment: the process's environment variables.
    """

    def __init__(self, endpoint: str, version: str, environment: Mapping[str, str]) -> None:
        def value(name: str) -> str:
            """The variable for traces, or if it is not set, the variable for all signals."""
            of_all = environment.get(f"OTEL_EXPORTER_OTLP_{name}", "")
            return (environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or of_all).strip()

        self._endpoint = endpoint
        self._stopped = Event()
        self._timeout_s = _timeout_s(value("TIMEOUT"))
        self._session = requests.Session()
        # Given with each request, because REQUESTS_CA_BUNDLE would replace a session's.
        self._verify: str | bool = value("CERTIFICATE") or True
        certificate, key = value("CLIENT_CERTIFICATE"), value("CLIENT_KEY")
        self._session.cert = (certificate, key) if certificate and key else certificate or None
        self._session.headers.update({"content-type": "application/x-protobuf", "user-agent": f"toutates/{version}"})
        compression = value("COMPRESSION").lower()
        self._compress = _COMPRESSIONS.get(compression)
        if self._compress is not None:
            self._session.headers["content-encoding"] = compression
        elif compression not in ("", "none"):
            logger.warning("OTEL_EXPORTER_OTLP_COMPRESSION=%.64s is not known; traces are not compressed", compression)
        self._session.headers.update(parse_env_headers(value("HEADERS"), liberal=True))

    def send(self, data: bytes) -> None:
        """Send an ExportTraceServiceRequest. Failures that may pass are tried again until the timeout.

        Raises:
            NotTaken: all attempts failed.
        """
        if self._compress is not None:
            data = self._compress(data)
        deadline_s = time.monotonic() + self._timeout_s
        reason, pause_s = "", 0.0
        for attempt in range(_MAX_ATTEMPTS):
            if attempt and (time.monotonic() + pause_s >= deadline_s or self._stopped.wait(pause_s)):
                break
            pause_s = 2**attempt * random.uniform(0.8, 1.2)
            left_s = max(deadline_s - time.monotonic(), 0.001)
            try:
                answer = self._session.post(
                    self._endpoint, data, timeout=left_s, verify=self._verify, allow_redirects=False
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                reason = str(error)
                if not attempt:
                    pause_s = 0.0  # the collector may have closed a connection that was kept
            else:
                if answer.status_code < 400:
                    return
                reason = f"{answer.status_code} {answer.reason}"
                if answer.status_code not in _PASSING:
                    break
                pause_s = _asked_pause_s(answer, pause_s)
        raise NotTaken(reason)

    def stop(self) -> None:
        """Make no further attempts. Any thread may call it."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connection to the collector."""
        self._session.close()


def _timeout_s(text: str) -> float:
    try:
        return float(text or _TIMEOUT_S)
    except ValueError:
        logger.warning("OTEL_EXPORTER_OTLP_TIMEOUT=%.64s is no number; it is %g seconds", text, _TIMEOUT_S)
        return _TIMEOUT_S


def _asked_pause_s(answer: requests.Response, otherwise_s: float) -> float:
    """The pause that ``Retry-After`` asks for, as a number or a date (RFC 9110 section 10.2.3)."""
    value = answer.headers.get("retry-after")
    try:
        return Retry().parse_retry_after(value) if value else otherwise_s
    except InvalidHeader:
        return otherwise_s
