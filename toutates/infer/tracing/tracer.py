"""One worker's part in traces: which of its requests are looked at, and what is kept of those that are traced.

Requests are looked at by ``observing``: one of so many, as a sampling; and every one whose caller says in its headers
that it records the trace, which is seen when a header block is read, not with every request that sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from toutates.h2grpc import Call, HeaderField, Method
from toutates.infer.observing import Observation, Sampling
from toutates.infer.service import InferService
from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.sampling import Sampler
from toutates.infer.tracing.settings import Rules, TraceSettings
from toutates.net import Worker

__all__ = ["WorkerTraces"]


class WorkerTraces:
    """See the module. Used by that worker's thread, once it runs.

    Args:
        worker: whose part this is.
        settings: of the server.
        put: takes requests that are traced; None where there is nobody to send them to, and nothing is looked at.
    """

    def __init__(self, worker: Worker, settings: TraceSettings, put: Callable[[TracedRequest], None] | None) -> None:
        self.settings = settings
        self._worker = worker
        self._put = put
        self._sampler = Sampler(settings)
        self._sampling = Sampling(self._take)

    def method(self, infer: InferService) -> Method:
        """The method of ModelInfer at ``infer``, and from now on what settings say is what its observer does."""
        plain = Method("/inference.GRPCInferenceService/ModelInfer", unary=infer.handler, compressible=True)
        if self._put is None:
            return plain
        self.settings.listen(partial(self._follow, infer))
        observing = infer.observing_handler(self._sampling)
        settings = self.settings

        def handle(call: Call) -> None:
            # The verdict on a header block is remembered; whether anything is traced can change.
            (observing if settings.rules.on else infer.handler)(call)

        observed = replace(plain, unary=handle)

        def variant(fields: Sequence[HeaderField]) -> Method | None:
            return observed if _is_sampled(fields) else None

        return replace(plain, variant=variant)

    def _follow(self, infer: InferService, rules: Rules) -> None:
        """The rules have changed; in any thread."""
        self._worker.call_soon(partial(infer.observer.sample, self._sampling, rules.every))

    def _take(self, observation: Observation) -> None:
        """A request that was looked at has its answer."""
        assert self._put is not None
        version = observation.version
        model = version.model if version is not None else ""
        if self._sampler.wants(model, observation.traceparent, self._sampling.interval):
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


def _is_sampled(fields: Sequence[HeaderField]) -> bool:
    """Whether the caller records the trace."""
    values = [field.value for field in fields if field.name == b"traceparent"]
    if len(values) != 1:
        return False
    context = parse_traceparent(values[0].decode("latin-1"))
    return context is not None and context.sampled
