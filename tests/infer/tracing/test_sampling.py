"""Which requests are traced."""

from __future__ import annotations

import threading

from toutates.infer.tracing.sampling import Sampler
from toutates.infer.tracing.settings import TraceSetting, TraceSettings, read_changes

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
ON = ("TIMESTAMPS",)


def change(settings: TraceSettings, model: str = "", **values: list[str]) -> None:
    settings.update(model, read_changes(values))


def test_caller_decides_for_its_request_whatever_rate_and_count_say() -> None:
    for rate, count in ((1, -1), (0, -1), (1000, -1), (1, 0)):
        sampler = Sampler(TraceSettings(TraceSetting(ON, rate, count)))
        for weight in (0, 1000):
            assert sampler.wants("a", SAMPLED, weight)
            assert not sampler.wants("a", UNSAMPLED, weight)


def test_nobody_is_traced_where_traces_are_off() -> None:
    settings = TraceSettings(TraceSetting())
    sampler = Sampler(settings)
    assert not sampler.wants("a", SAMPLED, 0)
    assert not sampler.wants("a", "", 100_000)
    change(settings, "a", trace_level=["TIMESTAMPS"])
    assert sampler.wants("a", SAMPLED, 0)
    assert sampler.wants("a", "", 1000)
    assert not sampler.wants("b", SAMPLED, 0)
    assert not sampler.wants("b", "", 1000)


def test_what_is_malformed_does_not_decide() -> None:
    sampler = Sampler(TraceSettings(TraceSetting(ON, 10)))
    for value in ("nonsense", f"{SAMPLED},{SAMPLED}", f"{SAMPLED},{UNSAMPLED}"):
        assert not sampler.wants("a", value, 0)
        assert sampler.wants("a", value, 10)


def test_each_model_is_traced_at_its_own_rate() -> None:
    settings = TraceSettings(TraceSetting(ON, 1000))
    change(settings, "often", trace_rate=["10"])
    change(settings, "never", trace_rate=["0"])
    sampler = Sampler(settings)
    every = settings.rules.every
    assert every == 10
    traced = dict.fromkeys(("often", "seldom", "never"), 0)
    for _ in range(1_000):
        for model in traced:
            traced[model] += sampler.wants(model, "", every)
    assert traced == {"often": 1000, "seldom": 10, "never": 0}


def test_rate_that_is_no_multiple_of_the_smallest_is_kept_too() -> None:
    settings = TraceSettings(TraceSetting(ON, 25))
    change(settings, "often", trace_rate=["10"])
    sampler = Sampler(settings)
    traced = sum(sampler.wants("a", "", 10) for _ in range(1_000))
    assert traced == 10_000 // 25


def test_count_ends_it_for_all_workers_together_and_nothing_is_looked_at_any_more() -> None:
    settings = TraceSettings(TraceSetting(ON, 1, 500))
    traced: list[int] = []

    def work() -> None:
        sampler = Sampler(settings)
        traced.append(sum(sampler.wants("a", "", 1) for _ in range(2_000)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(traced) == 500
    assert settings.rules.every == 0
    assert settings.get("a").count == 0
    sampler = Sampler(settings)
    assert sampler.wants("a", SAMPLED, 0)
    change(settings, trace_count=["2"])
    assert settings.rules.every == 1
    assert [sampler.wants("a", "", 1) for _ in range(3)] == [True, True, False]
