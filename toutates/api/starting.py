"""What every request over HTTP is answered until the server has started: 503, in the form of its API."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from toutates.api.rest.answers import error_answer
from toutates.api.rest.calls import Purpose, RestHttpCall
from toutates.api.rest.cross_origin import CrossOrigin
from toutates.api.text.handler import TextSettings, routes_of
from toutates.api.text.problems import as_problem
from toutates.api.torchserve.answers import Problem, problem_answer
from toutates.http1 import Head, Refused
from toutates.net.http1.call import HttpCall
from toutates.system.errors import RequestError, Unavailable

__all__ = ["STARTING", "ErrorForm", "StartHandler", "form_of_rest", "form_of_torchserve"]

#: Makes the answer to a request that is not carried out, of its path and the reason.
ErrorForm = Callable[[str, RequestError], tuple[int, bytes, bytes]]

STARTING: Final = "the server is starting"
_STATUS: Final = 503
#: Bytes of a body that is read, so that the connection goes on.
_MAX_BODY: Final = 65_536
#: When to come again: after this share of what the start has lasted, within these bounds, seconds.
_RETRY_SHARE: Final = 0.1
_RETRY_S: Final = (1.0, 10.0)


class StartHandler:
    """Answers the requests of one worker while the server starts; a ``net.http1.service.Handler``.

    Args:
        form: of the answers.
        began_s: when the start began, by ``time.monotonic``.
        cross_origin: origins whose pages may read the answers, see ``CrossOrigin``.
    """

    call_class: type[HttpCall] = RestHttpCall

    def __init__(self, form: ErrorForm, began_s: float, cross_origin: Sequence[str] = ()) -> None:
        self._form = form
        self._began_s = began_s
        self._cross_origin = CrossOrigin(cross_origin) if cross_origin else None
        if self._cross_origin is not None:
            self.call_class = self._cross_origin.call_class

    def admit(self, head: Head) -> int:
        """See ``Handler``.

        Raises:
            Refused: the body is long, and nobody is to read it.
        """
        if not 0 <= head.body_size <= _MAX_BODY:
            raise Refused(_STATUS, STARTING, self._retry_after())
        preflight = None if self._cross_origin is None else self._cross_origin.preflight(head)
        head.purpose = Purpose(self._refuse if preflight is None else lambda call: call.reply(*preflight))
        return _MAX_BODY

    def fail(self, call: RestHttpCall, error: RequestError) -> None:
        """See ``Handler``."""
        call.fail(error)

    def write_refusal(self, refused: Refused) -> tuple[bytes, bytes]:
        """See ``Handler``."""
        answer = error_answer(refused.status, refused.text)
        return answer.fields, answer.body

    def _refuse(self, call: RestHttpCall) -> None:
        status, fields, body = self._form(call.head.path, Unavailable(STARTING))
        call.reply(status, fields + self._retry_after(), body)

    def _retry_after(self) -> bytes:
        """Clients that wait come back spread over some time, and seldom where the start takes long."""
        least, most = _RETRY_S
        after_s = min(max(_RETRY_SHARE * (time.monotonic() - self._began_s), least), most)
        return b"retry-after: %d\r\n" % ceil(random.uniform(0.5, 1.0) * after_s)


def form_of_rest(text: TextSettings, *, torchserve: bool) -> ErrorForm:
    """How the APIs of REST's port say it.

    Args:
        text: of the APIs for text.
        torchserve: whether TorchServe's inference API is served there.
    """
    routes = routes_of(text)

    def answer(path: str, error: RequestError) -> tuple[int, bytes, bytes]:
        route = routes.get(path)
        if route is not None:
            return route.form.refuse(as_problem(error, route.texts))
        if torchserve and path.startswith(("/ping", "/predictions/")):
            return form_of_torchserve(path, error)
        return error_answer(_STATUS, str(error))

    return answer


def form_of_torchserve(path: str, error: RequestError) -> tuple[int, bytes, bytes]:
    """How TorchServe's APIs say it."""
    return problem_answer(Problem(_STATUS, "ServiceUnavailableException", str(error)))
