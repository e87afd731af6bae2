"""The log: its lines in each format, the fields of the access log, and sentences that scripts wait for."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from tests.contract.asking import SERVICE, Infer, ask, call, plain
from tests.e2e.process import ServerProcess
from tests.e2e.wire import client_of
from tests.waiting import wait_until
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.logs.levels import AREAS, LEVELS, LogLevels
from toutates.system.logs.rendering import LogFormat, LogFormatter

__all__ = ["format_lines", "log_lines"]

_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "ISO8601", "json")
#: Lines of the requests below, which have the word once each.
_LOGGED: Final = 4
#: A digit of a time. What is shown is where they are, for text has the machine's own time.
_DIGIT: Final = re.compile(r"\d")
_VERSIONS: Final = (
    (re.compile(r"toutates \S+ on \S+ \S+ with(?:out)? the GIL"), "toutates VERSION on PYTHON"),
    (re.compile(r"\d+ workers?"), "N workers"),
)


def format_lines() -> list[str]:
    """The same record in each format, and what may be written to --log-level."""
    lines = [f"level {name}" for name in LEVELS] + [f"area {area}" for area in AREAS]
    for form in _FORMATS:
        levels = LogLevels(iso8601=form == "ISO8601")
        formatter = LogFormatter(form, partial(_itself, levels))
        of_many = LogFormatter(form, partial(_itself, levels), process=1)
        for what, made in (("one process", formatter), ("several processes", of_many)):
            line = made.of_fields(
                time_s=1e9, level=logging.WARNING, area="server", event="SENTENCE", ratio=0.5, text="two words"
            )
            lines.append(f"format {form}, {what}  {_timeless(line)}")
        failed = logging.LogRecord("toutates.net", logging.ERROR, "", 0, "SENTENCE", (), None)
        failed.created = 1e9
        failed.exc_info = (ValueError, ValueError("TEXT"), None)
        shown = _timeless(formatter.of_record(failed)).replace("\n", "\\n")
        lines.append(f"format {form}, an exception  {shown}")
    return lines


def _itself(levels: LogLevels) -> LogLevels:
    return levels


def _timeless(line: str) -> str:
    """A line whose time has its form alone."""
    head = line[: len("2026-11-28 10:05:34.277")] if not line.startswith("{") else ""
    if head:
        return _DIGIT.sub("9", head) + line.removeprefix(head).rstrip()
    stamp = str(json.loads(line)["timestamp"])
    return line.replace(stamp, _DIGIT.sub("9", stamp)).rstrip()


def log_lines(server: ServerProcess) -> list[str]:
    """What the log of a real server has: its start, and the access log of requests that succeed and fail."""
    with client_of(server.port) as client:
        for request in (Infer(), Infer(outputs=["logged"]), Infer("logged")):
            message = pb.ModelInferRequest.FromString(request.message)
            message.id = "logged-grpc"
            call(client, SERVICE + "ModelInfer", message.SerializeToString())
    ask(server.rest_port, "POST", "/v2/models/neg/infer", {"id": "logged-rest", **Infer().document})
    wait_until(lambda: server.log.count("logged") == _LOGGED)
    lines = [f"access log  {_access_form(line)}" for line in server.log.splitlines() if "logged" in line]
    lines += [f"start  {sentence}" for sentence in _starts(server.log)]
    return sorted(lines)


def _access_form(line: str) -> str:
    """A line of the access log without its time, with a word for each number that differs from run to run."""
    text = plain(line[len("2026-11-28 10:05:34.277 ") :])
    return re.sub(r"_ms=[\d.]+", "_ms=MS", text)


def _starts(log: str) -> Iterator[str]:
    """The sentences that say where the server is."""
    for line in log.splitlines():
        if re.search(r"serving gRPC on|status page on|management API of", line):
            text = plain(line[len("2026-11-28 10:05:34.277 ") :])
            for pattern, word in _VERSIONS:
                text = pattern.sub(word, text)
            yield text
