"""Claims that wait for a permit, however many: whose is next is found in a time that grows with their logarithm.

Versions that have claims and may have one more run stand in steps of the time that they have used, each with its
earliest deadline. Those of the lowest ``STEPS`` steps are compared by deadline; so the time that these have used
differs by ``QUANTUM_NS`` at most. Entries that no longer hold are passed by when they are met, and all of them are left
out when they are more than those that hold.
"""

from __future__ import annotations

import heapq
from typing import Final

from toutates.engine.turns.claims import Claim, Share

__all__ = ["QUANTUM_NS", "FairQueue"]

QUANTUM_NS: Final = 20_000_000
#: In how many steps the quantum is divided.
STEPS: Final = 4
#: Entries that do not hold and are not worth leaving out.
_SPARE: Final = 64


class FairQueue:
    """Claims by the time that their versions have used, then by deadline, then by when they came.

    Attributes:
        most: runs of a version at a time; None for any number. Changed by ``set_most``.
    """

    def __init__(self) -> None:
        self.most: int | None = None
        #: of each version with claims, a heap: deadline, place, claim
        self._claims: dict[Share, list[tuple[int, int, Claim]]] = {}
        #: of each step, a heap: deadline, place, version
        self._steps: dict[int, list[tuple[int, int, Share]]] = {}
        #: the steps, a heap
        self._numbers: list[int] = []
        #: of each version that may run, the step and the place of the entry that holds
        self._entered: dict[Share, tuple[int, int]] = {}
        self._entries = 0
        self._places = 0

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, claim: Claim) -> None:
        """One more claim waits."""
        self._places += 1
        share = claim.instance.share
        heapq.heappush(self._claims.setdefault(share, []), (claim.due_ns, self._places, claim))
        self.note(share)

    def set_most(self, most: int | None) -> None:
        """A version may have another number of runs at a time."""
        if most != self.most:
            self.most = most
            self._enter_all()

    def note(self, share: Share) -> None:
        """A version has used more time, or has more or fewer runs or claims."""
        claims = self._claims.get(share)
        if not claims or (self.most is not None and share.running >= self.most):
            self._entered.pop(share, None)
            return
        due_ns, place, _ = claims[0]
        step = share.used_ns * STEPS // QUANTUM_NS
        if self._entered.get(share) == (step, place):
            return
        self._entered[share] = step, place
        entries = self._steps.get(step)
        if entries is None:
            entries = self._steps[step] = []
            heapq.heappush(self._numbers, step)
        heapq.heappush(entries, (due_ns, place, share))
        self._entries += 1
        if self._entries > 2 * len(self._entered) + _SPARE:
            self._enter_all()

    def first(self) -> Claim | None:
        """What ``pop`` would return."""
        share = self._first_share()
        return None if share is None else self._claims[share][0][2]

    def pop(self) -> Claim | None:
        """The next claim of a version that may run; None if there is none. Afterwards ``note`` its version."""
        share = self._first_share()
        if share is None:
            return None
        claims = self._claims[share]
        claim = heapq.heappop(claims)[2]
        if not claims:
            del self._claims[share]
        del self._entered[share]
        return claim

    def _first_share(self) -> Share | None:
        """The version whose claim is next; None if there is none that may run."""
        first: tuple[int, int, Share] | None = None
        passed: list[int] = []
        lowest: int | None = None
        while self._numbers and (lowest is None or self._numbers[0] < lowest + STEPS):
            step = self._numbers[0]
            entry = self._first_of(step)
            heapq.heappop(self._numbers)
            if entry is None:
                del self._steps[step]
                continue
            passed.append(step)
            lowest = step if lowest is None else lowest
            if first is None or entry[:2] < first[:2]:
                first = entry
        for step in passed:
            heapq.heappush(self._numbers, step)
        return None if first is None else first[2]

    def drain(self) -> list[Claim]:
        """All claims, in the order in which they came; none waits any more."""
        waiting = sorted((entry for claims in self._claims.values() for entry in claims), key=lambda entry: entry[1])
        self._claims.clear()
        self._enter_all()
        return [claim for _, _, claim in waiting]

    def _first_of(self, step: int) -> tuple[int, int, Share] | None:
        """The entry of a step that is first and holds; None if there is none."""
        entries = self._steps[step]
        while entries:
            _, place, share = entries[0]
            if self._entered.get(share) == (step, place):
                return entries[0]
            heapq.heappop(entries)
            self._entries -= 1
        return None

    def _enter_all(self) -> None:
        """Make the entries anew."""
        self._steps.clear()
        self._numbers.clear()
        self._entered.clear()
        self._entries = 0
        for share in self._claims:
            self.note(share)
