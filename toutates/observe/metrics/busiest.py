"""Which models have series of their own where there are very many, and what all others have counted together.

A counter of Prometheus must not fall, and a series that comes back must go on where it ended: each fall is taken for a
restart, and counted anew. So every count belongs either to its model's own series or to that of the others, and stays
where it was counted:

- While a model is *listed*, what it counts goes into its own series; while it is not, into the series of the others.
- Its own series goes on where it ended when the model is listed again. What it has counted meanwhile stays with the
  others, as does what models have counted that are gone.

So neither falls, and the sum of all series is the sum of all counts. Where more than MOST_ADDED of the others have
counted between two scrapes, the sum has what some of them counted some scrapes later. As long as there are no more
models than may be listed, all are, and there is no series of the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import is_
from typing import Final

from toutates.engine.counters import VersionCounters
from toutates.observe.metrics.snapshot import Counts, minus
from toutates.observe.metrics.vectors import Vector, nothing, record_of, vector_of, vector_of_counters

__all__ = ["AT_ONCE", "MOST_ADDED", "OTHERS", "Busiest"]

#: Stands for the name of a model in the series of all that are not listed. No repository has a model of this name.
OTHERS: Final = "(others)"
#: Models that are looked at between two pauses; a hundredth of a second at most.
AT_ONCE: Final = 500
#: The same where their counts are added up.
_ADDED_AT_ONCE: Final = 50
#: Models whose counts are added to those of the others in one scrape, in 35 ms. Those that are left come first next
#: time; what they count is shown some scrapes later, and never lost.
MOST_ADDED: Final = 1_500
#: How much of its rank a model keeps from one scrape to the next, and by how much busier than a listed model another
#: has to be to take its place.
_KEPT: Final = 0.5
_STAYS: Final = 2.0


class _Own:
    """The part of the counts of one thing, a model or a version, that is in its own series.

    Args:
        source: another object when the thing has begun to count anew.
    """

    __slots__ = ("_base", "shown", "source")

    def __init__(self, source: object = None) -> None:
        self.source = source
        #: what is in the series of the others, while it is listed; None for nothing
        self._base: Counts | None = None
        #: what its own series had last; None for nothing
        self.shown: Counts | None = None

    def begin(self, counts: Counts) -> None:
        """Have the model listed from now on; until now it was among the others."""
        self.begin_with(self.others(counts))

    def begin_with(self, part: Counts) -> None:
        """The same, where the model's part in the series of the others is known."""
        self._base = part

    def listed(self, counts: Counts) -> Counts:
        """What goes into the model's own series, of all its counts."""
        own = self.shown = counts if self._base is None else minus(counts, self._base)
        return own

    def others(self, counts: Counts) -> Counts:
        """What goes into the series of the others, of all the model's counts, while it is not listed."""
        return counts if self.shown is None else minus(counts, self.shown)


class Busiest:
    """Chooses the models, and adds up the others. Used by one scrape at a time.

    Args:
        most: models that are listed, at most.
        most_added: see MOST_ADDED.

    Attributes:
        listed: names of the models that are; all of them as long as they are no more.
    """

    def __init__(self, most: int, most_added: int = MOST_ADDED) -> None:
        self.most = most
        self._most_added = most_added
        self.listed: frozenset[str] = frozenset()
        self._anew: frozenset[str] = frozenset()
        self._has_others = False
        self._counters: dict[str, Sequence[VersionCounters]] = {}
        self._retired: dict[str, Sequence[Counts]] = {}
        self._activity: dict[str, int] = {}
        self._rank: dict[str, float] = {}
        self._models: dict[str, _Own] = {}
        self._versions: dict[tuple[str, str], _Own] = {}
        #: of models that are not listed, or were not at times: their part of the sum
        self._parts: dict[str, Vector] = {}
        #: models that are not listed and have counted something that the sum does not contain yet, the longest first
        self._due: dict[str, None] = {}
        self._total = nothing()

    def choose(
        self, counters: Mapping[str, Sequence[VersionCounters]], retired: Mapping[str, Sequence[Counts]]
    ) -> Iterator[None]:
        """Choose the models of a scrape; between two steps others may run.

        Args:
            counters: of the versions that are served, by model.
            retired: counts of versions that are gone, by model.
        """
        yield None
        yield from self._forget(counters)
        if len(counters) <= self.most and not self._has_others:
            self.listed = frozenset(counters)
            self._anew = frozenset()
            self._counters, self._retired = dict(counters), dict(retired)
            return
        self._has_others = True
        for number, (name, own) in enumerate(counters.items()):
            activity = sum(map(_activity_of, own)) if own else 0
            more = activity - self._activity.get(name, 0)
            rank = _KEPT * self._rank.get(name, 0.0) + max(more, 0)
            self._activity[name] = activity
            if rank > 0.01:
                self._rank[name] = rank
            else:
                self._rank.pop(name, None)
            if more or (activity and not _same(self._counters.get(name, ()), own)):
                self._due[name] = None
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
        before, known = self.listed, frozenset(self._counters)
        ranks = {name: rank * (_STAYS if name in before else 1.0) for name, rank in self._rank.items()}
        yield None
        busiest = heapq.nlargest(self.most, ranks, key=ranks.__getitem__)
        yield None
        # Those that are listed and have nothing to do stay, because series that come and go are of no use.
        idle = (name for name in chain(sorted(before), counters) if name in counters)
        listed = self.listed = frozenset(islice(dict.fromkeys(chain(busiest, idle)), self.most))
        self._counters, self._retired = dict(counters), dict(retired)
        self._anew = (listed - before) & known
        for name in self._anew:
            self._take_out(name)
            yield None
        self._due |= dict.fromkeys(sorted(before - listed))
        added = 0
        for name in list(self._due):
            if added == self._most_added:
                break
            del self._due[name]
            if name in counters and name not in listed:
                self._set_part(name)
                added += 1
                if added % _ADDED_AT_ONCE == 0:
                    yield None

    def model(self, name: str, counts: Counts) -> Counts:
        """The part of a listed model's counts that is in its own series."""
        own = self._models.get(name)
        if own is None:
            own = self._models[name] = _Own()
        return own.listed(counts)

    def version(self, model: str, number: str, source: object, counts: Counts) -> Counts:
        """The same of a version; ``source`` is another object when the version was loaded anew."""
        own = self._versions.get((model, number))
        was_replaced = own is not None and own.source is not source
        if own is None or was_replaced:
            own = self._versions[model, number] = _Own(source)
        if model in self._anew and not was_replaced:
            own.begin(counts)
        return own.listed(counts)

    @property
    def others(self) -> Counts | None:
        """What all other models have counted, those that are gone included; None while all have been listed."""
        return record_of(self._total) if self._has_others else None

    # --- parts -------------------------------------------------------------------------------------------------------

    def _forget(self, counters: Mapping[str, Sequence[VersionCounters]]) -> Iterator[None]:
        """Models are gone: what they have counted among the others stays there."""
        gone = frozenset(name for name in self._counters if name not in counters)
        for name in gone:
            if self._has_others and name not in self.listed and any(map(_activity_of, self._counters[name])):
                self._set_part(name)  # the last that they have counted
                yield None
            self._parts.pop(name, None)
            self._models.pop(name, None)
            self._activity.pop(name, None)
            self._rank.pop(name, None)
        if gone:
            self._versions = {key: own for key, own in self._versions.items() if key[0] not in gone}

    def _set_part(self, name: str) -> None:
        """Have the sum contain what a model that is not listed has counted by now."""
        part, own, before = self._counts_of(name), self._models.get(name), self._parts.get(name)
        if own is not None and own.shown is not None:
            part -= vector_of(own.shown)
        self._parts[name] = part
        self._total += part if before is None else part - before

    def _take_out(self, name: str) -> None:
        """A model is listed from now on: what it has counted until now stays with the others."""
        self._set_part(name)
        self._models.setdefault(name, _Own()).begin_with(record_of(self._parts[name]))

    def _counts_of(self, name: str) -> Vector:
        total = nothing()
        for counters in self._counters[name]:
            total += vector_of_counters(counters)
        for counts in self._retired.get(name, ()):
            total += vector_of(counts)
        return total


def _activity_of(counters: VersionCounters) -> int:
    return sum(
        [one.success + one.fail + one.cancel + one.overloaded + one.refused + one.late for one in counters.workers]
    )


def _same(before: Sequence[VersionCounters], now: Sequence[VersionCounters]) -> bool:
    return len(before) == len(now) and all(map(is_, before, now))
