"""The rules of aliases and traffic are looked at for as long as the server serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.traffic.rules import Target
from toutates.repositories.control import traffic as traffic_module
from toutates.repositories.control.traffic import FILE_NAME, TrafficControl


def test_a_look_that_fails_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traffic_module, "POLL_S", 0.01)
    run_sync = trio.to_thread.run_sync
    refused = 0

    async def refuse_twice(*given: Any, **more: Any) -> Any:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise RuntimeError("can't start new thread")
        return await run_sync(*given, **more)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            in_force = trio.Event()
            manager = ModelManager(LoadOptions(()), nursery, on_change=lambda: in_force.set())
            await manager.load_all([], lambda done, total, name: None)
            manager.set_loadable({"m"})
            traffic = TrafficControl(manager, [tmp_path / FILE_NAME])
            await traffic.look()
            in_force = trio.Event()
            monkeypatch.setattr(trio.to_thread, "run_sync", refuse_twice)
            (tmp_path / FILE_NAME).write_text("aliases: {live: m}\n")
            nursery.start_soon(traffic.watch)
            with trio.fail_after(120):
                await in_force.wait()
            assert traffic.rules.aliases == {"live": Target("m")}
            manager.stop()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert refused == 2
    assert caplog.text.count("could not be looked at; it is tried again") == 1
