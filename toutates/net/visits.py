"""Acts on what the housekeeper finds: sends PINGs, tells peers to leave, ends connections."""

from __future__ import annotations

from toutates.net.closing import Closing
from toutates.net.housekeeping import Duty, Finding, Housekeeper
from toutates.net.incidents import Incidents
from toutates.net.transport import Transport

__all__ = ["Visits"]


class Visits:
    """Looks after the connections of one worker.

    Args:
        housekeeper, closing, incidents: of the worker.
    """

    def __init__(self, housekeeper: Housekeeper, closing: Closing, incidents: Incidents) -> None:
        self._housekeeper = housekeeper
        self._closing = closing
        self._incidents = incidents

    def visit(self, now_ns: int) -> None:
        """Look at the next few connections, and act on what is found."""
        for transport, finding in self._housekeeper.visit(now_ns):
            try:
                self._act_on(transport, finding)
            except Exception as error:
                self._closing.failed(transport, error)
        self._incidents.log.flush(now_ns)

    def _act_on(self, transport: Transport, finding: Finding) -> None:
        if finding.duty is Duty.PING:
            transport.connection.ping()
        elif finding.duty is Duty.LEAVE:
            self._incidents.limit_hits[finding.limit] += 1
            self._closing.tell_to_leave(transport, finding.text)
        elif finding.duty is Duty.FINISH_LEAVING:
            self._closing.finish_leaving_soon(transport)
        elif finding.duty is Duty.END:
            self._closing.end(transport, finding.text, finding.limit)
        elif finding.duty is Duty.FAILED:
            assert finding.error is not None
            self._closing.failed(transport, finding.error)
        else:
            self._incidents.limit_hits[finding.limit] += 1
            self._incidents.ended(transport.peer, finding.text)
            self._closing.drop(transport)
