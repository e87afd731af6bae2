"""Trace settings: what can be asked for, and what holds for whom."""

from __future__ import annotations

import pytest

from toutates.infer.tracing.settings import TraceSetting, TraceSettings, read_changes, without_effect
from toutates.system.errors import InvalidRequest, Unsupported


def change(settings: TraceSettings, model: str = "", **values: list[str]) -> None:
    settings.update(model, read_changes(values))


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"trace_level": ["TIMESTAMPS"]}, {"levels": ("TIMESTAMPS",)}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS", "TENSORS"]}, {"levels": ("TIMESTAMPS", "TENSORS")}),
        ({"trace_level": ["OFF"]}, {"levels": ()}),
        ({"trace_level": ["TIMESTAMPS", "MIN"]}, {"levels": ("TIMESTAMPS",)}),
        ({"trace_level": ["MAX"]}, {}),
        ({"trace_level": []}, {"levels": None}),
        ({"trace_rate": ["7"]}, {"rate": 7}),
        ({"trace_rate": [" +7seven"]}, {"rate": 7}),
        ({"trace_rate": ["0"]}, {"rate": 0}),
        ({"trace_rate": ["4294967295"]}, {"rate": 4294967295}),
        ({"trace_rate": []}, {"rate": None}),
        ({"trace_count": ["-1"]}, {"count": -1}),
        ({"trace_count": ["2147483647"]}, {"count": 2147483647}),
        ({"log_frequency": ["3"]}, {"log_frequency": 3}),
        ({"trace_mode": ["triton", "x"], "unknown": ["1"]}, {}),
        ({}, {}),
    ],
)
def test_changes_are_read_as_triton_reads_them(settings: dict[str, list[str]], changes: dict[str, object]) -> None:
    assert read_changes(settings) == changes


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, "Expect only one trace level 'OFF' is specified"),
        ({"trace_level": ["OFF", "OFF"]}, "Expect only one trace level 'OFF' is specified"),
        (
            {"trace_level": ["TIMESTAMPS", "TENSOR"]},
            "there is no trace level 'TENSOR', choose from OFF, TIMESTAMPS, TENSORS",
        ),
        ({"trace_level": ["timestamps"]}, "there is no trace level 'timestamps', choose from OFF, TIMESTAMPS, TENSORS"),
        ({"trace_rate": ["many"]}, "Unable to parse 'trace_rate', got: many"),
        ({"trace_rate": [""]}, "Unable to parse 'trace_rate', got: "),
        (
            {"trace_rate": ["4294967296"]},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        ({"trace_rate": ["-1"]}, "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
        ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
        ({"trace_count": ["-2"]}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ({"trace_count": ["x"]}, "Unable to parse 'trace_count', got: x"),
        (
            {"trace_count": ["2147483648"]},
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        (
            {"trace_count": ["-2147483649"]},
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -2147483649",
        ),
        ({"trace_count": ["1", "2"]}, "expect only 1 value for 'trace_count'"),
        ({"log_frequency": ["a"]}, "Unable to parse 'log_frequency', got: a"),
        ({"log_frequency": ["1", "2"]}, "expect only 1 value for 'log_frequency'"),
    ],
)
def test_changes_that_cannot_be_are_refused_in_tritons_words(settings: dict[str, list[str]], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_changes(settings)
    assert str(caught.value) == text


def test_numbers_of_any_length_are_refused_in_no_time() -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        read_changes({"trace_rate": ["9" * 60_000]})


def test_trace_files_cannot_be_chosen() -> None:
    with pytest.raises(Unsupported, match=r"^trace file location can not be updated through network protocol$"):
        read_changes({"trace_file": ["/etc/passwd"], "trace_rate": ["x"]})


def test_model_has_what_it_was_given_and_the_rest_from_all_models() -> None:
    settings = TraceSettings(TraceSetting())
    change(settings, trace_rate=["10"])
    change(settings, "a", trace_level=["TIMESTAMPS"])
    assert settings.get("a") == TraceSetting(("TIMESTAMPS",), 10)
    assert settings.get("b") == TraceSetting((), 10)
    change(settings, trace_rate=["20"], log_frequency=["5"])
    assert settings.get("a") == TraceSetting(("TIMESTAMPS",), 20, -1, 5)
    change(settings, "a", trace_rate=["3"])
    change(settings, trace_rate=["30"])
    assert settings.get("a").rate == 3
    assert settings.get("").rate == 30


def test_empty_list_takes_a_setting_back() -> None:
    settings = TraceSettings(TraceSetting(("TIMESTAMPS",), 100, 50))
    change(settings, trace_rate=["20"], trace_level=["OFF"])
    change(settings, "a", trace_rate=["3"], trace_level=["TENSORS"])
    change(settings, "a", trace_rate=[])
    assert settings.get("a") == TraceSetting(("TENSORS",), 20, 50)
    change(settings, trace_rate=[], trace_level=[])
    assert settings.get() == TraceSetting(("TIMESTAMPS",), 100, 50)
    change(settings, "a", trace_level=[])
    assert settings.get("a") == settings.get()
    assert not settings.rules.models


def test_count_shows_what_is_left_and_survives_other_changes() -> None:
    settings = TraceSettings(TraceSetting(("TIMESTAMPS",), 1, 3))
    assert settings.rules.of("a").budget.take()
    assert settings.get("a").count == 2
    change(settings, trace_rate=["5"])
    change(settings, "b", trace_count=["1"])
    assert settings.get("a").count == 2
    budget = settings.rules.of("b").budget
    assert budget.take()
    assert not budget.take()
    assert (settings.get("b").count, settings.get("a").count) == (0, 2)
    change(settings, "b", trace_count=["9"])
    assert settings.get("b").count == 9


def test_what_is_to_be_looked_at_follows_from_who_is_traced_most() -> None:
    settings = TraceSettings(TraceSetting())
    assert (settings.rules.on, settings.rules.every) == (False, 0)
    change(settings, trace_level=["TIMESTAMPS"])
    assert (settings.rules.on, settings.rules.every) == (True, 1000)
    change(settings, "a", trace_rate=["10"])
    assert settings.rules.every == 10
    change(settings, "a", trace_level=["OFF"])
    assert settings.rules.every == 1000
    change(settings, trace_rate=["0"])
    assert (settings.rules.on, settings.rules.every) == (True, 0)
    change(settings, trace_rate=["5"], trace_count=["1"])
    assert settings.rules.every == 5
    assert settings.rules.default.budget.take()
    settings.refresh()
    assert (settings.rules.on, settings.rules.every) == (True, 0)


def test_turning_traces_on_is_refused_where_they_would_go_nowhere_and_changes_nothing() -> None:
    settings = TraceSettings(TraceSetting(), "there is no collector")
    with pytest.raises(InvalidRequest) as caught:
        change(settings, "a", trace_rate=["3"], trace_level=["TIMESTAMPS"])
    assert str(caught.value) == "Attempting to set invalid trace setting :there is no collector"
    assert settings.get("a") == TraceSetting()
    change(settings, trace_rate=["3"], trace_level=["OFF"])
    change(settings, trace_level=[])
    assert settings.get() == TraceSetting(rate=3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"], "trace_mode": ["opentelemetry"]}, []),
        ({"trace_level": [], "trace_mode": [], "log_frequency": ["0"]}, []),
        ({"trace_level": ["TIMESTAMPS", "MIN"]}, ["the trace level MIN, which Triton no longer has"]),
        ({"trace_rte": ["1"]}, ["the setting 'trace_rte', which is not known"]),
        ({"trace_mode": ["triton"]}, ["trace_mode: it is always opentelemetry"]),
        ({"log_frequency": ["3"]}, ["log_frequency: it is of Triton's trace files, which are not written"]),
    ],
)
def test_what_changes_nothing_is_found(settings: dict[str, list[str]], said: list[str]) -> None:
    assert without_effect(settings) == said
    assert len(without_effect({f"{'x' * 1_000}{n}": ["1"] for n in range(100)})) == 5
