"""Whether the server is ready, and why it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable

from toutates.models.manager import ModelManager
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.waiting import Waiting
from toutates.server.shutdown import Shutdown

__all__ = ["ServerReadiness"]

logger = logging.getLogger(__name__)


class ServerReadiness:
    """Judges readiness by the models, their repositories and the shutdown. ``reason`` may be called by any thread.

    Args:
        strict: whether a model that cannot be served makes the server not ready.
        manager: has the table of models.
        control: knows the state of the repositories.
        waiting: what the start is waiting for.
        shutdown: of the server.
        tell_workers: called with whether the server is ready, where that is another than before.
        others: why other processes keep the server from being ready, where there are any; "" if they do not.
        report: takes the models' reason after each change, in place of the log.
    """

    def __init__(
        self,
        strict: bool,
        manager: ModelManager,
        control: ModelControl,
        waiting: Waiting,
        shutdown: Shutdown,
        tell_workers: Callable[[bool], None],
        others: Callable[[], str] = lambda: "",
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._strict = strict
        self._manager = manager
        self._control = control
        self._waiting = waiting
        self._shutdown = shutdown
        self._tell_workers = tell_workers
        self._others = others
        self._report = report
        #: the reason that the log has
        self._logged = ""
        self._serves = False
        #: what the workers were told last; None if nothing since they began
        self._told: bool | None = None

    def reason(self) -> str:
        """Why the server is not ready, a sentence without a full stop; "" if it is, as ServerReady says."""
        if self._shutdown.leaving.is_set():
            return "the server is shutting down"
        # Workers exist a moment before they listen; it is long where there are very many models.
        return str(self._waiting) or self.models_reason() or self._others() or self._starting()

    def _starting(self) -> str:
        return "" if self._serves else "the server is starting"

    def models_reason(self) -> str:
        """Why the models and their repositories keep the server from being ready; "" if they do not."""
        if not self._strict:
            return ""
        return self._control.unready_reason or self._manager.table.unready_reason

    def begin(self) -> str:
        """The workers serve from now on; returns the models' reason for the log."""
        self._serves = True
        self._told = None
        self._logged = self.models_reason()
        return self._logged

    def changed(self) -> None:
        """The table of models, or what is known of the repositories, has changed."""
        reason = self.models_reason()
        if self._report is not None:
            self._report(reason)
        elif bool(reason) is not bool(self._logged):
            if reason:
                logger.warning("the server is not ready any more: %s", reason)
            else:
                logger.info("the server is ready")
        self._logged = reason
        ready = not (reason or self._others() or self._shutdown.leaving.is_set())
        if ready is not self._told:  # the table changes with each model that comes or goes
            self._told = ready
            self._tell_workers(ready)
