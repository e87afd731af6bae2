"""Inference over streams: requests that come one after the other on one call, whose answers leave the call open.

A message of a stream is a call like any other (``call.Call``): the fast path copies its rows into the same batches, and
its ``responder``, which is the stream, writes its answer. What a stream has beyond that is in ``StreamResponder``.

Requests of decoupled versions are *apart*: they have any number of responses, which leave as they come, beside the
order of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from toutates.engine.counters import WorkerCounters
from toutates.engine.open_request import unread_of
from toutates.engine.result import Outputs
from toutates.engine.servable import Buffer
from toutates.infer.answers import Answers, RequestContext
from toutates.infer.call import Responder
from toutates.infer.decoupled import DecoupledAnswers, tensors_of
from toutates.infer.plan import Plan
from toutates.infer.service import InferService
from toutates.models.table import ServedVersion
from toutates.protocol.infer_response import write_response
from toutates.protocol.sequence_parameters import Said
from toutates.system.errors import MalformedMessage, RequestError

__all__ = ["StreamAnswers", "StreamInferService", "StreamResponder", "StreamResponses"]


class StreamResponder(Responder, Protocol):
    """Writes the answers of one stream, each in its turn.

    In all of this ``message`` is the request, ``plan`` its plan, and ``id_field`` its id with tag and length, or b"".
    """

    def fail(self, message: Any, plan: Plan, id_field: bytes, error: RequestError, /) -> None:
        """Answer a request that was accepted with an error."""
        ...

    def has_its_share(self, message: Any, share: int, /) -> bool:
        """Whether a request may wait, and the streams of its connection have ``share`` others under way, or more."""
        ...

    def set_apart(self, message: Any, /) -> None:
        """Take a request out of the order of answers, because it has any number of responses."""
        ...

    def respond(self, message: Any, parts: Sequence[Buffer], length: int, /, *, more: bool) -> None:
        """Send a response of a request that is apart.

        Args:
            parts, length: see ``Responder.reply``.
            more: whether others may follow.
        """
        ...

    def respond_error(self, message: Any, plan: Plan, id_field: bytes, error: RequestError, /, *, more: bool) -> None:
        """Send an error in place of a response of a request that is apart."""
        ...

    def end(self, message: Any, plan: Plan, id_field: bytes, /) -> None:
        """A request that is apart has no further response; its caller is told if that was asked for."""
        ...


class StreamInferService(InferService):
    """Serves the requests that come on streams of one worker. Its ports and plans are its own."""

    def _admit(self, call: Any, version: ServedVersion) -> None:
        """See ``InferService``: a stream takes requests of every version."""
        if version.decoupled:
            call.responder.set_apart(call)

    def _gather(self, call: Any, plan: Plan, id_field: bytes, spans: list[int], said: Said | None) -> None:
        """See ``InferService``."""
        self._admit(call, plan.version)
        super()._gather(call, plan, id_field, spans, said)

    def _tell(self, call: Any, error: RequestError) -> None:
        """See ``InferService``: the stream goes on."""
        if call.responder is None or isinstance(error, MalformedMessage):
            self._transport.fail(call.call, error)
        else:
            call.responder.refuse(call, str(error))

    def _has_its_share(self, call: Any, share: int) -> bool:
        """See ``InferService``: what a stream has sent beyond its share waits on it, or where its inputs were read."""
        responder: StreamResponder | None = call.responder
        waits = bool(call.buffer) or self._shared_path.goes_on  # else its handler has returned
        return responder is not None and waits and responder.has_its_share(call, share)

    def _unread_bytes(self, context: RequestContext) -> int:
        """See ``Consumer``: what waits for the window of the stream, or for the socket."""
        message: Any = context[0]
        link = message.call.link
        waiting = int(message.call.outbox_bytes + (0 if link is None else link.unsent_bytes))
        return unread_of(waiting, self.worker.budget.room)

    def _make_answers(self, counters: WorkerCounters, version: ServedVersion) -> Answers:
        answers = StreamResponses if version.decoupled else StreamAnswers
        return answers(counters, self.observer, self._transport)


class StreamAnswers(Answers):
    """Answers the requests that one worker's streams have for one model version."""

    def _tell(self, context: RequestContext, error: RequestError) -> None:
        message, plan, id_field, _ = context
        responder: Any = message.responder
        responder.fail(message, plan, id_field, error)


class StreamResponses(DecoupledAnswers):
    """The same for a decoupled version."""

    def _respond(self, context: RequestContext, outputs: Outputs, rows: int, *, more: bool) -> None:
        message, plan, id_field, _ = context
        version = plan.version
        tensors, raws = tensors_of(plan, outputs, rows)
        given = plan.parameters_with(outputs.parameters)
        parts = write_response(version.model, str(version.number), id_field, tensors, raws, given)
        responder: Any = message.responder
        responder.respond(message, parts, sum(map(len, parts)), more=more)

    def _respond_error(self, context: RequestContext, error: RequestError, *, more: bool) -> None:
        message, plan, id_field, _ = context
        responder: Any = message.responder
        responder.respond_error(message, plan, id_field, error, more=more)

    def _end(self, context: RequestContext) -> None:
        message, plan, id_field, _ = context
        responder: Any = message.responder
        responder.end(message, plan, id_field)
