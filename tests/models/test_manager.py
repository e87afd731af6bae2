"""Models that come and go while others are served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.graphs import DOUBLE, double
from tests.models.support import WatchedFiles, folder_of, gone, load_model, manager_in, put, unload_model
from toutates.models import current_table as current_table_module
from toutates.models.manager import ModelManager
from toutates.models.repository import scan_model
from toutates.models.table import ModelState
from toutates.system.errors import ModelLoadError, PartlyLoaded


def test_versions_of_a_new_model_are_all_served_or_none_unless_each_is_by_itself(tmp_path: Path) -> None:
    put(tmp_path, "m", version=1)
    put(tmp_path, "m", b"nonsense", version=2)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                with pytest.raises(ModelLoadError, match="version 2 is at UNAVAILABLE state: Internal: onnxruntime"):
                    await load_model(manager, folder_of(tmp_path))
                assert not manager.table.served()
                await gone(manager)
                with pytest.raises(ModelLoadError):
                    await load_model(manager, folder_of(tmp_path), all_or_none=False)
                assert [version.number for version in manager.table.served()] == [1]
                manager.stop()

    trio.run(main)


@pytest.mark.parametrize("failure", ["a version", "the files"])
def test_a_model_that_could_not_be_served_leaves_the_server_unready_until_it_can(tmp_path: Path, failure: str) -> None:
    seen: list[tuple[bool, ModelState | None]] = []

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:

                def note() -> None:
                    states = [version.state for version in manager.table.models["m"].versions.values()]
                    seen.append((manager.table.ready, states[0] if states else None))

                manager = manager_in(nursery, on_change=note)
                graph = put(tmp_path, "m", b"nonsense") / "model.onnx"
                if failure == "the files":
                    manager.refuse("m", "its files are not in the cache")
                for _ in range(2):
                    with pytest.raises(ModelLoadError):
                        await load_model(manager, folder_of(tmp_path))
                graph.write_bytes(DOUBLE)
                await load_model(manager, folder_of(tmp_path))
                manager.stop()

    trio.run(main)
    refused = [(False, None)] if failure == "the files" else []
    first, *again = [(False, ModelState.LOADING), (False, ModelState.UNAVAILABLE)] * 2 + [(False, ModelState.LOADING)]
    if failure == "a version":
        first = (True, ModelState.LOADING)  # it is new: whatever else is served is served on
    assert seen == [*refused, first, *again, (True, ModelState.READY)]


def test_of_what_was_removed_the_latest_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_table_module, "MAX_GONE", 2)
    monkeypatch.setattr(current_table_module, "MAX_REMOVED", 2)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                for number in (1, 2, 3, 4):
                    shutil.rmtree(tmp_path / "m", ignore_errors=True)
                    put(tmp_path, "m", version=number)
                    await load_model(manager, scan_model(tmp_path / "m"))
                assert (list(manager.table.models["m"].versions), manager.table.models["m"].gone) == ([4], (2, 3))
                put(tmp_path, "m", b"nonsense", version=5)
                with pytest.raises(ModelLoadError):
                    await load_model(manager, scan_model(tmp_path / "m"))
                assert (list(manager.table.models["m"].versions), manager.table.models["m"].gone) == ([4, 5], (2, 3))
                for name in ("a", "b", "m"):
                    if name != "m":
                        put(tmp_path, name)
                        await load_model(manager, scan_model(tmp_path / name))
                    await unload_model(manager, name, forget=True)
                    await gone(manager, name)
                    assert name not in manager.table.models
                assert manager.table.removed == {"b": (1,), "m": (4, 5)}
                await load_model(manager, scan_model(tmp_path / "b"))
                assert list(manager.table.removed) == ["m"]
                manager.stop()

    trio.run(main)


def test_a_model_that_vanishes_while_it_loads_is_an_error_and_nothing_more(tmp_path: Path) -> None:
    put(tmp_path, "m")

    def vanish() -> None:
        shutil.rmtree(tmp_path / "m", ignore_errors=True)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, files=WatchedFiles(before=vanish))
                with pytest.raises(ModelLoadError, match=r"cannot read '1/model\.onnx': No such file"):
                    await load_model(manager, folder_of(tmp_path))
                await unload_model(manager, "m", forget=True)
                assert not manager.table.models
                manager.stop()

    trio.run(main)


def test_changes_of_one_model_wait_for_each_other_and_for_what_the_last_one_replaced(tmp_path: Path) -> None:
    for name in ("m", "other"):
        put(tmp_path, name)
    settled, order = trio.Event(), list[str]()

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, settle=settled.wait)

                async def change(name: str, text: str, stay: trio.Event | None = None) -> None:
                    async with manager.turn(name):
                        order.append(text)
                        if stay is not None:
                            await stay.wait()

                await load_model(manager, folder_of(tmp_path))
                leave = trio.Event()
                for name, text, stay in (("m", "first", leave), ("m", "second", None), ("other", "other", None)):
                    nursery.start_soon(change, name, text, stay)
                    await trio.testing.wait_all_tasks_blocked()
                with trio.move_on_after(0):
                    await change("m", "cancelled")
                nursery.start_soon(change, "m", "third")
                await trio.testing.wait_all_tasks_blocked()
                assert order == ["first", "other"]
                leave.set()
                await trio.testing.wait_all_tasks_blocked()
                assert order[2:] == ["second", "third"]
                await unload_model(manager)
                nursery.start_soon(change, "m", "after the end")
                await trio.testing.wait_all_tasks_blocked()
                assert order[4:] == []
                settled.set()
                await gone(manager)
                assert order[4:] == ["after the end"]
                manager.stop()

    trio.run(main)


def counted(manager: ModelManager) -> tuple[int, int, int, int]:
    counters = manager.counters
    assert 0 < counters.load_ns < 60 * 10**9
    return counters.loads, counters.failures, counters.reloads, counters.unloads


def test_versions_that_would_come_out_the_same_stay_and_the_others_are_counted(tmp_path: Path) -> None:
    for version in (1, 2):
        put(tmp_path, "m", version=version)
    graph = tmp_path / "m" / "2" / "model.onnx"

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                await load_model(manager, folder_of(tmp_path))
                first, second = manager.table.served()
                assert counted(manager) == (2, 0, 0, 0)
                await load_model(manager, folder_of(tmp_path))
                assert (manager.table.served(), counted(manager)) == ([first, second], (2, 0, 0, 0))
                # Nobody knows whether the files are the same where nobody has looked at them.
                await load_model(manager, scan_model(tmp_path / "m"))
                assert not {first, second} & set(manager.table.served())
                assert counted(manager) == (4, 0, 2, 2)
                await load_model(manager, folder_of(tmp_path))
                first, second = manager.table.served()
                graph.write_bytes(double(["n", 4]))
                await load_model(manager, folder_of(tmp_path))
                assert manager.table.served()[0] is first
                assert manager.table.served()[1] is not second
                assert counted(manager) == (7, 0, 5, 5)
                second = manager.table.served()[1]
                graph.write_bytes(b"nonsense")
                put(tmp_path, "m", version=3)
                for all_or_none in (True, False):
                    with pytest.raises(ModelLoadError, match=r"^version 2 is at UNAVAILABLE state: ") as caught:
                        await load_model(manager, folder_of(tmp_path), all_or_none=all_or_none)
                    assert not isinstance(caught.value, PartlyLoaded)
                    assert manager.table.served() == [first, second]
                entries = manager.table.models["m"].versions
                assert [(number, entry.reason != "") for number, entry in entries.items()] == [(1, False), (2, True)]
                shutil.rmtree(tmp_path / "m" / "2")
                await load_model(manager, folder_of(tmp_path))
                assert [one.number for one in manager.table.served()] == [1, 3]
                assert manager.table.models["m"].gone == (2,)
                assert counted(manager) == (10, 2, 5, 6)
                # A version that was never served is not remembered.
                put(tmp_path, "m", b"nonsense", version=4)
                with pytest.raises(ModelLoadError, match="version 4"):
                    await load_model(manager, folder_of(tmp_path))
                shutil.rmtree(tmp_path / "m" / "4")
                await load_model(manager, folder_of(tmp_path))
                assert (list(manager.table.models["m"].versions), manager.table.models["m"].gone) == ([1, 3], (2,))
                manager.refuse("m", "it is served, and nothing is wrong with that")
                assert manager.table.ready
                await unload_model(manager)
                await unload_model(manager, "unknown")
                assert counted(manager) == (10, 3, 5, 8)
                await gone(manager)
                manager.refuse("m", "it cannot be had")
                assert manager.table.models["m"].problem == "it cannot be had"
                manager.stop()

    trio.run(main)


def test_a_new_model_is_partly_served_where_each_version_is_by_itself(tmp_path: Path) -> None:
    for version, content in ((1, DOUBLE), (2, b"nonsense"), (3, b"nonsense")):
        put(tmp_path, "m", content, version=version)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                with pytest.raises(PartlyLoaded) as caught:
                    await load_model(manager, folder_of(tmp_path), all_or_none=False)
                assert [line[:9] for line in str(caught.value).splitlines()] == ["version 2", "version 3"]
                shutil.rmtree(tmp_path / "m" / "1")
                await unload_model(manager, forget=True)
                with pytest.raises(ModelLoadError) as other:
                    await load_model(manager, folder_of(tmp_path), all_or_none=False)
                assert not isinstance(other.value, PartlyLoaded)
                manager.stop()

    trio.run(main)
