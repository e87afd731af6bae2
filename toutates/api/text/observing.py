"""What the APIs for text count of their requests, and what the access log gets of them."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from toutates.api.rest.calls import RestHttpCall
from toutates.api.rest.inference import RestTransport
from toutates.infer.counters import InferCounters
from toutates.infer.observing import Observation, Observer
from toutates.models.table import ServedVersion
from toutates.net import Worker
from toutates.system.errors import Cancelled, InvalidRequest, RequestError

__all__ = ["TextObserver"]


class _AnsweredWith(RestTransport):
    """A transport whose requests were answered with one status, which the API has chosen."""

    def __init__(self, worker: Worker, status: HTTPStatus) -> None:
        super().__init__(worker)
        self._status = status

    def status_of(self, error: type[RequestError] | None) -> HTTPStatus:
        return self._status


@dataclass(slots=True)
class TextObserver:
    """Counts and observes for one worker, on its thread.

    Args:
        worker: whose requests these are.
        counters: count the answers.
        observer: of these requests alone; it has samplings where there is an access log.
    """

    worker: Worker
    counters: InferCounters
    observer: Observer

    def begin(self, call: RestHttpCall) -> None:
        """Observe a request, if that is due."""
        if self.observer.due:
            self.observer.begin(_observed(call), self.worker.now_ns)

    def found(self, call: RestHttpCall, version: ServedVersion, texts: int) -> None:
        """Note what an observed request is for."""
        observation: Observation = call.context
        observation.version, observation.rows = version, texts

    def answered(self, call: RestHttpCall, route: str, status: int, error: RequestError | None) -> None:
        """Count a request, and end its observation.

        Args:
            call: the request.
            route: its path.
            status: of the answer.
            error: why it was refused; None where it succeeded.
        """
        key = f"{status} {route}"
        answers = self.counters.text_answers
        try:
            answers[key] += 1
        except KeyError:
            # As a whole, because other threads may be reading it.
            self.counters.text_answers = {**answers, key: 1}
        self.observer.count(1)
        if call.context is not None:
            self._end(call, HTTPStatus(status), None if error is None else InvalidRequest(str(error)))

    def left(self, call: RestHttpCall) -> None:
        """End the observation of a request whose caller has left."""
        if call.context is not None:
            self._end(call, HTTPStatus.BAD_REQUEST, Cancelled(""))

    def _end(self, call: RestHttpCall, status: HTTPStatus, error: RequestError | None) -> None:
        observation: Observation = call.context
        observation.transport = _AnsweredWith(self.worker, status)
        if error is None:
            self.observer.answered_late(_observed(call))
        else:
            self.observer.refused(_observed(call), error)


def _observed(call: RestHttpCall) -> Any:
    """A request as the observer takes it, which looks at what all transports have."""
    return call
