"""Signals that come before the server listens to them. By default they would end the process."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

__all__ = ["held_signals", "hold_signals", "let_signals_go"]

_HELD: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: those that came, in their order
_came: list[int] = []


def _note(number: int, frame: FrameType | None) -> None:
    _came.append(number)


def hold_signals() -> None:
    """Keep SIGHUP, SIGUSR1 and SIGUSR2 from now on. For the main thread, before anything that takes time.

    What ignores one, as nohup has it, is left as it is.
    """
    for number in _HELD:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _note)


def held_signals() -> list[int]:
    """Those that came, which are then forgotten: for a server, once it listens to what comes."""
    came = _came.copy()
    _came.clear()
    return came


def let_signals_go() -> None:
    """Have them end the process as by default, also one that came: for what is no server."""
    for number in _HELD:
        if signal.getsignal(number) is _note:
            signal.signal(number, signal.SIG_DFL)
    for came in held_signals():
        signal.raise_signal(came)
