"""The names of what callers may be let do: Triton's groups of RPCs, and those of ours."""

from __future__ import annotations

from typing import Final

__all__ = ["GROUPS", "OF_ALL"]

#: As in ``--grpc-restricted-protocol``, and behind them the pages of ``--metrics-addr``.
GROUPS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
    "reflection",
    "metrics",
    "debug",
)

#: What shows or changes something of all models at once, so that callers with some of them may not.
OF_ALL: Final = frozenset(("logging", "metrics", "debug"))
