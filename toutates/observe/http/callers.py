"""Who may see what on the HTTP side, where callers are known."""

from __future__ import annotations

from urllib.parse import unquote

from toutates.access.gate import Gate
from toutates.http1 import Head
from toutates.observe.http.responses import refusal
from toutates.system.errors import Forbidden, Unauthenticated

__all__ = ["check_caller"]


def check_caller(gate: Gate, head: Head) -> None:
    """Let a request pass whose caller may see what is at its path.

    Raises:
        Refused: it may not.
    """
    path = unquote(head.path)
    group = "health" if path.startswith("/health/") else "debug" if path.startswith("/debug/") else "metrics"
    try:
        gate.caller_for(group, head.fields.get("authorization", "").encode("latin-1"))
    except Unauthenticated as error:
        raise refusal(401, str(error), {"www-authenticate": "Bearer"}) from None
    except Forbidden as error:
        raise refusal(403, str(error)) from None
