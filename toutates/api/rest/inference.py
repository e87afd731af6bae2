"""What the path of an inference needs of calls over REST."""

from __future__ import annotations

from enum import IntEnum
from http import HTTPStatus

from toutates.api.rest.answers import STATUSES
from toutates.api.rest.calls import RestHttpCall
from toutates.infer.rest.call import request_id
from toutates.net import Worker
from toutates.system.errors import RequestError

__all__ = ["RestTransport"]


class RestTransport:
    """The ``toutates.infer.call.Transport`` of calls over REST.

    Args:
        worker: whose calls these are.
    """

    def __init__(self, worker: Worker) -> None:
        self.end_connection = worker.connection_failed
        self.peer = worker.peer

    def fail(self, call: RestHttpCall, error: RequestError) -> None:
        """Answer a call with the status and the text of an error."""
        call.fail(error)

    def hold(self, call: RestHttpCall, size: int) -> None:
        """Count bytes that are kept for a request."""
        call.hold(size)

    def status_of(self, error: type[RequestError] | None) -> IntEnum:
        """The status of a kind of error; OK for None."""
        return HTTPStatus.OK if error is None else STATUSES[error]

    def request_id(self, id_field: bytes) -> str:
        """The id of a request, from its text in JSON."""
        return request_id(id_field)

    def trace_context(self, call: RestHttpCall) -> tuple[str, str]:
        """``traceparent`` and ``tracestate``; several fields of one name are joined by commas."""
        fields = call.head.fields
        return fields.get("traceparent", ""), fields.get("tracestate", "")
