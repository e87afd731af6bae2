"""How a command ends that is interrupted: at once if it has not begun; else it cleans up to the end, on SIGTERM as on
Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final

__all__ = ["EXIT_INTERRUPTED", "interrupts_end_at_once", "sigterm_interrupts", "uninterrupted"]

#: 128 + SIGINT, as shells have it.
EXIT_INTERRUPTED: Final = 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


@contextlib.contextmanager
def interrupts_end_at_once() -> Iterator[None]:
    """An interrupt ends the process while the block imports, without a word. For the main thread.

    A KeyboardInterrupt would do so with a traceback, or be made another error by a library that is imported halfway.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody has said otherwise, as nohup and the shell's & do
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends the block as an interrupt does. For the main thread."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM are ignored while the block cleans up. For the main thread."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
