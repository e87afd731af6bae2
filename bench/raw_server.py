"""The least that large requests take on a machine: bytes received, one copy, the run, and bytes sent. No protocol.

A connection begins with the number of a model, in HELLO_BYTES. Then its client sends rows and gets answers, one by one.

    python -m bench.raw_server --port PORT MODEL.onnx:BYTES_IN:BYTES_OUT ...
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from bench.client import Outcome, percentile
from bench.errors import NoFigure
from bench.protocols import GRPC
from bench.question import Question

__all__ = ["HELLO_BYTES", "RawLoad", "model_argument"]

HELLO_BYTES: Final = 4
_SILENCE_SECONDS: Final = 60.0
_AT_ONCE: Final = 1_048_576


def model_argument(question_model: Any) -> str:
    """The command-line argument for a model of the benchmark."""
    size, answer = (4 * int(np.prod(row)) for row in (question_model.row, question_model.output_row))
    return f"{question_model.path}:{size}:{answer}"


class _Model:
    """A model with its buffers bound."""

    def __init__(self, argument: str) -> None:
        path, size, answer = argument.rsplit(":", 2)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.size = int(size)
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._row = np.zeros((1, self.size // 4), np.float32)
        self._answer = np.zeros((1, int(answer) // 4), np.float32)
        self._binding = self._session.io_binding()
        for bind, tensor, array in (
            (self._binding.bind_input, self._session.get_inputs()[0], self._row),
            (self._binding.bind_output, self._session.get_outputs()[0], self._answer),
        ):
            bind(tensor.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self._bytes = self._row.reshape(-1).view(np.uint8)
        self._sent = np.zeros(int(answer), np.uint8)

    def run(self, received: Any) -> Any:
        """The answer to what was received, which is copied once, as the answer is."""
        self._bytes[:] = received
        self._session.run_with_iobinding(self._binding)
        self._sent[:] = self._answer.reshape(-1).view(np.uint8)
        return self._sent


class _Connection:
    """A connection, with memory for what it receives."""

    def __init__(self, sock: socket.socket, models: Sequence[_Model]) -> None:
        self._sock = sock
        self._models = models
        self._model: _Model | None = None
        self._received = np.zeros(HELLO_BYTES, np.uint8)
        self._at = 0

    def read(self) -> bool:
        """Read once, and answer what is whole; False at the peer's end."""
        try:
            count = self._sock.recv_into(self._received.data[self._at :])
        except OSError:
            return False
        self._at += count
        if count and self._at == len(self._received):
            self._at = 0
            if self._model is None:
                self._model = self._models[int.from_bytes(self._received.tobytes(), "big")]
                self._received = np.zeros(self._model.size, np.uint8)
            else:
                self._sock.sendall(self._model.run(self._received))
        return count > 0


def serve(port: int, arguments: Sequence[str]) -> None:
    """Serve models, until the process is ended."""
    models = [_Model(argument) for argument in arguments]
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    connections: dict[int, tuple[socket.socket, _Connection]] = {}
    while True:
        for number, _ in epoll.poll():
            if number == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[sock.fileno()] = sock, _Connection(sock, models)
                epoll.register(sock.fileno(), select.EPOLLIN)
            elif not connections[number][1].read():
                epoll.unregister(number)
                connections.pop(number)[0].close()


@dataclass(frozen=True, slots=True)
class RawLoad:
    """A load of that server, named like that of h2load which it stands beside.

    Attributes:
        connections: with one request each.
        numbers: of the models, by name.
    """

    connections: int
    numbers: dict[str, int]

    @property
    def name(self) -> str:
        return f"{self.connections}x1"

    @property
    def protocol(self) -> str:
        """It has none, and stands beside loads of gRPC."""
        return GRPC

    @property
    def concurrency(self) -> int:
        return self.connections

    @property
    def timed(self) -> bool:
        return False

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``."""
        model = question.model
        body = memoryview(bytes(4 * int(np.prod(model.row))))
        answer = memoryview(bytearray(4 * int(np.prod(model.output_row))))
        epoll = select.epoll()
        clients: dict[int, list[Any]] = {}
        host, _, port = address.rpartition(":")
        times: list[int] = []
        began = time.perf_counter()
        try:
            for _ in range(min(self.connections, requests)):
                sock = socket.create_connection((host, int(port)))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(self.numbers[model.name].to_bytes(HELLO_BYTES, "big"))
                sock.setblocking(False)
                clients[sock.fileno()] = [sock, body, len(answer), time.perf_counter_ns()]
                epoll.register(sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            left = requests - len(clients)
            while len(times) < requests:
                ready = epoll.poll(_SILENCE_SECONDS)
                if not ready:
                    raise NoFigure("the raw server does not answer")
                for number, mask in ready:
                    client = clients[number]
                    if mask & select.EPOLLOUT:
                        client[1] = client[1][client[0].send(client[1][:_AT_ONCE]) :]
                        if not client[1]:
                            epoll.modify(number, select.EPOLLIN)
                    if mask & select.EPOLLIN:
                        count = client[0].recv_into(answer[: client[2]])
                        if not count:
                            raise NoFigure("the raw server has ended a connection")
                        client[2] -= count
                        if not client[2]:
                            times.append((time.perf_counter_ns() - client[3]) // 1_000)
                            if left:
                                left -= 1
                                client[1:] = [body, len(answer), time.perf_counter_ns()]
                                epoll.modify(number, select.EPOLLIN | select.EPOLLOUT)
        except OSError as error:
            raise NoFigure(f"the raw server's connection broke: {error}") from error
        finally:
            epoll.close()
            for client in clients.values():
                client[0].close()
        times.sort()
        seconds = time.perf_counter() - began
        return Outcome(requests, requests / seconds, percentile(times, 0.5), percentile(times, 0.99))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("models", nargs="+")
    given = parser.parse_args()
    serve(given.port, given.models)


if __name__ == "__main__":
    main()
