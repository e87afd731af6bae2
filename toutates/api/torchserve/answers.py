"""Answers as TorchServe gives them: indented JSON, and an object of code, type and message for each error."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from uuid import uuid4

import msgspec

from toutates.api.rest.answers import allow_field
from toutates.http1 import encode_fields
from toutates.infer.rest.call import BodyTensors
from toutates.repositories.torchserve.settings import BODY, HEAD, RESULT, RESULT_HEAD
from toutates.system.errors import (
    Cancelled,
    ExecutionFailed,
    Forbidden,
    InvalidRequest,
    MalformedMessage,
    QuotaExceeded,
    RequestError,
    Unauthenticated,
    UnknownModel,
    Unsupported,
)
from toutates.system.json_text import encode_json

__all__ = [
    "Answer",
    "Problem",
    "as_problem",
    "document_answer",
    "method_not_allowed",
    "no_model",
    "no_version",
    "no_worker",
    "no_workflows",
    "problem_answer",
    "resource_not_found",
    "tensors",
    "write_prediction",
]

#: Status, header fields and body.
Answer = tuple[int, bytes, bytes]

_COMMON: Final = (
    b"pragma: no-cache\r\ncache-control: no-cache; no-store, must-revalidate, private\r\n"
    b"expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n"
)
_JSON: Final = b"content-type: application/json\r\n"
#: Fields that say where the body ends and what becomes of the connection are not the handler's.
_NOT_THE_HANDLERS: Final = frozenset(
    ("connection", "content-length", "date", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)


class Problem(Exception):
    """What is answered with an error.

    Args:
        code: of HTTP.
        kind: TorchServe's name of it.
        message: for people.
        fields: further header fields of the answer.
    """

    def __init__(self, code: int, kind: str, message: str, fields: bytes = b"") -> None:
        super().__init__(code, kind, message)
        self.code, self.kind, self.message, self.fields = code, kind, message, fields


def resource_not_found() -> Problem:
    """There is nothing at this path."""
    text = "Requested resource is not found, please refer to API document."
    return Problem(404, "ResourceNotFoundException", text)


def no_workflows(code: int) -> Problem:
    """What is asked for is a workflow."""
    text = "Workflows are not offered here: register the archives of its models (.mar), and join them by an ensemble."
    return Problem(code, "ResourceNotFoundException" if code == 404 else "BadRequestException", text)


def method_not_allowed(methods: Collection[str]) -> Problem:
    """The path has other methods, or models are not changed by request."""
    text = "Requested method is not allowed, please refer to API document."
    return Problem(405, "MethodNotAllowedException", text, allow_field(methods))


def no_model(model: str) -> Problem:
    """There is no such model."""
    return Problem(404, "ModelNotFoundException", f"Model not found: {model}")


def no_version(model: str, version: str) -> Problem:
    """A model has no such version."""
    return Problem(404, "ModelVersionNotFoundException", f"Model version: {version} does not exist for model: {model}")


def no_worker(model: str, version: str) -> Problem:
    """A model has no worker, or all that can wait for one do."""
    # Misprint and all: clients compare it.
    which = f'Model "{model}" Version {version}" has' if version else f'Model "{model}" has'
    return Problem(
        503,
        "ServiceUnavailableException",
        f"{which} no worker to serve inference request. Please use scale workers API to add workers. If this is a "
        "sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize",
    )


def as_problem(error: RequestError, model: str, version: str) -> Problem:
    """What a refused prediction is, in TorchServe's words."""
    if isinstance(error, UnknownModel):
        return no_model(model)
    if isinstance(error, Unauthenticated):
        return Problem(401, "UnauthorizedException", str(error))
    if isinstance(error, Forbidden):
        return Problem(403, "AccessDeniedException", str(error))
    if isinstance(error, QuotaExceeded):
        return Problem(429, "TooManyRequestsException", str(error))
    if isinstance(error, InvalidRequest | MalformedMessage):
        return Problem(400, "BadRequestException", str(error))
    if isinstance(error, ExecutionFailed):
        if "is not healthy" in str(error):
            return Problem(500, "InternalServerException", "Worker died.")
        return Problem(503, "InternalServerException", "Prediction failed")
    if isinstance(error, Unsupported | Cancelled):
        return Problem(503, "InternalServerException", str(error))
    return no_worker(model, version)


def document_answer(document: Any, code: int = 200, request_id: str = "") -> Answer:
    """An answer of JSON, indented as TorchServe's."""
    body = msgspec.json.format(encode_json(document), indent=2) + b"\n"
    return code, _JSON + _fields_of_all(request_id), body


def problem_answer(problem: Problem, request_id: str = "") -> Answer:
    """The answer to what is refused."""
    document = {"code": problem.code, "type": problem.kind, "message": problem.message}
    code, fields, body = document_answer(document, problem.code, request_id)
    return code, fields + problem.fields, body


def _fields_of_all(request_id: str) -> bytes:
    return b"x-request-id: %b\r\n%b" % ((request_id or str(uuid4())).encode("ascii", "replace"), _COMMON)


class _ResultHead(msgspec.Struct, frozen=True):
    """``result_head`` of an imported model, in JSON."""

    status: int = 200
    id: str = ""
    failed: bool = False
    fields: dict[str, str] = {}


def write_prediction(result_head: bytes, result: Any) -> tuple[int, bytes, Any]:
    """What a handler has answered; the result is bytes or a view of them, and is not copied."""
    try:
        head = _read_head(result_head)
        if head.failed:
            kind = "BadRequestException" if head.status == 400 else "InternalServerException"
            return problem_answer(Problem(head.status, kind, bytes(result).decode(errors="replace")), head.id)
        fields = {name: value for name, value in head.fields.items() if name.lower() not in _NOT_THE_HANDLERS}
        return head.status, encode_fields(fields) + _fields_of_all(head.id), result
    except (ValueError, msgspec.MsgspecError):
        text = "the handler has set a status or a header field that HTTP does not have"
        return problem_answer(Problem(503, "InternalServerException", text))


def _read_head(result_head: bytes) -> _ResultHead:
    if not result_head:
        return _ResultHead()
    head = msgspec.json.decode(result_head, type=_ResultHead)
    if not 200 <= head.status <= 599 or not (head.id.isascii() and head.id.isprintable() and len(head.id) <= 128):
        raise ValueError(result_head)
    return head


def tensors(head_content: bytes) -> BodyTensors:
    """The tensors of imported models, for a request with this head."""
    return BodyTensors(BODY, HEAD, head_content, RESULT, RESULT_HEAD, write_prediction)
