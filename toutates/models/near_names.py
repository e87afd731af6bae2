"""The name that is most like one that a caller has given. Searching costs a bounded share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Final

__all__ = ["NearNames"]

#: Characters of names that are compared, and how many names are: two names of 40 characters take up to 0.4 ms.
_MAX_LENGTH: Final = 40
_MAX_COMPARED: Final = 40
#: Names that are kept.
_MAX_NAMES: Final = 1_000
#: Seconds between two searches, each of which takes 15 ms at most.
_PAUSE_S: Final = 1.0
#: Answers that are kept, so that a caller is told the same each time.
_MAX_ANSWERS: Final = 100


class NearNames:
    """Finds, among these names, the one that is most like another name. For any thread; it takes no lock.

    Two threads may search at the same time, or forget each other's answer: neither gives a wrong one.

    Args:
        names: in any order.
        clock: seconds.
    """

    def __init__(self, names: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._names = [name for name in names if len(name) <= _MAX_LENGTH][:_MAX_NAMES]
        self._clock = clock
        self._search_again_s = 0.0
        self._answers: dict[str, str] = {}

    def like(self, name: str) -> str:
        """The name that is most like this one; "" if there is none, or if somebody has just searched."""
        if len(name) > _MAX_LENGTH or not self._names:
            return ""
        answer = self._answers.get(name)
        if answer is not None:
            return answer
        now_s = self._clock()
        if now_s < self._search_again_s:
            return ""
        self._search_again_s = now_s + _PAUSE_S
        candidates = self._names
        if len(candidates) > _MAX_COMPARED:
            candidates = [one for one in candidates if one[:2].lower() == name[:2].lower()][:_MAX_COMPARED]
        near = get_close_matches(name, candidates, n=1)
        answer = near[0] if near else ""
        if len(self._answers) < _MAX_ANSWERS:
            self._answers[name] = answer
        return answer
