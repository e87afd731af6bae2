"""What is served on ``--metrics-addr``: one row per path. An ASGI application, to which others can be added later."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toutates.observe.debug.debug_dump import TrioRun, dump, this_run
from toutates.observe.debug.flame_graph import collapsed, flame_page
from toutates.observe.debug.profiler import MAX_HZ, MAX_SECONDS, Busy, Profile, Profiler, Weight
from toutates.observe.http.addresses import foreign_page, is_local_request
from toutates.observe.http.http_thread import THREAD_NAME, App
from toutates.observe.http.responses import page_response, text_response
from toutates.observe.http.reuse import ReusedText
from toutates.observe.status.page import load_page
from toutates.observe.status.sampling import HISTORY, Sampler
from toutates.observe.status.status import Status, Warned, unready_reason
from toutates.observe.status.view import ServerView

__all__ = ["Metrics", "make_app"]

#: Points of a history that a page which has the others asks for: it may have missed some.
RECENT_POINTS: Final = 10
#: A request's path and query; more is answered with 414.
MAX_TARGET: Final = 2_048

_Endpoint = Callable[[Request], Awaitable[Response]]


class Metrics(Protocol):
    """What /metrics shows."""

    def content_type(self, accept: str) -> str:
        """The media type to answer a request's Accept header with; one of a few, whatever the header is."""

    def render(self, content_type: str) -> Iterable[bytes]:
        """The text of that type, in pieces."""


def make_app(
    view: ServerView,
    metrics: Metrics | None = None,
    warnings: Callable[[], Iterable[Warned]] = tuple,
    runs: Sequence[TrioRun] = (),
    *,
    debug_for_all: bool = False,
) -> App:
    """The application, and what has to run beside it. Made in the thread and the Trio run that serve it.

    Args:
        view: of the server.
        metrics: for /metrics; None for no such path.
        warnings: the last ones of the log, the oldest first.
        runs: other Trio runs than those of the workers, for /debug/tasks.
        debug_for_all: whether /debug is not for this machine's users alone (``--debug-endpoints``).
    """
    sampler = Sampler(view)
    status = Status(view, sampler, warnings)
    debug = _Debug(view, (*runs, this_run(THREAD_NAME)))

    def guarded(endpoint: _Endpoint) -> _Endpoint:
        return endpoint if debug_for_all else _for_this_machine(endpoint)

    routes: list[tuple[str, _Endpoint]] = [
        ("/", _page),
        ("/status.json", _StatusJson(status).get),
        ("/health/live", _health("live", lambda: "" if view.is_live() else "the server is shutting down")),
        ("/health/ready", _health("ready", lambda: unready_reason(view))),
        ("/debug/tasks", _not_for_foreign_pages(guarded(debug.tasks))),
        ("/debug/profile", _not_for_foreign_pages(guarded(debug.profile))),
    ]
    if metrics is not None:
        routes.append(("/metrics", _MetricsText(metrics).get))
    app = Starlette(
        routes=[Route(path, endpoint, methods=["GET", "HEAD"]) for path, endpoint in routes],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False
    return _short_targets_only(app), (sampler.run,)


def _short_targets_only(app: Any) -> Any:
    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and len(scope["raw_path"]) > MAX_TARGET:
            await text_response("the path and its parameters are too long\n", status=414)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {
        404: "there is nothing here; see /, /metrics, /status.json, /health/live, /health/ready, /debug/tasks and "
        "/debug/profile",
        405: "only GET and HEAD are understood",
    }.get(error.status_code, error.detail)
    headers = dict(error.headers) if error.headers is not None else None
    return text_response(f"{text}\n", status=error.status_code, headers=headers)


async def _page(request: Request) -> Response:
    return page_response(_PAGE)


_PAGE = load_page("status.html")


class _StatusJson:
    """/status.json; ``?history=recent`` for the last points alone."""

    def __init__(self, status: Status) -> None:
        self._texts = {
            history: ReusedText(lambda points=points: status.pieces(points), least_s=1.0)  # type: ignore[misc]
            for history, points in (("all", HISTORY), ("recent", RECENT_POINTS))
        }

    async def get(self, request: Request) -> Response:
        history = request.query_params.get("history", "all")
        if history not in self._texts:
            raise HTTPException(400, f"history: {history[:40]!r} is neither 'all' nor 'recent'")
        return text_response(await self._texts[history].get(), content_type="application/json")


class _MetricsText:
    """/metrics, a text per format."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._texts: dict[str, ReusedText] = {}
        self._turn = trio.Lock()

    async def get(self, request: Request) -> Response:
        content_type = self._metrics.content_type(request.headers.get("accept", ""))
        text = self._texts.get(content_type)
        if text is None:
            text = self._texts[content_type] = ReusedText(lambda: self._metrics.render(content_type))
        async with self._turn:  # which the text of one format has, or of the other
            made = await text.get()
        return text_response(made, content_type=content_type, headers={"vary": "accept"})


def _health(state: str, problem: Callable[[], str]) -> _Endpoint:
    """Answers 200 and ``state``; or 503 and why it is not so, where ``problem`` says something."""

    async def health(request: Request) -> Response:
        reason = problem()
        return text_response(f"not {state}: {reason}\n", status=503) if reason else text_response(f"{state}\n")

    return health


# --- help with debugging --------------------------------------------------------------------------------------------


def _for_this_machine(endpoint: _Endpoint) -> _Endpoint:
    async def checked(request: Request) -> Response:
        peer = request.client.host if request.client is not None else None
        if not is_local_request(peer, request.headers):
            raise HTTPException(
                403,
                "/debug is for requests from this machine, to localhost or a loopback address and without a proxy; "
                "--debug-endpoints opens it to all",
            )
        return await endpoint(request)

    return checked


def _not_for_foreign_pages(endpoint: _Endpoint) -> _Endpoint:
    async def checked(request: Request) -> Response:
        if foreign_page(request.headers):
            raise HTTPException(403, "/debug does not answer pages of other sites; open it in a window of its own")
        return await endpoint(request)

    return checked


class _Debug:
    """/debug. A dump or a profile is made for one caller at a time."""

    def __init__(self, view: ServerView, runs: Sequence[TrioRun]) -> None:
        self._view = view
        self._runs = runs
        self._dumping = False
        self._profiler = Profiler()

    async def tasks(self, request: Request) -> Response:
        """/debug/tasks"""
        if self._dumping:
            raise HTTPException(409, "a dump is being made already; try again in a few seconds")
        self._dumping = True
        try:
            return text_response(await dump(self._view, self._runs))
        finally:
            self._dumping = False

    async def profile(self, request: Request) -> Response:
        """/debug/profile?seconds=10&hz=100&weight=cpu&format=html"""
        seconds = _number(request, "seconds", 10.0, MAX_SECONDS)
        hz = int(_number(request, "hz", 100, MAX_HZ))
        weight = Weight(_choice(request, "weight", [weight.value for weight in Weight]))
        form = _choice(request, "format", ["html", "collapsed"])
        if request.method == "HEAD":
            return text_response(b"")
        profiles: list[Profile] = []
        try:
            async with trio.open_nursery() as nursery:

                async def end_with_client() -> None:
                    while (await request.receive())["type"] != "http.disconnect":
                        pass
                    nursery.cancel_scope.cancel()

                nursery.start_soon(end_with_client)
                profiles.append(await self._profiler.take(seconds, max(hz, 1), weight))
                nursery.cancel_scope.cancel()
        except* Busy:
            raise HTTPException(409, "a profile is being taken already; try again when it is done") from None
        if not profiles:
            return text_response("", status=499)  # to nobody
        [profile] = profiles
        return text_response(collapsed(profile)) if form == "collapsed" else page_response(flame_page(profile))


def _number(request: Request, name: str, default: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise HTTPException(400, f"{name}: {text[:40]!r} is not a number above 0 and up to {most:g}")
    return value


def _choice(request: Request, name: str, choices: Sequence[str]) -> str:
    text = request.query_params.get(name, choices[0])
    if text not in choices:
        raise HTTPException(400, f"{name}: {text[:40]!r} is not one of {', '.join(choices)}")
    return text
