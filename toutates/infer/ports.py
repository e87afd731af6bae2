"""The ports of one service: the ways of its requests into the versions of the model table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from toutates.engine.counters import WorkerCounters
from toutates.engine.deadlines.around import Around
from toutates.engine.poisoned import watching
from toutates.engine.result import BatchResult, Parameters
from toutates.engine.servable import Consumer, Port, RequestAbout, SequenceOf
from toutates.engine.submitter import Submitter
from toutates.infer.answers import Answers, RequestContext, SequenceContext, is_wanted
from toutates.infer.call import Transport
from toutates.infer.inflight import Inflight
from toutates.infer.regions import Regions
from toutates.infer.shared_outputs import SharedOutputs
from toutates.infer.shared_tensors import SharedTensors
from toutates.infer.traffic.copies import Copies, comparing
from toutates.models.table import ModelTable, ServedVersion
from toutates.net import Worker
from toutates.protocol.sequence_parameters import named
from toutates.system.poison import current

__all__ = ["Ports"]

#: Takes the outcome of a batch.
Finish = Callable[[BatchResult], None]
#: Makes one that does something more.
Wrap = Callable[[Finish], Finish]


@dataclass(slots=True)
class _Opened:
    """The ports to one version; None for those that no request has needed.

    Attributes:
        ordinary: of most requests.
        shared: of requests with tensors in shared memory.
        finish_shared: takes the outcomes of ``shared`` once their outputs are written.
        copied: of requests that are copied.
    """

    ordinary: Port | None = None
    shared: Port | None = None
    finish_shared: Finish | None = None
    copied: Port | None = None

    def commit(self) -> None:
        """Commit what all of them have of this round."""
        for port in (self.ordinary, self.shared, self.copied):
            if port is not None:
                port.commit()


class Ports:
    """Opens ports when requests need them. Used by the worker's thread; what engines ask of a request, by any.

    A version has a port of its own for each kind of requests whose outcomes want something more done, so that the
    others pay nothing for that.

    Args:
        worker: whose requests these are.
        transport: by which they came.
        inflight: bounds the requests that wait for their answer; None for no bound.
        regions: of shared memory.
        shared_outputs: writes the outputs that go there.
        copies: takes copies of requests; None where none are made.
        make_answers: makes what answers the requests of one port to a version.
        may_have_left, unread_bytes, caller: see ``Consumer``.
    """

    def __init__(
        self,
        worker: Worker,
        transport: Transport,
        inflight: Inflight | None,
        regions: Regions,
        shared_outputs: SharedOutputs,
        copies: Copies | None,
        make_answers: Callable[[WorkerCounters, ServedVersion], Answers],
        may_have_left: Callable[[RequestContext], bool],
        unread_bytes: Callable[[RequestContext], int],
        caller: Callable[[RequestContext], object],
    ) -> None:
        self._worker = worker
        self._transport = transport
        self._inflight = inflight
        self._regions = regions
        self._shared_outputs = shared_outputs
        self._copies = copies
        self._make_answers = make_answers
        self._may_have_left = may_have_left
        self._unread_bytes = unread_bytes
        self._caller = caller
        #: of requests to versions with a latency target
        self._around = Around()
        #: by the model's name
        self._opened: dict[str, dict[ServedVersion, _Opened]] = {}

    def ordinary(self, version: ServedVersion) -> Port:
        """The port of most requests to a version."""
        opened = self._of(version)
        if opened.ordinary is None:
            opened.ordinary = self._open(version)
        return opened.ordinary

    def shared(self, version: ServedVersion, shared: SharedTensors) -> Port:
        """The port of requests with ``shared`` tensors, which are told what takes their outcomes."""
        opened = self._of(version)
        if opened.shared is None:

            def around(finish: Finish) -> Finish:
                opened.finish_shared = finish
                return self._shared_outputs.before(finish)

            opened.shared = self._open(version, self._regions.releasing, around)
        assert opened.finish_shared is not None
        shared.finish = opened.finish_shared
        shared.runs_apart = type(opened.shared) is Submitter and not version.decoupled
        return opened.shared

    def copied(self, version: ServedVersion) -> Port:
        """The port of requests that are copied."""
        opened = self._of(version)
        if opened.copied is None:
            assert self._copies is not None
            opened.copied = self._open(version, around=partial(comparing, self._copies))
        return opened.copied

    def forget(self, models: Iterable[str] | None, table: ModelTable) -> None:
        """Forget the ports to versions that the model table has no longer; what they have of this round is committed.

        Args:
            models: names of those that have changed; None for any.
            table: as it is now.
        """
        for name in list(self._opened) if models is None else models:
            opened = self._opened.get(name)
            if opened is None:
                continue
            entry = table.get(name)
            served = [] if entry is None else entry.served()
            left = [opened.pop(version) for version in list(opened) if version not in served]
            if not opened:
                del self._opened[name]
            for one in left:
                one.commit()

    def _of(self, version: ServedVersion) -> _Opened:
        of_model = self._opened.setdefault(version.model, {})
        opened = of_model.get(version)
        if opened is None:
            opened = of_model[version] = _Opened()
        return opened

    def _open(
        self, version: ServedVersion, within: Wrap = lambda finish: finish, around: Wrap = lambda finish: finish
    ) -> Port:
        """Open a port.

        Args:
            version: to which.
            within: wraps what answers the requests of a batch.
            around: wraps that and what takes them off the bound on requests in flight.
        """
        counters = WorkerCounters()
        finish = within(self._make_answers(counters, version).finish)
        if self._inflight is not None:
            finish = self._inflight.leaving(finish)
        finish = around(finish)
        finish_there = finish_here = finish
        if version.has_target:
            finish_there, finish_here = partial(self._finish_after, finish), partial(self._finish_within, finish)
        consumer = Consumer(
            partial(self._finish_soon, finish_there),
            finish_here,
            self._worker.at_round_end,
            is_wanted,
            counters,
            self._about,
            self._may_have_left,
            _sequence,
            _parameters,
            around_ns=self._around.time_ns,
            unread_bytes=self._unread_bytes,
            caller=self._caller,
        )
        poison = current()
        if poison is not None:
            consumer = watching(consumer, version.model, version.signature, poison)
        return version.servable.port(consumer)

    # --- what becomes of batches -------------------------------------------------------------------------------------

    def _finish_soon(self, finish: Finish, result: BatchResult) -> None:
        """Have the requests of a batch answered on the worker's thread. Called by the executor that has run it."""
        self._worker.call_soon(partial(finish, result))

    def _finish_after(self, finish: Finish, result: BatchResult) -> None:
        """Answer the requests of a version with a latency target, and note how long their answers waited for that."""
        now_ns = time.monotonic_ns()
        if not result.timing.cached:
            self._around.note(now_ns - result.timing.done_ns, now_ns)
        finish(result)

    def _finish_within(self, finish: Finish, result: BatchResult) -> None:
        """The same for a batch that was run in this round: what the next one reads has waited for the end of it."""
        now_ns = time.monotonic_ns()
        self._around.note(now_ns - self._worker.now_ns, now_ns)
        finish(result)

    # --- what engines ask of requests: see ``Consumer`` ---------------------------------------------------------------

    def _about(self, context: RequestContext) -> RequestAbout:
        _, plan, id_field, _ = context
        request = plan.request
        parameters = request.parameters
        if isinstance(context, SequenceContext):
            parameters = {**parameters, **named(context.said)}
        return RequestAbout(self._transport.request_id(id_field), request.outputs, parameters)


def _sequence(context: RequestContext) -> SequenceOf:
    timeout = int(context[1].request.parameters.get("timeout", 0))
    return (*context.said, timeout) if isinstance(context, SequenceContext) else (0, False, False, timeout)


def _parameters(context: RequestContext) -> Parameters:
    return context[1].request.parameters
