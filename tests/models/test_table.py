"""Looking models up, in Triton's words."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_time import lines_run
from toutates.models.near_names import NearNames
from toutates.models.table import (
    MAX_CHANGES,
    UNLOADED,
    Changes,
    ModelEntry,
    ModelState,
    ModelTable,
    ServedVersion,
    VersionEntry,
    parse_version,
)
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import InvalidRequest, ModelNotReady, NotLoaded, RequestError, UnknownModel


def served(name: str, number: int) -> ServedVersion:
    return ServedVersion(name, number, ModelConfig(), cast(Any, None))


def ready(name: str, number: int) -> VersionEntry:
    return VersionEntry(number, ModelState.READY, served=served(name, number))


def broken(number: int) -> VersionEntry:
    return VersionEntry(number, ModelState.UNAVAILABLE, "Internal: no")


TABLE = ModelTable(
    {
        "zebra": ModelEntry("zebra", {1: ready("zebra", 1)}),
        "apple": ModelEntry("apple", {2: ready("apple", 2), 9: ready("apple", 9), 10: broken(10)}),
        "broken": ModelEntry("broken", {1: broken(1)}),
        "empty": ModelEntry("empty", {}, "no version directory"),
        "changed": ModelEntry("changed", {4: ready("changed", 4)}, gone=(2, 3)),
    },
    removed={"removed": (1, 7)},
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", None),
        ("1", 1),
        ("0", 0),
        ("007", 7),
        (" 12", 12),
        ("\t\n3", 3),
        ("+4", 4),
        ("1abc", 1),
        ("2.9", 2),
        ("-0", 0),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_a_version_is_read_as_c_reads_it(text: str, number: int | None) -> None:
    assert parse_version(text) == number


@pytest.mark.parametrize("text", ["x", "x1", "-", "+", " ", "- 1", str(2**63), "9" * 5_000, "٣", "\0001"])
def test_a_version_that_is_no_number_is_refused_with_a_text_of_bounded_length(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_version(text)
    assert str(caught.value) == (
        f"failed to get model version from specified version string '{text[:64]}' (details: stol), "
        "version should be an integral value > 0"
    )


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_version("-3")
    assert str(caught.value) == "invalid model version specified '-3' , version should be an integral value > 0"


@given(st.text())
def test_any_text_is_a_version_none_or_an_invalid_request(text: str) -> None:
    try:
        number = parse_version(text)
    except InvalidRequest:
        return
    assert number is None or 0 <= number < 2**63


def test_the_greatest_ready_version_is_found_where_none_is_asked_for() -> None:
    assert TABLE.find("apple", "").number == 9


def test_a_version_is_found_by_its_number() -> None:
    assert TABLE.find("apple", "2").number == 2
    assert TABLE.find("apple", "2nd").number == 2


REFUSALS: dict[str, tuple[str, str, type[RequestError], str]] = {
    "unknown model": ("pear", "", UnknownModel, "Request for unknown model: 'pear' is not found"),
    "unknown version": ("apple", "3", UnknownModel, "Request for unknown model: 'apple' version 3 is not found"),
    "version 0": ("apple", "0", UnknownModel, "Request for unknown model: 'apple' version 0 is not found"),
    "no ready version": ("broken", "", UnknownModel, "Request for unknown model: 'broken' has no available versions"),
    "no version": ("empty", "", UnknownModel, "Request for unknown model: 'empty' has no available versions"),
    "not ready": ("broken", "1", ModelNotReady, "Request for unknown model: 'broken' version 1 is not at ready state"),
    "version that was removed": (
        *("changed", "3", ModelNotReady),
        "Request for unknown model: 'changed' version 3 is not at ready state",
    ),
    "model that was removed": (
        *("removed", "", UnknownModel),
        "Request for unknown model: 'removed' has no available versions",
    ),
    "version of a model that was removed": (
        *("removed", "7", ModelNotReady),
        "Request for unknown model: 'removed' version 7 is not at ready state",
    ),
    "unknown version of a model that was removed": (
        *("removed", "2", UnknownModel),
        "Request for unknown model: 'removed' version 2 is not found",
    ),
    "bad version of an unknown model": ("pear", "-1", InvalidRequest, "invalid model version specified '-1' , "),
}


@pytest.mark.parametrize(("name", "version", "kind", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_found_is_refused_in_tritons_words(
    name: str, version: str, kind: type[RequestError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        TABLE.find(name, version)
    assert str(caught.value).startswith(text)


def test_models_are_sorted_and_the_served_ones_listed() -> None:
    assert list(TABLE.models) == ["apple", "broken", "changed", "empty", "zebra"]
    served = [(version.model, version.number) for version in TABLE.served()]
    assert served == [("apple", 2), ("apple", 9), ("changed", 4), ("zebra", 1)]


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLE.models["new"] = ModelEntry("new")  # type: ignore[index]


@pytest.mark.parametrize(
    ("table", "is_ready"),
    [
        (ModelTable({}), True),
        (ModelTable({}, complete=False), False),
        (ModelTable({"m": ModelEntry("m", {1: ready("m", 1)})}), True),
        (ModelTable({"m": ModelEntry("m", {1: ready("m", 1)})}, complete=False), False),
        (ModelTable({"m": ModelEntry("m", {1: ready("m", 1), 2: broken(2)})}), True),
        (ModelTable({"m": ModelEntry("m", {1: broken(1), 2: broken(2)})}), False),
        (ModelTable({"m": ModelEntry("m", {}, "no version directory")}), False),
    ],
    ids=["empty", "loading", "ready", "ready and loading", "one broken version", "broken versions", "no version"],
)
def test_the_server_is_ready_once_every_model_is_served(table: ModelTable, is_ready: bool) -> None:
    assert table.ready is is_ready


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (ModelTable({}, complete=False), "models are being loaded"),
        (ModelTable({}, may_be_empty=False), "no model is served: the model repository has none"),
        (
            ModelTable({"m": ModelEntry("m", {1: VersionEntry(1, ModelState.UNLOADING)})}, may_be_empty=False),
            "no model is served: the model repository has none",
        ),
        (ModelTable({"m": ModelEntry("m", {1: ready("m", 1)})}, may_be_empty=False), ""),
        (
            ModelTable({"a": ModelEntry("a", {1: broken(1)}), "m": ModelEntry("m", {1: ready("m", 1)})}),
            "1 of 2 models cannot be served: 'a'",
        ),
        (
            ModelTable({f"m{n}": ModelEntry(f"m{n}", {1: broken(1)}) for n in range(7)}),
            "7 of 7 models cannot be served: 'm0', 'm1', 'm2', 'm3', 'm4' and 2 more",
        ),
        (ModelTable({"m": ModelEntry("m", {1: VersionEntry(1, ModelState.LOADING)})}), ""),
        (
            ModelTable({"m": ModelEntry("m", {1: VersionEntry(1, ModelState.LOADING)}, retried=True)}),
            "1 of 1 models cannot be served: 'm'",
        ),
    ],
    ids=["loading", "empty", "the last one is unloaded", "ready", "one of two", "many", "new", "tried again"],
)
def test_the_table_says_why_the_server_is_not_ready(table: ModelTable, reason: str) -> None:
    assert table.unready_reason == reason


@pytest.mark.parametrize(
    ("suggests", "name", "end"),
    [
        (True, "zebar", "; did you mean 'zebra'?"),
        (True, "Zebra", "; did you mean 'zebra'?"),
        (True, "pear", ""),
        (True, "zebar" * 20, ""),
        (False, "zebar", ""),
    ],
)
def test_an_unknown_model_has_the_name_that_was_meant_behind_tritons_text(suggests: bool, name: str, end: str) -> None:
    table = ModelTable({"zebra": ModelEntry("zebra", {1: ready("zebra", 1)})}, suggests_names=suggests)
    with pytest.raises(UnknownModel) as caught:
        table.find(name, "")
    assert str(caught.value) == f"Request for unknown model: '{name}' is not found{end}"


def test_names_are_searched_once_a_second_and_answers_are_kept() -> None:
    now = [0.0]
    names = NearNames(["resnet", "bert"], lambda: now[0])
    assert names.like("resnte") == "resnet"
    assert names.like("bret") == ""  # too soon
    assert names.like("resnte") == "resnet"
    now[0] = 1.0
    assert names.like("bret") == "bert"


def test_a_name_is_compared_with_all_of_few_names_and_with_those_of_many_that_begin_like_it() -> None:
    assert NearNames(["zebra"]).like("xebra") == "zebra"
    many = [*(f"other-{number}" for number in range(50)), "zebra"]
    assert NearNames(many).like("zebar") == "zebra"
    assert NearNames(many).like("xebra") == ""
    assert NearNames(["a" * 40, "b" * 41]).like("a" * 39) == "a" * 40
    assert NearNames(["b" * 41]).like("b" * 40) == ""
    assert NearNames(["b" * 40]).like("b" * 41) == ""


def test_a_search_among_many_long_names_compares_few() -> None:
    near = NearNames([f"{'a' * 36}{number:03}" for number in range(10_000)])
    # 15 ms on a quiet machine; all of them would take seconds.
    assert lines_run(lambda: near.like("a" * 40)) < 500_000
    assert near.like("a" * 40)


def test_changes_name_the_models_that_somebody_may_remember_something_of() -> None:
    first = Changes()
    second = first.and_then(frozenset({"a"})).and_then(frozenset({"b"}))
    assert second.since(first) == frozenset({"a", "b"})
    assert second.since(second) == frozenset()
    assert second.and_then(None).since(second) is None


def test_changes_too_many_or_of_another_server_are_about_all_models() -> None:
    before = after = Changes()
    for number in range(MAX_CHANGES):
        after = after.and_then(frozenset({str(number)}))
    assert len(after.since(before) or ()) == MAX_CHANGES
    assert after.and_then(frozenset({"more"})).since(before) is None
    assert Changes().since(before) is None


LOADABLE = ModelTable(
    {
        "loaded": ModelEntry("loaded", {1: ready("loaded", 1)}),
        "broken": ModelEntry("broken", {1: broken(1)}),
        "unloaded": ModelEntry("unloaded", {1: VersionEntry(1, ModelState.UNAVAILABLE, UNLOADED)}),
    },
    loadable={"loaded", "broken", "unloaded", "new"},
    failures_count=False,
)


def test_a_model_that_is_loaded_on_demand_is_told_from_one_that_is_not_there() -> None:
    for name in ("new", "broken"):
        with pytest.raises(NotLoaded) as caught:
            LOADABLE.find(name, "")
        assert caught.value.model == name
    assert LOADABLE.find("loaded", "").number == 1
    assert LOADABLE.knows("new")
    assert not LOADABLE.knows("nobody")
    assert LOADABLE.ready
    with pytest.raises(UnknownModel, match="has no available versions"):
        LOADABLE.find("unloaded", "")
    with pytest.raises(UnknownModel, match="'nobody' is not found"):
        LOADABLE.find("nobody", "")


def test_what_model_config_answers_is_made_when_it_is_asked_for_once() -> None:
    made: list[ModelConfig] = []

    def make() -> ModelConfig:
        made.append(ModelConfig(name="m", max_batch_size=4))
        return made[-1]

    given = ModelConfig(metric_tags={"team": "a"})
    given.model_transaction_policy.decoupled = True
    version = ServedVersion("m", 1, make, cast(Any, None), given=given)
    assert (version.decoupled, dict(version.stated.metric_tags), made) == (True, {"team": "a"}, [])
    assert version.config is version.config
    assert len(made) == 1
    plain = ServedVersion("m", 1, make, cast(Any, None))
    assert (plain.decoupled, dict(plain.stated.metric_tags)) == (False, {})
    assert len(made) == 1
