"""Models that are loaded on demand: names that nobody has, and first requests for more models than memory holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.models import build_many, many_name
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import framed, greeting, infer_message, request_block, unary

__all__ = ["FirstRequests", "UnknownModels"]

_BLOCK: Final = request_block()
#: Models beside the victim, and bytes for about a tenth of them (``models.memory_size``).
_MODELS: Final = 600
_MEMORY: Final = 60 * 200_000
_ROW: Final = bytes(16)


class _OnDemand(Attack):
    """Against a server that loads models on demand.

    Attributes:
        at_once: requests that are sent together, and then waited for.
    """

    stops = ()
    connections = 2
    at_once = 400

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``: the mode, and models in the folder's repository."""
        build_many(folder / "models", _MODELS)
        return ("--model-control-mode", "on-demand", "--model-memory", str(_MEMORY), "--model-min-stay", "0")

    def name_of(self, number: int) -> str:
        """The model of a request, which is counted over a connection."""
        raise NotImplementedError

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        for sent in count(0, self.at_once):
            calls = []
            for number in range(sent, sent + self.at_once):
                message = infer_message(self.name_of(number), [1, 4], _ROW)
                calls.append(unary(2 * number + 1, _BLOCK, framed(message)))
            await peer.send(b"".join(calls), self.at_once)
            while peer.answered < sent + self.at_once:
                await peer.wait_answer()


class UnknownModels(_OnDemand):
    """A scan for names."""

    name = "unknown-models"
    summary = "requests for models that are in no repository, each another one, 400 at a time, to a server on demand"
    limit = "NOT_FOUND after a look-up; nothing is read from the disk, and nothing kept of such names"

    def __init__(self) -> None:
        self._scan = os.urandom(4).hex()

    def name_of(self, number: int) -> str:
        """See ``_OnDemand``."""
        return f"m{self._scan}{number}"


class FirstRequests(_OnDemand):
    """Every request wants a model that has just left."""

    name = "first-requests"
    summary = "requests for 600 models in turn, 200 at a time, where `--model-memory` holds a tenth of them"
    limit = "`--model-load-thread-count` at a time, first in first out; models that are used stay; 16,384 requests wait"
    at_once = 200

    def name_of(self, number: int) -> str:
        """See ``_OnDemand``."""
        return many_name(number % _MODELS)
