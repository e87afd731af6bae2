"""A server in the Trio run of a test, which sees it start and end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from toutates.command.probe import probe
from toutates.server.options import Options
from toutates.server.server import Server
from toutates.system.address import Address

__all__ = ["Running", "options_of", "started"]

LOOPBACK: Final = Address("127.0.0.1", 0)


class Running:
    """A server that has started, and its exit code once it has ended."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.code: int | None = None

    @property
    def address(self) -> Address:
        assert self.server.address is not None
        return Address(*self.server.address)

    async def probe(self) -> tuple[bool, str]:
        return await trio.to_thread.run_sync(probe, self.address, 60)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.code = await self.server.run(task_status=task_status)


@asynccontextmanager
async def started(options: Options) -> AsyncIterator[Running]:
    """A server that has to end by the end of the block, within some seconds."""
    running = Running(Server(options))
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(running.run)
            yield running


def options_of(repository: Path, **more: Any) -> Options:
    return Options((repository,), **{"grpc_addr": LOOPBACK, "metrics_addr": None, "http_addr": None, **more})
