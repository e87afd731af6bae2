"""What the best order of runs could answer in time, by a simulation of one core: what a server is measured against.

Runs are one request each, and are not interrupted but for the time that every request takes beside its run, to be read
and answered. Whenever a run ends, what waits is looked at by Moore's and Hodgson's rule (J. M. Moore, "An n job, one
machine sequencing algorithm for minimizing the number of late jobs", 1968): in the order of deadlines, and where the
time does not suffice, the longest of those so far is given up. So as few as possible of what waits are late. What comes
later is not known then, so that another order may happen to do a little better.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from toutates.bench.arrivals import Schedule

__all__ = ["best_in_time"]


def best_in_time(schedule: Schedule, runs_ns: Sequence[float], beside_ns: float, bound_ns: float) -> float:
    """The share of requests that are answered in time.

    Args:
        schedule: when requests come, and of which kind.
        runs_ns: what the run of a request of each kind takes.
        beside_ns: what each request takes beside its run, whenever it comes.
        bound_ns: answers that take longer are late.
    """
    times = schedule.times_ns.tolist()
    runs = [runs_ns[kind] for kind in schedule.choices.tolist()]
    #: requests that wait, in the order of their deadlines
    waiting: list[int] = []
    in_time = came = 0
    now_ns = 0.0
    while came < len(times) or waiting:
        if not waiting:
            now_ns = max(now_ns, times[came])
        while came < len(times) and times[came] <= now_ns:
            waiting.append(came)
            came += 1
            now_ns += beside_ns
        waiting = _feasible(waiting, times, runs, now_ns, bound_ns)
        if not waiting:
            continue
        now_ns += runs[waiting[0]]
        while came < len(times) and times[came] <= now_ns:
            waiting.append(came)
            came += 1
            now_ns += beside_ns
        in_time += now_ns <= times[waiting.pop(0)] + bound_ns
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
