"""Answering requests of decoupled versions, which have any number of responses each, for any transport."""

from __future__ import annotations

import logging
import time
from typing import Any

from toutates.engine.counters import WorkerCounters
from toutates.engine.result import BatchResult, Outputs
from toutates.infer.answers import Answers, RequestContext, wire_output
from toutates.infer.call import Transport
from toutates.infer.observing import Observer
from toutates.infer.plan import Plan
from toutates.protocol.infer_response import WireTensor
from toutates.system.errors import RequestError, anew

__all__ = ["DecoupledAnswers", "tensors_of"]

logger = logging.getLogger(__name__)


class DecoupledAnswers(Answers):
    """``Answers`` for a version whose results have one response of one request each, or the end of all of a batch.

    Args:
        counters, observer, transport: see ``Answers``.
    """

    def __init__(self, counters: WorkerCounters, observer: Observer, transport: Transport) -> None:
        super().__init__(counters, observer, transport)
        #: the last error of requests that had one, and may have further responses
        self._failures: dict[Any, RequestError] = {}

    def _respond(self, context: RequestContext, outputs: Outputs, rows: int, *, more: bool) -> None:
        """Send a response.

        Args:
            context: of the request.
            outputs: of the response alone; some may be missing.
            rows: of the outputs.
            more: whether others may follow.

        Raises:
            RequestError: it cannot be written; nothing was sent.
        """
        raise NotImplementedError

    def _respond_error(self, context: RequestContext, error: RequestError, *, more: bool) -> None:
        """Send an error in place of a response."""
        raise NotImplementedError

    def _end(self, context: RequestContext) -> None:
        """Note that there are no further responses."""
        raise NotImplementedError

    def _forget(self, context: RequestContext) -> None:
        """Note that a request is over whose caller has left."""

    def finish(self, result: BatchResult) -> None:
        """Pass on what has come of requests: a response, an error, or the news that there is no more."""
        observer = self._observer
        observed = observer.among(result.pending) if observer.under_way else ()
        for context, _, rows, _ in result.pending:
            try:
                self._pass_on(context, rows, result)
            except Exception as error:
                logger.error("answering a call failed", exc_info=error)
                self._transport.end_connection(context[0], error)
        if result.taken is not None:
            result.taken()
        if observed:
            observer.are_over(observed, result.timing, sum([rows for _, _, rows, _ in result.pending]))
        if not result.more:
            observer.count(len(result.pending))

    def _pass_on(self, context: RequestContext, rows: int, result: BatchResult) -> None:
        call, plan, _, arrival = context
        more = result.more
        if not call.open:
            if not more:
                self._count_cancelled(arrival, None)
                self._failures.pop(call, None)
                self._forget(context)
            return
        outputs, error = result.outputs, result.error
        if outputs is not None:
            try:
                self._respond(context, outputs, rows, more=more)
            except RequestError as refusal:
                error = anew(refusal)
        if error is not None:
            self._failures[call] = error  # a request with an error counts as failed, whatever follows
            self._respond_error(context, error, more=more)
        elif outputs is None:
            self._end(context)
        if more:
            return
        failure = self._failures.pop(call, None)
        if failure is not None:
            self._count_failed(context, failure)
        else:
            answered = [(arrival, plan.rows, 1)]
            self._counters.count_answered(answered, result.timing, time.monotonic_ns(), time.time_ns() // 1_000_000)


def tensors_of(plan: Plan, outputs: Outputs, rows: int) -> tuple[list[WireTensor], list[bytes | memoryview]]:
    """The descriptions and the contents of those outputs that were asked for and that a response has."""
    tensors: list[WireTensor] = []
    raws: list[bytes | memoryview] = []
    batched = plan.version.signature.batched
    for index in plan.outputs_in(outputs):
        pieces = [outputs.rows(index, 0, rows, batched=batched)]
        if plan.shared is not None:
            [pieces] = plan.shared.sent([index], [pieces])
        tensor, raw = wire_output(plan, index, plan.tensor_of(outputs, index, rows), pieces)
        tensors.append(tensor)
        raws.append(raw)
    return tensors, raws
