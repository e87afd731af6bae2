"""Who waits for turns: versions, their executors, and the batches that these have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toutates.engine.lately import Lately

__all__ = ["Claim", "Instance", "Share"]


@dataclass(slots=True, eq=False)
class Share:
    """What a model version takes of the time.

    Attributes:
        used_ns: how long its runs have taken. After it was idle, what others have used meanwhile is added.
        running: runs that hold a permit.
        claims: that wait or run.
    """

    used_ns: int = 0
    running: int = 0
    claims: int = 0
    _lately: Lately = field(default_factory=Lately)

    def note_run(self, took_ns: int, now_ns: int) -> None:
        """A run has taken so long, until now."""
        self.used_ns += took_ns
        self._lately.note(took_ns, now_ns)

    def part(self, now_ns: int) -> float:
        """The part of the last half second or so in which its runs were under way; 0 to 1 for one run at a time."""
        return self._lately.part(now_ns)


@dataclass(slots=True, eq=False)
class Instance:
    """An executor of a version.

    Attributes:
        share: of the version.
        takes_permit: whether its runs are on the CPU.
        needs: resources of a run.
        priority: of the rate limiter, from 1: a run is the earlier the lower executions x priority are.
        executions: runs so far, and those that it is thought to have had before it came.
    """

    share: Share
    takes_permit: bool = True
    needs: Mapping[Any, int] = field(default_factory=dict)
    priority: int = 1
    executions: int = 0


@dataclass(slots=True, eq=False)
class Claim:
    """A batch that waits for its turn, or has it.

    Attributes:
        instance: that is to run it.
        due_ns: its deadline, monotonic nanoseconds.
        work_ns: what its run is expected to take; 0 where nothing is known.
        granted_ns: when its turn began; 0 before.
        holds_permit: whether its run counts among those that have a permit.
        taken: resources that its run has.
    """

    instance: Instance
    due_ns: int
    work_ns: int = 0
    granted_ns: int = 0
    holds_permit: bool = False
    taken: Mapping[Any, int] = field(default_factory=dict)
