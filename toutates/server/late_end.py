"""Ends the process at last, where something that cannot be ended keeps it from ending by itself.

A thread that runs the code of a model, of a plug-in or of ONNX Runtime comes back when that likes, or never; and
Python waits for threads that models have started. Whoever sent SIGTERM shall not have to send SIGKILL.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import Final

from toutates.server.options import EXIT_FAILURE
from toutates.system.logs.setup import CLOSE_S, Logs

__all__ = ["LATE_S", "LateEnd"]

logger = logging.getLogger(__name__)

#: How long after the end of the grace the server may take to end, seconds: models finalize, memory is freed.
LATE_S: Final = 6.0


class LateEnd:
    """A thread, once it is needed, that ends the process. It is a daemon, and so is gone with a process that ends.

    Args:
        logs: of the process, whose rest is written before.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._changed = threading.Condition()
        self._at = math.inf
        self._thread: threading.Thread | None = None

    def within(self, seconds: float) -> None:
        """End the process in so many seconds, if it is still there. A second call can only bring that forward."""
        with self._changed:
            self._at = min(self._at, time.monotonic() + seconds)
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="late end", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no thread left
                    return
                self._thread = thread

    def put_off(self) -> None:
        """The server has ended: the interpreter has LATE_S for that, too."""
        with self._changed:
            self._at = max(self._at, time.monotonic() + LATE_S)

    def _run(self) -> None:
        with self._changed:
            while (left_s := self._at - time.monotonic()) > 0:
                self._changed.wait(left_s)
        logger.critical("the server does not end by itself%s; its process is ended", _at_work())
        if self._logs.output is not None:
            self._logs.output.close(CLOSE_S)
        os._exit(EXIT_FAILURE)  # the kernel ends the processes of models with it, and their guard what those forked


def _at_work() -> str:
    """What loads and runs models still, by the names of the threads."""
    names = sorted({one.name for one in threading.enumerate() if one.name.startswith(("ort ", "executor-"))})
    return f": {', '.join(names[:5])} cannot be ended" if names else ""
