"""What the parent and its processes say to each other. The names are those of ``Channel``'s questions and notices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from toutates.api.dataplane.everywhere import Order, Outcome
from toutates.server.options import Options

__all__ = [
    "AT_ONCE",
    "CARRY",
    "DO",
    "FAILED",
    "LOADED",
    "METRICS",
    "ORDER",
    "OUTCOME",
    "OUTCOMES",
    "POLL",
    "READY",
    "REPORT",
    "SERVE",
    "SERVING",
    "SIGNAL",
    "STATE",
    "STOP",
    "WHOLE",
    "Failed",
    "Loaded",
    "Start",
]

# From the parent: questions.
REPORT: Final = "report"  # for a Report; with the body WHOLE, one with the table of models
WHOLE: Final = b"whole"
DO: Final = "do"  # an Order, for its Outcome

# From the parent: notices.
SERVE: Final = "serve"  # listen; why the server as a whole is not ready
READY: Final = "ready"  # why the server as a whole is not ready
POLL: Final = "poll"  # look into the repositories for changes
SIGNAL: Final = "signal"  # one of SIGHUP, SIGUSR1 and SIGUSR2, by its number
STOP: Final = "stop"  # drain; with the body AT_ONCE, end the grace
AT_ONCE: Final = b"at once"

# From a process: questions.
CARRY: Final = "carry"  # an Order, for the Outcomes of all
METRICS: Final = "metrics"  # an Accept field, for the media type, a newline, and the text of all

# From a process: notices.
LOADED: Final = "loaded"  # Loaded: the first load is over
SERVING: Final = "serving"  # it listens
STATE: Final = "state"  # why it is not ready, by itself
FAILED: Final = "failed"  # Failed: it cannot start


@dataclass(frozen=True, slots=True)
class Start:
    """The first thing that a process is told, pickled: by its parent, whose word it may take.

    Attributes:
        number: of the process.
        options: its own.
        known: None for the first process of all; for the others the warnings that its log has had while it loaded,
            which are not worth another line.
        is_alone: whether nobody serves on REST's port while it starts: no other process does, and no other server.
    """

    number: int
    options: Options
    known: tuple[str, ...] | None
    is_alone: bool


class Loaded(msgspec.Struct, array_like=True):
    """What a process has loaded at its start.

    Attributes:
        models: their names.
        warnings: the log has had.
    """

    models: list[str]
    warnings: list[str]


class Failed(msgspec.Struct, array_like=True):
    """Why a process cannot start.

    Attributes:
        text: what is wrong, a line for each problem.
        is_configuration: whether it is a ConfigurationError, which ends the server with the exit code for that.
    """

    text: str
    is_configuration: bool


ORDER: Final = msgspec.msgpack.Decoder(Order)
OUTCOME: Final = msgspec.msgpack.Decoder(Outcome)
OUTCOMES: Final = msgspec.msgpack.Decoder(list[Outcome])
