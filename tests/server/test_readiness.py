"""When a server is ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from toutates.repositories.control.waiting import Waiting
from toutates.server.readiness import ServerReadiness
from toutates.server.shutdown import Shutdown


def test_a_server_is_not_ready_before_its_workers_listen() -> None:
    told: list[bool] = []
    manager: Any = SimpleNamespace(table=SimpleNamespace(unready_reason=""))
    control: Any = SimpleNamespace(unready_reason="")
    readiness = ServerReadiness(True, manager, control, Waiting(), Shutdown(), told.append)
    assert readiness.reason() == "the server is starting"
    manager.table.unready_reason = "a model cannot be served"
    assert readiness.reason() == "a model cannot be served"
    assert readiness.begin() == "a model cannot be served"
    manager.table.unready_reason = ""
    assert readiness.reason() == ""


def test_workers_are_told_when_readiness_changes_and_not_with_each_change_of_the_table() -> None:
    told: list[bool] = []
    manager: Any = SimpleNamespace(table=SimpleNamespace(unready_reason=""))
    control: Any = SimpleNamespace(unready_reason="")
    shutdown = Shutdown()
    readiness = ServerReadiness(True, manager, control, Waiting(), shutdown, told.append)
    readiness.begin()
    for _ in range(3):
        readiness.changed()
    assert told == [True]
    manager.table.unready_reason = "a model cannot be served"
    readiness.changed()
    readiness.changed()
    assert told == [True, False]
    manager.table.unready_reason = ""
    readiness.changed()
    shutdown.leaving.set()
    readiness.changed()
    assert told == [True, False, True, False]
