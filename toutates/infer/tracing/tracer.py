"""Chooses requests of one worker for traces, and makes records of those that are traced.

One of ``Rules.every`` requests is observed by a sampling. The transport has every request observed whose headers say
that the caller records the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toutates.infer.observing import Observation, Observer, Sampling
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.sampling import Sampler
from toutates.infer.tracing.settings import Rules, TraceSettings
from toutates.net import Worker

__all__ = ["WorkerTraces"]


class WorkerTraces:
    """Has one worker's requests observed as the trace settings ask for. Used by that worker's thread, once it runs.

    Args:
        worker: the worker.
        observer: observes the worker's requests.
        settings: the trace settings of the server.
        put: takes records of traced requests; None if there is no collector, so that nothing is observed.

    Attributes:
        settings: the trace settings of the server.
        sampling: takes the requests that are observed for traces.
        possible: whether there is a collector.
    """

    def __init__(
        self,
        worker: Worker,
        observer: Observer,
        settings: TraceSettings,
        put: Callable[[TracedRequest], None] | None,
    ) -> None:
        self.settings = settings
        self.sampling = Sampling(self._take)
        self.possible = put is not None
        self._worker = worker
        self._observer = observer
        self._put = put
        self._sampler = Sampler(settings)
        if self.possible:
            settings.listen(self._follow)

    def _follow(self, rules: Rules) -> None:
        """Observe as many requests as changed rules ask for. Called in any thread."""
        self._worker.call_soon(partial(self._observer.sample, self.sampling, rules.every))

    def _take(self, observation: Observation) -> None:
        """Pass on an observed request that has its answer, if it is to be traced."""
        assert self._put is not None
        version = observation.version
        model = version.model if version is not None else ""
        if self._sampler.wants(model, observation.traceparent, self.sampling.interval):
            self._put(
                TracedRequest(
                    arrived_ns=observation.arrival_ns,
                    planned_ns=observation.found_ns,
                    copied_ns=observation.copied_ns,
                    taken_ns=observation.taken_ns,
                    started_ns=observation.started_ns,
                    ended_ns=observation.ended_ns,
                    answered_ns=observation.answered_ns,
                    model=model,
                    version=str(version.number) if version is not None else "",
                    rows=observation.rows,
                    batch_rows=observation.batch_rows,
                    status=int(observation.status),
                    text=observation.text,
                    request_id=observation.request_id,
                    peer=observation.peer,
                    traceparent=observation.traceparent,
                    tracestate=observation.tracestate,
                    steps=observation.steps,
                    route=observation.route,
                )
            )
