"""Makes lines of the log of what native code writes to standard error. For JSON, where every line is an object.

ONNX Runtime and CUDA write to the descriptor themselves. It becomes a pipe, which a thread reads. Writing to it never
blocks: what does not fit into the pipe is lost. If native code crashes, its last lines may be lost too.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from threading import Thread
from typing import Final

__all__ = ["CapturedStream"]

MAX_LINE: Final = 8_192
_READ: Final = 65_536
_JOIN_S: Final = 2.0
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
#: The beginning of ONNX Runtime's lines: a time and the letter of the level.
_ONNX_RUNTIME: Final = re.compile(r"^[0-9: .-]*\[([VIWEF]):onnxruntime:")
_LEVELS: Final = {
    "V": logging.DEBUG,
    "I": logging.INFO,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}


class CapturedStream:
    """Logs what is written to a descriptor, until ``end``.

    Args:
        fd: the descriptor.

    Attributes:
        real: a descriptor of the file that ``fd`` was before; open until ``close``.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.real = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.dup2(writer, fd)
        os.close(writer)
        self._thread = Thread(target=_read, args=(reader,), name="stderr", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Restore the descriptor, and log what is left in the pipe."""
        os.dup2(self.real, self._fd)  # closes the pipe's only writer
        self._thread.join(_JOIN_S)

    def close(self) -> None:
        """Close ``real``."""
        os.close(self.real)


def _read(reader: int) -> None:
    rest = b""
    while piece := os.read(reader, _READ):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            _log(line)
        if len(rest) > MAX_LINE:
            _log(rest)
            rest = b""
    if rest:
        _log(rest)
    os.close(reader)


def _log(data: bytes) -> None:
    text = _COLOURS.sub("", data[:MAX_LINE].decode(errors="backslashreplace")).strip()
    if not text:
        return
    match = _ONNX_RUNTIME.match(text)
    if match is not None:
        logging.getLogger("onnxruntime").log(_LEVELS[match[1]], "%s", text)
    else:
        logging.getLogger("stderr").warning("%s", text)
