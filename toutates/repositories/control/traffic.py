"""Keeps the rules of aliases and traffic: reads their file when it changes, and takes changes by request.

What cannot be used changes nothing: the rules before it stay in force, and what is wrong is logged once, shown, and
looked at again whenever the models change, because a name may be that of a model that is still to come.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from toutates.models.manager import ModelManager
from toutates.models.table import ModelTable
from toutates.models.traffic.checking import problems_of
from toutates.models.traffic.reading import merged, read_document, read_rules_file
from toutates.models.traffic.rules import NO_TRAFFIC, TrafficRules
from toutates.repositories.control.threads import LOOKS
from toutates.system.errors import ConfigurationError, InvalidRequest
from toutates.system.logs.limit import LineLimit

__all__ = ["FILE_NAME", "TrafficControl"]

logger = logging.getLogger(__name__)

#: In the root of a repository that is a directory.
FILE_NAME: Final = "traffic.yaml"
#: How long a change of the file, or of the models, may stay unnoticed.
POLL_S: Final = 1.0
#: Stands in errors for the file of rules that came by a request.
_REQUEST: Final = Path("the request")


class TrafficControl:
    """The rules of one server. It belongs to the manager's thread.

    Args:
        manager: has the models, and takes the rules.
        files: one of which has the rules; none of them has to be there.

    Attributes:
        rules: in force.
        problem: what is wrong with them, or with the file; "" for nothing.
    """

    def __init__(self, manager: ModelManager, files: Sequence[Path]) -> None:
        self._manager = manager
        self._files = tuple(files)
        self.rules = NO_TRAFFIC
        self.problem = ""
        #: of the file, where they are not in force yet; None where there are no others
        self._waiting: TrafficRules | None = None
        self._unreadable = ""
        #: that the rules are from; None for no file
        self._file: Path | None = None
        self._seen: object = None
        self._table: ModelTable | None = None
        self._limit: LineLimit[str] = LineLimit()

    async def look(self) -> None:
        """Read the file if it has changed, and hold the rules against the models if these have."""
        seen = tuple(map(_signature, self._files))
        if seen != self._seen:
            await self._read()
            # As it was before it was read: one that has changed since is read again.
            self._seen = seen
            self._table = None
        table = self._manager.table
        if table is not self._table:
            self._apply(table)
            self._table = self._manager.table

    async def watch(self) -> None:
        """Do so every second, until cancelled. No failure ends it."""
        while True:
            await trio.sleep(POLL_S)
            await self.look_now()

    async def look_now(self) -> None:
        """Do so once. A failure is logged."""
        try:
            await self.look()
        except Exception:  # such as a system without a thread that would read the file
            if not self._limit.count("", time.monotonic_ns()):
                logger.exception("the rules of aliases and traffic could not be looked at; it is tried again")

    def change(self, names: Mapping[str, Any]) -> None:
        """Change the rules of some names: of ``aliases`` and ``traffic`` those that are given, and null removes one.

        The change lasts until the file changes, or the server ends.

        Raises:
            InvalidRequest: the rules would not be right, so that nothing was changed.
        """
        try:
            rules = read_document(merged(self.rules.document, names), _REQUEST)
        except ConfigurationError as error:
            raise InvalidRequest(str(error)) from None
        problems = problems_of(rules, self._manager.table)
        if problems:
            raise InvalidRequest("the change cannot be made: " + "; ".join(problems))
        self._waiting, self._unreadable = None, ""
        self._set(rules, "")

    async def _read(self) -> None:
        found = [path for path in self._files if _is_there(path)]
        self._waiting, self._unreadable = None, ""
        if not found and self._file is not None:
            self._unreadable = f"{self._file} is missing; write 'aliases: {{}}' into it to have no rules"
            return
        if len(found) > 1:
            self._unreadable = f"{found[0]} and {found[1]} both have rules; put them into one of them"
            return
        try:
            rules = await LOOKS.run(read_rules_file, found[0]) if found else NO_TRAFFIC
        except ConfigurationError as error:
            self._unreadable = str(error)
            return
        self._file = found[0] if found else None
        if rules != self.rules:
            self._waiting = rules

    def _apply(self, table: ModelTable) -> None:
        """Put rules into force that wait, if they fit the models by now; or say what is wrong."""
        if self._unreadable:
            self._set(self.rules, self._unreadable)
            return
        waiting = self._waiting
        if waiting is None:
            self._set(self.rules, "; ".join(problems_of(self.rules, table)))
            return
        problems = problems_of(waiting, table)
        if problems:
            self._set(self.rules, "; ".join(problems))
            return
        self._waiting = None
        self._set(waiting, "")

    def _set(self, rules: TrafficRules, problem: str) -> None:
        if rules is self.rules and problem == self.problem:
            return
        if problem and problem != self.problem:
            logger.error("aliases and traffic: %s; the rules from before stay in force", problem)
        if rules is not self.rules:
            counts = len(rules.aliases), len(rules.document.get("traffic", ()))
            logger.info("aliases and traffic: %d aliases, %d names with traffic are in force", *counts)
        elif not problem:
            logger.info("aliases and traffic: nothing is wrong any more")
        self.rules, self.problem = rules, problem
        self._manager.set_traffic(rules, problem)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
