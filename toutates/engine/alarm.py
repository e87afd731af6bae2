"""An alarm: a task sleeps until a time, or until any thread wakes it."""

from __future__ import annotations

import time

import trio

__all__ = ["Alarm"]


class Alarm:
    """Wakes the task that has made it, within Trio."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._send, self._receive = trio.open_memory_channel[None](1)

    def ring(self) -> None:
        """Wake the task, or have its next ``wait`` return at once. In any thread; it does not block."""
        self._token.run_sync_soon(self._note, idempotent=True)

    def _note(self) -> None:
        try:
            self._send.send_nowait(None)
        except trio.WouldBlock:
            pass  # it is about to look

    async def wait(self, until_ns: int) -> None:
        """Sleep until a time, monotonic nanoseconds, or until it rings."""
        with trio.move_on_after(max(0, until_ns - time.monotonic_ns()) / 1e9):
            await self._receive.receive()
