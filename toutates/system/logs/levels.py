"""Which lines are shown, by area and level, as ``--log-level`` and the LogSettings RPC set it.

An *area* is one or several parts of the package: a line of ``toutates.net.worker`` has the area ``h2grpc``. The area of
a line of another library is the name of that library.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

__all__ = [
    "ANYWAY",
    "AREAS",
    "AREA_KEY",
    "LEVELS",
    "PACKAGE",
    "PARTS",
    "LogLevels",
    "area_of",
    "level_name",
    "parse_levels",
]

#: An attribute of records that are shown whatever the levels, as is how many more of them there were.
ANYWAY: Final = "shown_anyway"

PACKAGE: Final = "toutates"
#: Areas, each of which may have a level of its own, and the parts of the package that belong to it.
PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "access": ("access",),
        "batching": ("engine", "backends.onnx.pinned", "backends.onnx.session"),
        "audit": ("api.audit",),
        "h2grpc": ("h2grpc", "net"),
        "logs": ("system.logs",),
        "metrics": ("observe.metrics",),
        "models": ("models", "backends"),
        "monitoring": ("observe",),
        "placement": ("system.placement",),
        "providers": ("backends.onnx.providers",),
        "repositories": ("repositories",),
        "server": ("server", "command", "system"),
        "service": ("api", "infer"),
        "tracing": ("infer.tracing",),
    }
)
AREAS: Final = tuple(PARTS)
#: Levels by the names that users write.
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
)
#: Begins the keys of LogSettings that are ours: ``log_level.h2grpc``.
AREA_KEY: Final = "log_level."

_AREA_OF: Final = {part: area for area, parts in PARTS.items() for part in parts}
_NAMES: Final = {level: name for name, level in LEVELS.items()} | {logging.CRITICAL: "critical"}


def area_of(logger: str) -> str:
    """The area of a logger's lines, by its dotted name."""
    library, _, rest = logger.partition(".")
    if library != PACKAGE:
        return library
    while rest:
        area = _AREA_OF.get(rest)
        if area is not None:
            return area
        rest = rest.rpartition(".")[0]
    return "server"


def level_name(level: int) -> str:
    """The name of a level in lower case. A level between two has the name of the lower one."""
    return _NAMES[max((known for known in _NAMES if known <= level), default=logging.DEBUG)]


@dataclass(frozen=True, slots=True)
class LogLevels:
    """Which lines are shown. The first four are Triton's switches, for every area without a level of its own.

    Attributes:
        info, warning, error: whether lines of this level are shown.
        verbose: above 0 lines of the level debug are shown.
        areas: by area, the lowest level that is shown, whatever the switches say.
        iso8601: whether lines of text have their time in ISO 8601 and UTC, not in the machine's own.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose: int = 0
    areas: Mapping[str, int] = field(default_factory=dict)
    iso8601: bool = False

    def shows(self, area: str, level: int) -> bool:
        """Whether a line is shown. Critical lines always are. Debug lines of other libraries never are, because they
        may hold headers and signatures.
        """
        if level >= logging.CRITICAL:
            return True
        threshold = self.areas.get(area)
        if threshold is not None:
            return level >= threshold
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        if level >= logging.INFO:
            return self.info
        return self.verbose > 0 and area in AREAS

    def lowest(self, area: str) -> int:
        """The lowest level that is shown of an area."""
        levels = (*LEVELS.values(), logging.CRITICAL)
        return next(level for level in levels if self.shows(area, level))


def parse_levels(text: str) -> LogLevels:
    """Levels in the form of ``--log-level``: ``info``, or ``info,h2grpc=debug,models=warning``.

    Raises:
        ValueError: it is not of that form; the text says what is wrong, and what to write.
    """
    general: int | None = None
    areas: dict[str, int] = {}
    for item in text.split(","):
        area, equals, name = (part.strip() for part in item.rpartition("="))
        if name not in LEVELS:
            raise ValueError(f"{name!r} is not a level: choose from {', '.join(LEVELS)}")
        if not equals:
            if general is not None:
                raise ValueError(f"{text!r} has two levels for everything: name the area of one, such as h2grpc={name}")
            general = LEVELS[name]
        elif area not in AREAS:
            raise ValueError(f"{area!r} is not an area: choose from {', '.join(AREAS)}")
        elif area in areas:
            raise ValueError(f"{text!r} has two levels for {area}: leave one")
        else:
            areas[area] = LEVELS[name]
    if general is None:
        general = logging.INFO
    return LogLevels(
        info=general <= logging.INFO,
        warning=general <= logging.WARNING,
        verbose=int(general <= logging.DEBUG),
        areas=MappingProxyType(areas),
    )
