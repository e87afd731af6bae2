"""What the APIs for text count of their requests, and what the access log gets of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from typing import Any

from toutates.api.rest.answers import ClientStatus
from toutates.api.rest.calls import RestHttpCall
from toutates.api.rest.inference import RestTransport
from toutates.engine.result import Timing
from toutates.infer.counters import InferCounters
from toutates.infer.observing import Observation, Observer
from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.models.table import ServedVersion
from toutates.net import Worker
from toutates.system.errors import CallerLeft, InvalidRequest, RequestError

__all__ = ["TextObserver"]


class _AnsweredWith(RestTransport):
    """A transport whose requests were answered with one status, which the API has chosen."""

    def __init__(self, worker: Worker, status: IntEnum) -> None:
        super().__init__(worker)
        self._status = status

    def status_of(self, error: type[RequestError] | None) -> IntEnum:
        return self._status


@dataclass(slots=True)
class TextObserver:
    """Counts and observes for one worker, on its thread.

    Args:
        worker: whose requests these are.
        counters: count the answers.
        observer: of these requests alone.
        traces: of the same requests.
    """

    worker: Worker
    counters: InferCounters
    observer: Observer
    traces: WorkerTraces

    def may_trace(self, fields: Mapping[str, str]) -> bool:
        """Whether a caller with these header fields has its request traced, if anything is."""
        if not self.traces.possible or "traceparent" not in fields:
            return False
        context = parse_traceparent(fields["traceparent"])
        return context is not None and context.sampled

    def begin(self, call: RestHttpCall, route: str, *, may_trace: bool) -> None:
        """Observe a request, if that is due, or its caller has it traced.

        Args:
            call: the request.
            route: its path.
            may_trace: see the method.
        """
        chosen = self.traces.sampling if may_trace and self.traces.settings.rules.on else None
        if chosen is not None or self.observer.due:
            self.observer.begin(_observed(call), self.worker.now_ns, chosen).route = route

    def found(self, call: RestHttpCall, version: ServedVersion, texts: int) -> None:
        """Note what an observed request is for."""
        observation: Observation = call.context
        observation.version, observation.rows = version, texts
        observation.found_ns = time.monotonic_ns()

    def computed(self, call: RestHttpCall, timing: Timing) -> None:
        """Note the times of an observed request's batch."""
        observation: Observation = call.context
        observation.copied_ns = min(observation.found_ns, timing.taken_ns)
        observation.taken_ns, observation.started_ns = timing.taken_ns, timing.started_ns
        observation.ended_ns, observation.done_ns = timing.ended_ns, timing.done_ns

    def answered(self, call: RestHttpCall, route: str, status: int, error: RequestError | None) -> None:
        """Count a request, and end its observation.

        Args:
            call: the request.
            route: its path.
            status: of the answer.
            error: why it was refused; None where it succeeded.
        """
        self._count(f"{status} {route}", 1)
        if call.context is not None:
            self._end(call, HTTPStatus(status), None if error is None else InvalidRequest(str(error)))

    def answered_alike(self, route: str, count: int) -> None:
        """Count requests by one route that succeeded, and are not observed."""
        self._count(f"200 {route}", count)

    def _count(self, key: str, count: int) -> None:
        answers = self.counters.text_answers
        try:
            answers[key] += count
        except KeyError:
            # As a whole, because other threads may be reading it.
            self.counters.text_answers = {**answers, key: count}
        self.observer.count(count)

    def left(self, call: RestHttpCall, route: str) -> None:
        """Count a request whose caller has left, and end its observation."""
        status = ClientStatus.CLIENT_CLOSED_REQUEST
        self._count(f"{status} {route}", 1)
        if call.context is not None:
            self._end(call, status, CallerLeft(""))

    def _end(self, call: RestHttpCall, status: IntEnum, error: RequestError | None) -> None:
        observation: Observation = call.context
        observation.transport = _AnsweredWith(self.worker, status)
        if error is None:
            self.observer.answered_late(_observed(call))
        else:
            self.observer.refused(_observed(call), error)


def _observed(call: RestHttpCall) -> Any:
    """A request as the observer takes it, which looks at what all transports have."""
    return call
