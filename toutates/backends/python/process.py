"""The process of one instance: how it is started, asked, and ended.

It is a fresh interpreter, in a process group of its own, so that what it forks ends with it, and with the server
(``group_guard``). It has two files of the
server: a socket and the shared memory. What it sends is not trusted: each frame is bounded and read as JSON.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import numpy as np

from toutates.backends.python.arena import Arena
from toutates.backends.python.child import frames
from toutates.backends.python.metrics import VersionMetrics
from toutates.backends.python.output import OutputReader, PrintedOutput
from toutates.system.logs.limit import LineLimit
from toutates.system.text import one_line

__all__ = ["Closing", "Failed", "Interpreter", "ModelProcess", "ProcessEnded"]

logger = logging.getLogger(__name__)

_BOOTSTRAP: Final = Path(__file__).parent / "child" / "bootstrap.py"
#: How often a wait looks whether the process still lives.
_LOOK_S: Final = 0.5
#: Characters of what a process says that reach a client.
_MAX_SAID: Final = 500
#: How long a process may take to end once its socket is closed.
_EXIT_S: Final = 2.0
_TIMEVAL: Final = struct.Struct("@ll")


class ProcessEnded(Exception):
    """The process is gone, or was ended because it broke the rules; the text says how.

    Attributes:
        untouched: whether it has not even read all that it was asked, and so has done nothing for it.
    """

    def __init__(self, text: str, *, untouched: bool = False) -> None:
        super().__init__(text)
        self.untouched = untouched


class Failed(Exception):
    """The model's code has raised; the text is Python's."""


class Calls(Protocol):
    """Makes calls of other models for a process.

    Attributes:
        event: a descriptor that can be read when there may be ``outcomes``.
    """

    event: int

    @property
    def under_way(self) -> bool:
        """Whether there may be outcomes later."""
        ...

    def call(self, content: bytes) -> bytes | None:
        """Begin a call; returns its outcome, if that is there already."""
        ...

    def outcomes(self) -> Iterable[bytes]:
        """Outcomes of calls that have come."""
        ...


@dataclass(slots=True)
class Closing:
    """Whether the server ends, so that nobody waits for a version's answers any more. Any thread may set it.

    Attributes:
        at: when its processes are ended whatever they are at, seconds, monotonic; None while the server serves.
    """

    at: float | None = None


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What runs the processes of a model.

    Attributes:
        command: its start.
        environment: variables that are set beside the server's.
        kept: names of the server's variables that it gets; None for all.
        release: to be called once no process of it is left, and none is started any more.
    """

    command: Sequence[str] = (sys.executable,)
    environment: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] | None = None
    release: Callable[[], object] = field(default=lambda: None, compare=False)

    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        kept = self.kept
        own = {name: value for name, value in os.environ.items() if kept is None or name in kept}
        return {**own, **self.environment}


class ModelProcess:
    """One process. Used by one thread at a time.

    Args:
        model: name of the model.
        instance: name of the instance.
        interpreter: runs it.
        arena: shared with it.
        reader: reads what it prints.
        limit: of the lines that it prints.
        closing: of the version.
        metrics: of the version.

    Attributes:
        on_exit: called when it has ended, in a thread that must not be blocked.
        metrics_at: where the process keeps its metrics; None where there is no memory for them.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        model: str,
        instance: str,
        interpreter: Interpreter,
        arena: Arena,
        reader: OutputReader,
        limit: LineLimit[str],
        closing: Closing,
        metrics: VersionMetrics,
    ) -> None:
        self._closing = closing
        self._metrics = metrics
        self.instance = instance
        self.output = PrintedOutput(model, instance, limit)
        self._buffer = bytearray()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        printed, prints = os.pipe()
        memory = os.dup(arena.descriptor)
        try:
            self._process = reader.start(
                lambda: subprocess.Popen(
                    [*interpreter.command, "-u", str(_BOOTSTRAP), str(theirs.fileno()), str(memory)],
                    stdin=subprocess.DEVNULL,
                    stdout=prints,
                    stderr=prints,
                    pass_fds=(theirs.fileno(), memory),
                    start_new_session=True,
                    env=interpreter.variables(),
                )
            )
        except BaseException:
            ours.close()
            os.close(printed)
            raise
        finally:
            theirs.close()
            os.close(prints)
            os.close(memory)
        self._socket = ours
        self._groups = reader.groups
        self._groups.add(self.pid)
        # Waits end now and then, to see that a process is gone whose socket somebody else has kept open.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, int(_LOOK_S * 1_000_000)))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, int(_LOOK_S * 1_000_000)))
        self._ended = False
        #: whether nothing has come of what it is asked; whether its socket was closed with something in it
        self._untouched, self._reset = True, False
        #: of the socket, and of outcomes of calls
        self._poll: select.poll | None = None
        self._telling = threading.Lock()
        self.on_exit: Callable[[], None] = lambda: None
        reader.add(printed, self.output)
        reader.watch(self.pid, lambda: self.on_exit())
        self.metrics_at: int | None = None
        try:
            memory_of_metrics = arena.allocate((frames.METRICS_BYTES,), np.uint8)
        except MemoryError:
            return
        memory_of_metrics[...] = 0
        self.metrics_at = arena.offset(memory_of_metrics)
        self._metrics_reader = metrics.add(memory_of_metrics)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._ended

    @property
    def is_closing(self) -> bool:
        """Whether the server ends, and does not wait for it any more."""
        return self._closing.at is not None and time.monotonic() >= self._closing.at

    def check(self) -> None:
        """See whether it still lives, where nobody has asked it anything.

        Raises:
            ProcessEnded: it does not.
        """
        if not self._ended and self._has_exited():
            self._gone()

    def ask(
        self,
        kind: int,
        content: bytes | Mapping[str, Any],
        timeout_s: float,
        answer: Callable[[dict[str, Any]], Any] = lambda question: None,
        calls: Calls | None = None,
    ) -> bytes:
        """Send a frame, and wait for what it comes to, with the GIL released.

        Args:
            kind, content: see ``frames``.
            timeout_s: seconds after which the process is taken to hang, and ended; 0 for never.
            answer: answers the questions that the process asks meanwhile.
            calls: makes its calls of other models; None where it may make none.

        Returns:
            The content of DONE.

        Raises:
            Failed: the model has raised.
            ProcessEnded: it has ended, or was ended.
        """
        deadline = time.monotonic() + timeout_s if timeout_s else None
        self.tell(kind, content, deadline)
        while True:
            got, data = self._receive(deadline, timeout_s, calls)
            self._untouched = got in (frames.DONE, frames.FAILED)
            if got == frames.CALL and calls is not None:
                self._call(calls, data, deadline)
                continue
            if self._buffer and got != frames.QUERY:
                self._break("it has sent more than it was asked for, as a process does that has forked")
            if got == frames.DONE:
                return data
            if got == frames.FAILED:
                raise Failed(str(self._parsed(data).get("text", "")))
            if got != frames.QUERY:
                self._break(f"it has sent a frame of kind {got}")
            self.tell(frames.ANSWER, json.dumps(answer(self._parsed(data))).encode(), deadline)

    def _call(self, calls: Calls, data: bytes, deadline: float | None) -> None:
        try:
            outcome = calls.call(data)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError, struct.error):
            self._break("it has made a call that makes no sense")
        if outcome is not None:
            self.tell(frames.RETURN, outcome, deadline)

    def tell(self, kind: int, content: bytes | Mapping[str, Any], deadline: float | None = None) -> None:
        """Send a frame that is not answered, or is later."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        left = memoryview(frames.HEAD.pack(len(data), kind) + data)
        with self._telling:
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    self._look(deadline)
                except OSError:
                    self._reset = True
                    self._gone()

    def next_frame(self, calls: Calls) -> tuple[int, bytes]:
        """The next frame of the process of a decoupled model, which may send at any time: kind and content.

        Used by one thread, while others may ``tell``.

        Args:
            calls: makes its calls of other models.

        Raises:
            ProcessEnded: it has ended.
        """
        return self._receive(None, 0.0, calls)

    def make_call(self, calls: Calls, data: bytes, deadline: float) -> None:
        """Make a call of another model that it has asked for."""
        self._call(calls, data, deadline)

    def break_off(self, why: str) -> NoReturn:
        """End a process that breaks the rules.

        Raises:
            ProcessEnded: always.
        """
        self._break(why)

    def parsed(self, data: bytes) -> dict[str, Any]:
        """JSON that it has sent.

        Raises:
            ProcessEnded: it was something else; the process is ended.
        """
        return self._parsed(data) if data else {}

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._break("it has sent what is no JSON object")
        return value

    def _receive(self, deadline: float | None, timeout_s: float, calls: Calls | None) -> tuple[int, bytes]:
        buffer = self._buffer
        while True:
            if len(buffer) >= frames.HEAD.size:
                length, kind = frames.HEAD.unpack_from(buffer)
                if length > frames.MAX_FRAME_BYTES:
                    self._break(f"it has sent a frame of {length} bytes")
                end = frames.HEAD.size + length
                if len(buffer) >= end:
                    content = bytes(memoryview(buffer)[frames.HEAD.size : end])
                    del buffer[:end]
                    return kind, content
            if calls is not None and calls.under_way and not self._wait_for_either(calls, deadline):
                self._look(deadline, timeout_s)
                continue
            try:
                data = self._socket.recv(frames.RECEIVE_BYTES)
            except BlockingIOError:
                self._look(deadline, timeout_s)
                continue
            except OSError:
                self._reset = True  # by a socket that was closed with something in it that nobody has read
                data = b""
            if not data:
                self._gone()
            if not buffer and len(data) >= frames.HEAD.size:  # a whole frame and nothing else, as nearly always
                length, kind = frames.HEAD.unpack_from(data)
                if len(data) == frames.HEAD.size + length:
                    return kind, data[frames.HEAD.size :]
            buffer += data

    def _wait_for_either(self, calls: Calls, deadline: float | None) -> bool:
        """Wait for the process, and tell it the outcomes of its calls meanwhile; False if nothing has come of it."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
            self._poll.register(calls.event, select.POLLIN)
        ready = [descriptor for descriptor, _ in self._poll.poll(_LOOK_S * 1_000)]
        if calls.event in ready:
            for outcome in calls.outcomes():
                self.tell(frames.RETURN, outcome, deadline)
        return self._socket.fileno() in ready

    def _look(self, deadline: float | None, timeout_s: float = 0.0) -> None:
        """See whether there is anything to wait for."""
        if self._has_exited():
            self._gone()
        if deadline is not None and time.monotonic() >= deadline:
            self._break(f"it has not answered for {timeout_s:g} s")
        closing_at = self._closing.at
        if closing_at is not None and time.monotonic() >= closing_at:
            self._break("the server ends, and it has not answered")

    # --- its end -----------------------------------------------------------------------------------------------------

    def _has_exited(self) -> bool:
        """Whether it has ended. It is not waited for: nobody shall get its number before its group is killed."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _gone(self) -> NoReturn:
        """Raise for a process that has ended by itself."""
        until = time.monotonic() + _EXIT_S
        while not self._has_exited():
            if time.monotonic() >= until:
                self._break("it has closed its socket")
            time.sleep(0.005)
        self.kill()
        code = self._process.returncode
        how = f"it has ended with status {code}"
        if code < 0:
            try:
                how = f"signal {-code} ({signal.Signals(-code).name}) has ended it"
            except ValueError:
                how = f"signal {-code} has ended it"
        self._break(how)

    def _break(self, why: str) -> NoReturn:
        """End the process.

        Raises:
            ProcessEnded: always.
        """
        self.kill()
        self.output.ended.wait(1)
        said = one_line(self.output.last, _MAX_SAID)
        text = f"{why}; it said last: {said}" if said else why
        # Raised as it is made: a local variable would hold it, and with its traceback the instance, until a collection.
        raise ProcessEnded(text, untouched=self._untouched and self._reset)

    def finalize(self, timeout_s: float) -> None:
        """Have the model finalize itself, and end the process; what goes wrong is logged."""
        if self._ended:
            return
        try:
            self.ask(frames.FINALIZE, b"", timeout_s)
            until_s = math.inf if self._closing.at is None else self._closing.at - time.monotonic()
            self._wait_exit(max(0.0, min(timeout_s, 5.0, until_s)))
        except (Failed, ProcessEnded) as error:
            logger.error("finalize of %s failed: %s", self.instance, one_line(error, 2_000))
        finally:
            self.kill()

    def _wait_exit(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logger.warning("the process of %s does not end by itself, and is killed", self.instance)

    def kill(self) -> None:
        """End the process now, and what it has forked."""
        if self._ended:
            return
        self._ended = True
        self._socket.close()
        # Before the wait: until then the number of its group is nobody else's.
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._groups.remove(self._process.pid)
        self._process.wait()
        if self.metrics_at is not None:
            self._metrics.end(self._metrics_reader)
