"""The way of a request with tensors in shared memory, from its plan to rows in a batch.

Whoever owns an object of shared memory may hold it up for as long as he likes: to write to it waits for a lock of the
system's, which he has while he fills it or gives its pages back. So no worker touches one. The inputs of all requests
of a round are read in a thread beside the worker, which is woken once for them. Those that are small are read together;
where an executor is idle and their run is quick, that thread runs it as well, and writes the outputs, so that the
worker gets their outcome and nothing else. Whatever waits for an owner does so before the run or after it: no executor
does. Inputs that a GPU has, of a model that runs on it, are not read at all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from toutates.engine.on_device import DeviceLane, DeviceRows
from toutates.engine.result import BatchResult, Timing
from toutates.engine.servable import Buffer
from toutates.engine.submitter import Submitter
from toutates.infer.call import Call
from toutates.infer.plan import Plan
from toutates.infer.shared_outputs import SharedOutputs
from toutates.infer.shared_tensors import POOLED_BYTES, SharedInputs, SharedTensors
from toutates.models.table import ServedVersion
from toutates.net import Worker
from toutates.net.side_thread import told
from toutates.protocol.sequence_parameters import Said
from toutates.system.errors import (
    CallerLeft,
    ExecutionFailed,
    ModelNotReady,
    Overloaded,
    OwnRequestsFirst,
    RequestError,
    anew,
)

__all__ = ["SharedPath"]

logger = logging.getLogger(__name__)

#: Inputs of one connection that are read before others have their turn, bytes. A MiB takes 0.1 ms.
AT_ONCE_BYTES: Final = 1_048_576
#: Bytes of inputs that may wait to be read beside a worker, of several requests.
MOST_ASIDE_BYTES: Final = 268_435_456
#: What a request that waits is counted for beside its inputs, bytes.
REQUEST_BYTES: Final = 4_096

#: Puts inputs that are read into a batch.
Add = Callable[[Call, Plan, bytes, SharedInputs, str, Said | None], None]
#: The same for inputs that a GPU has.
AddOnDevice = Callable[[Call, Plan, bytes, DeviceLane, DeviceRows], None]


@dataclass(slots=True, eq=False)
class _Reading:
    """A request whose inputs are read beside the worker.

    Attributes:
        arrival: when it came, monotonic nanoseconds.
        error: why it fails; None if it does not.
        has_run: whether its outcome is known, or comes as others' do.
        waits: whether it waits until the model has room.
    """

    call: Call
    plan: Plan
    shared: SharedTensors
    id_field: bytes
    inputs: SharedInputs
    identifier: str
    said: Said | None
    arrival: int
    error: RequestError | None = None
    has_run: bool = False
    waits: bool = False

    @property
    def is_small(self) -> bool:
        """Whether it may be read together with those of other connections, and in any order."""
        return self.said is None and self.inputs.byte_size <= POOLED_BYTES


class SharedPath:
    """The requests of one worker and one transport. Used by that worker's thread.

    Args:
        worker: has the thread beside it, and the end of its rounds.
        add: puts a request's rows into a batch; raises RequestError where they are refused.
        add_on_device: the same where a GPU has the inputs.
        count_refusal: counts a request that is refused before.
        refused: the same where a port refuses it; returns the error for it.
        outputs: what waits to be written.

    Attributes:
        sequences: those of requests that wait to be read, and how many of each: what comes behind one that waits has to
            wait as well.
        goes_on: whether a request is being put into a batch that was read before.
    """

    def __init__(
        self,
        worker: Worker,
        add: Add,
        add_on_device: AddOnDevice,
        count_refusal: Callable[[RequestError, ServedVersion | None], None],
        refused: Callable[[RequestError, ServedVersion, bytes, Any], RequestError],
        outputs: SharedOutputs,
    ) -> None:
        self._worker = worker
        self._add = add
        self._add_on_device = add_on_device
        self._count_refusal = count_refusal
        self._refused = refused
        self._outputs = outputs
        self._bytes_aside = 0
        #: of this round
        self._readings: list[_Reading] = []
        #: those that wait until the model has room
        self._early: list[_Reading] = []
        self.goes_on = False
        self.sequences: dict[int | str, int] = {}

    def submit(
        self,
        call: Call,
        plan: Plan,
        shared: SharedTensors,
        id_field: bytes,
        contents: Sequence[Buffer],
        identifier: str,
        said: Said | None,
    ) -> None:
        """Use the regions of a request, and put its rows into a batch.

        The plan's port lets go of the regions when the request is over.

        Args:
            call: the request.
            plan: its plan.
            shared: of the plan.
            id_field: see ``Call``'s answers.
            contents: of the inputs that are not in shared memory, by position.
            identifier: the request's id, for plans that take arrays.
            said: of its sequence.

        Raises:
            RequestError: it is refused, and uses nothing.
        """
        way = shared.device_way
        if way is not None and said is None and self._submit_on_device(call, plan, shared, id_field, way):
            return
        inputs: SharedInputs | None = None
        try:
            shared.acquire()
            try:
                inputs = SharedInputs(shared, contents, self._worker)
                is_aside = shared.byte_size or inputs.are_late
                if is_aside:
                    self._check_room(inputs)
                inputs.take()
                if is_aside or (said is not None and said[0] in self.sequences):
                    self._read_aside(
                        _Reading(call, plan, shared, id_field, inputs, identifier, said, self._worker.now_ns)
                    )
                    return
            except BaseException:
                shared.release()
                raise
        except RequestError as error:
            if inputs is not None:
                inputs.done()
            raise self._told(error, call, plan, id_field, said) from None
        try:
            self._add(call, plan, id_field, inputs, identifier, said)
        except BaseException:
            shared.release()
            raise
        finally:
            inputs.done()

    def _submit_on_device(
        self, call: Call, plan: Plan, shared: SharedTensors, id_field: bytes, way: DeviceLane
    ) -> bool:
        """Have a request run where a GPU has its inputs; False if the GPU does not have them.

        Raises:
            RequestError: it is refused, and uses nothing.
        """
        try:
            shared.acquire()
        except RequestError as error:
            raise self._told(error, call, plan, id_field, None) from None
        try:
            rows = shared.on_device()
            if rows is not None:
                self._add_on_device(call, plan, id_field, way, rows)
                return True
        except BaseException:
            shared.release()
            raise
        shared.release()
        return False

    def _told(self, error: RequestError, call: Call, plan: Plan, id_field: bytes, said: Said | None) -> RequestError:
        """What a request is told that is refused before it is read; counted, if it is not to come again."""
        if isinstance(error, Overloaded):
            return self._refused(error, plan.version, id_field, None if said else call)
        self._count_refusal(error, plan.version)
        return anew(error)

    def _check_room(self, inputs: SharedInputs) -> None:
        more = inputs.byte_size + REQUEST_BYTES
        if self._bytes_aside and self._bytes_aside + more > MOST_ASIDE_BYTES:
            raise Overloaded(
                f"{self._bytes_aside} bytes of inputs in shared memory wait to be read, and {MOST_ASIDE_BYTES} is the "
                "most; try again later",
                MOST_ASIDE_BYTES,
                more,
            )

    def _read_aside(self, reading: _Reading) -> None:
        """Have inputs read in the other thread, with those of the round's other requests.

        The version is held meanwhile, because nobody else knows that there are rows to come.

        Raises:
            ModelNotReady: the version is about to end.
        """
        if not reading.plan.version.calls.hold():
            raise ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")
        if reading.call.context is not None:
            reading.call.context.found(reading.plan, reading.id_field)
        if not self._readings:
            self._worker.at_round_end(self._hand_over)
        self._readings.append(reading)
        self._bytes_aside += reading.inputs.byte_size + REQUEST_BYTES
        if reading.said is not None:
            self.sequences[reading.said[0]] = self.sequences.get(reading.said[0], 0) + 1

    def _hand_over(self) -> None:
        """Give the requests of a round to the other thread: what is small together, what is not by connections."""
        readings, self._readings = self._readings, []
        groups: dict[Any, tuple[list[_Reading], int]] = {}
        jobs: list[tuple[Any, list[_Reading]]] = []
        for reading in readings:
            connection = None if reading.is_small else reading.call.responder
            size = reading.inputs.byte_size + REQUEST_BYTES
            known = groups.get(connection)
            if known is None or known[1] + size > AT_ONCE_BYTES:
                known = [], 0
                jobs.append((connection, known[0]))
            known[0].append(reading)
            groups[connection] = known[0], known[1] + size
        for connection, group in jobs:
            try:
                self._worker.objects.put(connection, partial(self._read, group))
            except RuntimeError:
                for reading in group:
                    reading.error = Overloaded("the server has no thread for this request")
                self._go_on(group, [])

    def _read(self, group: list[_Reading]) -> Callable[[], None]:
        """Read the inputs of requests, and run what is quick. Runs in the other thread."""
        for reading in group:
            if not reading.call.open:
                reading.error = CallerLeft("the client has left")
                continue
            try:
                reading.shared.read(reading.inputs)
            except Exception as error:
                reading.error = told(error, f"reading inputs for model '{reading.plan.version.model}'")
        return partial(self._go_on, group, self._run(group))

    def _run(self, group: list[_Reading]) -> list[Callable[[], None]]:
        """Run requests that need nobody else for it, and write their outputs. Runs in the other thread.

        Returns:
            What answers them, on the worker's thread.
        """
        alike: dict[Any, list[_Reading]] = {}
        for reading in group:
            if reading.error is None and reading.is_small and reading.shared.runs_apart and reading.plan.writer:
                alike.setdefault(reading.plan.writer, []).append(reading)
        answers: list[Callable[[], None]] = []
        for writer, readings in alike.items():
            plan, port = readings[0].plan, readings[0].plan.port
            assert isinstance(port, Submitter)
            contexts = [(one.call, one.plan, one.id_field, one.arrival) for one in readings]
            requests = [
                (one.plan.rows, context, one.inputs.buffer, one.inputs.spans)
                for one, context in zip(readings, contexts, strict=True)
            ]
            try:
                results = port.run_apart(writer, requests)
            except RequestError:
                continue  # the worker finds the words
            except Exception as error:
                for reading in readings:
                    reading.error = told(error, f"running requests of model '{plan.version.model}'")
                continue
            if results is not None:
                for reading in readings:
                    reading.has_run = True
                answers += [self._outputs.written(result, readings[0].shared.finish) for result in results]
        return answers

    def _go_on(self, group: list[_Reading], answers: list[Callable[[], None]]) -> None:
        """Put what was read into batches. An error is the outcome of a request, as if its batch had failed.

        Args:
            group: the requests.
            answers: answer those that have run.
        """
        try:
            for reading in group:
                try:
                    if not reading.has_run:
                        self._go_on_with(reading)
                finally:
                    if not reading.waits:
                        self._bytes_aside -= reading.inputs.byte_size + REQUEST_BYTES
                        reading.inputs.done()
            for port in {reading.plan.port: None for reading in group if not reading.has_run}:
                port.commit()
            for answer in answers:
                answer()
        finally:
            for reading in group:
                if not reading.waits:
                    reading.plan.version.calls.let_go()

    def _try_again(self) -> None:
        """Go on with requests for which the model had no room."""
        early, self._early = self._early, []
        for reading in early:
            reading.waits = False
            if not reading.call.open:
                reading.error = CallerLeft("the client has left")
        self._go_on(early, [])

    def _go_on_with(self, reading: _Reading) -> None:
        """Put one into a batch, or fail it; or have it wait until the model has room."""
        call, plan, shared, said, error = reading.call, reading.plan, reading.shared, reading.said, reading.error
        if said is not None:
            self.sequences[said[0]] -= 1
            if not self.sequences[said[0]]:
                del self.sequences[said[0]]
        if error is None:
            self.goes_on = True
            try:
                self._add(call, plan, reading.id_field, reading.inputs, reading.identifier, said)
                return
            except OwnRequestsFirst:  # of no sequence: those do not wait for room
                if not self._early:
                    self._worker.call_later(self._try_again)
                self._early.append(reading)
                reading.waits = True
                return
            except RequestError as refusal:
                error = anew(refusal)
            except Exception:
                logger.exception("a request for model '%s' got into no batch", plan.version.model)
                error = ExecutionFailed("internal error")
            finally:
                self.goes_on = False
        now_ns = time.monotonic_ns()
        timing = Timing(now_ns, now_ns, now_ns, now_ns)
        shared.finish(BatchResult([((call, plan, reading.id_field, now_ns), 0, plan.rows, None)], None, error, timing))
