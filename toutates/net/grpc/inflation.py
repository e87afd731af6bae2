"""Large compressed messages, decompressed in a thread beside the worker's, which serves others meanwhile.

zlib does not hold the GIL. The thread gives way to every other one of the process where processors are scarce, takes
one message of each connection in turn, and is started by the first of them. So a client that sends nothing but messages
that become large has its own slowed down, and those of other clients by one message each.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from toutates.h2grpc.events import InflationDue
from toutates.h2grpc.messages import decompress
from toutates.h2grpc.status import GrpcError, Status

__all__ = ["Inflation"]

#: How much the thread gives way: a tenth of the weight of others on the same processor.
NICENESS: Final = 10

Done = Callable[[InflationDue, "bytes | GrpcError"], None]


class Inflation:
    """The thread and what waits for it. Used by one worker.

    Args:
        name: of the thread.
        done: takes what became of a message, or why it did not; called in the thread.
    """

    def __init__(self, name: str, done: Done) -> None:
        self._name = name
        self._done = done
        self._thread: threading.Thread | None = None
        #: guards the next two
        self._changed = threading.Condition()
        #: by what answers a connection's calls, the one that is next in turn first
        self.waiting: OrderedDict[object, deque[InflationDue]] = OrderedDict()
        self._stopped = False

    def put(self, due: InflationDue) -> None:
        """Have a message decompressed.

        Raises:
            RuntimeError: the system has no thread for it.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        with self._changed:
            self.waiting.setdefault(due.call.responder, deque()).append(due)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread, once it has finished its present message."""
        with self._changed:
            self._stopped = True
            self.waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (due := self._next()) is not None:
            if due.call.open:
                self._done(due, inflate(due))
            del due  # while it waits, the thread keeps nothing

    def _next(self) -> InflationDue | None:
        """The next message; None once the thread is to end."""
        with self._changed:
            while not self.waiting and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            connection, dues = next(iter(self.waiting.items()))
            due = dues.popleft()
            if dues:
                self.waiting.move_to_end(connection)
            else:
                del self.waiting[connection]
            return due


def inflate(due: InflationDue) -> bytes | GrpcError:
    """What the message becomes, or the error that its call ends with."""
    try:
        return decompress(due.message, due.encoding, due.max_size)
    except GrpcError as error:
        return error
    except MemoryError:
        return GrpcError(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
