"""A servable that runs in an event loop of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import trio

from toutates.engine.servable import Host, Servable

__all__ = ["running"]


@contextmanager
def running(servable: Servable, host: Host) -> Iterator[None]:
    """A servable that runs in an event loop of its own, in which it is closed at the end of the block."""
    tokens: SimpleQueue[trio.lowlevel.TrioToken] = SimpleQueue()

    async def run() -> None:
        tokens.put(trio.lowlevel.current_trio_token())
        await servable.run(host)

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    token = tokens.get(timeout=120)
    try:
        yield
    finally:
        with suppress(trio.RunFinishedError):  # the test has closed it
            trio.from_thread.run_sync(servable.close, trio_token=token)
        thread.join(120)
        assert not thread.is_alive()
        servable.free()
