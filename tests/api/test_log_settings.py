"""The rules of LogSettings; ``tests/e2e/test_logs.py`` sees what they come to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from toutates.api.dataplane.log_settings import log_settings
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import InvalidRequest, Unsupported
from toutates.system.logs.control import LogControl
from toutates.system.logs.levels import AREAS, parse_levels

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    names = ["", "toutates", *(f"toutates.{area}" for area in AREAS)]
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def control() -> LogControl:
    return LogControl(parse_levels("info"))


def request(settings: dict[str, bool | int | str | None]) -> pb.LogSettingsRequest:
    message = pb.LogSettingsRequest()
    for key, value in settings.items():
        if value is None:
            message.settings[key].Clear()
        elif isinstance(value, bool):
            message.settings[key].bool_param = value
        elif isinstance(value, int):
            message.settings[key].uint32_param = value
        else:
            message.settings[key].string_param = value
    return message


def ask(control: LogControl, settings: dict[str, bool | int | str | None]) -> dict[str, Any]:
    """The answer, each value with the type that it was sent as."""
    answer = pb.LogSettingsResponse.FromString(log_settings(control, request(settings)).SerializeToString())
    return {key: getattr(value, str(value.WhichOneof("parameter_choice"))) for key, value in answer.settings.items()}


def test_nothing_asked_for_is_answered_with_the_six(control: LogControl) -> None:
    assert ask(control, {}) == DEFAULTS
    answer = log_settings(control, pb.LogSettingsRequest())
    assert {key: value.WhichOneof("parameter_choice") for key, value in answer.settings.items()} == {
        "log_file": "string_param",
        "log_info": "bool_param",
        "log_warning": "bool_param",
        "log_error": "bool_param",
        "log_verbose_level": "uint32_param",
        "log_format": "string_param",
    }


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ("debug", {"log_verbose_level": 1}),
        ("warning", {"log_info": False}),
        ("error", {"log_info": False, "log_warning": False}),
        ("info,h2grpc=debug", {"log_level.h2grpc": "debug"}),
    ],
)
def test_the_flag_is_seen_in_the_answer(levels: str, expected: dict[str, Any]) -> None:
    assert ask(LogControl(parse_levels(levels)), {}) == {**DEFAULTS, **expected}


@pytest.mark.parametrize(
    "change",
    [
        {"log_info": False},
        {"log_warning": False, "log_error": False},
        {"log_verbose_level": 4_294_967_295},
        {"log_format": "ISO8601"},
        {"log_level.models": "error", "log_level.h2grpc": "debug"},
    ],
)
def test_a_change_is_answered_and_stays(control: LogControl, change: dict[str, Any]) -> None:
    expected = {**DEFAULTS, **change}
    assert ask(control, change) == expected
    assert ask(control, {}) == expected


@pytest.mark.parametrize("back", ["", None, False])
def test_an_area_gives_its_level_back(control: LogControl, back: str | bool | None) -> None:
    assert ask(control, {"log_level.models": True})["log_level.models"] == "debug"
    assert ask(control, {"log_level.models": back}) == DEFAULTS


def test_unknown_keys_are_ignored_and_named_in_the_log(control: LogControl, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(control, {"log_colour": "red", "log_level": "debug", "": 7}) == DEFAULTS
    text = "a LogSettings request has 3 keys that are not known, and ignored: '', 'log_colour', 'log_level'"
    assert caplog.messages == [text]


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"log_file": "/x"}, Unsupported, "log file location can not be updated through network protocol"),
        ({"log_file": ""}, Unsupported, "log file location can not be updated through network protocol"),
        ({"log_info": 1}, InvalidRequest, "expect boolean for 'log_info'"),
        ({"log_warning": "true"}, InvalidRequest, "expect boolean for 'log_warning'"),
        ({"log_error": None}, InvalidRequest, "expect boolean for 'log_error'"),
        ({"log_verbose_level": True}, InvalidRequest, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": "1"}, InvalidRequest, "expect int32 for 'log_verbose_level'"),
        ({"log_format": 1}, InvalidRequest, "expect string for 'log_format'"),
        ({"log_format": "iso"}, InvalidRequest, "invalid argument for log_format, got: iso"),
        ({"log_level.models": 1}, InvalidRequest, "expect string for 'log_level.models'"),
        (
            {"log_level.models": "loud"},
            InvalidRequest,
            "invalid argument for log_level.models, got: loud; choose from debug, info, warning, error",
        ),
        (
            {"log_level.model": "debug"},
            InvalidRequest,
            f"there is no area for 'log_level.model', choose from {', '.join(AREAS)}",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    control: LogControl, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        ask(control, {"log_verbose_level": 5, "log_info": False, **settings})
    assert str(raised.value) == text
    assert ask(control, {}) == DEFAULTS


def test_only_changes_are_in_the_log(control: LogControl, caplog: pytest.LogCaptureFixture) -> None:
    control.apply()
    ask(control, {"log_info": True})
    assert not caplog.messages
    ask(control, {"log_verbose_level": 2, "log_level.models": "error"})
    ask(control, {"log_level.models": ""})
    assert caplog.messages == [
        "log settings: log_verbose_level=2, log_level.models=error",
        "log settings: log_level.models=",
    ]
