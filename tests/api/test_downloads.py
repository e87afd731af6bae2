"""Archives that somebody else's server sends: their pace counts from the first byte of the head on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The URL of a server that gives each peer an answer, and closes."""

    def serve() -> None:
        for answer in answers:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                with suppress(OSError):
                    peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_a_head_that_does_not_end_is_left_after_the_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "time", Clock())

    async def download(root: str) -> None:
        async with Downloads(None, [root], 0).archive(root + "x.mar"):
            raise AssertionError("there is no archive")

    with answering(b"HTTP/1.1 100 Continue\r\n\r\n" * 200_000) as root, pytest.raises(Problem) as error:
        trio.run(download, root)
    assert isinstance(error.value.__cause__, TimeoutError)


def test_the_body_of_a_redirect_is_not_read() -> None:
    async def download(root: str) -> bytes:
        async with Downloads(None, [root]).archive(root + "x.mar") as path:
            return path.read_bytes()

    redirect = b"HTTP/1.1 302 Found\r\nLocation: /y.mar\r\nContent-Length: 99\r\n\r\nx"
    with answering(redirect, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as root:
        assert trio.run(download, root) == b"ok"
