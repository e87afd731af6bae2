"""How much memory a model version takes, as far as it is counted against ``--model-memory``.

What the process takes from the system says nothing of one model: what another has left is used again, and others load
and run meanwhile. So what is known of the version itself is added up: its files, once for each session that has read
them, and what a version and a session take beside them, which was measured as the growth of a process by a thousand
models, divided by these.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from toutates.engine.batched import BatchedServable
from toutates.engine.servable import Servable
from toutates.engine.statistics import Occupancy
from toutates.models.repository import VersionFolder

__all__ = ["VERSION_BYTES", "files_size", "occupancy_of", "version_size"]

#: Of a version beside its weights: its table entries, lanes, counters and the threads of its executors.
VERSION_BYTES: Final = 163_840
#: Of each session but the first beside its weights.
SESSION_BYTES: Final = 65_536
#: Files of a version that are counted; nobody has more.
_MOST_FILES: Final = 10_000


def files_size(version: VersionFolder) -> int:
    """The bytes of a version's files. Blocks; what cannot be read counts as nothing, and the load says why."""
    if version.size is not None:
        return version.size
    if version.is_file:
        return _size(version.model_path)
    size = left = 0
    for directory, _, names in os.walk(version.path):
        for name in names:
            size += _size(Path(directory, name))
            left += 1
            if left >= _MOST_FILES:
                return size
    return size


def version_size(version: VersionFolder, servable: Servable, sessions: int) -> int:
    """What a version that is loaded takes, bytes. Blocks.

    Args:
        version: where its files are.
        servable: the version.
        sessions: that have its weights, each by itself.
    """
    of_sessions = sessions * files_size(version) + (sessions - 1) * SESSION_BYTES
    return VERSION_BYTES + of_sessions + occupancy_of(servable).buffer_bytes


def occupancy_of(servable: Servable) -> Occupancy:
    """How full a version is now; of most versions without the rest of their statistics."""
    if isinstance(servable, BatchedServable):
        return servable.supertensor.occupancy()
    return servable.statistics().occupancy


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
