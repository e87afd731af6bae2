"""A load in processes of its own, whose CPU and lag are measured: ``run_load`` here, ``main`` there.

Parent and child speak in pickled messages over the child's standard input and output: the load, then "ready", "go",
how far it is now and then, and what became of it. All clients begin at once, when the last of them has its connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from toutates.bench.answer import ClientSide
from toutates.bench.arrivals import POISSON, Arrivals, make_schedule
from toutates.bench.client_connection import ClientConnection, Request
from toutates.bench.driver import Driver, Unreachable
from toutates.bench.endpoint import GRPC, Endpoint, Tls
from toutates.bench.http1_connection import HttpConnection, HttpRequest
from toutates.bench.outcome import Outcome, Record, merge
from toutates.bench.pipes import read_message, send_message
from toutates.bench.sequences import Sequences, SequenceSource
from toutates.bench.source import Rotation
from toutates.bench.streams import StreamingConnection, StreamRequest
from toutates.bench.tally import Tally
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.system.errors import ConfigurationError

__all__ = ["Asked", "Load", "LoadFailed", "LoadResult", "Watcher", "run_load"]

#: Of prctl(2): nanoseconds by which a wait may be longer than asked for; usually 50 us.
_PR_SET_TIMERSLACK: Final = 29
#: Beside the load's own time: for starting Python and NumPy, and for connections.
_START_SECONDS: Final = 60.0
#: A closed loop sends these many requests of the mix in turn, over and over.
_ORDER: Final = 8_192
#: The prefix of gRPC's messages.
_PREFIX: Final = 5


class LoadFailed(Exception):
    """The load could not be made."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One of the requests that a load consists of.

    Attributes:
        path: of the method, or of the resource.
        message: protobuf, without gRPC's prefix; or the body.
        weight: how often it is chosen, as a share of the sum of all.
        fields: further metadata, or header fields.
    """

    path: str
    message: bytes
    weight: float = 1.0
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        host, port: of the server.
        requests: of which each is chosen by chance.
        connections: over which requests are sent in turn, of all clients together.
        rate: requests per second of an open loop; None for a closed loop.
        seconds: for which requests are sent.
        arrivals: of an open loop.
        under_way: requests without an answer, of a closed loop, of all clients together.
        patience_s: how long the last answers are waited for.
        bound_ms: answers that take longer are late.
        seed: of chance.
        cores: on which the client is to run; empty for all.
        ahead: whether the client is to run before everything else on its cores, where the system lets it (root only).
        protocol: GRPC or HTTP.
        tls: None for plaintext.
        warm_s: for which the same load is made before, and not counted.
        processes: that make the load together.
        streams: whether requests are messages of streams, one for each connection (ModelStreamInfer).
        sequences: of requests that belong together, ``under_way`` of them at a time; None for single ones.
    """

    host: str
    port: int
    requests: Sequence[Asked]
    connections: int
    rate: float | None
    seconds: float
    arrivals: Arrivals = POISSON
    under_way: int = 64
    patience_s: float = 10.0
    bound_ms: float = 20.0
    seed: int = 0
    cores: Sequence[int] = ()
    ahead: bool = False
    protocol: str = GRPC
    tls: Tls | None = None
    warm_s: float = 0.0
    processes: int = 1
    streams: bool = False
    sequences: Sequences | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The server."""
        return Endpoint(self.protocol, self.host, self.port, self.tls)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of a load.

    Attributes:
        outcome: of it.
        texts: the first text of each status but OK.
        samples: which request, and its answer, of some that were answered; without gRPC's prefix.
        stopped: whether it was ended before its time.
    """

    outcome: Outcome
    texts: dict[int, str]
    samples: Sequence[tuple[int, bytes]]
    stopped: bool = False


class Watcher:
    """Is told how far a load is. This one does nothing."""

    def begins(self) -> None:
        """All clients have their connections, and begin now."""

    def goes_on(self, seconds: float, answered: int, failed: int) -> None:
        """So many seconds after the begin, so many were answered with OK, and so many otherwise."""

    def ends(self) -> None:
        """All clients have ended."""


def run_load(load: Load, watcher: Watcher | None = None) -> LoadResult:
    """Make a load in processes of its own, and wait for its end.

    An interrupt (Ctrl-C) or SIGTERM ends the load early, and its result says so.

    Args:
        load: what is sent.
        watcher: is told how far it is.

    Raises:
        LoadFailed: no connection, or a process failed.
        KeyboardInterrupt: before the load began.
    """
    count = max(1, min(load.processes, load.connections, load.under_way if load.rate is None else load.connections))
    watcher = watcher or Watcher()
    with contextlib.ExitStack() as stack:
        clients = [_Client(_part(load, number, count), number, count, stack) for number in range(count)]
        deadline = time.monotonic() + _START_SECONDS + load.warm_s + load.patience_s
        for client in clients:
            client.wait_ready(deadline)
        watcher.begins()
        for client in clients:
            client.send("go")
        results, stopped = _wait(clients, load, watcher)
        watcher.ends()
    texts: dict[int, str] = {}
    samples: list[tuple[int, bytes]] = []
    for result in results:
        texts = {**result["texts"], **texts}
        samples += result["samples"]
    return LoadResult(merge([result["outcome"] for result in results]), texts, samples, stopped)


def _wait(clients: Sequence[_Client], load: Load, watcher: Watcher) -> tuple[list[dict[str, Any]], bool]:
    """What each client says at its end, and whether the load was interrupted."""
    begin = time.monotonic()
    deadline = begin + _START_SECONDS + load.seconds + load.patience_s
    done: dict[int, dict[str, Any]] = {}
    stopped = False
    with _interrupts() as interrupts, selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.output, selectors.EVENT_READ, client)
        while len(done) < len(clients):
            for key, _ in selector.select(0.2):
                client = key.data
                kind, *told = client.read()
                if kind == "progress":
                    client.told = (told[0], told[1])
                    right, wrong = map(sum, zip(*(one.told for one in clients), strict=True))
                    watcher.goes_on(time.monotonic() - begin, right, wrong)
                elif kind == "done":
                    done[client.number] = told[0]
                    selector.unregister(client.output)
            if interrupts and not stopped:
                stopped = True
                for client in clients:
                    client.process.send_signal(signal.SIGINT)
            if time.monotonic() > deadline:
                raise LoadFailed(f"the client did not finish in {deadline - begin:.0f} s")
    # One that came after the last look at it, and before the handler of interrupts was put back, counts as well.
    return [done[client.number] for client in clients], bool(interrupts)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Interrupts and SIGTERM, which do not break messages off; the second one does."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _part(load: Load, number: int, count: int) -> Load:
    """What one of some clients does of a load."""
    if count == 1:
        return load
    connections, under_way = (total // count + (number < total % count) for total in (load.connections, load.under_way))
    cores = [load.cores[number % len(load.cores)]] if load.cores else ()
    sequences = load.sequences
    if sequences:
        sequences = replace(sequences, first_id=sequences.first_id + number * 2**40)
    return replace(load, connections=connections, under_way=under_way, cores=cores, sequences=sequences)


class _Client:
    """A process that makes a part of a load. It does not see an interrupt from the terminal: the parent tells it."""

    def __init__(self, load: Load, number: int, count: int, stack: contextlib.ExitStack) -> None:
        self.number = number
        self.told = (0, 0)
        self.process = stack.enter_context(_process())
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        self._input = self.process.stdin.fileno()
        self.send((load, number, count))

    def send(self, message: object) -> None:
        """Tell the process something.

        Raises:
            LoadFailed: it has ended.
        """
        try:
            send_message(self._input, message)
        except BrokenPipeError:
            self.read()

    def read(self) -> tuple[Any, ...]:
        """The next thing that the process says.

        Raises:
            LoadFailed: it failed.
        """
        try:
            told: tuple[Any, ...] = read_message(self.output)
        except EOFError:
            self.process.kill()
            raise LoadFailed(f"the client ended with status {self.process.wait()}") from None
        if told[0] == "failed":
            raise LoadFailed(f"the client failed: {told[1]}")
        return told

    def wait_ready(self, deadline: float) -> None:
        """Wait until the process has its connections.

        Raises:
            LoadFailed: it has none, or time is over.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise LoadFailed("the client did not begin in time")
        self.read()


@contextlib.contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "toutates.bench.load"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0 if sys.exc_info()[0] is None else 0)
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def _make(load: Load, number: int, count: int, say: Callable[..., None], wait_go: Callable[[], object]) -> None:
    """Make a part of a load in this process."""
    if load.cores:
        os.sched_setaffinity(0, load.cores)
    if load.ahead:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    requests, make = _client_side(load)
    with contextlib.closing(Driver(load.endpoint, load.connections, requests, make)) as driver:
        signal.signal(signal.SIGINT, lambda *_: setattr(driver, "stopping", True))
        if load.warm_s:
            _drive(driver, replace(load, seconds=load.warm_s), number, count, Tally(len(load.requests), 0, load.warm_s))
            driver.forget()
        say("ready")
        wait_go()
        driver.report = lambda right, wrong: say("progress", right, wrong)
        tally = Tally(len(load.requests), round(load.bound_ms * 1e6), load.seconds)
        record = _drive(driver, load, number, count, tally)
        tally.add(record.without_unanswered() if driver.stopping else record)
        outcome = tally.outcome(record.seconds, record.cpu_seconds, record.waited_seconds)
        prefix = _PREFIX if load.protocol == GRPC else 0
        samples = [(choice, message[prefix:]) for choice, message in driver.samples]
    say("done", {"outcome": outcome, "texts": driver.texts, "samples": samples})


def _client_side(load: Load) -> tuple[Sequence[Any], Callable[[], ClientSide]]:
    """The requests as the protocol wants them, and what makes a connection's side of it."""
    authority = load.endpoint.authority
    if load.streams:
        return [StreamRequest(one.message) for one in load.requests], lambda: StreamingConnection(
            authority, load.requests[0].fields, secure=load.tls is not None
        )
    return [_request(load, authority, one, one.message) for one in load.requests], _SIDES[load.protocol]


_SIDES: Final[Mapping[str, Callable[[], ClientSide]]] = {GRPC: ClientConnection, "http": HttpConnection}


def _request(load: Load, authority: str, one: Asked, message: bytes) -> Any:
    if load.streams:
        return StreamRequest(message)
    if load.protocol == GRPC:
        return Request(one.path, authority, message, one.fields, secure=load.tls is not None)
    return HttpRequest("POST", one.path, authority, message, one.fields)


def _drive(driver: Driver, load: Load, number: int, count: int, tally: Tally) -> Record:
    weights = [one.weight for one in load.requests]
    if load.rate is not None:
        schedule = make_schedule(load.arrivals, load.rate, load.seconds, weights, load.seed).part(number, count)
        return driver.run_schedule(schedule, load.seconds, load.patience_s, tally)
    shares = np.array(weights) / sum(weights)
    order = np.random.default_rng((load.seed, number)).choice(len(weights), _ORDER, p=shares).tolist()
    if load.sequences is None:
        return driver.run_closed(Rotation(driver.requests, order), load.under_way, load.seconds, load.patience_s, tally)
    authority = load.endpoint.authority

    def make(choice: int, sequence: int, first: bool, last: bool) -> Any:
        one = load.requests[choice]
        return _request(load, authority, one, one.message + sequence_parameters(sequence, first, last))

    source = SequenceSource(load.sequences, order, make, load.seed, load.under_way)
    return driver.run_closed(source, load.under_way, load.seconds, load.patience_s, tally)


def sequence_parameters(sequence: int, first: bool, last: bool) -> bytes:
    """What makes a ModelInferRequest one of a sequence, to be put behind its other octets."""
    request = ModelInferRequest()
    request.parameters["sequence_id"].int64_param = sequence
    request.parameters["sequence_start"].bool_param = first
    request.parameters["sequence_end"].bool_param = last
    return request.SerializeToString()


def main() -> int:
    """Read a load from standard input, make it, and say what became of it; returns the exit code."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever prints, messages stay apart

    def say(*message: object) -> None:
        send_message(output, message)

    try:
        load, number, count = read_message(0)
        _make(load, number, count, say, lambda: read_message(0))
    except (Unreachable, ConfigurationError, ValueError, OSError, MemoryError) as error:
        say("failed", str(error))
        return 1
    except EOFError:  # the parent has gone
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
