"""Archives that somebody else's server sends: their pace counts from the first byte of the head on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from toutates.api.torchserve import downloads
from toutates.api.torchserve.answers import Problem
from toutates.api.torchserve.downloads import Downloads


class Clock:
    """Ten seconds pass with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10.0
        return self.now


@contextmanager
def dripping(beginning: bytes) -> Iterator[str]:
    """The URL of a server that goes on with a byte now and then, until its peer has left."""

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(beginning)
            try:
                while True:
                    peer.sendall(b"x")
                    over.wait(0.005)
            except OSError:
                over.set()

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert over.wait(120)
        thread.join()


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_server_that_sends_a_byte_now_and_then_is_left(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    monkeypatch.setattr(downloads, "time", Clock())

    async def download(root: str) -> None:
        async with Downloads(None, [root]).archive(root + "x.mar"):
            raise AssertionError("there is no archive")

    with dripping(beginning) as root, pytest.raises(Problem, match="Failed to download archive"):
        trio.run(download, root)
