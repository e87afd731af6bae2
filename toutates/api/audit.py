"""A line of the log for everything by which a caller changes the server: what, who, from where, and what became of it.

The lines are of the area ``audit``, and their fields have names (docs/access.md). Who is the name of a key, or
the subject of a token, never a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from toutates.access.worker_gate import WorkerGate
from toutates.api.dataplane.traffic import TrafficRequest
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import RequestError
from toutates.system.logs.levels import ANYWAY
from toutates.system.text import printable

__all__ = ["Author", "audited", "audited_later", "author_of"]

logger = logging.getLogger(__name__)

_ACTIONS: Final = {
    pb.RepositoryModelLoadRequest: "load",
    pb.RepositoryModelUnloadRequest: "unload",
    pb.LogSettingsRequest: "log settings",
    pb.TraceSettingRequest: "trace settings",
    TrafficRequest: "traffic",
}
MAX_SHOWN: Final = 256


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes something.

    Attributes:
        name: of a key or token; "anybody" where nobody asks.
        peer: address of the connection.
        via: the protocol.
    """

    name: str
    peer: str
    via: str

    def note(self, action: str, subject: str, problem: str = "", *, last: bool = False) -> None:
        """Write the line.

        Args:
            action: what was done.
            subject: to what.
            problem: why it failed; "" if it did not.
            last: whether this has switched such lines off. It is written in any case.
        """
        subject, problem = printable(subject, MAX_SHOWN), printable(problem, MAX_SHOWN)
        outcome = f"refused: {problem}" if problem else "done"
        fields: dict[str, Any] = {"action": action, "subject": subject, "who": self.name, "peer": self.peer}
        fields |= {"via": self.via, "outcome": outcome}
        # Lines of one template are limited together: many by one caller, or many refusals, must not hide another line.
        line = f"%s%s by {self.name.replace('%', '%%')} (%s, %s): {'refused: %s' if problem else 'done'}"
        words = [action, f" of '{subject}'" if subject else "", self.peer, self.via, *([problem] if problem else [])]
        if not last:
            logger.info(line, *words, extra=fields)
            return
        line += "; lines like this are not shown from now on"
        extra = {**fields, ANYWAY: True}
        logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, tuple(words), None, extra=extra))


def author_of(gate: WorkerGate | None, peer: str, via: str) -> Author:
    """Who sends the request that is being handled."""
    caller = None if gate is None else gate.caller
    return Author("anybody" if caller is None else caller.name, peer, via)


def audited(author: Author, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``answer`` of the data plane, with a line for each request that changes something."""

    def answer_audited(request: Any) -> Any:
        seen = logger.isEnabledFor(logging.INFO)
        try:
            response = answer(request)
        except RequestError as error:
            _note(author, request, str(error), seen=seen)
            raise
        _note(author, request, seen=seen)
        return response

    return answer_audited


def audited_later(author: Author, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """The same of an async function."""

    async def answer_audited(request: Any) -> Any:
        seen = logger.isEnabledFor(logging.INFO)
        try:
            response = await answer(request)
        except RequestError as error:
            _note(author, request, str(error), seen=seen)
            raise
        _note(author, request, seen=seen)
        return response

    return answer_audited


def _note(author: Author, request: Any, problem: str = "", *, seen: bool = False) -> None:
    """Write the line of a request, if it changes something; ``seen`` says whether such lines were shown before."""
    action = _ACTIONS.get(type(request))
    if action is None:
        return
    if isinstance(request, pb.LogSettingsRequest | pb.TraceSettingRequest):
        if not request.settings:
            return  # it asks
        action += ": " + ", ".join(sorted(request.settings))
    if isinstance(request, TrafficRequest):
        if request.change is not None:
            author.note(action, request.names, problem)
        return
    last = seen and isinstance(request, pb.LogSettingsRequest) and not logger.isEnabledFor(logging.INFO)
    author.note(action, getattr(request, "model_name", ""), problem, last=last)
