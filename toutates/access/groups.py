"""The names of what callers may be let do: Triton's groups of RPCs, and those of ours."""

from __future__ import annotations

from typing import Final

__all__ = ["GROUPS"]

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
