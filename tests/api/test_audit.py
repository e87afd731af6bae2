"""The audit line of a change that has switched such lines off: told each time, also where the change was refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from toutates.api.audit import Author, audited, audited_later
from toutates.api.dataplane.log_settings import log_settings
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import Unavailable
from toutates.system.logs.setup import start_logs

AUTHOR = Author("key a", "10.0.0.1:1", "REST")
TIMES = 60


def _at_once(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return audited(AUTHOR, answer)


def _later(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def awaited(request: Any) -> Any:
        return answer(request)

    return lambda request: trio.run(audited_later(AUTHOR, awaited), request)


@pytest.mark.parametrize("noting", [_at_once, _later])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "refused"])
def test_who_switches_the_log_off_has_few_lines_and_the_number_of_the_others(
    tmp_path: Path, noting: Callable[[Callable[[Any], Any]], Callable[[Any], Any]], fails: bool
) -> None:
    off, on = pb.LogSettingsRequest(), pb.LogSettingsRequest()
    off.settings["log_info"].bool_param, on.settings["log_info"].bool_param = False, True
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    with start_logs("info", "text", fd=fd) as logs:

        def change(request: pb.LogSettingsRequest) -> None:
            log_settings(logs.control, request)
            if fails:
                raise Unavailable("failed in 1 of 2 processes")

        answer = noting(change)
        for _ in range(TIMES):
            if fails:
                with pytest.raises(Unavailable):
                    answer(off)
            else:
                answer(off)
            log_settings(logs.control, on)
        log_settings(logs.control, off)
    os.close(fd)
    became = "refused: failed in 1 of 2 processes" if fails else "done"
    line = f"log settings: log_info by key a (10.0.0.1:1, REST): {became}; lines like this are not shown from now on\n"
    log = (tmp_path / "log").read_text()
    others = re.findall(rf"and (\d+) more lines in 10 s like: {re.escape(line)}", log)
    assert log.count(line) < TIMES
    assert log.count(line) - len(others) + sum(map(int, others)) == TIMES
