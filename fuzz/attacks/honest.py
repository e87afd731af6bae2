"""Honest clients, who go on while others attack: one that measures how long each answer takes, and tritonclient.

The one that measures makes inference requests, or asks for the server's health over HTTP, as orchestrators do.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import numpy as np

from fuzz.attacks.models import VICTIM_ADDS
from fuzz.attacks.wire import (
    ACK,
    END_STREAM,
    INFER,
    Code,
    Kind,
    frame,
    framed,
    greeting,
    infer_message,
    request_block,
    unary,
)

__all__ = ["Crowd", "HonestError", "Phase", "Prober", "RawClient"]

#: A server that needs longer counts as stuck.
_PATIENCE_S: Final = 120.0
#: Between two requests of the client that measures, and of tritonclient.
_PAUSE_S: Final = 0.003
_TRITON_PAUSE_S: Final = 0.05
_PROBE_PAUSE_S: Final = 0.05


class HonestError(AssertionError):
    """An honest request was not answered, or wrongly."""


class RawClient:
    """One connection, one call at a time; its calls cost so little that their time is the server's.

    Raises:
        HonestError: by all methods: the server did not answer rightly.
    """

    pause_s: ClassVar[float] = _PAUSE_S

    def __init__(self, port: int, key: str = "", model: str = "victim", authority: Path | None = None) -> None:
        self._model = model
        #: of the text model, by its first answer
        self._vector = b""
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authority is not None:
            context = ssl.create_default_context(cafile=authority)
            context.set_alpn_protocols(["h2"])
            self._sock = context.wrap_socket(self._sock, server_hostname="127.0.0.1")
        self._block = request_block(INFER, *_headers(key).items())
        self._stream_id = -1
        self._received = b""
        self._sock.sendall(greeting())

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def call(self, number: int) -> None:
        """Ask the model, and see that its answer is right."""
        self._stream_id += 2
        if self._model == "victim":
            row = struct.pack("<4i", number, number + 1, number + 2, number + 3)
            expected = struct.pack("<4i", *(VICTIM_ADDS + number + at for at in range(4)))
            request = infer_message(self._model, [1, 4], row)
        else:
            request = infer_message(self._model, [1, 1], struct.pack("<I", 3) + b"one", "BYTES", "text")
            expected = self._vector
        try:
            self._sock.sendall(unary(self._stream_id, self._block, framed(request)))
            message = self._answer()
        except OSError as error:
            raise HonestError(f"the connection broke: {error!r}") from error
        self._vector = self._vector or message[-4:]
        if not message.endswith(expected):
            raise HonestError(f"answered {message!r} instead of {expected!r}")

    def _answer(self) -> bytes:
        message = b""
        while True:
            kind, flags, stream_id, payload = self._frame()
            if kind == Kind.SETTINGS and not flags & ACK:
                self._sock.sendall(frame(Kind.SETTINGS, ACK))
            elif kind == Kind.PING and not flags & ACK:
                self._sock.sendall(frame(Kind.PING, ACK, 0, payload))
            elif kind == Kind.GOAWAY:
                code = Code(int.from_bytes(payload[4:8], "big")).name
                raise HonestError(f"GOAWAY {code}: {payload[8:].decode(errors='replace')}")
            elif kind == Kind.RST_STREAM and stream_id == self._stream_id:
                raise HonestError(f"RST_STREAM {Code(int.from_bytes(payload, 'big')).name}")
            elif kind == Kind.DATA:
                message += payload
            elif kind == Kind.HEADERS and flags & END_STREAM:
                if not message:
                    raise HonestError(f"no message; trailers {payload!r}")
                return message

    def _frame(self) -> tuple[int, int, int, bytes]:
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
            data = self._sock.recv(65_536)
            if not data:
                raise HonestError("the server closed the connection")
            self._received += data
        end = 9 + int.from_bytes(self._received[:3], "big")
        head, payload, self._received = self._received[:9], self._received[9:end], self._received[end:]
        return head[3], head[4], int.from_bytes(head[5:9], "big"), payload


class Newcomer:
    """Asks the model, each time on a new connection."""

    pause_s: ClassVar[float] = _PAUSE_S

    def __init__(self, port: int, key: str = "", model: str = "victim", authority: Path | None = None) -> None:
        self._connect = partial(RawClient, port, key, model, authority)

    def close(self) -> None:
        """Nothing is kept."""

    def call(self, number: int) -> None:
        """See ``RawClient``."""
        try:
            client = self._connect()
        except OSError as error:
            raise HonestError(f"no connection: {error!r}") from error
        try:
            client.call(number)
        finally:
            client.close()


class Prober:
    """Asks for the server's health, or for another page, each time on a new connection.

    Raises:
        HonestError: by ``call``: the server did not say that it lives, or did not give the page.
    """

    pause_s: ClassVar[float] = _PROBE_PAUSE_S

    def __init__(self, port: int, path: str = "") -> None:
        self._port = port
        self._path = path

    def close(self) -> None:
        """Nothing is kept."""

    def call(self, number: int) -> None:
        """Ask once."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", self._path or "/health/live")
            answer = connection.getresponse()
            said = answer.status, answer.read()
        except (OSError, HTTPException) as error:
            raise HonestError(f"probe {number} was not answered: {error!r}") from error
        finally:
            connection.close()
        if said[0] != 200 or (not self._path and said[1] != b"live\n"):
            raise HonestError(f"probe {number} was answered {said}")


@dataclass(frozen=True, slots=True)
class Phase:
    """What honest clients saw for a while.

    Attributes:
        requests: answered rightly, those of tritonclient included.
        p50_ms, p99_ms, worst_ms: of the client that measures.
    """

    requests: int
    p50_ms: float
    p99_ms: float
    worst_ms: float


class Crowd:
    """Both clients, each in a thread, from ``with`` to its end. A request that fails makes ``phase`` raise.

    Args:
        port: of the server.
        with_triton: whether tritonclient is among them; it has no wheels for free-threaded Python.
        health_port: of the server's HTTP side, where it is probes whose waits are measured.
        path: that is asked for there in their place; "" for none.
        key: that they send; "" for none.
        model: whose waits are measured, where it is no probe: "victim" or "texts".
        authority: who has issued the server's certificate (PEM), where gRPC is with TLS.
        newcomer: whether each request of the client that measures comes on a new connection.
    """

    def __init__(
        self,
        port: int,
        *,
        with_triton: bool = True,
        health_port: int | None = None,
        path: str = "",
        key: str = "",
        model: str = "victim",
        authority: Path | None = None,
        newcomer: bool = False,
    ) -> None:
        self._key, self._model, self._authority = key, model, authority
        self._asks: type[RawClient | Newcomer] = Newcomer if newcomer else RawClient
        self._path = path
        self._port = port
        self._health_port = health_port
        self._over = threading.Event()
        #: (start, end) of each call, monotonic seconds
        self._calls: list[tuple[float, float]] = []
        #: when the call that is under way began, or the next one may begin
        self._next_start = 0.0
        self._triton_ends: list[float] = []
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guard, args=(self._call_and_measure,))]
        if with_triton and _has_triton():
            self._threads.append(threading.Thread(target=self._guard, args=(self._call_with_triton,)))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def wait_begun(self) -> None:
        """Wait until each client has its connection and had its first answer.

        Raises:
            HonestError: a request failed, or was not answered.
        """
        patience_ends = time.monotonic() + _PATIENCE_S
        while not self._calls or (len(self._threads) > 1 and not self._triton_ends):
            for failure in self._failures:
                raise HonestError(f"{type(failure).__name__}: {failure}") from failure
            if time.monotonic() > patience_ends:
                raise HonestError("the first honest request has not been answered")
            time.sleep(_PAUSE_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def phase(self, started: float, ended: float) -> Phase:
        """What was seen between two moments of ``time.monotonic``: of all calls that were then under way.

        Waits for the last of them to be answered, since the longest wait may be the one that is not over.

        Raises:
            HonestError: a request failed at any time so far, or there was none.
        """
        patience_ends = time.monotonic() + _PATIENCE_S
        while True:
            for failure in self._failures:
                raise HonestError(f"{type(failure).__name__}: {failure}") from failure
            if self._next_start > ended:
                break
            if time.monotonic() > patience_ends:
                raise HonestError(f"an honest request of {ended - started:.1f} s has not been answered yet")
            time.sleep(_PAUSE_S)
        took = sorted(end - start for start, end in self._calls if start <= ended and end >= started)
        if not took:
            raise HonestError(f"there was no honest request in {ended - started:.1f} s")
        triton = sum(started <= end <= ended for end in self._triton_ends)
        return Phase(
            len(took) + triton, _percentile_ms(took, 0.5), _percentile_ms(took, 0.99), _percentile_ms(took, 1.0)
        )

    def _guard(self, talk: Any) -> None:
        try:
            talk()
        except BaseException as error:
            self._failures.append(error)

    def _call_and_measure(self) -> None:
        probed = self._health_port
        if probed is None:
            client: RawClient | Newcomer | Prober = self._asks(self._port, self._key, self._model, self._authority)
        else:
            client = Prober(probed, self._path)
        try:
            number = 0
            while not self._over.is_set():
                self._next_start = started = time.monotonic()
                client.call(number)
                ended = time.monotonic()
                self._calls.append((started, ended))
                number += 1
                time.sleep(client.pause_s)
        finally:
            client.close()

    def _call_with_triton(self) -> None:
        with triton_client(self._port, self._authority) as client:
            number = 0
            while not self._over.is_set():
                call_triton(client, number, self._key)
                self._triton_ends.append(time.monotonic())
                number += 1
                time.sleep(_TRITON_PAUSE_S)


def _percentile_ms(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending), max(1, math.ceil(share * len(ascending)))) - 1] * 1_000


def _headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _has_triton() -> bool:
    try:
        import tritonclient.grpc  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def triton_client(port: int, authority: Path | None = None) -> Iterator[Any]:
    """A tritonclient whose connection no other one shares, with TLS where the server's certificate has an authority."""
    from tritonclient.grpc import InferenceServerClient

    options = [("grpc.use_local_subchannel_pool", 1)]
    tls: dict[str, Any] = {} if authority is None else {"ssl": True, "root_certificates": str(authority)}
    with InferenceServerClient(f"127.0.0.1:{port}", channel_args=options, **tls) as client:
        yield client


def call_triton(client: Any, number: int, key: str = "") -> None:
    """Ask the model "victim" by tritonclient.

    Raises:
        HonestError: the answer is wrong.
    """
    from tritonclient.grpc import InferInput

    row = np.arange(number, number + 4, dtype=np.int32).reshape(1, 4)
    tensor = InferInput("INPUT", row.shape, "INT32")
    tensor.set_data_from_numpy(row)
    answer = client.infer("victim", [tensor], headers=_headers(key), client_timeout=_PATIENCE_S).as_numpy("OUTPUT")
    if not np.array_equal(answer, row + VICTIM_ADDS):
        raise HonestError(f"tritonclient was answered {answer} instead of {row + VICTIM_ADDS}")
