"""Limits on lines of the log that are alike: how often they may come, and whether they say anything new."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

__all__ = ["PERIOD_NS", "LineLimit", "Told", "few"]

PERIOD_NS: Final = 10_000_000_000

Kind = TypeVar("Kind", bound=Hashable)


class LineLimit(Generic[Kind]):
    """Lets the first lines of each kind in a period pass, and counts the others. It has no lock and no clock.

    Args:
        on_end: called at the end of a period in which lines were left out, with their kind and number.
        period_ns: how long a period is. It begins with the first line of its kind.
        max_kinds: how many kinds are counted apart, see ``has_room``.

    Attributes:
        left_out: lines of all kinds and periods that did not pass; other threads may read it.
    """

    def __init__(
        self,
        on_end: Callable[[Kind, int], None] = lambda kind, left_out: None,
        *,
        period_ns: int = PERIOD_NS,
        max_kinds: int = 1_000,
    ) -> None:
        self._on_end = on_end
        self._period_ns = period_ns
        self._max_kinds = max_kinds
        #: by kind: when its period ends, its lines in it, and how many of them were left out
        self._kinds: dict[Kind, tuple[int, int, int]] = {}
        self.left_out = 0

    def count(self, kind: Kind, now_ns: int, most: int = 1) -> int:
        """Count a line.

        Args:
            kind: the same for lines that are alike.
            now_ns: monotonic.
            most: lines of this kind that may be written in a period.

        Returns:
            0 if the line may be written; else how many of its kind were left out in this period, this one included.
        """
        end_ns, lines, left_out = self._kinds.get(kind, (0, 0, 0))
        before = 0
        if now_ns >= end_ns:
            end_ns, lines, left_out, before = now_ns + self._period_ns, 0, 0, left_out
        if lines >= most:
            left_out += 1
            self.left_out += 1
        self._kinds[kind] = (end_ns, lines + 1, left_out)
        if before:
            self._on_end(kind, before)
        return left_out

    def has_room(self, kind: Kind, now_ns: int) -> bool:
        """Whether a kind is being counted, or can be beside the others. This bounds the memory for kinds."""
        if kind in self._kinds or len(self._kinds) < self._max_kinds:
            return True
        # What was left out waits for ``flush``.
        for known, (end_ns, _, left_out) in list(self._kinds.items()):
            if now_ns >= end_ns and not left_out:
                del self._kinds[known]
        return len(self._kinds) < self._max_kinds

    def flush(self, now_ns: int) -> None:
        """Forget periods that are over, and report the lines that were left out in them."""
        for kind, (end_ns, _, left_out) in list(self._kinds.items()):
            if now_ns >= end_ns:
                del self._kinds[kind]
                if left_out:
                    self._on_end(kind, left_out)

    @property
    def next_ns(self) -> int | None:
        """The time at which ``flush`` will have something to report; None if nothing was left out."""
        return min((end_ns for end_ns, _, left_out in self._kinds.values() if left_out), default=None)


class Told:
    """Remembers what was logged about each subject, so that only what is new is logged, or the same after a while.

    Args:
        again_s: seconds after which the same text counts as new.
        clock: seconds.
    """

    def __init__(self, again_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        #: by subject: the texts of the last call, and when each was logged
        self._subjects: dict[str, dict[str, float]] = {}

    def news(self, subject: str, texts: Sequence[str]) -> list[str]:
        """Those of all texts about a subject that are to be logged now. Texts that are gone are forgotten."""
        now_s = self._clock()
        before = self._subjects.get(subject, {})
        new = [text for text in texts if text not in before or now_s - before[text] >= self._again_s]
        self._subjects[subject] = {text: before[text] for text in texts if text in before} | dict.fromkeys(new, now_s)
        return new

    def last(self, subject: str) -> str:
        """The first of the last texts about a subject; "" if there were none."""
        return next(iter(self._subjects.get(subject, ())), "")

    def forget(self, subject: str) -> bool:
        """Forget a subject, whose texts are then new. Returns whether there were any."""
        return bool(self._subjects.pop(subject, None))


#: How many of many texts are shown.
_FEW: Final = 10


def few(texts: Sequence[str]) -> list[str]:
    """The first of many texts, and how many more there are: anybody may put any number of keys into a bucket."""
    return [*texts[:_FEW], *([f"and {len(texts) - _FEW} more like these"] if len(texts) > _FEW else ())]
