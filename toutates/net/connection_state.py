"""The state of a connection, as ``/debug/tasks`` shows it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConnectionState"]


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """One connection at one moment.

    Attributes:
        peer: its address.
        phase: ``handshake`` of TLS, ``open``, ``leaving`` once its peer is told to leave, by GOAWAY or the next answer,
            or ``closing``.
        tls: whether it is encrypted.
        age_s: seconds since it was accepted.
        silent_s: seconds since something was received.
        open_calls: streams that are not closed.
        received_bytes, sent_bytes: so far.
        unsent_bytes: of responses that wait for the socket.
    """

    peer: str
    phase: str
    tls: bool
    age_s: float
    silent_s: float
    open_calls: int
    received_bytes: int
    sent_bytes: int
    unsent_bytes: int
