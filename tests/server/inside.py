"""A server in this process, for faults that have to be put into it, and for a look at what a client leaves behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.waiting import PATIENCE_S, wait_until
from toutates.models.kinds import Kind
from toutates.models.table import ServedVersion
from toutates.net import GrpcService, Worker
from toutates.server.options import Options
from toutates.server.server import Server
from toutates.system.address import Address
from toutates.system.poison import VARIABLE, current

__all__ = ["Inside", "serve"]


@dataclass
class Inside:
    """A server that serves."""

    server: Server

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self.server.address is not None
        return self.server.address[1]

    @property
    def workers(self) -> list[Worker]:
        """Its workers. They run: look, and do not touch."""
        return self.server.workers.all

    @staticmethod
    def grpc(worker: Worker) -> GrpcService:
        """What serves gRPC on a worker."""
        return next(service for service in worker.services if isinstance(service, GrpcService) and service.methods)

    def version(self, model: str) -> ServedVersion:
        """The newest version of a model."""
        return self.server.manager.table.models[model].served()[-1]

    def occupancy(self, model: str) -> Any:
        """How full the same is now; see ``VersionStatistics``."""
        return self.version(model).servable.statistics().occupancy

    def let_an_hour_pass(self) -> None:
        """Have the workers end the calls whose deadline is in an hour or less; returns at once."""
        then_ns = time.monotonic_ns() + 3_600 * 10**9
        for worker in self.workers:
            worker.call_soon(partial(worker.deadlines.tick, then_ns))

    def wait_round(self) -> None:
        """Wait until every worker has finished what it is at."""
        finished = [threading.Event() for _ in self.workers]
        for worker, event in zip(self.workers, finished, strict=True):
            worker.call_soon(event.set)
        assert all(event.wait(PATIENCE_S) for event in finished)

    def open_streams(self) -> int:
        """Streams that are not closed, on all connections."""
        return sum(
            transport.connection.open_calls
            for worker in self.workers
            for transport in list(worker.transports.open.values())
        )

    def wait_quiet(self) -> None:
        """Wait until nothing is left of any request: no stream, no bytes for one, no batch."""
        servables = [version.servable for version in self.server.manager.table.served()]

        def is_quiet() -> bool:
            connections = [
                transport.connection for worker in self.workers for transport in list(worker.transports.open.values())
            ]
            services = [self.grpc(worker) for worker in self.workers]
            return (
                not self.open_streams()
                and not any(connection.awaits_window for connection in connections)
                and not any(service.streams for service in services)
                and not any(servable.statistics().occupancy.in_flight for servable in servables)
            )

        wait_until(is_quiet)


def serve(
    repository: Path,
    visit: Callable[[Inside], None],
    *,
    finds: bool = False,
    kinds: Sequence[Kind] = (),
    **options: Any,
) -> int | None:
    """Run a server in this thread and ``visit`` in another; returns the server's exit code.

    The server is stopped when the visit is over, unless it has ended by itself before.

    Args:
        repository: of its models.
        visit: what is done while it serves.
        finds: whether memory that nobody wrote is to be found in its answers.
        kinds: of models that the test has of its own.
        options: of the server, by name.
    """
    settings = Options(
        (repository,), grpc_addr=Address("127.0.0.1", 0), **{"metrics_addr": None, "http_addr": None, **options}
    )
    code: list[int] = []

    async def main() -> None:
        server = Server(settings, kinds=kinds)

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            code.append(await server.run(task_status=task_status))

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(run)
                await trio.to_thread.run_sync(visit, Inside(server))
                if not code:
                    server.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, os.environ.get(VARIABLE, "1"))
        poison = current()
        before = 0 if poison is None else poison.hits
        trio.run(main)
        if poison is not None:
            assert (poison.hits > before) is finds, "whether memory that nobody wrote is in answers"
    return code[0] if code else None
