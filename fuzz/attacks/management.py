"""TorchServe's management API: archives that are dear to look at, URLs that only look allowed, and slow downloads.

Honest are those who list the models meanwhile. What is downloaded comes from the attacker, at 127.0.0.2 and the port of
the management API, so that server and attacker both know it.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from tests.ports import free_port
from tests.torchserve_archives import contents, mar

__all__ = ["BlankHandlers", "DrippingDownloads", "LyingTables", "OutsideUrls", "write_lying_zip"]

_HOST: Final = "127.0.0.2"
_NEWLINES: Final = 1_000_000
_ENTRIES: Final = 400_000


class _Management(Attack):
    """Against a server that imports archives."""

    on_management = True

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``."""
        (folder / "store").mkdir(exist_ok=True)
        port = free_port()
        return (
            *("--model-control-mode", "explicit", "--load-models", "victim"),
            *("--torchserve-api", "--torchserve-management-addr", f"127.0.0.1:{port}"),
            *("--torchserve-model-store", str(folder / "store")),
            *("--torchserve-allowed-urls", f"http://{_HOST}:{port}/good/"),
        )


async def _ask(peer: Peer, method: str, path: str) -> None:
    """One request, and its answer."""
    before = peer.answered
    await peer.send(f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode(), 1)
    while peer.answered == before:
        await peer.wait_answer()


class BlankHandlers(_Management):
    """Archives of a kilobyte, whose handlers are long and say nothing."""

    name = "blank-handlers"
    summary = "archives whose handler is a megabyte of newlines, registered and unregistered again and again"
    limit = "a megabyte of a handler is looked at, and no regular expression takes longer than its text"
    stops = ("HTTP/1.1 200",)
    connections = 2

    def __init__(self) -> None:
        self._numbers = count()

    def flags(self, folder: Path) -> Sequence[str]:
        flags = super().flags(folder)
        mar(folder / "store" / "blank.mar", contents(files={"handler.py": "\n" * _NEWLINES}))
        return flags

    async def strike(self, peer: Peer) -> None:
        while True:
            name = f"blank-{next(self._numbers)}"
            await _ask(peer, "POST", f"/models?url=blank.mar&model_name={name}")
            await _ask(peer, "DELETE", f"/models/{name}")


class LyingTables(_Management):
    """Zips whose locator hides how long their table of contents is."""

    name = "lying-tables"
    summary = "a zip of 19 MB whose zip64 locator holds marks of ends, before a table of contents of 400,000 entries"
    limit = "`zipfile` gets 4 MiB of a table of contents and 40,000 entries, wherever it looks for it: 400"
    stops = ("HTTP/1.1 400",)
    connections = 4

    def flags(self, folder: Path) -> Sequence[str]:
        flags = super().flags(folder)
        write_lying_zip(folder / "store" / "lying.mar", _ENTRIES)
        return flags

    async def strike(self, peer: Peer) -> None:
        while True:
            await _ask(peer, "POST", "/models?url=lying.mar")


def write_lying_zip(path: Path, count: int, extra: int = 0) -> Path:
    """A zip of a table of contents alone, whose length its zip64 record has; whoever looks for marks finds another one.

    Args:
        path: of it.
        count: of the entries.
        extra: bytes of each, beside its head.
    """
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", *bytes(4), *[0] * 4, 0, 0, 0, 1, extra, 0, 0, 0, 0, 0)
    table = (entry + b"a" + bytes(extra)) * count
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(table), 0)
    locator = b"PK\x06\x07" + bytes(4) + b"PK\x06\x06PK\x05\x06" + struct.pack("<L", 1)
    path.write_bytes(table + record + locator + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0))
    return path


class _Source(socketserver.ThreadingTCPServer):
    """Sends an archive of a byte a second, redirects from /good/, and has what was asked for."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 100


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        path = self.rfile.readline(4_096).split()[1]
        if path.endswith(b"away.mar"):
            self.wfile.write(b"HTTP/1.1 302 Found\r\nlocation: /good/%2e%2e/evil/evil.mar\r\ncontent-length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        over = threading.Event()
        try:
            while not over.wait(1):
                self.wfile.write(b"x")
        except OSError:
            pass  # the server has left


class _FromSource(_Management):
    """With a server of the attacker's own."""

    _source: _Source | None = None

    def _begin(self, port: int) -> str:
        """What URLs begin with."""
        if self._source is None:
            self._source = _Source((_HOST, port), _Answer)
            threading.Thread(target=self._source.serve_forever, daemon=True).start()
        return f"http://{_HOST}:{port}"


class OutsideUrls(_FromSource):
    """URLs that begin as an allowed one, and lead elsewhere."""

    name = "outside-urls"
    summary = "archives from allowed URLs with `..`, encoded once or twice, or with a user, and by a redirect to such"
    limit = "what is requested is compared, normalised, and again after each redirect: 404, 400"
    stops = ("HTTP/1.1 404", "HTTP/1.1 400")
    connections = 2
    _ways: ClassVar = (
        "/good/../evil/evil.mar",
        "/good/%252e%252e/evil/evil.mar",
        "/good/%25252e%25252e/evil/evil.mar",
        "/good/..%5cevil/evil.mar",
        "@127.0.0.1/good/evil.mar",
        "/good/evil.mar%0d%0ax:y",
        "/good/away.mar",
    )

    async def strike(self, peer: Peer) -> None:
        root = self._begin(peer.port)
        for number in count():
            await _ask(peer, "POST", f"/models?url={root}{self._ways[number % len(self._ways)]}")


class DrippingDownloads(_FromSource):
    """Downloads that never end."""

    name = "dripping-downloads"
    summary = "64 connections that each register an archive which comes by a byte a second"
    limit = "8 downloads at a time and 32 that wait, in threads of their own (503); `--download-min-rate`"
    stops = ("HTTP/1.1 503",)
    connections = 64

    async def strike(self, peer: Peer) -> None:
        root = self._begin(peer.port)
        await _ask(peer, "POST", f"/models?url={root}/good/drip.mar")
        await peer.wait_over()
