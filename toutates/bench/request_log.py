"""The times of a load's requests, from which a tally is made; of a long load, those of the last ones alone.

A request takes 20 to 36 bytes here. After a quarter of a million, old ones are counted in the tally, a few thousand at
a time, and forgotten, so that a load of hours takes no more memory than one of seconds. What is without an answer then
is kept aside until it has one. Which pieces requests are counted in makes no difference to what comes of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from toutates.bench.answer import Answer
from toutates.bench.outcome import NEVER, UNANSWERED, Record
from toutates.bench.tally import Tally

__all__ = ["KEPT", "RequestLog"]

#: Requests whose times are kept in any case: 9 MB at most.
KEPT: Final = 1 << 18
#: Are counted at a time: that takes the client some 0.2 ms, no longer than it takes to read what many connections have.
_PIECE: Final = 1 << 12
#: Are removed from the arrays at a time, for what is behind them is moved.
_REMOVED: Final = 1 << 17
#: Requests without an answer that are kept aside. Of an open loop beyond the knee more wait: they stay in the arrays.
_MOST_ASIDE: Final = 1 << 14

_Times: TypeAlias = "array[int]"

_NEVER: Final = array("q", [NEVER])
_OK: Final = array("i", [0])


class RequestLog:
    """When requests were to be sent, were sent and were answered, in nanoseconds from the beginning.

    Args:
        choices: which contents requests had, by the number of the first and how many they are.
        closed: whether requests are sent at the time at which they are to be, as in a closed loop.
        tally: that old requests are counted in; None to keep all.

    Attributes:
        count: requests that were taken up, which are numbered from 0.
    """

    def __init__(
        self, choices: Callable[[int, int], npt.NDArray[np.int64]], *, closed: bool, tally: Tally | None = None
    ) -> None:
        self.count = 0
        self._choices, self._tally, self._closed = choices, tally, closed
        #: The number of the first request in the arrays, and how many of them are counted already.
        self._first = self._counted = 0
        self._answered: _Times = array("q")
        self._statuses: _Times = array("i")
        self._intended: _Times = array("q")
        self._noticed, self._sent = (self._intended,) * 2 if closed else (array("q"), array("q"))
        #: Of counted requests without an answer: intended, noticed, sent, answered, status.
        self._aside: dict[int, list[int]] = {}
        #: Those of them that have an answer by now.
        self._late: dict[int, list[int]] = {}

    def begin(self, count: int, now: int) -> None:
        """So many requests of a closed loop are sent now."""
        self.count += count
        self._answered.extend(_NEVER * count)
        self._statuses.extend(_OK * count)
        self._intended.extend(array("q", (now,)) * count)

    def notice(self, intended: Sequence[int], now: int) -> None:
        """These requests of an open loop are taken up now."""
        count = len(intended)
        self.count += count
        self._answered.extend(_NEVER * count)
        self._statuses.extend(_OK * count)
        self._intended.extend(array("q", intended))
        self._noticed.extend(array("q", (now,)) * count)
        self._sent.extend(_NEVER * count)

    def send(self, number: int, now: int) -> None:
        """A request of an open loop is sent now."""
        if number in self._aside:
            self._aside[number][2] = now
        else:
            self._sent[number - self._first] = now

    def answer(self, answers: Sequence[Answer], now: int) -> None:
        """These requests have ended."""
        answered, first = self._answered, self._first
        if self._aside:
            answers = [one for one in answers if not self._is_late(one[0], one[1], now)]
        for number, status, _ in answers:
            answered[number - first] = now
            if status:
                self._statuses[number - first] = status

    def count_old(self) -> None:
        """Count old requests, if there are many; a few between two calls."""
        while self._tally is not None and len(self._answered) - self._counted >= KEPT + _PIECE:
            if not self._count_piece(self._tally):
                return

    def _count_piece(self, tally: Tally) -> bool:
        """Count the oldest requests; False if too many of them have no answer yet."""
        counted, end = self._counted, self._counted + _PIECE
        answered = np.frombuffer(self._answered[counted:end], np.int64)
        open_ones = np.flatnonzero(answered == NEVER)
        if len(open_ones) + len(self._aside) > _MOST_ASIDE:
            return False
        record = self._between(counted, end)
        for place in open_ones.tolist():
            columns = (record.intended_ns, record.noticed_ns, record.sent_ns, record.answered_ns)
            self._aside[self._first + counted + place] = [*(int(column[place]) for column in columns), UNANSWERED]
        tally.add(record.without_unanswered())
        self._counted = end
        if end >= _REMOVED:
            arrays = [self._answered, self._statuses, self._intended]
            for values in arrays if self._closed else (*arrays, self._noticed, self._sent):
                del values[:end]
            self._first += end
            self._counted = 0
        return True

    def record(self, cpu_seconds: float, waited_seconds: float, seconds: float) -> Record:
        """What is not counted in the tally, with what ``Record`` says of the whole load."""
        record = self._rest()
        return replace(record, cpu_seconds=cpu_seconds, waited_seconds=waited_seconds, seconds=seconds)

    def _rest(self) -> Record:
        record = self._between(self._counted, len(self._answered))
        others = {**self._late, **self._aside}
        if not others:
            return record
        choices = np.array([int(self._choices(number, 1)[0]) for number in others], np.int64)
        rows = np.array(list(others.values()), np.int64).T
        return replace(
            record,
            choices=np.concatenate((choices, record.choices)),
            intended_ns=np.concatenate((rows[0], record.intended_ns)),
            noticed_ns=np.concatenate((rows[1], record.noticed_ns)),
            sent_ns=np.concatenate((rows[2], record.sent_ns)),
            answered_ns=np.concatenate((rows[3], record.answered_ns)),
            statuses=np.concatenate((rows[4], record.statuses)),
        )

    def _is_late(self, number: int, status: int, now: int) -> bool:
        """Note the answer of a request that is kept aside; False for another one."""
        row = self._aside.pop(number, None)
        if row is None:
            return False
        row[3:] = now, status
        self._late[number] = row
        return True

    def _between(self, begin: int, end: int) -> Record:
        answered = np.frombuffer(self._answered[begin:end], np.int64)
        statuses = np.frombuffer(self._statuses[begin:end], np.int32).astype(np.int64)
        intended = np.frombuffer(self._intended[begin:end], np.int64)
        noticed, sent = intended, intended
        if not self._closed:
            noticed, sent = (np.frombuffer(values[begin:end], np.int64) for values in (self._noticed, self._sent))
        return Record(
            self._choices(self._first + begin, end - begin),
            intended,
            noticed,
            sent,
            answered,
            np.where(answered == NEVER, UNANSWERED, statuses),
            cpu_seconds=0.0,
            seconds=0.0,
        )
