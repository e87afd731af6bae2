"""The APIs for text as one worker serves them: from a request's head to what answers it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from toutates.access.worker_gate import Visit
from toutates.api.dataplane.plane import DataPlane
from toutates.api.doors import Doors
from toutates.api.rest.answers import allow_field
from toutates.api.rest.calls import RestHttpCall
from toutates.api.text import cohere, openai, tei
from toutates.api.text.alike import AlikeBodies
from toutates.api.text.lookup import LimitedLookup, Lookup
from toutates.api.text.problems import Kind, Problem, as_problem
from toutates.api.text.proxy import ProxySettings, route_of
from toutates.api.text.reading import MAX_BODY_BYTES
from toutates.api.text.routes import Page, Route
from toutates.api.text.work import TextWork
from toutates.http1 import Head, Refused
from toutates.infer.traffic.divided import Divider
from toutates.system.errors import RequestError

__all__ = ["TextApis", "TextSettings", "routes_of"]

#: Bytes of a body that is not looked at.
_MAX_UNREAD: Final = 65_536
_MAX_QUERY: Final = 2_048
_MODEL_PATH: Final = re.compile(r"(/v1/models/)(.+)")
_MODEL_ROUTE: Final = "/v1/models/{id}"
#: What begins so is asked by clients of OpenAI's API, to whom all of its errors are said in their form.
_OPENAI: Final = "/v1/"
_NOWHERE: Final = Route("/v1/...", openai.FORM)
_JSON_TYPE: Final = re.compile(r"application/(?:[\w.-]+\+)?json(?:\s*;.*)?", re.IGNORECASE)
_REFUSALS: Final = {
    413: Kind.TOO_LARGE,
    401: Kind.UNAUTHORIZED,
    403: Kind.FORBIDDEN,
    503: Kind.NOT_READY,
    408: Kind.VALUE,
}


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What an operator can choose.

    Attributes:
        proxy: what the environment says of ``/v1/embedding``.
        limits: what ``/info`` tells of the server, by TEI's names.
    """

    proxy: ProxySettings = field(default_factory=ProxySettings)
    limits: Mapping[str, Any] = field(default_factory=dict)


def routes_of(settings: TextSettings) -> Mapping[str, Route]:
    """All routes, by path."""
    routes = (*openai.ROUTES, *tei.ROUTES, *cohere.ROUTES, route_of(settings.proxy))
    return {route.path: route for route in routes}


class TextApis:
    """Answers the requests for the APIs for text of one worker.

    Args:
        plane: the worker's.
        work: computes and answers.
        doors: what requests have to bring.
        settings: of the APIs.
        max_body: bytes of a body, at most.
        divider: see ``Lookup``.
    """

    def __init__(
        self,
        plane: DataPlane,
        work: TextWork,
        doors: Doors,
        settings: TextSettings,
        max_body: int,
        divider: Divider | None = None,
    ) -> None:
        self.plane = plane
        self.work = work
        self.doors = doors
        self.settings = settings
        self.lookup = Lookup(plane.get_table, divider)
        self.divider = divider
        self._routes = routes_of(settings)
        self._bodies = {
            path: AlikeBodies(work, route, self.lookup)
            for path, route in self._routes.items()
            if route.post is not None and route.post.text
        }
        self._max_body = min(max_body, MAX_BODY_BYTES)

    def admit(self, head: Head) -> int | None:
        """Find out what a request is for; returns the bytes that its body may have, and None if it is none of these.

        Raises:
            Refused: it gets no further.
        """
        route, name = self._routes.get(head.path), ""
        if route is None:
            match = _MODEL_PATH.fullmatch(head.path)
            if match is not None:
                route, name = self._routes[_MODEL_ROUTE], unquote(match[2], errors="replace")
            elif head.path.startswith(_OPENAI):
                route = _NOWHERE
            else:
                return None
        purpose = head.purpose = _Purpose(self, route, head.fields, name or _model_of(head.query))
        problem = purpose.problem = self._problem(head, route)
        if problem is None:
            purpose.visit = self.doors.visit(route.group, head)
        if problem is None and head.method == "POST":
            if purpose.is_common:
                purpose.bodies = self._bodies.get(route.path)
            return self._max_body
        if not 0 <= head.body_size <= _MAX_UNREAD:
            problem = problem or Problem(Kind.TOO_LARGE, f"the request's body has more than {_MAX_UNREAD} bytes")
            raise Refused(route.form.refuse(problem).status, str(problem), problem.fields)
        return _MAX_UNREAD

    def _problem(self, head: Head, route: Route) -> Problem | None:
        """What is wrong with a request, whatever its body and its key."""
        if route is _NOWHERE:
            text = f"there is nothing at {head.path[:100]}; {_OPENAI}embeddings, models and rerank are served"
            return Problem(Kind.PATH, text)
        try:
            self.doors.check_secret(route.group, head.fields)
        except RequestError as error:
            return as_problem(error, route.texts)
        is_get = head.served_as == "GET"
        if not (route.get if is_get else head.method == "POST" and route.post):
            methods = [name for name, has in (("GET", route.get), ("POST", route.post)) if has]
            text = f"Method Not Allowed: {head.served_as[:20]} {route.path}"
            return Problem(Kind.METHOD, text, fields=allow_field(methods))
        if route.form.needs_json and not is_get and not _JSON_TYPE.fullmatch(head.fields.get("content-type", "")):
            return Problem(Kind.MEDIA_TYPE, "Expected request with `Content-Type: application/json`")
        return None


def _model_of(query: str) -> str:
    """The member ``model`` of a query; "" for none."""
    if "model=" not in query or len(query) > _MAX_QUERY:
        return ""
    return parse_qs(query).get("model", [""])[0]


class _Purpose:
    """What requests with one head are for (``Head.purpose``).

    Args:
        apis: of the worker.
        route: theirs.
        fields: of the head.
        model: that the path or the query names; "" for none.

    Attributes:
        problem: why all of them are refused; None where their bodies are to be read.
        visit: who sends them; None where nobody asks.
        bodies: know some of their bodies, which then need not be read; None where they are to be.
    """

    __slots__ = ("_apis", "_may_trace", "_model", "_route", "bodies", "problem", "visit")

    def __init__(self, apis: TextApis, route: Route, fields: Mapping[str, str], model: str) -> None:
        self._apis = apis
        self._route = route
        self._model = model
        self._may_trace = apis.work.observer.may_trace(fields)
        self.problem: Problem | None = None
        self.visit: Visit | None = None
        self.bodies: AlikeBodies | None = None

    @property
    def is_common(self) -> bool:
        """Whether the head says nothing by which a request differs from others of its route."""
        return self.visit is None and not (self._model or self._may_trace)

    def handle(self, call: RestHttpCall) -> None:
        """Answer a request."""
        bodies = self.bodies
        if bodies is not None and bodies.take(call):
            return
        apis, route = self._apis, self._route
        if self.problem is not None:
            apis.work.refuse(call, route, route.form, self.problem)
            return
        caller, lookup = None, apis.lookup
        if self.visit is not None:
            try:
                caller = self.visit.caller
            except RequestError as error:  # not any more
                apis.work.refuse(call, route, route.form, error)
                return
            if caller.models:
                lookup = LimitedLookup(apis.plane.get_table, caller, apis.divider)
        if call.head.method == "POST":
            apis.work.begin(
                call, route, lookup, self._model, may_trace=self._may_trace, caller=caller, bodies=self.bodies
            )
        else:
            apis.work.show(call, route, self._page(lookup))

    def _page(self, lookup: Lookup) -> Page:
        apis = self._apis
        readiness = apis.plane.readiness
        healthy = readiness.serving and not readiness.exiting
        return Page(lookup.all(), lookup.find, self._model, healthy, apis.settings.limits)

    def refusal(self, error: RequestError) -> tuple[int, bytes, bytes]:
        """The answer to a request that had an error."""
        return self._route.form.refuse(as_problem(error, self._route.texts))

    def refused(self, refused: Refused) -> tuple[int, bytes, bytes]:
        """The answer to a request that HTTP refuses, or ``admit`` has refused, with its status."""
        problem = Problem(_REFUSALS.get(refused.status, Kind.VALUE), refused.text)
        if self.problem is not None and refused.status != 413:
            problem = self.problem
        answer = self._route.form.refuse(problem)
        return refused.status, answer.fields, answer.body
