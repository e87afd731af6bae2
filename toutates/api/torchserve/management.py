"""The management API of TorchServe: from a request's path to what ``models`` does, and back to an answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from toutates.access.pages import of_foreign_page
from toutates.api.audit import Author, author_of
from toutates.api.control_queue import ControlQueue
from toutates.api.doors import Doors
from toutates.api.rest.calls import Purpose, RestHttpCall
from toutates.api.torchserve.answers import (
    Problem,
    document_answer,
    method_not_allowed,
    no_workflows,
    problem_answer,
    resource_not_found,
)
from toutates.api.torchserve.models import Models, Outcome, Registration
from toutates.http1 import Head, Refused
from toutates.net import Worker
from toutates.net.http1.call import HttpCall
from toutates.repositories.torchserve.settings import MAX_WORKERS
from toutates.system.errors import Forbidden, Overloaded, RequestError, Unauthenticated, Unavailable

__all__ = ["ManagementHandler"]

_MAX_BODY: Final = 65_536
_MAX_PARAMETERS: Final = 64
_MAX_PAGE: Final = 100

_DENIED: Final = "AccessDeniedException"
_GROUP: Final = "model-repository"
_MODELS: Final = "/models"
_WORKFLOWS: Final = "/workflows"
_MODEL: Final = re.compile(r"/models/([^/]+)(?:/([^/]+))?(/set-default)?")


class _Parameters:
    """The parameters of a request, of its query or of a JSON body.

    Raises:
        Problem: they cannot be read.
    """

    def __init__(self, query: str, body: bytes) -> None:
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="strict")
            self._values: dict[str, Any] = dict(pairs)
            if body:
                self._values |= msgspec.json.decode(body, type=dict[str, Any])
        except (ValueError, msgspec.MsgspecError, RecursionError):
            raise Problem(400, "BadRequestException", "Failed to parse request.") from None

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str) or len(value) > 2_048:
            raise Problem(400, "BadRequestException", f"Parameter {name} is a text.")
        return value

    def number(self, name: str, default: int | None) -> int | None:
        value = self._values.get(name)
        if value is None or value == "":
            return default
        text = str(value)
        if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9:
            raise Problem(400, "BadRequestException", f"Parameter {name} is a whole number.")
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name)
        return default if value is None or value == "" else str(value).lower() == "true"


Operation = Callable[[Models, _Parameters], Awaitable[Outcome]]


async def _register(models: Models, given: _Parameters) -> Outcome:
    url = given.text("url")
    if not url:
        raise Problem(400, "BadRequestException", "Parameter url is required.")
    if url.partition("?")[0].endswith(".war"):
        raise no_workflows(400)
    if given.text("runtime", "python") not in ("python", "PYTHON", "python3"):
        raise Problem(400, "BadRequestException", "Parameter runtime is python.")
    batch_size = given.number("batch_size", None)
    if batch_size is not None and not 1 <= batch_size <= 65_536:
        raise Problem(400, "BadRequestException", "Parameter batch_size is a number from 1 to 65536.")
    delay = given.number("max_batch_delay", None)
    if delay is not None and delay > 3_600_000:
        raise Problem(400, "BadRequestException", "Parameter max_batch_delay is at most 3600000 milliseconds.")
    workers = given.number("initial_workers", None)
    if workers is not None and workers > MAX_WORKERS:
        raise Problem(400, "BadRequestException", f"Parameter initial_workers is at most {MAX_WORKERS}.")
    return await models.register(
        Registration(
            url=url,
            model_name=given.text("model_name"),
            handler=given.text("handler"),
            batch_size=batch_size,
            max_batch_delay_ms=delay,
            workers=workers,
            synchronous=given.boolean("synchronous", default=True),
        )
    )


async def _list(models: Models, given: _Parameters) -> Outcome:
    limit, page = given.number("limit", _MAX_PAGE), given.number("next_page_token", 0)
    assert limit is not None
    assert page is not None
    return await models.index(limit if 0 < limit <= _MAX_PAGE else _MAX_PAGE, page)


async def _scale(model: str, version: str, models: Models, given: _Parameters) -> Outcome:
    least, most = given.number("min_worker", 1), given.number("max_worker", None)
    assert least is not None
    return await models.scale(model, version, least, most, synchronous=given.boolean("synchronous", default=False))


def _operations(path: str) -> Mapping[str, Operation]:
    """What requests at a path ask for, by method.

    Raises:
        Problem: there is nothing at this path.
    """
    if path == _MODELS:
        return {"GET": _list, "POST": _register}
    if path == _WORKFLOWS or path.startswith(f"{_WORKFLOWS}/"):
        raise no_workflows(404)
    match = _MODEL.fullmatch(path)
    if match is None:
        raise resource_not_found()
    try:
        model, version = (unquote(part or "", errors="strict") for part in match.groups()[:2])
    except UnicodeDecodeError:
        raise resource_not_found() from None
    if match[3]:
        return {"PUT": lambda models, given: models.set_default(model, version)}
    return {
        "GET": lambda models, given: models.describe(model, version),
        "PUT": partial(_scale, model, version),
        "DELETE": lambda models, given: models.unregister(model, version),
    }


class ManagementHandler:
    """Answers the management API on one worker; a ``net.http1.service.Handler``.

    Args:
        worker: whose connections come by the API's address.
        queue: brings requests to the main thread.
        models: what is managed.
        doors: what requests have to bring. All of them belong to ``model-repository``.
    """

    call_class: type[HttpCall] = RestHttpCall

    def __init__(self, worker: Worker, queue: ControlQueue, models: Models, doors: Doors) -> None:
        self._worker = worker
        self._queue = queue
        self._models = models
        self._doors = doors

    def admit(self, head: Head) -> int:
        """See ``Handler``."""
        try:
            # A page that somebody looks at on this machine reaches its loopback address too. Browsers say so.
            if "origin" in head.fields or of_foreign_page(head.fields):
                raise Problem(403, _DENIED, "Requests of web pages are refused.")
            try:
                self._doors.check_secret(_GROUP, head.fields)
            except RequestError as error:
                raise Problem(403, _DENIED, str(error)) from None
            model = _MODEL.fullmatch(head.path)
            visit = self._doors.visit(_GROUP, head, "" if model is None else unquote(model[1]), of_all=model is None)
            operations = _operations(head.path)
            if head.served_as not in operations:
                raise method_not_allowed(operations)
            ask = partial(self._ask, operations)
            head.purpose = Purpose(self._doors.within(visit, ask), _refusal)
        except Problem as problem:
            head.purpose = Purpose(partial(_reply, problem))
        return _MAX_BODY

    def fail(self, call: RestHttpCall, error: RequestError) -> None:
        """See ``Handler``."""
        call.fail(error)

    def write_refusal(self, refused: Refused) -> tuple[bytes, bytes]:
        """See ``Handler``."""
        text = "Invalid HTTP message." if refused.status == 400 else refused.text
        _, fields, body = problem_answer(Problem(refused.status, "BadRequestException", text))
        return fields, body

    def _ask(self, operations: Mapping[str, Operation], call: RestHttpCall) -> None:
        author = author_of(self._doors.gate, self._worker.peer(call), "TorchServe's management API")
        work = partial(self._work, operations, call, author)
        self._queue.put(self._worker, bytes(call.body), work, call.fail)

    async def _work(
        self, operations: Mapping[str, Operation], call: RestHttpCall, author: Author, body: bytes
    ) -> Callable[[], None]:
        """Do what was asked for, on the main thread; returns what answers the call."""
        method = call.head.served_as
        try:
            code, document = await operations[method](self._models, _Parameters(call.head.query, body))
        except Problem as problem:
            if method != "GET":
                author.note(f"{method} {call.head.path}", "", problem.message)
            if problem.code == 405:  # models are not changed by request
                return partial(_reply, method_not_allowed(operations.keys() & {"GET"}), call)
            return partial(_reply, problem, call)
        if method != "GET":
            author.note(f"{method} {call.head.path}", "")
        return partial(call.reply, *document_answer(document, code))


def _reply(problem: Problem, call: RestHttpCall) -> None:
    call.reply(*problem_answer(problem))


def _refusal(error: RequestError) -> tuple[int, bytes, bytes]:
    if isinstance(error, Unauthenticated | Forbidden):
        code, kind = (401, "UnauthorizedException") if isinstance(error, Unauthenticated) else (403, _DENIED)
        return problem_answer(Problem(code, kind, str(error)))
    if isinstance(error, Overloaded | Unavailable):
        return problem_answer(Problem(503, "ServiceUnavailableException", str(error)))
    return problem_answer(Problem(500, "InternalServerException", str(error)))
