"""What those who watch the server may see of it."""

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
    """Read in any thread, changed by none of those that read it. What it leads to goes on changing meanwhile: numbers
    are read one by one, and dicts and lists copied before they are walked.

    Attributes:
        identity: name and version, as ServerMetadata has them.
        started_s: Unix time when the server began to start.
        workers: by number; none until the models are loaded.
        infer: of each worker; its counters and its observer's.
        get_table: the model table as it is now.
        repositories: where models come from.
        loading: what has become of the models so far.
        dropped_log_lines: how many lines the log was spared so far.
        traces: requests whose spans were sent, and whose spans were lost.
        is_live: whether the server answers at all; False once it shuts down.
        unready_reason: why it is not ready, a sentence without a full stop; "" if it is, as ServerReady says.
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
        """Whether it is ready, as ServerReady says."""
        return not self.unready_reason()
