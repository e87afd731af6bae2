"""LogSettings: Triton's six keys, and levels of single areas beside them.

    log_info, log_warning, log_error    bool      whether lines of that level are shown
    log_verbose_level                   uint32    above 0 lines of the level debug are shown
    log_format                          string    the time in lines of text: "default", or "ISO8601" in UTC
    log_file                            string    "", standard error; cannot be changed
    log_level.AREA                      string    debug, info, warning or error; "" takes the level back

Unknown keys are ignored, as by Triton, and named in the log. A request that is refused changes nothing. The key of an
area may have a bool instead: true for debug, false to take the level back. tritonclient sends nothing but bools for
keys that it does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import InvalidRequest, Unsupported
from toutates.system.logs.control import LogControl
from toutates.system.logs.levels import AREA_KEY, AREAS, LEVELS, LogLevels, level_name
from toutates.system.text import shown

__all__ = ["log_settings"]

_Values = Mapping[str, pb.LogSettingsRequest.SettingValue]

#: Values of log_format, and whether times are ISO 8601.
_FORMATS: Final = {"default": False, "ISO8601": True}
_MAX_KEYS_SHOWN: Final = 5
_KEYS: Final = frozenset({"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"})

logger = logging.getLogger(__name__)


def log_settings(control: LogControl, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
    """Make the changes that a request asks for, and return all settings.

    Raises:
        Unsupported: the request changes log_file.
        InvalidRequest: a value cannot be used.
    """
    before = control.levels
    wanted = _changed(before, request.settings)
    unknown = [key for key in sorted(request.settings) if key not in _KEYS and not key.startswith(AREA_KEY)]
    if unknown:
        names = ", ".join(f"'{shown(key)}'" for key in unknown[:_MAX_KEYS_SHOWN])
        logger.warning("a LogSettings request has %d keys that are not known, and ignored: %s", len(unknown), names)
    if wanted != before:
        shown_before = _settings(before)
        changes = [f"{key}={value}" for key, value in _settings(wanted).items() if shown_before.get(key) != value]
        changes += [f"{key}=" for key in shown_before if key not in _settings(wanted)]
        control.change(wanted, ", ".join(changes))
    response = pb.LogSettingsResponse()
    for key, value in _settings(wanted).items():
        if isinstance(value, bool):
            response.settings[key].bool_param = value
        elif isinstance(value, int):
            response.settings[key].uint32_param = value
        else:
            response.settings[key].string_param = value
    return response


def _settings(levels: LogLevels) -> dict[str, bool | int | str]:
    """All settings: Triton's six, and those of areas that have a level of their own."""
    return {
        "log_file": "",
        "log_info": levels.info,
        "log_warning": levels.warning,
        "log_error": levels.error,
        "log_verbose_level": levels.verbose,
        "log_format": next(name for name, iso8601 in _FORMATS.items() if iso8601 == levels.iso8601),
        **{AREA_KEY + area: level_name(level) for area, level in sorted(levels.areas.items())},
    }


def _changed(levels: LogLevels, values: _Values) -> LogLevels:
    # In Triton's order, so that of two mistakes the same one is named.
    if "log_file" in values:
        raise Unsupported("log file location can not be updated through network protocol")
    verbose, iso8601 = levels.verbose, levels.iso8601
    info = _bool(values, "log_info", levels.info)
    warning = _bool(values, "log_warning", levels.warning)
    error = _bool(values, "log_error", levels.error)
    if "log_verbose_level" in values:
        if values["log_verbose_level"].WhichOneof("parameter_choice") != "uint32_param":
            raise InvalidRequest("expect int32 for 'log_verbose_level'")
        verbose = values["log_verbose_level"].uint32_param
    if "log_format" in values:
        if values["log_format"].WhichOneof("parameter_choice") != "string_param":
            raise InvalidRequest("expect string for 'log_format'")
        name = values["log_format"].string_param
        if name not in _FORMATS:
            raise InvalidRequest(f"invalid argument for log_format, got: {shown(name)}")
        iso8601 = _FORMATS[name]
    areas = dict(levels.areas)
    for key in sorted(values):
        if key.startswith(AREA_KEY):
            _change_area(areas, key, values[key])
    return replace(
        levels,
        info=info,
        warning=warning,
        error=error,
        verbose=verbose,
        iso8601=iso8601,
        areas=MappingProxyType(areas),
    )


def _bool(values: _Values, key: str, now: bool) -> bool:
    if key not in values:
        return now
    if values[key].WhichOneof("parameter_choice") != "bool_param":
        raise InvalidRequest(f"expect boolean for '{key}'")
    return values[key].bool_param


def _change_area(areas: dict[str, int], key: str, value: pb.LogSettingsRequest.SettingValue) -> None:
    area = key.removeprefix(AREA_KEY)
    if area not in AREAS:
        raise InvalidRequest(f"there is no area for '{shown(key)}', choose from {', '.join(AREAS)}")
    kind = value.WhichOneof("parameter_choice")
    if kind == "uint32_param":
        raise InvalidRequest(f"expect string for '{key}'")
    if kind == "bool_param":
        level = logging.DEBUG if value.bool_param else None
    elif value.string_param in LEVELS:
        level = LEVELS[value.string_param]
    elif value.string_param:
        given = shown(value.string_param)
        raise InvalidRequest(f"invalid argument for {key}, got: {given}; choose from {', '.join(LEVELS)}")
    else:
        level = None
    if level is None:
        areas.pop(area, None)
    else:
        areas[area] = level
