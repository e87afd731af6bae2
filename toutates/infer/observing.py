"""Observed requests: for a few requests of a worker, the time of each step is noted.

Reading the clock at every step of every request would cost more than some steps do. So a few requests are observed: one
of STEPS_INTERVAL always, for the histograms of the first two steps, and as many as other *sinks* want, which are the
access log and traces. A *sampling* says which requests a sink wants: one of so many.

A request that is not observed pays nothing. The worker counts its requests a batch at a time, and checks once a round
whether an observation is due. If so, the round's first request is observed, and those after it while more are due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from toutates.engine.counters import Durations
from toutates.engine.result import PendingRequest, StepTiming, Timing
from toutates.infer.call import Call, Transport
from toutates.infer.plan import Plan
from toutates.models.table import ServedVersion
from toutates.system.errors import CallerLeft, RequestError, TooLate

__all__ = ["STEPS_INTERVAL", "FirstSteps", "Observation", "Observer", "Sampling", "Sink"]

logger = logging.getLogger(__name__)

#: One of this many requests is observed for the histograms of its steps.
STEPS_INTERVAL: Final = 256


@dataclass(slots=True, eq=False)
class Observation:
    """The steps of one request. Times are monotonic nanoseconds; 0 for a step that the request did not reach.

    ``Observer.begin`` makes it. It is complete when a sink gets it, and does not change any more. The sink may keep it,
    and any thread may read it.

    Attributes:
        arrival_ns: the round of the request began; all counters take this for the request's arrival.
        found_ns: the request's plan was found or made.
        copied_ns: its rows were in a batch.
        taken_ns: an executor took the batch; for a request whose rows went into several batches, the last.
        started_ns, ended_ns: ONNX Runtime ran.
        done_ns: the outputs were ready.
        answered_ns: the answer was written, the request was refused, or its caller was found to have left.
        version: the model version that answers; None for a request that was refused before it was known.
        rows: of the request.
        batch_rows: rows of all requests of its batch that this worker answers.
        error: the kind of error that it ended with; None for an answer.
        text: the error's text; "" for an answer, and for a caller who has left.
        id_field: the request's ``id`` as it goes into the answer; ``request_id`` reads it.
        peer: the caller's address.
        wants: the samplings that chose it.
        traceparent, tracestate: what the caller's headers say of its trace; "" for nothing.
        transport: by which the request came.
        steps: of a model that is made of others: what these have done for its batch.
        route: the path of a request that is no ModelInfer and no infer request over REST; "" for those.
    """

    arrival_ns: int
    transport: Transport
    peer: str
    wants: Sequence[Sampling]
    traceparent: str = ""
    tracestate: str = ""
    found_ns: int = 0
    copied_ns: int = 0
    taken_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    done_ns: int = 0
    answered_ns: int = 0
    version: ServedVersion | None = None
    rows: int = 0
    batch_rows: int = 0
    error: type[RequestError] | None = None
    text: str = ""
    id_field: bytes = b""
    steps: tuple[StepTiming, ...] = ()
    route: str = ""

    @property
    def status(self) -> IntEnum:
        """The status that the transport has for how the request ended."""
        return self.transport.status_of(self.error)

    @property
    def request_id(self) -> str:
        """The request's ``id``; "" for none."""
        return self.transport.request_id(self.id_field) if self.id_field else ""

    def found(self, plan: Plan, id_field: bytes) -> None:
        """Note that the request's plan is known."""
        self.found_ns = time.monotonic_ns()
        self.version = plan.version
        self.rows = plan.rows
        self.id_field = id_field

    def ended_with(self, error: RequestError) -> None:
        """Note the error that the caller gets. The error itself holds frames, and with them the received bytes."""
        self.error = type(error)
        self.text = str(error)


#: Takes a complete observation. Called on the worker's thread, once per observed request. It may do no more than append
#: the observation to something bounded.
Sink = Callable[[Observation], None]


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Durations of the first two steps, of observed requests.

    Attributes:
        to_plan: from the request's arrival until its plan was known.
        to_copy: from then until its rows were in a batch.
    """

    to_plan: Durations
    to_copy: Durations


@dataclass(slots=True, eq=False)
class Sampling:
    """Which of one worker's requests a sink gets. Only the ``Observer`` that it is given to changes it.

    Attributes:
        sink: takes the observations.
        interval: the sink gets one of this many requests; 1 for all, 0 for none.
        next_at: how many requests the worker will have seen when the sink gets the next one.
    """

    sink: Sink
    interval: int = 0
    next_at: int = 0


class Observer:
    """Chooses the requests of one worker that are observed. Used by the worker's thread; others may read its counters.

    Args:
        transport: by which the requests come.

    Attributes:
        due: whether the next request is to be observed.
        under_way: observed requests that have no answer yet.
        steps: durations by model, of one request in STEPS_INTERVAL. The dict is replaced when a model is added.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.steps: dict[str, FirstSteps] = {}
        self.under_way = 0
        self._seen = 0
        self._samplings = [Sampling(self._count_steps, STEPS_INTERVAL)]
        self._next_at = 0
        self.due = True

    @property
    def seen(self) -> int:
        """Requests answered or refused so far; a split one counts in each of its batches. Any thread may read it."""
        return self._seen

    def sample(self, sampling: Sampling, interval: int) -> None:
        """Have a sampling, which may be new, choose one of ``interval`` requests from now on; 1 for all, 0 for none."""
        if sampling not in self._samplings:
            self._samplings.append(sampling)
        sampling.interval = interval
        sampling.next_at = self._seen
        self._plan_next()

    def count(self, requests: int) -> None:
        """Count requests that were answered or refused."""
        self._seen += requests
        if self._seen >= self._next_at:
            self.due = True

    def begin(self, call: Call, arrival_ns: int, chosen: Sampling | None = None) -> Observation:
        """Observe a request. ``refused`` ends the observation, or ``are_over`` once the request's batch has run.

        Args:
            call: the request.
            arrival_ns: when its round began, monotonic.
            chosen: a sampling that wants this very request, whatever its interval.
        """
        seen = self._seen
        wants = [sampling for sampling in self._samplings if sampling.interval and seen >= sampling.next_at]
        for sampling in wants:
            sampling.next_at += sampling.interval if sampling.interval > 1 else 0
        self._plan_next()
        if chosen is not None and chosen not in wants:
            wants.append(chosen)
        transport = self._transport
        observation = call.context = Observation(
            arrival_ns, transport, transport.peer(call), wants, *transport.trace_context(call)
        )
        self.under_way += 1
        return observation

    def refused(self, call: Call, error: RequestError) -> None:
        """End the observation of a request that was refused before it was in a batch."""
        observation: Observation = call.context
        observation.ended_with(error)
        self._end(call, time.monotonic_ns())

    def withdraw(self, call: Call) -> None:
        """Observe a request no longer: it is to come again."""
        call.context = None
        self.under_way -= 1

    def among(self, pending: Sequence[PendingRequest]) -> list[Call]:
        """The observed requests of a batch that is about to be answered."""
        calls: list[Call] = []
        for (call, *_), _, _, _ in pending:
            if call.context is not None:
                calls.append(call)
                if not call.open:
                    late = call.deadline_ns <= time.monotonic_ns()
                    call.context.error = TooLate if late else CallerLeft
        return calls

    def are_over(self, calls: Iterable[Call], timing: Timing, batch_rows: int) -> None:
        """End the observations of a batch's requests. A split request that waits for another batch goes on."""
        now_ns = time.monotonic_ns()
        for call in calls:
            observation: Observation = call.context
            observation.taken_ns, observation.started_ns = timing.taken_ns, timing.started_ns
            observation.ended_ns, observation.done_ns = timing.ended_ns, timing.done_ns
            observation.batch_rows = batch_rows
            observation.steps = timing.steps
            if not call.open:
                self._end(call, now_ns)

    def answered_late(self, call: Call) -> None:
        """End the observation of a request that was answered after its batch was over."""
        if call.context is not None:
            self._end(call, time.monotonic_ns())

    def _end(self, call: Call, now_ns: int) -> None:
        observation: Observation = call.context
        call.context = None
        self.under_way -= 1
        observation.answered_ns = now_ns
        if observation.taken_ns and not 0 < observation.copied_ns <= observation.taken_ns:
            observation.copied_ns = observation.taken_ns  # its batch was full, and taken before anything else was done
        for sampling in observation.wants:
            try:
                sampling.sink(observation)
            except Exception:
                logger.exception("an observed request could not be passed on")

    def _plan_next(self) -> None:
        self._next_at = min(sampling.next_at for sampling in self._samplings if sampling.interval)
        if any(sampling.interval == 1 for sampling in self._samplings):
            self._next_at = 0
        self.due = self._seen >= self._next_at

    def _count_steps(self, observation: Observation) -> None:
        if observation.copied_ns and observation.version is not None:
            model = observation.version.model
            steps = self.steps.get(model)
            if steps is None:
                steps = FirstSteps(Durations(), Durations())
                self.steps = {**self.steps, model: steps}
            steps.to_plan.add(observation.found_ns - observation.arrival_ns)
            steps.to_copy.add(observation.copied_ns - observation.found_ns)
