"""Access files, key sets and tokens for tests, and a clock that they set."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.access.tokens import NOW_S
from toutates.access.gate import Gate
from toutates.access.rules import read_rules

NS = 1_000_000_000


class Clock:
    """The time of day and the monotonic clock, which go together."""

    def __init__(self) -> None:
        self.now_ns = 0

    def wall_s(self) -> float:
        return NOW_S + self.now_ns / NS

    def pass_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS)


def open_gate(path: Path, clock: Clock) -> Gate:
    return Gate(partial(read_rules, path), clock.wall_s, lambda: clock.now_ns)
