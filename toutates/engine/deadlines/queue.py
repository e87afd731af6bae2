"""The batches of a version with a latency target, and which requests would be late.

Whether a request makes its deadline is known when it comes, by the work in front of it and by what runs take
(``profile``):

- It joins the batch that is open, if that is then done before the first of its requests is late. A batch whose first
  request could not wait for more rows takes no more of them, however large it may be.
- Else it begins a batch. While work waits that batch must have time to become large enough to pay: a run of a few rows
  takes nearly as long as one of many, and a server that spends its time on small runs answers less of what it is asked.
- Else it is refused, and nothing is done for it.

What is expected is what runs take on average. How far that can be relied on is told by what becomes of batches: after
each one that is late more time is kept back (``reserve_ns``), after each that is not a little less, so that one of
``_LATE_ONE_OF`` is late where requests are refused. Only a version whose executors have computed most of the time
lately keeps anything back: it is asked for more than it can do, and a run in vain takes the place of one in time. In a
burst a wrong guess costs time that nobody wants a moment later. So does that of a request with nothing in front.

Batches are in the order of their deadlines without anybody's sorting them, because all requests of a version have the
same target. A client's own deadline decides whether its request is refused, and nothing else: it neither brings the
request forward nor bounds the batch that it is in. So nobody gains time by asking for an answer in a millisecond.

A model on which nothing runs does not refuse for long: after four times the target a request is let in, whatever the
profile says, so that it is learned anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from math import ceil
from typing import Final, NoReturn
from weakref import WeakKeyDictionary

from toutates.engine.batch_queue import BatchQueue
from toutates.engine.budget import Budget
from toutates.engine.deadlines.profile import Profile
from toutates.engine.lane import Batch, Lane
from toutates.engine.lately import Lately
from toutates.system.errors import BeyondTarget, WouldBeLate

__all__ = ["DeadlineQueue", "Expected"]

#: A batch takes no more rows than its first request has time for, with an eighth of the target to spare.
_SPARE_SHIFT: Final = 3
#: As much is kept back before anything was learned, and three times as much at most.
_MOST_RESERVES: Final = 3
#: Of the batches that a model could only just let in, one of so many may be late.
_LATE_ONE_OF: Final = 16
#: A batch that is late adds this part of the target to what is kept back.
_LATE_SHIFT: Final = 5
#: Only a version whose executors have computed for so much of the time lately keeps anything back.
_MOST_PART: Final = 2 / 3
#: After four times the target without a run, a request is let in to see what one takes.
_FORGET_SHIFT: Final = 2
#: For how long requests like one that was refused are refused without another look, unless a run begins or ends.
_SAME_REFUSAL_NS: Final = 1_000_000
#: The numbers in the words of a refusal may be as old as a quarter of the target. The same words are encoded once, and
#: other ones take ten times as long as the rest of a refusal.
_SAME_WORDS_SHIFT: Final = 2


@dataclass(slots=True, eq=False)
class Expected:
    """What is expected of a batch.

    Attributes:
        first_ns: when it is to be done, with time to spare, for the first of its requests not to be late; monotonic
            nanoseconds.
        late_ns: when the first of its requests is late.
        last_ns: when the last of its requests is late.
        work_ns: what its run takes on average.
        began_ns, ends_ns: when an executor got it, and when it is to be done; 0 before.
        ran: whether it has been computed.
        run_ns: how long it was computed.
        left_ns: when it was left out, because it was late; 0 if it was not.
    """

    first_ns: int
    late_ns: int
    last_ns: int
    work_ns: int = 0
    began_ns: int = 0
    ends_ns: int = 0
    ran: bool = False
    run_ns: int = 0
    left_ns: int = 0


class DeadlineQueue(BatchQueue):
    """A ``BatchQueue`` that knows what its batches will take. Guarded by the SuperTensor's lock.

    Args:
        open_batches, budget, delay_ns, enough_rows, clock_ns: as of ``BatchQueue``.
        name: the model's, for errors.
        target_ns: how long a request may take, from when it comes.
        executors: how many there are.

    Attributes:
        target_ns: as given.
        profile: of all runs of the version, for shapes of rows that have not run.
        reserve_ns: how much earlier than in time a request must be expected to be done, where anything is kept back.
    """

    def __init__(
        self,
        open_batches: dict[Lane, Batch],
        budget: Budget,
        *,
        name: str,
        target_ns: int,
        executors: int,
        delay_ns: int = 0,
        enough_rows: int = 1,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(open_batches, budget, delay_ns=delay_ns, enough_rows=enough_rows, clock_ns=clock_ns)
        self.target_ns = target_ns
        self.profile = Profile()
        self._name = name
        self._executors = executors
        self._spare_ns = self.reserve_ns = target_ns >> _SPARE_SHIFT
        #: how long the request that is being let in may take with time to spare, and from when on it is late
        self._bound_ns = target_ns - self._spare_ns
        self._last_ns = target_ns
        self._profiles: MutableMapping[Lane, Profile] = WeakKeyDictionary()
        self._expected: dict[Batch, Expected] = {}
        #: The last refusal. Until then, requests like it are refused without another look.
        self._refused_until_ns = 0
        self._refused_lane: Lane | None = None
        self._refused_rows = 0
        #: its words and what they say, and until when others like it have the same
        self._words = ""
        self._words_retry_s = 0.0
        self._words_until_ns = 0
        #: what the runs of all batches that wait are to be given
        self._waiting_ns = 0
        self._ran_ns = 0
        #: how long its runs have taken
        self._lately = Lately()

    def profile_of(self, lane: Lane) -> Profile:
        """What runs of a lane take; of one that has not run, what those of the version take."""
        return self._profiles.get(lane, self.profile)

    def expected(self, batch: Batch) -> Expected | None:
        """What is expected of a batch that is under way; None for one that the queue does not know (``splits``)."""
        return self._expected.get(batch)

    def due_ns(self, batch: Batch) -> int:
        """When a batch that is under way is to be done, monotonic nanoseconds."""
        return self._expected[batch].first_ns

    # --- requests ----------------------------------------------------------------------------------------------------

    def admit(self, lane: Lane, rows: int, is_wanted: Callable[[int], bool], around_ns: int = 0) -> None:
        """Let in a request that is about to reserve its rows, or refuse it. May seal the lane's open batch.

        Args:
            lane: of its rows.
            rows: how many.
            is_wanted: whether somebody still waits for the answer at a time, monotonic nanoseconds.
            around_ns: what it is expected to take before and after, if that is known.

        Raises:
            WouldBeLate: it would be late.
        """
        now_ns = self._clock_ns()
        target_ns = self.target_ns
        self._bound_ns = target_ns - max(self._spare_ns, around_ns)
        self._last_ns = target_ns - around_ns
        if now_ns < self._refused_until_ns and lane is self._refused_lane and rows >= self._refused_rows:
            self._refuse()
        profile = self.profile_of(lane)
        free_ns = now_ns
        if len(self.running) >= self._executors:
            ends_ns = min([self._expected[batch].ends_ns for batch in self.running])
            # Who is late by so much is expected to be late by as much again.
            free_ns += abs(ends_ns - now_ns)
        batch = self.open.get(lane)
        seals = False
        if batch is not None:
            own = self._expected[batch]
            starts_ns = max(free_ns + (self._waiting_ns - own.work_ns) // self._executors, batch.due_ns)
            if batch.rows + rows <= batch.room:
                done_ns = starts_ns + profile.time_ns(batch.rows + rows)
                if done_ns <= own.first_ns or not own.work_ns:
                    self._check_caller(now_ns, done_ns, starts_ns, is_wanted)
                    return
                seals = True
            starts_ns += own.work_ns // self._executors
        else:
            starts_ns = free_ns + self._waiting_ns // self._executors
        self._check_new(lane, profile, rows, now_ns, max(starts_ns, now_ns + self._delay_ns), is_wanted)
        if seals and batch is not None:
            self.seal(batch)

    def _check_new(
        self, lane: Lane, profile: Profile, rows: int, now_ns: int, starts_ns: int, is_wanted: Callable[[int], bool]
    ) -> None:
        """Check that a request that begins a batch makes its deadline.

        Raises:
            WouldBeLate: it does not.
        """
        waits = starts_ns - self._delay_ns > now_ns
        forgets_ns = 0 if waits else self._ran_ns + (self.target_ns << _FORGET_SHIFT) - now_ns
        if not waits and forgets_ns <= 0:
            self._check_caller(now_ns, starts_ns, starts_ns, is_wanted)
            return
        batches = ceil(rows / lane.batch_rows)
        alone_ns = batches * profile.mean_ns(ceil(rows / max(batches, 1)))
        paying = max(rows, profile.least_rows(lane.batch_rows, self._bound_ns >> 1)) if waits else rows
        paying_ns = alone_ns if paying == rows else profile.time_ns(paying)
        most_ns = self._last_ns
        if waits:
            most_ns = self._bound_ns if paying > rows else most_ns - self._kept_back_ns(now_ns)
        late_ns = starts_ns + paying_ns - now_ns - most_ns
        if late_ns > 0:
            retry_ns = late_ns if waits else forgets_ns
            if now_ns >= self._words_until_ns or lane is not self._refused_lane or rows != self._refused_rows:
                around_ns = self.target_ns - self._last_ns
                takes_ns = starts_ns + paying_ns - now_ns
                in_front = f"{_ms(starts_ns - now_ns)} of them for what is in front of it"
                if around_ns > self._spare_ns:
                    takes_ns += around_ns
                    in_front += f" and {_ms(around_ns)} to be read and answered by a busy worker"
                self._words = (
                    f"model '{self._name}' has a latency target of {_ms(self.target_ns)} ms, and this request would "
                    f"take {_ms(takes_ns)} ms, {in_front}; try again in {_ms(retry_ns)} ms"
                )
                self._words_retry_s = retry_ns / 1e9
                self._words_until_ns = now_ns + min(retry_ns, self.target_ns >> _SAME_WORDS_SHIFT)
            self._refused_lane, self._refused_rows = lane, rows
            self._refused_until_ns = now_ns + min(retry_ns, _SAME_REFUSAL_NS)
            self._refuse()
        self._check_caller(now_ns, starts_ns + alone_ns, starts_ns, is_wanted)

    def _kept_back_ns(self, now_ns: int) -> int:
        """How much earlier than in time a request must be expected to be done."""
        is_busy = self._lately.part(now_ns) > _MOST_PART * self._executors
        return self.reserve_ns if is_busy else 0

    def _refuse(self) -> NoReturn:
        raise BeyondTarget(self._words).after(self._words_retry_s)

    def _check_caller(self, now_ns: int, done_ns: int, starts_ns: int, is_wanted: Callable[[int], bool]) -> None:
        """Check that a request's caller still waits when it is done.

        Raises:
            WouldBeLate: the caller's deadline is before.
        """
        if not is_wanted(done_ns):
            raise WouldBeLate(
                f"model '{self._name}': this request would take {_ms(done_ns - now_ns)} ms, "
                f"{_ms(starts_ns - now_ns)} of them for what is in front of it, and its deadline is before"
            ).after((starts_ns - now_ns) / 1e9)

    # --- batches -----------------------------------------------------------------------------------------------------

    def add_open(self, batch: Batch) -> None:
        """See ``BatchQueue``."""
        super().add_open(batch)
        now_ns = self._clock_ns()
        late_ns = now_ns + self._last_ns
        self._expected[batch] = Expected(now_ns + self._bound_ns, late_ns, late_ns)

    def note_rows(self, batch: Batch) -> None:
        """Rows of one more request have been reserved in a batch that is open, or was until now."""
        expected = self._expected[batch]
        expected.last_ns = self._clock_ns() + self._last_ns
        work_ns = self.profile_of(batch.lane).mean_ns(batch.rows)
        self._waiting_ns += work_ns - expected.work_ns
        expected.work_ns = work_ns

    def next(self, *, seal_busy: bool) -> Batch | None:
        """See ``BatchQueue``."""
        batch = super().next(seal_busy=seal_busy)
        if batch is not None:
            self._refused_until_ns = 0
            expected = self._expected[batch]
            self._waiting_ns -= expected.work_ns
            expected.began_ns = self._clock_ns()
            expected.ends_ns = expected.began_ns + expected.work_ns
        return batch

    def ended(self, batch: Batch) -> None:
        """An executor is done with a batch, which has its rows still."""
        expected = self._expected.pop(batch)
        self._refused_until_ns = 0
        lane = batch.lane
        if expected.ran:
            self._ran_ns = self._clock_ns()
            took_ns = self._ran_ns - expected.began_ns
            self._lately.note(expected.run_ns, self._ran_ns)
            self._learn_reserve(late=self._ran_ns > expected.late_ns)
        elif expected.left_ns:
            # What it would have taken. Else a server whose executors get no CPU would go on to let in what it leaves
            # out.
            took_ns = expected.left_ns - expected.began_ns + self.profile_of(lane).mean_ns(batch.rows)
            self._learn_reserve(late=True)
        else:
            return
        profile = self._profiles.get(lane)
        if profile is None:
            profile = self._profiles[lane] = Profile()
        profile.note(batch.rows, took_ns)
        self.profile.note(batch.rows, took_ns)

    def _learn_reserve(self, *, late: bool) -> None:
        step_ns = self.target_ns >> _LATE_SHIFT
        more_ns = step_ns if late else -(step_ns // (_LATE_ONE_OF - 1))
        self.reserve_ns = min(max(0, self.reserve_ns + more_ns), _MOST_RESERVES * self._spare_ns)

    def is_too_late(self, batch: Batch) -> bool:
        """Whether all requests of a batch that is about to run are late, or will be and others wait."""
        expected = self._expected.get(batch)
        if expected is None:
            return False
        by_ns = now_ns = self._clock_ns()
        if self.sealed or self.open:
            by_ns += self.profile_of(batch.lane).mean_ns(batch.rows)
        if by_ns <= expected.last_ns:
            return False
        expected.left_ns = now_ns
        return True

    def clear(self) -> None:
        """See ``BatchQueue``."""
        super().clear()
        self._expected.clear()
        self._refused_lane = None
        self._waiting_ns = 0


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3g}" if ns < 1e9 else f"{ns / 1e6:.0f}"
