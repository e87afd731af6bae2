"""What is served on ``--metrics-addr``: one row per path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import trio

from toutates.access.gate import Gate
from toutates.access.pages import WebPages, of_foreign_page
from toutates.http1 import encode_fields
from toutates.models.graph_picture import graph_svg
from toutates.observe.debug.debug_dump import TrioRun, dump, this_run
from toutates.observe.debug.flame_graph import collapsed, flame_page
from toutates.observe.debug.profiler import MAX_HZ, MAX_SECONDS, Busy, Profile, Profiler, Weight
from toutates.observe.http.addresses import is_local_request
from toutates.observe.http.callers import check_caller
from toutates.observe.http.http_thread import THREAD_NAME
from toutates.observe.http.responses import Response, page_response, refusal, text_response
from toutates.observe.http.reuse import ReusedText
from toutates.observe.http.site import Asked, Endpoint, Site
from toutates.observe.metrics.exposition import Exposition
from toutates.observe.metrics.texts import MetricsTexts
from toutates.observe.status.page import load_page
from toutates.observe.status.sampling import HISTORY, Sampler
from toutates.observe.status.status import ALL, SORTS, Status, unready_reason
from toutates.observe.status.status import Asked as Listed
from toutates.observe.view import ServerView, health_answer
from toutates.system.address import is_loopback
from toutates.system.errors import Forbidden
from toutates.system.logs.recent import RecentWarning

__all__ = ["make_site"]

#: Points that a page asks for which has the earlier ones; it may have missed some.
RECENT_POINTS: Final = 10

#: Characters of a search, and digits of a page.
MAX_FIND: Final = 256
MAX_DIGITS: Final = 6

_NOTHING_HERE: Final = (
    "there is nothing here; see /, /metrics, /status.json, /health/live, /health/ready, /debug/tasks and /debug/profile"
)


_BY_ACCEPT: Final = encode_fields({"vary": "accept, accept-encoding"})
_GZIP: Final = encode_fields({"content-encoding": "gzip"})


def make_site(
    view: ServerView,
    metrics: Exposition | None = None,
    warnings: Callable[[], Iterable[RecentWarning]] = tuple,
    runs: Sequence[TrioRun] = (),
    *,
    debug_for_all: bool = False,
    gate: Gate | None = None,
    pages: WebPages | None = None,
) -> Site:
    """Make the endpoints, and the tasks that run beside them. Called in the thread and the Trio run that serve them.

    Args:
        view: of the server.
        metrics: the text of /metrics; None for no such path.
        warnings: the last ones of the log, the oldest first.
        runs: Trio runs other than those of the workers, for /debug/tasks.
        debug_for_all: whether /debug answers to other machines too (``--debug-endpoints``).
        gate: knows callers; None lets everybody in.
        pages: know the names by which callers on this machine may ask; None for the machine's alone.
    """
    named = partial(_by_name, pages or WebPages())
    sampler = Sampler(view)
    status = Status(view, sampler, warnings)
    debug = _Debug(view, (*runs, this_run(THREAD_NAME)))

    def guarded(endpoint: Endpoint) -> Endpoint:
        return endpoint if debug_for_all else _for_this_machine(endpoint)

    endpoints: dict[str, Endpoint] = {
        "/": named(_page),
        "/graph.svg": named(_Graph(view).get),
        "/status.json": named(_StatusJson(status).get),
        "/health/live": _health("live", lambda: "" if view.is_live() else "the server is shutting down"),
        "/health/ready": _health("ready", lambda: unready_reason(view), tells=gate is None),
        "/debug/tasks": _not_for_foreign_pages(guarded(named(debug.tasks))),
        "/debug/profile": _not_for_foreign_pages(guarded(named(debug.profile))),
    }
    beside = [sampler.run]
    if metrics is not None:
        endpoints["/metrics"] = _MetricsText(metrics).get
        beside.append(metrics.run)
    return Site(endpoints, _NOTHING_HERE, beside, None if gate is None else partial(check_caller, gate))


async def _page(asked: Asked) -> Response:
    return page_response(_PAGE.html, _PAGE.policy)


_PAGE = load_page("status.html", own_images=True)


class _Graph:
    """Answers /graph.svg?model=NAME&version=N: the picture of an ensemble."""

    def __init__(self, view: ServerView) -> None:
        self._view = view

    async def get(self, asked: Asked) -> Response:
        name, number = asked.parameter("model", ""), asked.parameter("version", "")
        model = self._view.get_table().models.get(name)
        for version in reversed(model.served() if model is not None else []):
            if number in ("", str(version.number)) and version.stated.HasField("ensemble_scheduling"):
                return text_response(graph_svg(version.stated), content_type="image/svg+xml")
        raise refusal(404, "model: there is no ensemble of this name and version")


class _StatusJson:
    """Answers /status.json.

    With ``?history=recent`` it has only the last points of each history; ``find``, ``sort`` and ``page`` choose the
    versions that are listed.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._turn = trio.Lock()
        self._texts = {
            history: ReusedText(lambda points=points: status.pieces(points), least_s=1.0)  # type: ignore[misc]
            for history, points in (("all", HISTORY), ("recent", RECENT_POINTS))
        }

    async def get(self, asked: Asked) -> Response:
        history = asked.parameter("history", "all")
        if history not in self._texts:
            raise refusal(400, f"history: {history[:40]!r} is neither 'all' nor 'recent'")
        listed = Listed(asked.parameter("find", "")[:MAX_FIND], _choice(asked, "sort", SORTS), _page_number(asked))
        if listed == ALL:
            return text_response(await self._texts[history].get(), content_type="application/json")
        pieces: list[bytes] = []
        async with self._turn:
            for piece in self._status.pieces(HISTORY if history == "all" else RECENT_POINTS, listed):
                pieces.append(piece)
                await trio.lowlevel.checkpoint()
        return text_response(b"".join(pieces), content_type="application/json")


class _MetricsText:
    """Answers /metrics."""

    def __init__(self, metrics: Exposition) -> None:
        self._texts = MetricsTexts(metrics)

    async def get(self, asked: Asked) -> Response:
        fields = asked.head.fields
        accept = fields.get("accept", "")
        if asked.head.answer_coding == "gzip":
            content_type, text = await self._texts.get_gzip(accept)
            return text_response(text, content_type=content_type, fields=_BY_ACCEPT + _GZIP)
        content_type, text = await self._texts.get(accept)
        return text_response(text, content_type=content_type, fields=_BY_ACCEPT)


def _by_name(pages: WebPages, endpoint: Endpoint) -> Endpoint:
    """An endpoint that callers on this machine reach by names that no foreign page has."""

    async def checked(asked: Asked) -> Response:
        if asked.peer is not None and is_loopback(asked.peer):
            try:
                pages.check_host(asked.head.fields)
            except Forbidden as error:
                raise refusal(403, str(error)) from None
        return await endpoint(asked)

    return checked


def _health(state: str, problem: Callable[[], str], *, tells: bool = True) -> Endpoint:
    async def health(asked: Asked) -> Response:
        status, text = health_answer(state, problem(), tells=tells)
        return text_response(text, status=status)

    return health


# --- help with debugging --------------------------------------------------------------------------------------------


def _for_this_machine(endpoint: Endpoint) -> Endpoint:
    async def checked(asked: Asked) -> Response:
        if not is_local_request(asked.peer, asked.head.fields):
            raise refusal(
                403,
                "/debug is for requests from this machine, to localhost or a loopback address and without a proxy; "
                "--debug-endpoints opens it to all",
            )
        return await endpoint(asked)

    return checked


def _not_for_foreign_pages(endpoint: Endpoint) -> Endpoint:
    async def checked(asked: Asked) -> Response:
        if of_foreign_page(asked.head.fields):
            raise refusal(403, "/debug does not answer pages of other sites; open it in a window of its own")
        return await endpoint(asked)

    return checked


class _Debug:
    """Answers /debug. Dumps and profiles are made one at a time."""

    def __init__(self, view: ServerView, runs: Sequence[TrioRun]) -> None:
        self._view = view
        self._runs = runs
        self._dumping = False
        self._profiler = Profiler()

    async def tasks(self, asked: Asked) -> Response:
        """/debug/tasks"""
        if self._dumping:
            raise refusal(409, "a dump is being made already; try again in a few seconds")
        self._dumping = True
        try:
            return text_response(await dump(self._view, self._runs))
        finally:
            self._dumping = False

    async def profile(self, asked: Asked) -> Response:
        """/debug/profile?seconds=10&hz=100&weight=cpu&format=html"""
        seconds = _number(asked, "seconds", 10.0, MAX_SECONDS)
        hz = int(_number(asked, "hz", 100, MAX_HZ))
        weight = Weight(_choice(asked, "weight", [weight.value for weight in Weight]))
        form = _choice(asked, "format", ["html", "collapsed"])
        profiles: list[Profile] = []
        try:
            async with trio.open_nursery() as nursery:

                async def end_with_client() -> None:
                    await asked.wait_gone()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(end_with_client)
                profiles.append(await self._profiler.take(seconds, max(hz, 1), weight))
                nursery.cancel_scope.cancel()
        except* Busy:
            raise refusal(409, "a profile is being taken already; try again when it is done") from None
        if not profiles:
            return text_response("", status=499)  # the client has left
        [profile] = profiles
        if form == "collapsed":
            return text_response(collapsed(profile))
        page = flame_page(profile)
        return page_response(page.html, page.policy)


def _number(asked: Asked, name: str, default: float, most: float) -> float:
    text = asked.parameter(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise refusal(400, f"{name}: {text[:40]!r} is not a number above 0 and up to {most:g}")
    return value


def _page_number(asked: Asked) -> int:
    text = asked.parameter("page", "0")
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise refusal(400, f"page: {text[:40]!r} is not a number from 0")
    return int(text)


def _choice(asked: Asked, name: str, choices: Sequence[str]) -> str:
    text = asked.parameter(name, choices[0])
    if text not in choices:
        raise refusal(400, f"{name}: {text[:40]!r} is not one of {', '.join(choices)}")
    return text
