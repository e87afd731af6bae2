"""What is counted, observed and traced of requests for texts."""

from __future__ import annotations

from typing import Any

from toutates.api.rest.inference import RestTransport
from toutates.api.text.observing import TextObserver
from toutates.infer.counters import InferCounters
from toutates.infer.observing import Observation, Observer, Sampling
from toutates.infer.tracing.settings import TraceSetting, TraceSettings
from toutates.infer.tracing.tracer import WorkerTraces

__all__ = ["Watching"]


class Watching:
    """All that there is to be seen of the requests of a worker.

    Args:
        worker: it.

    Attributes:
        text: what the APIs tell of their requests.
        observer: of all requests, at first; ``sample`` of it changes that.
        counters: of answers.
        observed: requests that were observed.
        trace_settings: say which requests are traced.
        traced: those, as ``TracedRequest``.
    """

    def __init__(self, worker: Any) -> None:
        self.counters = InferCounters()
        self.observed: list[Observation] = []
        self.trace_settings = TraceSettings(TraceSetting())
        self.traced: list[Any] = []
        self.observer = Observer(RestTransport(worker))
        traces = WorkerTraces(worker, self.observer, self.trace_settings, self.traced.append)
        self.observer.sample(Sampling(self.observed.append), 1)
        self.text = TextObserver(worker, self.counters, self.observer, traces)
