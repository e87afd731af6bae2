"""Inference over streams: requests that come one after the other on one call, whose answers leave the call open.

A message of a stream is a call like any other (``call.Call``): the fast path copies its rows into the same batches, and
its ``responder``, which is the stream, writes its answer. What a stream has beyond that is in ``StreamResponder``.
"""

from __future__ import annotations

from typing import Any, Protocol

from toutates.engine.counters import WorkerCounters
from toutates.infer.answers import Answers, RequestContext
from toutates.infer.call import Responder
from toutates.infer.plan import Plan
from toutates.infer.service import InferService
from toutates.system.errors import RequestError

__all__ = ["StreamAnswers", "StreamInferService", "StreamResponder"]


class StreamResponder(Responder, Protocol):
    """Writes the answers of one stream, each in its turn."""

    def fail(self, message: Any, plan: Plan, id_field: bytes, error: RequestError, /) -> None:
        """Answer a request that was accepted with an error.

        Args:
            message: the request.
            plan: its plan.
            id_field: its id with tag and length, or b"".
            error: what the caller is told.
        """
        ...


class StreamInferService(InferService):
    """Serves the requests that come on streams of one worker. Its ports and plans are its own."""

    def _make_answers(self, counters: WorkerCounters) -> Answers:
        return StreamAnswers(counters, self.observer, self._transport)


class StreamAnswers(Answers):
    """Answers the requests that one worker's streams have for one model version."""

    def _tell(self, context: RequestContext, error: RequestError) -> None:
        message, plan, id_field, _ = context
        responder: Any = message.responder
        responder.fail(message, plan, id_field, error)
