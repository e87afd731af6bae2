"""A dump of what the server is doing: its tasks, its connections, and its models. For /debug/tasks and SIGUSR2.

Tasks and connections belong to the threads that run them, so each thread is asked for its own. The dump shows the stack
of a thread that does not answer in time, because it is stuck or busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.net.connection_state import ConnectionState
from toutates.observe.debug.task_tree import task_tree
from toutates.observe.debug.thread_stacks import StackReader, thread_names
from toutates.observe.view import ServerView

__all__ = ["TrioRun", "dump", "this_run"]

#: Seconds that a thread has to answer.
ANSWER_S: Final = 2.0
#: Most connections of a worker, versions, and lanes of a version that are shown.
MAX_CONNECTIONS: Final = 100
MAX_VERSIONS: Final = 200
MAX_LANES: Final = 16


@dataclass(frozen=True, slots=True)
class TrioRun:
    """A Trio run, which may belong to another thread.

    Attributes:
        name: of its thread.
        thread: that thread's identifier.
        call_soon: runs a function in that thread, within the run.
    """

    name: str
    thread: int
    call_soon: Callable[[Callable[[], None]], None]


def this_run(name: str) -> TrioRun:
    """The run of the calling task, whose thread is called ``name``."""
    return TrioRun(name, threading.get_ident(), trio.lowlevel.current_trio_token().run_sync_soon)


async def dump(view: ServerView, runs: Sequence[TrioRun]) -> str:
    """Make the dump, in ANSWER_S at most and a little more for each thread.

    Args:
        view: of the server.
        runs: Trio runs other than those of the workers.
    """
    workers = [worker for worker in view.workers if isinstance(worker, Worker)]  # and not those of other processes
    answers: list[list[str] | None] = [None] * (len(runs) + len(workers))
    async with trio.open_nursery() as nursery:
        for index, run in enumerate(runs):
            nursery.start_soon(_ask_into, answers, index, run.call_soon, task_tree)
        for index, worker in enumerate(workers, len(runs)):
            nursery.start_soon(_ask_into, answers, index, worker.call_soon, partial(_of_worker, worker))
    by_name = {name: thread for thread, name in thread_names().items()}
    asked = [(run.name, run.thread) for run in runs] + [(worker.name, by_name.get(worker.name)) for worker in workers]
    reason = view.unready_reason()
    lines = [
        f"{view.identity.name} {view.identity.version}, up for {time.time() - view.started_s:.0f} s, "
        f"{'live' if view.is_live() else 'not live'}, {f'not ready: {reason}' if reason else 'ready'}"
    ]
    for (name, thread), answer in zip(asked, answers, strict=True):
        lines += ["", f"== thread {name} =="]
        lines += answer if answer is not None else _stack_of(thread)
        await trio.lowlevel.checkpoint()
    lines += ["", "== models =="]
    for text in _models(view.get_table()):
        lines += text
        await trio.lowlevel.checkpoint()
    return "\n".join(lines) + "\n"


async def _ask_into(
    answers: list[list[str] | None],
    index: int,
    call_soon: Callable[[Callable[[], None]], None],
    question: Callable[[], list[str]],
) -> None:
    """Ask another thread, and put its answer into ``answers`` if it comes within ANSWER_S."""
    token = trio.lowlevel.current_trio_token()
    came = trio.Event()

    def answer() -> None:
        try:
            answers[index] = question()
        except Exception as error:
            answers[index] = [f"cannot be read: {error!r}"]
        try:
            token.run_sync_soon(came.set)
        except trio.RunFinishedError:
            pass  # the run that asked has ended

    with trio.move_on_after(ANSWER_S):
        try:
            call_soon(answer)
        except trio.RunFinishedError:
            answers[index] = ["has ended"]
            return
        await came.wait()


def _stack_of(thread: int | None) -> list[str]:
    with StackReader.open() as reader:
        stack = reader.read().get(thread or 0, ())
    return [f"no answer within {ANSWER_S:g} s; its thread is at", *(f"  {frame}" for frame in stack)]


def _of_worker(worker: Worker) -> list[str]:
    lines = task_tree()
    states = worker.connection_states(MAX_CONNECTIONS)
    lines.append(f"{worker.connections} connections" + (":" if states else ""))
    lines += [f"  {_connection(state)}" for state in states]
    if worker.connections > len(states):
        lines.append(f"  and {worker.connections - len(states)} more")
    return lines


def _connection(state: ConnectionState) -> str:
    return (
        f"{state.peer} {state.phase}{', TLS' if state.tls else ''}: {state.open_calls} calls, "
        f"{state.age_s:.0f} s old, silent for {state.silent_s:.1f} s, "
        f"{state.received_bytes} bytes in, {state.sent_bytes} out, {state.unsent_bytes} unsent"
    )


def _models(table: ModelTable) -> Sequence[list[str]]:
    texts: list[list[str]] = []
    entries = [(model, version) for model in table.models.values() for version in model.versions.values()]
    for model, version in entries[:MAX_VERSIONS]:
        reason = version.reason or model.problem
        head = f"{model.name!r} version {version.number}: {version.state.value}{f' ({reason})' if reason else ''}"
        lines = version.served.servable.describe(MAX_LANES) if version.served is not None else []
        texts.append([head, *(f"  {line}" for line in lines)])
    if len(entries) > MAX_VERSIONS:
        texts.append([f"and {len(entries) - MAX_VERSIONS} more versions"])
    return texts
