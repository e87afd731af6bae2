"""Who waits for turns: versions, their executors, and the batches that these have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(slots=True, eq=False)
class Instance:
    """An executor of a version.

    Attributes:
        share: of the version.
        takes_permit: whether its runs are on the CPU.
        needs: resources of a run.
        priority: see the head of the module.
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
        granted_ns: when its turn began; 0 before.
        holds_permit: whether its run counts among those that have a permit.
        taken: resources that its run has.
    """

    instance: Instance
    due_ns: int
    granted_ns: int = 0
    holds_permit: bool = False
    taken: Mapping[Any, int] = field(default_factory=dict)
