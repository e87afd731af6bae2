"""Messages of grpc.health.v1, byte for byte, for there is no package of them among the clients."""

from __future__ import annotations

from typing import Final

from tests.protobuf_fields import field_of

__all__ = ["request_of", "status_of"]

#: ``ServingStatus``, by number.
_STATUSES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def request_of(service: str = "") -> bytes:
    """A HealthCheckRequest."""
    return field_of(1, service.encode()) if service else b""


def status_of(answer: bytes) -> str:
    """The status of a HealthCheckResponse, which is all that it has."""
    if not answer:
        return _STATUSES[0]
    tag, number = answer
    assert tag == 1 << 3, answer
    return _STATUSES[number]
