"""The first look: what is served when repositories answer, fail, or do neither."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.waiting import wait_until
from toutates.models.repository import ModelFolder
from toutates.repositories.control import first_look
from toutates.repositories.control.first_look import FirstLook, look_first
from toutates.repositories.control.waiting import Waiting
from toutates.repositories.interface import Recalled
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import ConfigurationError, MissingRepository, RepositoryError, ToutatesError


class Remote(LocalRepository):
    """A directory that behaves like S3: ``error`` is raised, ``hold`` waited for; ``known`` is what it had before."""

    def __init__(self, root: Path, *names: str) -> None:
        for name in names:
            (root / name / "1").mkdir(parents=True)
        root.mkdir(exist_ok=True)
        super().__init__(root)
        self.error: ToutatesError | None = None
        self.hold: threading.Event | None = None
        self.known = False

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        if self.hold is not None:
            self.hold.wait(120)
        if self.error is not None:
            raise self.error
        return super().scan(only)

    def recall(self, only: Collection[str] | None, reason: str) -> Recalled | None:
        return Recalled(super().scan(only), 1_000.0) if self.known else None


@pytest.fixture
def one(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "one", "a")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Remote]:
    remote = Remote(tmp_path / "other", "b")
    yield remote
    if remote.hold is not None:
        remote.hold.set()  # no thread outlives its test for long


def look(
    *repositories: LocalRepository, only: Collection[str] | None = None, all_must_answer: bool = False
) -> FirstLook:
    return trio.run(partial(look_first, repositories, only, all_must_answer=all_must_answer))


def names(seen: FirstLook) -> list[str]:
    return [folder.name for _, folder in seen.found]


def late(seen: FirstLook) -> list[tuple[str, str, float | None]]:
    return [(one.repository.name, one.problem, one.listed_s) for one in seen.late]


def test_repositories_that_answer_are_all_there_is(one: Remote, other: Remote) -> None:
    seen = look(one, other)
    assert (names(seen), late(seen)) == (["a", "b"], [])


@pytest.mark.parametrize("error", [RepositoryError("unreachable"), ConfigurationError("refused")])
def test_one_that_fails_is_late_and_the_others_are_found(
    one: Remote, other: Remote, error: ToutatesError, caplog: pytest.LogCaptureFixture
) -> None:
    other.error = error
    seen = look(one, other)
    assert (names(seen), late(seen)) == (["a"], [(other.name, str(error), None)])
    assert f"the model repository '{other.name}' cannot be read: {error}" in caplog.text
    with pytest.raises(ConfigurationError, match=str(error)):
        look(one, other, all_must_answer=True)


def test_a_directory_that_is_not_there_ends_the_start(one: Remote, tmp_path: Path) -> None:
    with pytest.raises(MissingRepository, match="there is no such directory"):
        look(one, LocalRepository(tmp_path / "missing"))


def test_a_directory_that_cannot_be_read_is_late(one: Remote, tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)  # whoever runs this may read what is only forbidden
    seen = look(one, LocalRepository(circle))
    assert names(seen) == ["a"]
    assert [repository for repository, _, _ in late(seen)] == [str(circle)]


@pytest.mark.parametrize("all_must_answer", [False, True])
def test_one_that_cannot_be_reached_is_served_as_it_was_known(
    one: Remote, other: Remote, all_must_answer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    other.error, other.known = RepositoryError("unreachable"), True
    seen = look(one, other, all_must_answer=all_must_answer)
    assert (names(seen), late(seen)) == (["a", "b"], [(other.name, "unreachable", 1_000.0)])
    assert "listed 2" in caplog.text  # some twenty thousand days ago
    assert "(1970-01-01 00:16:40 UTC)" in caplog.text


def test_one_that_refuses_is_not_served_as_it_was_known(other: Remote) -> None:
    other.error, other.known = ConfigurationError("refused"), True
    seen = look(other)
    assert (names(seen), late(seen)) == ([], [(other.name, "refused", None)])


def look_past_patience(
    *repositories: Remote, answers_late: Remote | None = None, all_must_answer: bool = False
) -> FirstLook:
    """Look first, long past all patience once every repository has answered that is not held.

    Args:
        repositories: where to look.
        answers_late: is held, and answers then, while it is still waited for.
        all_must_answer: see ``look_first``.
    """
    clock = MockClock()
    waiting = Waiting(clock=lambda: 0.0)
    held = {repository.name for repository in repositories if repository.hold is not None}
    seen: list[FirstLook] = []

    async def look() -> None:
        seen.append(await look_first(repositories, all_must_answer=all_must_answer, waiting=waiting))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            # Threads look, and know nothing of this clock.
            await trio.to_thread.run_sync(wait_until, lambda: set(waiting.names) == held)
            for _ in range(10):
                await wait_all_tasks_blocked()
                clock.jump(first_look.PATIENCE_S)
            if answers_late is not None:
                await wait_all_tasks_blocked()
                assert not seen
                assert answers_late.hold is not None
                answers_late.hold.set()

    trio.run(main, clock=clock)
    return seen[0]


@pytest.mark.parametrize("known", [False, True])
def test_one_that_does_not_answer_is_not_waited_for_for_ever(one: Remote, other: Remote, known: bool) -> None:
    other.hold, other.known = threading.Event(), known
    seen = look_past_patience(one, other)
    assert names(seen) == (["a", "b"] if known else ["a"])
    assert late(seen) == [(other.name, "it has not answered for 10 s", 1_000.0 if known else None)]


def test_where_there_is_nothing_else_to_serve_it_is_waited_for(tmp_path: Path, other: Remote) -> None:
    for beside, must in ((Remote(tmp_path / "empty"), False), (Remote(tmp_path / "c", "c"), True)):
        other.hold = threading.Event()
        seen = look_past_patience(other, beside, answers_late=other, all_must_answer=must)
        assert "b" in names(seen)
        assert not seen.late


def test_it_is_waited_for_only_until_there_is_something_to_serve(tmp_path: Path, other: Remote) -> None:
    other.hold = threading.Event()
    slow = Remote(tmp_path / "slow", "s")
    slow.hold = threading.Event()
    seen = look_past_patience(other, slow, answers_late=slow)
    assert (names(seen), [one.repository for one in seen.late]) == (["s"], [other])


def test_a_model_that_was_asked_for_may_be_where_nobody_answers(one: Remote, other: Remote) -> None:
    other.error = RepositoryError("unreachable")
    seen = look(one, other, only=["a", "b"])
    [(_, a), (repository, b)] = seen.found
    assert (a.problem, repository) == ("", other)
    assert b.problem == f"no model repository that answers has it; '{other.name}' could not be asked"
    other.error = None
    with pytest.raises(ConfigurationError, match=r"no such model in the repository \(got 'c'\).*has: a, b"):
        look(one, other, only=["a", "c"])


def test_what_is_waited_for_is_said_again_and_again(other: Remote, caplog: pytest.LogCaptureFixture) -> None:
    other.hold = threading.Event()
    clock = MockClock()
    waiting = Waiting(clock=lambda: 7.0)

    async def look_and_say() -> None:
        async with waiting.logged():
            await look_first([other], waiting=waiting)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_and_say)
            for seconds in (1, 10, 10):
                await wait_all_tasks_blocked()
                clock.jump(seconds)
            await wait_all_tasks_blocked()
            assert caplog.text.count("the first listing, 0 s so far") == 3
            assert str(waiting) == f"waiting for {other.name}: the first listing, 0 s so far"
            assert other.hold is not None
            other.hold.set()

    with caplog.at_level("INFO"):
        trio.run(main, clock=clock)
    assert str(waiting) == ""


def test_the_log_says_what_is_waited_for_a_second_after_it_began_and_not_again_at_once(
    other: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    other.hold = threading.Event()
    clock = MockClock()

    async def main() -> None:
        assert other.hold is not None
        waiting = Waiting(trio.current_time)
        async with waiting.logged(), trio.open_nursery() as nursery:
            waiting.begin([other.name])
            await wait_all_tasks_blocked()
            clock.jump(0.75)  # as long as it took to open the repository
            nursery.start_soon(partial(look_first, [other], waiting=waiting))
            for _ in range(2):  # a second and a half, and two and a quarter seconds
                await wait_all_tasks_blocked()
                clock.jump(0.75)
                await wait_all_tasks_blocked()
            other.hold.set()

    with caplog.at_level("INFO"):
        trio.run(main, clock=clock)
    assert [one.getMessage() for one in caplog.records] == [f"waiting for {other.name}: the first listing, 2 s so far"]
