"""What every client of a soak has: the round that it is in, and the judgement of what it is answered."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final

from fuzz.soak.account import Entry
from fuzz.soak.questions import Question, Questions

__all__ = ["PATIENCE_S", "Round", "in_a_process", "judge"]

#: A request that takes longer counts as lost.
PATIENCE_S: Final = 30.0


class Round:
    """What clients need to know of the round they are in.

    Args:
        port: of the server.
        until: when it is over, ``time.monotonic``.
        rng: of this client alone.
        demand_port: of the server that loads models on demand.
    """

    def __init__(self, port: int, questions: Questions, until: float, rng: random.Random, demand_port: int = 0) -> None:
        self.port = port
        self.demand_port = demand_port
        self.questions = questions
        self.until = until
        self.rng = rng

    def is_over(self) -> bool:
        """Whether it is."""
        return time.monotonic() >= self.until


def in_a_process(run: Callable[[Round], Entry], around: Round) -> Entry:
    """Run a client in a process of its own, for libraries that leave sockets or loops behind in theirs."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run, around).result()


def judge(entry: Entry, question: Question, answer: Any, error: Any, status: str = "", may_also: str = "") -> None:
    """Count what became of a request.

    Args:
        entry: of the client.
        question: what was asked.
        answer: tritonclient's result; None where there was an error.
        error: tritonclient's; None where there was none.
        status: of the error, by gRPC's name.
        may_also: a status that it may have beside the question's own.
    """
    if error is None:
        if difference := question.difference(answer):
            entry.faults.append(difference)
        else:
            entry.right += 1
    elif status in question.statuses or (may_also and status == may_also):
        entry.refused[status] += 1
    else:
        entry.faults.append(f"{question.model}: {error}")
