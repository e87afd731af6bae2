"""What orders of runs could answer in time, by a simulation of one core: what a server is measured against.

Runs are one request each, and are not interrupted but for the time that every request takes beside its run, to be read
and answered. What comes later is not known, so that another order may happen to do a little better.

**The best order**: whenever a run ends, what waits is looked at by Moore's and Hodgson's rule (J. M. Moore, "An n job,
one machine sequencing algorithm for minimizing the number of late jobs", 1968): in the order of deadlines, and where
the time does not suffice, the longest of those so far is given up. So as few as possible of what waits are late. A
request may wait for nearly the whole bound, and then be given up.

**Refused at once**: the shortest run is first, and a request is refused when it comes if all that is before it leaves
it no time. What comes later and is shorter may still make it late; then it is not run. Of the rules that refuse at once
this was the best of those that were tried: with the earliest deadline first, what is long makes many short ones late.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from toutates.bench.arrivals import Schedule

__all__ = ["best_in_time", "refused_at_once_in_time"]


#: Takes a request that comes, unless it is refused. Of (those that wait, the request, the time).
_Admit = Callable[[list[int], int, float], None]
#: Of (those that wait, the time): those that still have time, the next one first.
_Order = Callable[[Sequence[int], float], list[int]]


def best_in_time(schedule: Schedule, runs_ns: Sequence[float], beside_ns: float, bound_ns: float) -> float:
    """The share of requests that the best order answers in time.

    Args:
        schedule: when requests come, and of which kind.
        runs_ns: what the run of a request of each kind takes.
        beside_ns: what each request takes beside its run, whenever it comes.
        bound_ns: answers that take longer are late.
    """
    times = schedule.times_ns.tolist()
    runs = [runs_ns[kind] for kind in schedule.choices.tolist()]

    def admit(waiting: list[int], request: int, now_ns: float) -> None:
        waiting.append(request)

    def order(waiting: Sequence[int], now_ns: float) -> list[int]:
        return _feasible(waiting, times, runs, now_ns, bound_ns)

    return _in_time(times, runs, beside_ns, bound_ns, admit, order)


def refused_at_once_in_time(schedule: Schedule, runs_ns: Sequence[float], beside_ns: float, bound_ns: float) -> float:
    """The share of requests that are answered in time where those that would be late are refused when they come.

    Arguments as of ``best_in_time``.
    """
    times = schedule.times_ns.tolist()
    runs = [runs_ns[kind] for kind in schedule.choices.tolist()]

    def admit(waiting: list[int], request: int, now_ns: float) -> None:
        before_ns = sum([runs[other] for other in waiting if runs[other] <= runs[request]])
        if now_ns + before_ns + runs[request] <= times[request] + bound_ns:
            waiting.append(request)

    def order(waiting: Sequence[int], now_ns: float) -> list[int]:
        in_time = [request for request in waiting if now_ns + runs[request] <= times[request] + bound_ns]
        return sorted(in_time, key=lambda request: (runs[request], request))

    return _in_time(times, runs, beside_ns, bound_ns, admit, order)


def _in_time(
    times: Sequence[int], runs: Sequence[float], beside_ns: float, bound_ns: float, admit: _Admit, order: _Order
) -> float:
    """The share of requests that are in time, by when they come and what their runs take."""
    waiting: list[int] = []
    in_time = came = 0
    now_ns = 0.0

    def take() -> None:
        nonlocal came, now_ns
        while came < len(times) and times[came] <= now_ns:
            now_ns += beside_ns
            admit(waiting, came, now_ns)
            came += 1

    while came < len(times) or waiting:
        if not waiting:
            now_ns = max(now_ns, times[came])
        take()
        waiting[:] = order(waiting, now_ns)
        if not waiting:
            continue
        request = waiting.pop(0)
        now_ns += runs[request]
        take()
        in_time += now_ns <= times[request] + bound_ns
    return in_time / max(1, len(times))


def _feasible(
    waiting: Sequence[int], times: Sequence[int], runs: Sequence[float], now_ns: float, bound_ns: float
) -> list[int]:
    """Those of the requests that can be in time if the others are given up: as many as possible."""
    kept: list[tuple[float, int]] = []
    ends_ns = now_ns
    for request in waiting:
        ends_ns += runs[request]
        heapq.heappush(kept, (-runs[request], request))
        if ends_ns > times[request] + bound_ns:
            ends_ns += heapq.heappop(kept)[0]
    return sorted(request for _, request in kept)
