"""The view of the server that metrics, the status page and dumps are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toutates.api.dataplane.plane import ServerIdentity
from toutates.infer.service import InferService
from toutates.models.load_counters import LoadCounters
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.repositories.interface import Repository

__all__ = ["ServerView"]


@dataclass(frozen=True, slots=True, eq=False)
class ServerView:
    """References to what is watched. Any thread may read it, and no reader changes anything. The server changes what it
    refers to at any time: so read numbers one by one, and copy dicts and lists before iterating over them.

    Attributes:
        identity: name and version, as ServerMetadata has them.
        started_s: Unix time at which the server began to start.
        workers: by number; none until the models are loaded.
        infer: inference of each worker, which has counters and an observer.
        get_table: returns the table of models in force.
        repositories: where models come from.
        loading: counters of loads and unloads.
        dropped_log_lines: returns how many lines of the log were not written so far.
        traces: returns how many requests had their spans sent, and how many had them lost.
        is_live: returns whether the server answers; False once it shuts down.
        unready_reason: returns why it is not ready, a sentence without a full stop; "" if it is ready.
    """

    identity: ServerIdentity
    started_s: float
    workers: Sequence[Worker]
    infer: Sequence[InferService]
    get_table: Callable[[], ModelTable]
    repositories: Sequence[Repository]
    loading: LoadCounters
    dropped_log_lines: Callable[[], int]
    traces: Callable[[], tuple[int, int]]
    is_live: Callable[[], bool]
    unready_reason: Callable[[], str]

    def is_ready(self) -> bool:
        """Whether the server is ready, as ServerReady answers."""
        return not self.unready_reason()
