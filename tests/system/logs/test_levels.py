from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import toutates
from toutates.system.logs.control import LogControl
from toutates.system.logs.levels import AREAS, LogLevels, area_of, level_name, parse_levels

DEBUG, INFO, WARNING, ERROR, CRITICAL = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)


def shown(levels: LogLevels, area: str) -> list[int]:
    return [level for level in (DEBUG, INFO, WARNING, ERROR, CRITICAL) if levels.shows(area, level)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("debug", DEBUG), ("info", INFO), ("warning", WARNING), ("error", ERROR), ("h2grpc=debug", INFO)],
)
def test_one_level_is_that_of_every_area(text: str, expected: int) -> None:
    levels = parse_levels(text)
    for area in ("server", "models"):
        assert shown(levels, area)[0] == expected
        assert levels.lowest(area) == expected


def test_an_area_may_have_a_level_of_its_own() -> None:
    levels = parse_levels(" warning , h2grpc = debug,models=error")
    assert shown(levels, "h2grpc") == [DEBUG, INFO, WARNING, ERROR, CRITICAL]
    assert shown(levels, "models") == [ERROR, CRITICAL]
    assert shown(levels, "server") == [WARNING, ERROR, CRITICAL]
    assert levels.lowest("h2grpc") == DEBUG


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loud", ["'loud' is not a level", "debug, info, warning, error"]),
        ("", ["'' is not a level"]),
        ("info,", ["'' is not a level"]),
        ("h2grpc=loud", ["'loud' is not a level"]),
        ("h2grp=debug", ["'h2grp' is not an area", "batching"]),
        ("info,debug", ["two levels for everything"]),
        ("models=info,models=debug", ["two levels for models"]),
    ],
)
def test_what_is_wrong_with_levels_is_said(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"level|area") as raised:
        parse_levels(text)
    for word in words:
        assert word in str(raised.value)


def test_each_level_has_a_switch_of_its_own() -> None:
    levels = LogLevels(info=True, warning=False, error=False, verbose=3)
    assert shown(levels, "server") == [DEBUG, INFO, CRITICAL]
    assert LogLevels(info=False, warning=False, error=False).lowest("server") == CRITICAL


def test_other_libraries_are_not_shown_below_info() -> None:
    assert shown(parse_levels("debug"), "botocore") == [INFO, WARNING, ERROR, CRITICAL]


def test_areas_are_parts_of_the_package() -> None:
    assert area_of("toutates.net.worker") == "h2grpc"
    assert area_of("toutates.server.server") == area_of("toutates") == "server"
    assert area_of("botocore.hooks") == "botocore"
    assert [level_name(level) for level in (DEBUG, 25, CRITICAL)] == ["debug", "info", "critical"]


def test_every_module_that_logs_is_of_an_area() -> None:
    root = Path(toutates.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        if b"logging.getLogger(" in path.read_bytes():
            relative = path.relative_to(root).with_suffix("")
            found.add(area_of("toutates." + ".".join(relative.parts)))
    assert found <= set(AREAS)
    assert len(found) > 5


def test_logging_follows_levels_and_their_changes() -> None:
    control = LogControl(parse_levels("warning,h2grpc=debug"))
    control.apply()
    worker, server = logging.getLogger("toutates.net.worker"), logging.getLogger("toutates.server.server")
    assert worker.isEnabledFor(DEBUG)
    assert not server.isEnabledFor(INFO)
    control.change(parse_levels("debug"), "")
    assert server.isEnabledFor(DEBUG)
    assert not logging.getLogger("botocore.auth").isEnabledFor(DEBUG)


def test_a_second_signal_takes_back_what_the_first_did(caplog: pytest.LogCaptureFixture) -> None:
    before = parse_levels("error,models=warning")
    control = LogControl(before)
    control.apply()
    control.toggle_debug()
    assert shown(control.levels, "models")[0] == DEBUG
    assert "everything is logged" in caplog.text
    control.toggle_debug()
    assert control.levels == before
    assert "as it was before" in caplog.text
    assert not logging.getLogger("toutates.server.server").isEnabledFor(WARNING)


def test_a_change_ends_what_a_signal_began() -> None:
    control = LogControl(parse_levels("error"))
    control.toggle_debug()
    control.change(parse_levels("warning"), "by request")
    assert control.levels == parse_levels("warning")
    control.toggle_debug()
    assert shown(control.levels, "server")[0] == DEBUG
    control.toggle_debug()
    assert control.levels == parse_levels("warning")


def test_a_change_is_logged_where_it_can_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    control = LogControl(parse_levels("info"))
    control.apply()
    control.change(parse_levels("error"), "quiet")
    control.change(parse_levels("info"), "loud")
    assert [record.getMessage() for record in caplog.records] == ["log settings: quiet", "log settings: loud"]


def test_the_documentation_has_every_area() -> None:
    text = (Path(toutates.__file__).parents[1] / "docs" / "logging.md").read_text()
    documented = {
        name
        for cells in re.findall(r"(?m)^\| ((?:`[a-z0-9]+`(?:, )?)+) \| [^|]+ \|$", text)
        for name in re.findall(r"`([a-z0-9]+)`", cells)
    }
    assert set(AREAS) <= documented
