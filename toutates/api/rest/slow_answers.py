"""Answers that grow with the number of models, made in the thread beside the worker's, once for all who ask meanwhile.

A request of forty bytes for the statistics of a thousand models has an answer that takes tens of milliseconds to write
as JSON. The worker serves others meanwhile, and an answer that took long is sent again for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from toutates.api.rest.answers import Answer, refusal
from toutates.api.rest.calls import RestHttpCall
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.net.side_thread import SideThread, outcome_of
from toutates.system.errors import Overloaded, RequestError

__all__ = ["SlowAnswers"]

#: An answer that took less CPU time than this to make is not sent again.
CHEAP_NS: Final = 1_000_000
#: Any other one is sent again for this many times as long as it took, and for LONGEST_NS at most.
COST_SHARE: Final = 10
LONGEST_NS: Final = 2_000_000_000
#: Answers that are kept at a time. Callers who may use some models only have their own.
MOST_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class _Made:
    """An answer, the table of models that it was made of, when it was made, and the CPU time that this took."""

    answer: Answer
    table: ModelTable
    made_ns: int
    spent_ns: int

    def holds(self, table: ModelTable, now_ns: int) -> bool:
        """Whether the answer can be sent again."""
        if self.table is not table or self.spent_ns < CHEAP_NS:
            return False
        return now_ns - self.made_ns < min(COST_SHARE * self.spent_ns, LONGEST_NS)


@dataclass(slots=True)
class SlowAnswers:
    """The slow answers of one worker. Its methods are called on the worker's thread.

    Args:
        worker: whose calls these are.
        side: the thread beside the worker's.
        get_table: returns the table of models as it is now.
    """

    worker: Worker
    side: SideThread
    get_table: Callable[[], ModelTable]
    _made: dict[Hashable, _Made] = field(default_factory=dict)
    #: Calls whose answer nobody has begun to make. The other thread takes them out when it begins, so that an answer
    #: is never older than the request for it.
    _waiting: dict[Hashable, list[RestHttpCall]] = field(default_factory=dict)

    def answer(self, call: RestHttpCall, key: Hashable, make: Callable[[], Answer]) -> None:
        """Answer a call.

        Args:
            call: the call.
            key: what is asked for. There must be few of them: an answer is kept for each.
            make: makes the answer, in the other thread. It may raise RequestError.

        Raises:
            Overloaded: the system has no thread for it.
        """
        made = self._made.get(key)
        if made is not None and made.holds(self.get_table(), self.worker.now_ns):
            call.reply(*made.answer)
            return
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(call)
            return
        self._waiting[key] = [call]
        try:
            self.side.put(call.connection, partial(self._make, key, make))
        except RuntimeError:
            del self._waiting[key]
            raise Overloaded("the server has no thread for this answer") from None

    def _make(self, key: Hashable, make: Callable[[], Answer]) -> Callable[[], None]:
        """In the other thread: make an answer; returns what sends it."""
        calls = self._waiting.pop(key)
        table, began_ns = self.get_table(), time.thread_time_ns()
        outcome = outcome_of(make, f"making the answer for {key!r}")
        if isinstance(outcome, RequestError):
            return partial(self._send, calls, refusal(outcome))
        spent_ns = time.thread_time_ns() - began_ns
        return partial(self._keep, calls, key, outcome, table, spent_ns)

    def _keep(self, calls: list[RestHttpCall], key: Hashable, answer: Answer, table: ModelTable, spent_ns: int) -> None:
        now, now_ns = self.get_table(), self.worker.now_ns
        # Only those that may be sent again: they keep a table of models, and callers come and go.
        self._made = {key: made for key, made in self._made.items() if made.holds(now, now_ns)}
        made = _Made(answer, table, now_ns, spent_ns)
        if len(self._made) < MOST_KEPT and made.holds(now, now_ns):
            self._made[key] = made
        self._send(calls, answer)

    def _send(self, calls: list[RestHttpCall], answer: Answer) -> None:
        for call in calls:
            call.reply(*answer)
