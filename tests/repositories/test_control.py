"""Polling, with repositories that fail at the worst moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.graphs import DOUBLE
from tests.repositories.s3_services import S3Service, cached_files
from tests.repositories.support import repository, want_all_room
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions
from toutates.models import repository as module
from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.repository import ModelFolder
from toutates.models.turn import ModelTurn
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.interface import Progress
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import NotInRepository, RepositoryError


class Fickle(LocalRepository):
    """A directory that can be told to fail, as S3 does."""

    unreachable = unfetchable = False
    released = 0

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        if self.unreachable:
            raise RepositoryError("cannot be reached")
        return super().scan(only)

    def advice(self) -> str:
        return ""

    def fetch(
        self,
        folder: ModelFolder,
        on_progress: Progress,
        versions: Collection[int] | None = None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        if self.unfetchable:
            raise RepositoryError("broke off")
        return super().fetch(folder, on_progress, versions)

    def release(self, folder: ModelFolder) -> None:
        self.released += 1


@asynccontextmanager
async def managing(parallel_loads: int = 1) -> AsyncIterator[ModelManager]:
    """A manager whose executors end with the block, also where a test fails."""
    async with trio.open_nursery() as nursery:
        options = LoadOptions([OnnxKind(SessionOptions())], parallel_loads=parallel_loads)
        manager = ModelManager(options, nursery)
        try:
            yield manager
        finally:
            manager.stop()


def put(root: Path, name: str, comment: str = "") -> None:
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(DOUBLE)
    (folder / "comment").write_text(comment)


def test_a_repository_that_fails_takes_nothing_from_what_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        repository = Fickle(tmp_path)
        async with managing() as manager:
            control = ModelControl([repository], manager, "poll", poll_s=0.02)

            def served() -> list[Any]:
                return [version.model for version in manager.table.served()]

            put(tmp_path, "a")
            await control.poll()
            [first] = manager.table.served()
            put(tmp_path, "a", "changed")
            repository.unfetchable = True
            for _ in range(3):
                await control.poll()
            assert manager.table.served() == [first]
            assert caplog.text.count("model 'a' cannot be loaded: ") == 1
            repository.unreachable = True
            for _ in range(3):
                await control.poll()
            assert manager.table.served() == [first]
            assert caplog.text.count("cannot be reached; what is served from there is served on") == 1
            repository.unreachable = repository.unfetchable = False
            await control.poll()
            assert served() == ["a"]
            assert manager.table.served() != [first]
            assert repository.released == 1  # the first one's files

    trio.run(main)


class Mistaken(Fickle):
    """A directory that shows a mistake of ours, for one of its models."""

    def fetch(self, folder: ModelFolder, *arguments: Any, **named: Any) -> ModelFolder:
        if folder.name == "bad":
            raise IndexError("list index out of range")
        return super().fetch(folder, *arguments, **named)


@pytest.mark.parametrize("where", ["while it is fetched", "while it is loaded"])
def test_a_mistake_with_one_model_costs_no_other_its_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async def main() -> None:
        repository = (Mistaken if where == "while it is fetched" else Fickle)(tmp_path)
        async with managing() as manager:
            control = ModelControl([repository], manager, "poll", poll_s=0.02)
            real = ModelTurn.load

            async def load(turn: ModelTurn, *arguments: Any, **named: Any) -> None:
                if turn.name == "bad":
                    raise IndexError("list index out of range")
                await real(turn, *arguments, **named)

            if where == "while it is loaded":
                monkeypatch.setattr(ModelTurn, "load", load)
            for name in ("a", "bad", "c"):
                put(tmp_path, name)
            await control.poll()
            assert sorted(version.model for version in manager.table.served()) == ["a", "c"]
            bad = manager.table.models["bad"]
            assert "IndexError: list index out of range" in bad.problem
            assert "'bad'" in caplog.text
            put(tmp_path, "later")
            await control.poll()
            assert "later" in [version.model for version in manager.table.served()]

    trio.run(main)


class Counted(LocalRepository):
    """A directory that counts how often it is looked into, and how many of its models were looked at."""

    scans = indexes = 0

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        self.scans += 1
        return super().scan(only)

    def index(self) -> Mapping[str, ModelFolder | None]:
        self.indexes += 1
        return super().index()


@pytest.mark.parametrize("name", ["absent", "absent-\u00e9"])
def test_names_that_come_together_are_looked_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def main() -> None:
        for number in range(20):
            put(tmp_path, f"m{number}")
        looked_at: list[Path] = []
        look_at = module.scan_model

        def scan_model(path: Path, override: Any = None) -> ModelFolder:
            looked_at.append(path)
            return look_at(path, override)

        monkeypatch.setattr(module, "scan_model", scan_model)
        repository = Counted(tmp_path)
        async with managing() as manager:
            control = ModelControl([repository], manager, "explicit")
            failed: list[str] = []

            async def load(number: int) -> None:
                try:
                    await control.load(f"{name}{number}", None, {})
                except NotInRepository as error:
                    failed.append(str(error))

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(load, number)
                nursery.start_soon(partial(control.load, "m7", None, {}))
            assert len(failed) == 50
            assert [version.model for version in manager.table.served()] == ["m7"]
            assert repository.scans < 20, "there is one for each name"
            assert repository.indexes < 20
            assert {path.name for path in looked_at if path.exists()} == {"m7"}

    trio.run(main)


class Written(LocalRepository):
    """A directory in which somebody writes right after the first look."""

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        found = super().scan(only)
        comment = Path(self.name) / "a" / "1" / "comment"
        if not comment.read_text():
            comment.write_text("more")
        return found


def test_what_changes_between_two_looks_waits_for_the_next_poll(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing() as manager:
            control = ModelControl([Written(tmp_path)], manager, "poll", poll_s=0.02)
            put(tmp_path, "a")
            await control.poll()
            assert not manager.table.served()
            await control.poll()
            assert [version.model for version in manager.table.served()] == ["a"]

    trio.run(main)


def test_the_files_of_what_is_served_are_kept_though_a_version_beside_it_cannot_be_loaded(
    moto_service: S3Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bucket = moto_service.bucket({"m/1/model.onnx": DOUBLE, "m/2/model.onnx": b"nonsense"})
        # Another server with the same cache, which wants all of it.
        other = ModelCache(tmp_path, 1_000)

        def kept() -> set[bytes]:
            want_all_room(other)
            return {path.read_bytes() for path in cached_files(tmp_path)}

        async with managing() as manager:
            with repository(moto_service, bucket, tmp_path) as remote:
                control = ModelControl([remote], manager, "poll", poll_s=0.02)
                await control.poll()
                assert [version.number for version in manager.table.served()] == [1]
                assert "version 2 cannot be served" in caplog.text
                assert kept() == {DOUBLE, b"nonsense"}
                # What would come in its place and cannot be loaded is not kept, and what is served still is.
                moto_service.put(bucket, "m/2/model.onnx", b"more nonsense")
                await control.poll()
                assert [version.number for version in manager.table.served()] == [1]
                assert kept() == {DOUBLE, b"nonsense"}
                moto_service.put(bucket, "m/2/model.onnx", DOUBLE)
                await control.poll()
                assert [version.number for version in manager.table.served()] == [1, 2]
                assert kept() == {DOUBLE}
                for number in (1, 2):
                    moto_service.client.delete_object(Bucket=bucket, Key=f"m/{number}/model.onnx")
                await control.poll()
                assert not manager.table.served()
                assert kept() == set()

    trio.run(main)
