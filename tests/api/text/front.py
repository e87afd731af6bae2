"""The APIs for text over HTTP, without sockets: models that are doubles, and a connection to ask them by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.api.support import plane_of
from tests.api.text.doubles import Double
from tests.api.text.line import Line, RoundWorker
from tests.api.text.watching import Watching
from tests.tables import table_of
from toutates.access.gate import Gate
from toutates.access.key_file import read_key_file
from toutates.access.worker_gate import WorkerGate
from toutates.api.doors import Doors
from toutates.api.text.handler import TextApis, TextSettings
from toutates.api.text.work import TextWork
from toutates.infer.inflight import Inflight
from toutates.net.side_thread import SideThread

__all__ = ["Front", "front", "inflight", "key_file"]


class Front(Line):
    """A server of doubles, with one connection.

    Args:
        models: by name.
        worker: whose connection it is.
        side: the thread beside the worker's.
        options: ``key_file``, ``secrets``, ``settings`` and ``inflight``, where a test wants others.
    """

    def __init__(self, models: Mapping[str, Any], worker: RoundWorker, side: SideThread, **options: Any) -> None:
        kept: Any = worker
        self.table = table_of(models)
        self.plane = plane_of(SimpleNamespace(table=self.table))
        self.plane.get_table = lambda: self.table
        path = options.get("key_file")
        keys: Any = None if path is None else Gate(partial(read_key_file, path))
        self.keys = keys
        self.watching = Watching(kept)
        self.counters, self.observed = self.watching.counters, self.watching.observed
        self.work = TextWork(kept, side, lambda: self.table, self.watching.text, options.get("inflight"))
        doors = Doors(options.get("secrets", {}), None if path is None else WorkerGate(keys, kept))
        self.apis = TextApis(self.plane, self.work, doors, options.get("settings", TextSettings()), 64 * 1024 * 1024)
        super().__init__(worker, self.apis.admit)


@contextmanager
def front(models: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Front]:
    """A server of an embedding model, or of others."""
    worker = RoundWorker()
    side = SideThread("side", worker.call_soon)
    try:
        yield Front({"minilm": Double()} if models is None else models, worker, side, **options)
    finally:
        side.stop()


def key_file(folder: Path, *keys: str) -> Path:
    """A file of keys."""
    path = folder / "keys"
    path.write_text("# who may\n\n" + "\n".join(keys) + "\n")
    return path


def inflight(most: int) -> Inflight:
    """A bound on requests."""
    return Inflight(most, most)
