"""/ping, /predictions and /explanations of TorchServe, on the ports of REST.

A prediction is an inference of a model that was made of an archive: its body is one BYTES element, and so is the
answer's. It takes the way of every other one. TorchServe's names of versions are looked up when the request comes,
because its head may be older than the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import unquote
from weakref import ref

from toutates.api.dataplane.plane import DataPlane
from toutates.api.doors import Doors
from toutates.api.rest.calls import Purpose, RestHttpCall
from toutates.api.torchserve.answers import (
    Answer,
    Problem,
    as_problem,
    document_answer,
    method_not_allowed,
    no_version,
    no_worker,
    no_workflows,
    problem_answer,
    tensors,
)
from toutates.http1 import Head, Refused
from toutates.infer.rest.call import Asked, Asks
from toutates.models.table import ModelTable
from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.rest.request import Target
from toutates.repositories.torchserve.imported import default_of, number_of, versions_of
from toutates.system.errors import RequestError, UnknownModel
from toutates.system.json_text import encode_json

__all__ = ["Defaults", "Predictions"]

_PATH: Final = re.compile(r"/(predictions|explanations)/([^/]+)(?:/([^/]+)(?:/(.*))?)?")
_PING: Final = "/ping"
_PING_METHODS: Final = ("GET", "POST")
#: The handler is told which one it is. Any other one is taken as well, but for OPTIONS.
_PREDICTION_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_WORKFLOW: Final = "/wfpredict/"
#: Bytes of a body that is not looked at.
_MAX_BODY: Final = 65_536


class Defaults:
    """What the management API has said of models since the start. The main thread replaces each as a whole.

    Attributes:
        numbers: by model, the version that answers requests which name none.
        idle: names of models that are registered and have no workers.
    """

    def __init__(self) -> None:
        self.numbers: Mapping[str, int] = {}
        self.idle: frozenset[str] = frozenset()

    def note(self, said: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Take over what was said of one model, in this process or in another.

        Args:
            said: the model, with the parameters ``default``, 0 for none, and ``idle``.
        """
        model, default = said.model_name, said.parameters["default"].int64_param
        numbers = {name: one for name, one in self.numbers.items() if name != model}
        self.numbers = {**numbers, model: default} if default else numbers
        self.idle = self.idle | {model} if said.parameters["idle"].bool_param else self.idle - {model}
        return pb.RepositoryModelLoadResponse()


class Predictions:
    """Answers TorchServe's inference API for one worker.

    Args:
        plane: the worker's.
        infer: by a request's head, what handles its inference.
        defaults: of all workers.
        doors: what requests have to bring.
        max_body: bytes of a body.
    """

    def __init__(
        self,
        plane: DataPlane,
        infer: Callable[[Head], Callable[[Any], None]],
        defaults: Defaults,
        doors: Doors,
        max_body: int,
    ) -> None:
        self._plane = plane
        self._infer = infer
        self._defaults = defaults
        self._doors = doors
        self._max_body = max_body
        #: what is between the client and this server is not the handler's
        self._hidden = {one.header.lower() for one in doors.secrets.values()}
        if doors.gate is not None:
            self._hidden.add("authorization")

    def admit(self, head: Head) -> int | None:
        """Find out what a request is for; returns the bytes that its body may have, and None if it is none of these.

        Raises:
            Refused: it gets no further.
        """
        match = _PATH.fullmatch(head.path)
        if match is None and head.path != _PING:
            return _admit_problem(head, no_workflows(404)) if head.path.startswith(_WORKFLOW) else None
        group = "health" if match is None else "inference"
        try:
            self._doors.check_secret(group, head.fields)
        except RequestError as error:
            return _admit_problem(head, Problem(403, "AccessDeniedException", str(error)))
        if match is None:
            if head.served_as not in _PING_METHODS:
                return _admit_problem(head, method_not_allowed(_PING_METHODS))
            head.purpose = Purpose(self._doors.within(self._doors.visit(group, head), self._ping))
            return _MAX_BODY
        if head.method == "OPTIONS":
            return _admit_problem(head, method_not_allowed(_PREDICTION_METHODS))
        if head.coding not in ("", "gzip", "deflate"):
            raise Refused(501, "Unsupported compression type", b"accept-encoding: gzip, deflate\r\n")
        try:
            model, version, rest = (unquote(part or "", errors="strict") for part in match.groups()[1:])
        except UnicodeDecodeError:
            return None
        fields = {name: text for name, text in head.fields.items() if name not in self._hidden}
        fields["explain"] = str(match[1] == "explanations")
        if rest:
            fields["url_path"] = rest
        infer = self._doors.within(self._doors.visit(group, head, model), self._infer(head))
        prediction = _Prediction(self, model, version, encode_json(fields), infer)
        head.purpose = Purpose(prediction.handle, prediction.refusal)
        return self._max_body

    def _ping(self, call: RestHttpCall) -> None:
        readiness = self._plane.readiness
        healthy = readiness.serving and not readiness.exiting
        call.reply(*document_answer({"status": "Healthy" if healthy else "Unhealthy"}, 200 if healthy else 500))

    # --- versions ----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[ModelTable, Mapping[str, int]]:
        """What the names of versions depend on: the same two objects as long as nothing has changed."""
        return self._plane.get_table(), self._defaults.numbers

    def is_idle(self, model: str) -> bool:
        """Whether a model is registered and has no workers."""
        return model in self._defaults.idle

    def number_of(self, model: str, version: str) -> str | None:
        """The number of a version, "" for the newest; None if the model has no such one."""
        table = self._plane.get_table()
        model = table.spelling(model)
        entry = table.models.get(model)
        served = [] if entry is None else entry.served()
        if not served:
            return ""  # and whoever looks for it says why
        config = served[-1].config
        if version:
            number = number_of(version, versions_of(config))
            return None if number is None or number not in [one.number for one in served] else str(number)
        default = self._defaults.numbers.get(model, default_of(config))
        return "" if default is None else str(default)


def _nothing() -> None:
    """No table."""


@dataclass(slots=True, eq=False)
class _Prediction:
    """What requests with one head ask for.

    Attributes:
        owner: answers them.
        model, version: as the path names them; "" for no version.
        head_content: what the handler is told of the head.
        infer: handles the inference.
        table, defaults: what the names of versions meant when the head's purpose was made. The table is not kept for
            that: connections may be silent for long, and it has all models.
    """

    owner: Predictions
    model: str
    version: str
    head_content: bytes
    infer: Callable[[Any], None]
    table: Callable[[], object] = _nothing
    defaults: object = None

    def handle(self, call: RestHttpCall) -> None:
        """Answer a request."""
        table, defaults = self.owner.names
        if table is not self.table() or defaults is not self.defaults:
            number = self.owner.number_of(self.model, self.version)
            if number is None:
                call.reply(*problem_answer(no_version(self.model, self.version)))
                return
            # The head is shared by all requests that begin with the same bytes, so the next one finds it.
            call.head.purpose = self._asked(number)
            self.table, self.defaults = ref(table), defaults
        self.infer(call)

    def refusal(self, error: RequestError) -> Answer:
        """The answer to a request that had an error."""
        if isinstance(error, UnknownModel) and self.owner.is_idle(self.model):
            return problem_answer(no_worker(self.model, self.version))
        return problem_answer(as_problem(error, self.model, self.version))

    def _asked(self, number: str) -> Asked:
        return Asked(
            handle=self.handle,
            target=Target(self.model, number, 0, []),
            key=repr((self.model, number, Asks.BODY.name)).encode(),
            json_field=None,
            json_size=0,
            asks=Asks.BODY,
            is_coded=False,
            tensors=tensors(self.head_content),
            refusal=self.refusal,
        )


def _admit_problem(head: Head, problem: Problem) -> int:
    """Admit a request that is refused; its body is read, if that is short, so that the connection goes on.

    Raises:
        Refused: the body is long.
    """
    if not 0 <= head.body_size <= _MAX_BODY:
        raise Refused(problem.code, problem.message, problem.fields)
    head.purpose = Purpose(partial(_reply, problem))
    return _MAX_BODY


def _reply(problem: Problem, call: RestHttpCall) -> None:
    call.reply(*problem_answer(problem))
