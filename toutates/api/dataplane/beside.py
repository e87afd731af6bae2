"""Answers about all models where there are very many: made in a thread, once for all who ask meanwhile.

An answer about ten thousand models takes tenths of a second to make. A worker that made it would serve nobody in that
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final

import trio

from toutates.models.table import ModelTable
from toutates.system.thread_pools import ThreadPool

__all__ = ["ANSWERS", "MANY", "Beside"]

ANSWERS: Final = ThreadPool("answers", 4)
#: Models from which on an answer about all of them is made beside the worker.
MANY: Final = 256
#: An answer is sent again for this many times as long as it took to make, and for LONGEST_S at most.
COST_SHARE: Final = 10
LONGEST_S: Final = 2.0


class Beside:
    """One kind of answers. Used on the main thread.

    Args:
        answer: makes an answer for a request, in any thread.
        get_table: returns the table of models as it is now.
    """

    def __init__(self, answer: Callable[[Any], Any], get_table: Callable[[], ModelTable]) -> None:
        self._answer = answer
        self._get_table = get_table
        self._turn: trio.Lock | None = None
        #: by what is asked for: the table it was made of, until when it is sent again, and the answer
        self._made: dict[Hashable, tuple[ModelTable, float, Any]] = {}

    async def get(self, request: Any, key: Hashable) -> Any:
        """The answer. One is made at a time.

        Args:
            request: as it came; it may have any fields beside those that count.
            key: what the answer depends on.
        """
        if self._turn is None:
            self._turn = trio.Lock()
        async with self._turn:
            table = self._get_table()
            known = self._made.get(key)
            if known is not None and known[0] is table and trio.current_time() < known[1]:
                return known[2]
            self._made = {}  # of few requests: one of each kind that there is
            took_s, answer = await ANSWERS.run(self._make, request)
            self._made[key] = table, trio.current_time() + min(COST_SHARE * took_s, LONGEST_S), answer
            return answer

    def _make(self, request: Any) -> tuple[float, Any]:
        began_s = time.thread_time()
        answer = self._answer(request)
        return time.thread_time() - began_s, answer
