"""The tasks of a Trio run as text: a tree of tasks, each with the place where it waits."""

from __future__ import annotations

from itertools import islice
from typing import Final

import trio

from toutates.observe.debug.thread_stacks import short_path

__all__ = ["task_tree"]

#: Most tasks that are shown; a worker has one per streaming call.
MAX_TASKS: Final = 300
#: Innermost frames of a task that are shown, and how many frames are read.
MAX_FRAMES: Final = 6
MAX_DEPTH: Final = 64
#: Innermost functions of every task that waits; they are left out.
_EVERYWHERE: Final = frozenset({"wait_task_rescheduled", "_real_async_yield"})


def task_tree() -> list[str]:
    """The tree of the calling thread's run, in lines. No task runs meanwhile, because this function does not await."""
    root = trio.lowlevel.current_root_task()
    if root is None:
        return ["no tasks"]
    lines: list[str] = []
    left_out = 0
    # Without recursion, because nurseries may be nested to any depth.
    waiting: list[tuple[int, trio.lowlevel.Task]] = [(0, root)]
    while waiting:
        depth, task = waiting.pop()
        if len(lines) >= MAX_TASKS:
            left_out += 1
            continue
        lines.append("  " * depth + f"{task.name}: {_where(task)}")
        children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        waiting += [(depth + 1, child) for child in sorted(children, key=_name, reverse=True)]
    if left_out:
        lines.append(f"and {left_out} or more tasks")
    return lines


def _name(task: trio.lowlevel.Task) -> str:
    return task.name


def _where(task: trio.lowlevel.Task) -> str:
    if task is trio.lowlevel.current_task():
        return "running"
    frames = [
        f"{frame.f_code.co_name} ({short_path(frame.f_code.co_filename)}:{line})"
        for frame, line in islice(task.iter_await_frames(), MAX_DEPTH)
        if frame.f_code.co_name not in _EVERYWHERE
    ]
    # Of tasks that are only in Trio's functions, the innermost frame is enough.
    own = [frame for frame in frames if "(trio/" not in frame] or frames[-1:]
    return " > ".join(own[-MAX_FRAMES:])
