"""The programs ``toutates`` and ``tritonserver``. They import the command line, which takes half a second, only when an
interrupt ends them quietly, and signals for a server wait for it."""

from __future__ import annotations

from toutates.command.interrupts import interrupts_end_at_once
from toutates.system.early_signals import hold_signals

__all__ = ["main", "tritonserver"]


def main() -> int:
    """``toutates``; returns the exit code."""
    hold_signals()
    with interrupts_end_at_once():
        from toutates.command.main import main as run
    return run()


def tritonserver() -> int:
    """``tritonserver``; returns the exit code."""
    hold_signals()
    with interrupts_end_at_once():
        from toutates.command.main import tritonserver as run
    return run()
