"""The servers that take part, started together for one repository."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.errors import Unavailable
from bench.models import Model
from bench.results import Results
from bench.servers import Kind, Server, running

__all__ = ["Starter", "in_turn"]


class Starter:
    """Starts servers, and notes those that do not start.

    Args:
        kinds: what to start.
        results: where to note.
    """

    def __init__(self, kinds: Sequence[Kind], results: Results) -> None:
        self._kinds = kinds
        self._results = results

    def only(self, wanted: Callable[[Kind], bool]) -> Starter:
        """The same for some of the kinds."""
        return Starter([kind for kind in self._kinds if wanted(kind)], self._results)

    def each(self, change: Callable[[Kind], Kind]) -> Starter:
        """The same with every kind changed."""
        return Starter([change(kind) for kind in self._kinds], self._results)

    def beside(self, kind: Kind) -> Starter:
        """The same with one kind more."""
        return Starter([*self._kinds, kind], self._results)

    @contextlib.contextmanager
    def servers(self, models: Sequence[Model], folder: Path) -> Iterator[list[Server]]:
        """The servers, all running; they are ended when the block is left.

        Args:
            models: what they serve, of one repository.
            folder: for their logs.
        """
        with contextlib.ExitStack() as stack:
            servers = []
            for kind in self._kinds:
                try:
                    servers.append(stack.enter_context(running(kind, models, folder / "servers" / kind.name)))
                except Unavailable as error:
                    what = kind.name if len(models) > 1 else f"{kind.name} with {models[0].name}"
                    self._results.leave_out(what, str(error))
                    print(f"without {what}: {error}", file=sys.stderr, flush=True)
            yield servers


def in_turn(servers: Sequence[Server], round_number: int) -> list[Server]:
    """The servers in this round's order: each round begins with another one."""
    turn = round_number % len(servers) if servers else 0
    return [*servers[turn:], *servers[:turn]]
