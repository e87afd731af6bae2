"""Models that have series of their own, and the others: no count is lost, none falls, none is in two series."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from toutates.engine.counters import VersionCounters, WorkerCounters
from toutates.observe.metrics.busiest import MOST_ADDED, OTHERS, Busiest
from toutates.observe.metrics.snapshot import Counts, read_counts


class Models:
    """Models that count, and the scrapes of them."""

    def __init__(self, names: Iterable[str], most: int, most_added: int = MOST_ADDED) -> None:
        self.counters = {name: VersionCounters([WorkerCounters()]) for name in names}
        self.busiest = Busiest(most, most_added)
        self.counted = 0

    def ask(self, name: str, times: int = 1) -> None:
        own = self.counters[name].workers[0]
        own.success += times
        own.durations[3] += times
        self.counted += times

    def scrape(self) -> dict[str, Counts]:
        """The counts of each series."""
        served = {name: [own] for name, own in self.counters.items()}
        for _ in self.busiest.choose(served, {}):
            pass
        found = {
            name: self.busiest.model(name, read_counts(self.counters[name])) for name in sorted(self.busiest.listed)
        }
        assert len(found) <= self.busiest.most
        if self.busiest.others is not None:
            found[OTHERS] = self.busiest.others
        return found


def successes(series: dict[str, Counts]) -> dict[str, int]:
    return {name: counts.requests.success for name, counts in series.items()}


def test_few_models_have_all_of_their_series_and_no_others() -> None:
    models = Models("abc", 3)
    models.ask("a", 5)
    assert successes(models.scrape()) == {"a": 5, "b": 0, "c": 0}


def test_busiest_are_listed_and_what_others_count_is_added_up() -> None:
    models = Models("abcde", 2)
    for name, times in zip("abcde", (1, 20, 3, 40, 5), strict=True):
        models.ask(name, times)
    assert successes(models.scrape()) == {"b": 20, "d": 40, OTHERS: 9}


def test_model_that_becomes_busy_leaves_what_it_has_counted_with_the_others_and_goes_on_where_it_ended() -> None:
    models = Models("abc", 1)
    models.ask("a", 100)
    models.ask("b", 10)
    assert successes(models.scrape()) == {"a": 100, OTHERS: 10}
    models.ask("b", 1_000)
    # What b has counted before it was listed was counted among the others.
    assert successes(models.scrape()) == {"b": 0, OTHERS: 1_010}
    models.ask("b", 7)
    models.ask("a", 1)
    assert successes(models.scrape()) == {"b": 7, OTHERS: 1_011}
    models.ask("a", 9_000)
    assert successes(models.scrape()) == {"a": 100, OTHERS: 10_011}
    models.ask("a", 3)
    assert successes(models.scrape()) == {"a": 103, OTHERS: 10_011}


def test_model_that_is_gone_stays_in_the_sum_of_the_others() -> None:
    models = Models("abc", 1)
    models.ask("a", 100)
    models.ask("b", 10)
    models.scrape()
    models.ask("b", 5)  # after the last scrape that it lives to see
    del models.counters["b"]
    assert successes(models.scrape()) == {"a": 100, OTHERS: 15}


def test_listed_model_that_is_only_a_bit_less_busy_stays() -> None:
    models = Models("ab", 1)
    models.ask("a", 10)
    assert "a" in models.scrape()
    for _ in range(5):
        models.ask("a", 10)
        models.ask("b", 15)
        assert "a" in models.scrape()
    for _ in range(5):
        models.ask("b", 1_000)
        found = models.scrape()
    assert "b" in found


@pytest.mark.parametrize("seed", range(5))
def test_no_series_falls_and_the_sum_is_that_of_all_counts(seed: int) -> None:
    random = Random(seed)
    names = [f"m{number}" for number in range(30)]
    models = Models(names[:4], 5)
    last: dict[str, int] = {}
    gone = 0
    for step in range(200):
        for name in random.choices(list(models.counters), k=random.randrange(20)):
            models.ask(name, random.randrange(1, 1 + 3 ** random.randrange(6)))
        if step % 7 == 3:
            models.counters.setdefault(random.choice(names), VersionCounters([WorkerCounters()]))
        if step % 31 == 30:
            unlisted = [name for name in models.counters if name not in models.busiest.listed]
            for name in unlisted[:1]:
                del models.counters[name]
                gone += last.pop(name, 0)  # its own series has ended
        found = successes(models.scrape())
        for name, value in found.items():
            assert value >= last.get(name, 0), (step, name)
        last |= found
        # Every count is in the series of its model or in that of the others, whichever was shown when it was counted.
        assert sum(last.values()) + gone == models.counted


def test_buckets_are_divided_like_counts() -> None:
    models = Models("ab", 1)
    models.ask("a", 9)
    models.ask("b", 4)
    series = models.scrape()
    assert [one.requests.durations[3] for one in series.values()] == [9, 4]


def test_others_that_are_too_many_for_one_scrape_are_added_by_the_next_ones_in_turn() -> None:
    models = Models([f"m{number}" for number in range(11)], 1, most_added=4)
    models.ask("m0", 1_000)
    for name in models.counters:
        models.ask(name)
    found = [successes(models.scrape())[OTHERS] for _ in range(4)]
    assert found == [4, 8, 10, 10]
    # Those that count again and again do not keep others waiting.
    models.ask("m0", 1_000)
    for name in list(models.counters)[1:]:
        models.ask(name)
    for times in range(1, 4):
        for name in list(models.counters)[1:5]:
            models.ask(name)
        found = [successes(models.scrape())[OTHERS]]
        assert found[0] >= (14, 18, 20)[times - 1]
    models.ask("m0", 1_000)
    for _ in range(3):
        found = [successes(models.scrape())[OTHERS]]
    assert found == [32]


def test_model_that_is_gone_or_listed_before_it_was_added_is_counted_all_the_same() -> None:
    models = Models("abcd", 1, most_added=1)
    for name, times in zip("abcd", (1_000, 10, 20, 30), strict=True):
        models.ask(name, times)
    assert successes(models.scrape()) == {"a": 1_000, OTHERS: 10}
    del models.counters["c"]
    models.ask("d", 9_000)
    assert successes(models.scrape()) == {"d": 0, OTHERS: 10 + 20 + 9_030}
