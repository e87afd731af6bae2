"""One worker's part in traces: which of its requests are observed for them, and what is kept of those that are traced.

One of so many requests is observed, as a sampling. So is every request whose caller says in its headers that it records
the trace; the transport sees to that.
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
        worker: whose requests these are.
        observer: of that worker; it does from now on what the settings say.
        settings: of the server.
        put: takes requests that are traced; None where there is nobody to send them to, and nothing is observed.

    Attributes:
        settings: as given.
        sampling: takes the requests that are observed for traces.
        possible: whether there is somebody to send traces to.
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
                )
            )
