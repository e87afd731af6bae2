"""What requests over HTTP have to bring, by what they are for: a secret of Triton's flags, a key or token, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, Final

from toutates.access.pages import WebPages
from toutates.access.worker_gate import Visit, WorkerGate
from toutates.api.rest.answers import STATUSES, access_fields
from toutates.api.restrictions import RestrictedProtocol
from toutates.http1 import Head, Refused
from toutates.system.errors import Forbidden, RequestError

__all__ = ["OPEN", "Doors"]

#: Bytes of the body of a refused request that is read, so that the connection goes on.
MAX_UNREAD: Final = 65_536


class Doors:
    """The doors of one worker.

    Args:
        secrets: by group, what the flags want of a request.
        gate: knows callers; None where everybody is let in.
        web: which pages of browsers may change the server; None for those of its own machine alone.

    Attributes:
        secrets, gate, web: as given.
    """

    def __init__(
        self,
        secrets: Mapping[str, RestrictedProtocol],
        gate: WorkerGate | None = None,
        web: WebPages | None = None,
    ) -> None:
        self.secrets = secrets
        self.gate = gate
        self.web = web or WebPages()

    def check_secret(self, group: str, fields: Mapping[str, str]) -> None:
        """Refuse a request without the secret of its group.

        Raises:
            Forbidden: it has not the right one.
        """
        secret = self.secrets.get(group)
        if secret is not None:
            given = fields.get(secret.header.lower(), "").encode("latin-1")
            if not compare_digest(given, secret.value.encode()):
                raise Forbidden(f"This API is restricted, expecting header '{secret.header}'")

    def visit(self, group: str, head: Head, model: str = "", *, of_all: bool = False) -> Visit | None:
        """Who sends requests with a head; None where nobody asks. For the arguments see ``Visit``.

        One whose caller may not do this is returned too, because that can change while the connection lasts: it raises
        when it is asked.

        Raises:
            Refused: the caller may not, and the body is long, or it was dear to find out; the connection ends.
        """
        if self.gate is None:
            return None
        field = head.fields.get("authorization", "").encode("latin-1")
        visit = Visit(self.gate, field, group, model, of_all=of_all)
        try:
            visit.caller  # noqa: B018  # asks
        except RequestError as error:
            if getattr(error, "was_dear", False) or not 0 <= head.body_size <= MAX_UNREAD:
                raise Refused(STATUSES[type(error)], str(error), access_fields(error), ends=True) from None
        return visit

    def within(self, visit: Visit | None, handle: Callable[[Any], None]) -> Callable[[Any], None]:
        """``handle``, with its caller known meanwhile. Requests whose caller may not any more raise RequestError."""
        gate = self.gate
        if visit is None or gate is None:
            return handle

        def handle_within(call: Any) -> None:
            gate.caller = visit.caller
            try:
                handle(call)
            finally:
                gate.caller = None

        return handle_within


#: Lets everybody in.
OPEN: Final = Doors({})
