"""What every attack is: some connections, and what is done to the server over each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from fuzz.attacks.peer import Peer

__all__ = ["Attack"]


class Attack:
    """An attack. Stateless between connections but for what it has prepared, so that preparing costs it only once.

    Attributes:
        name: for the command line.
        cve: the vulnerability that made it known, or "".
        summary: what it does, for the table.
        limit: what stops it, with flag and default, for the table.
        stops: what the server answers once it is stopped: entries of ``Tally.endings`` or ``Tally.answers``, or their
            first words. Empty where nothing has to be stopped, because honest requests are all it costs.
        connections: at a time; each begins anew once it has ended.
        receive_buffer: bytes of the socket's, where the attacker does not read; 0 leaves that to the system.
        reads: whether what the server answers is read at all.
        answers_pings: whether the server's PINGs are answered.
        freezes: whether the process is to be suspended, as if its machine were gone, once every connection has said
            ``peer.note_ready``.
        on_http: whether it attacks the HTTP side (``--metrics-addr``) instead of the gRPC port. Then the honest client
            whose waits are measured is one that asks /health/live.
        on_management: whether it attacks TorchServe's management API, which its flags name. Then the honest client
            whose waits are measured lists the models there.
        honest_model: whose waits are measured where it is none of these: "victim", or "texts".
        on_new_connections: whether the honest client whose waits are measured makes a new connection for each request.
        honest_key: that honest clients send, where the server asks for keys; "" for none.
        spare_mib: address space that the server is left during the attack, or 0 for all there is.
        authority: the certificate (PEM) of who has issued the server's, once its flags have it speak TLS; None for
            clear text. Honest clients trust it; the attack's connections are those of TCP all the same.
    """

    name: ClassVar[str]
    cve: ClassVar[str] = ""
    summary: ClassVar[str]
    limit: ClassVar[str]
    stops: ClassVar[Sequence[str]]
    connections: ClassVar[int] = 4
    receive_buffer: ClassVar[int] = 0
    reads: ClassVar[bool] = True
    answers_pings: ClassVar[bool] = True
    freezes: ClassVar[bool] = False
    on_http: ClassVar[bool] = False
    on_management: ClassVar[bool] = False
    honest_model: ClassVar[str] = "victim"
    on_new_connections: ClassVar[bool] = False
    honest_key: ClassVar[str] = ""
    spare_mib: ClassVar[int] = 0
    authority: Path | None = None

    def flags(self, folder: Path) -> Sequence[str]:
        """What the server is to be started with besides; files that it needs are written into a folder."""
        return ()

    def prepare(self) -> None:
        """Make what is sent, where that takes long. It is not counted as the attack's cost."""

    def tidy(self, host: str, port: int) -> None:
        """Take back what stays in the server, or on the machine, when the attacker's connections have ended."""

    def times_stopped(self, answers: Mapping[str, int], endings: Mapping[str, int]) -> int:
        """How many connections or calls ended as ``stops`` says."""
        return sum(
            count
            for seen in (answers, endings)
            for name, count in seen.items()
            if name in self.stops or name.split()[0] in self.stops
        )

    async def strike(self, peer: Peer) -> None:
        """Attack over one connection, from its first byte; returns, or is interrupted by Ended, when that is over."""
        raise NotImplementedError
