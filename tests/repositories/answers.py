"""A web server of the tests, with or without TLS: what it answers is a function of the request."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Answer", "Answers", "answering", "dripping"]


@dataclass
class Answer:
    """An answer.

    Attributes:
        body: its content; of HEAD none is sent.
        status: HTTP's.
        headers: beside Content-Length, which may be among them.
        cut: bytes after which the connection ends; None for no cut.
        pause_s: seconds before each byte of the content; 0 for all at once.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    pause_s: float = 0.0


@dataclass
class Answers:
    """A running server.

    Attributes:
        url: of it.
        answer: what it answers, by method, path with its query, and headers.
        requests: methods, paths and headers that have come.
    """

    url: str
    answer: Callable[[str, str, Mapping[str, str]], Answer]
    requests: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)


@contextmanager
def answering(
    answer: Callable[[str, str, Mapping[str, str]], Answer], context: ssl.SSLContext | None = None
) -> Iterator[Answers]:
    """Such a server, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        do_HEAD = do_POST = do_GET

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {key.lower(): value for key, value in self.headers.items()}
            here.requests.append((self.command, self.path, headers))
            given = here.answer(self.command, self.path, headers)
            self.send_response(given.status)
            for key, value in {"Content-Length": str(len(given.body)), **given.headers}.items():
                if value:
                    self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD" and not given.pause_s:
                self.wfile.write(given.body[: given.cut])
            elif self.command != "HEAD":
                for byte in given.body[: given.cut]:
                    time.sleep(given.pause_s)
                    self.wfile.write(bytes([byte]))
            if given.cut is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that hangs up

    with Server(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        here = Answers(f"{scheme}://127.0.0.1:{server.server_address[1]}", answer)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def dripping(begins: bytes, goes_on: bytes) -> Iterator[str]:
    """The URL of a server each of whose answers begins so, and goes on so 300 times, a hundred times a second."""

    def drip() -> None:
        while not ended.is_set():
            with suppress(OSError):
                peer, _ = listener.accept()
                with peer:
                    peer.recv(65_536)
                    peer.sendall(begins)
                    for _ in range(300):
                        peer.sendall(goes_on)
                        ended.wait(0.01)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
