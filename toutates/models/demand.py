"""What of loading on demand is seen from everywhere: who loads a model that a request needs, and what that has counted.

``repositories.control.on_demand`` loads, on the main thread. ``infer.parking`` has the requests that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from toutates.system.errors import RequestError

__all__ = ["NOT_LOADED", "DemandCounters", "DemandState", "Loader"]

#: Reason of the repository index for a model that is loaded when a request needs it.
NOT_LOADED: Final = "not loaded yet"


class Loader(Protocol):
    """Loads models on demand. Any thread may use it."""

    def failure_of(self, model: str) -> RequestError | None:
        """Why a model could not be loaded a short while ago; None if nothing is known against it."""
        ...

    def is_loading(self, model: str) -> bool:
        """Whether a model is being loaded, or waits to be."""
        ...

    def want(self, model: str, done: Callable[[RequestError | None], None]) -> None:
        """Have a model loaded, once for all who want it.

        Args:
            model: its name.
            done: called in any thread, once, when it is loaded, or with why it cannot be.
        """
        ...


@dataclass(slots=True)
class DemandCounters:
    """Written by the manager's thread only, but ``waited``; read by any.

    Attributes:
        loads: models that were loaded on demand.
        failures: models that could not be.
        refusals: models for which there was no room.
        evictions: models that left memory for others.
        load_ns: from the first request for a model until it was served, of all loads together.
    """

    loads: int = 0
    failures: int = 0
    refusals: int = 0
    evictions: int = 0
    load_ns: int = 0


@dataclass(frozen=True, slots=True)
class DemandState:
    """How it stands with loading on demand.

    Attributes:
        indexed: models in the repositories.
        resident: models in memory.
        used: bytes that they take.
        budget: bytes that they may take; 0 for no bound.
        queued: models that wait to be loaded, or are being loaded.
        misses: requests that had to wait for their model so far.
        loads, failures, refusals, evictions, load_ns: see ``DemandCounters``.
    """

    indexed: int
    resident: int
    used: int
    budget: int
    queued: int
    misses: int
    loads: int
    failures: int
    refusals: int
    evictions: int
    load_ns: int

    def hits(self, answered: int) -> int:
        """Requests that did not wait for their model.

        Args:
            answered: requests so far. A miss counts when the request comes, this one when it is answered, so the
                difference may fall for a moment.
        """
        return max(0, answered - self.misses)
