"""The way of a request with tensors in shared memory, from its plan to rows in a batch.

Inputs of up to ASIDE_BYTES are read at once. Larger ones are read in the thread beside the worker, whose other clients
go on meanwhile: a request of some hundred bytes may name gigabytes. Those that a GPU has, of a model that runs on it,
are not read at all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from toutates.engine.on_device import DeviceLane, DeviceRows
from toutates.engine.result import BatchResult, Timing
from toutates.engine.servable import Buffer
from toutates.infer.call import Call
from toutates.infer.plan import Plan
from toutates.infer.shared_outputs import SharedOutputs
from toutates.infer.shared_tensors import SharedInputs, SharedTensors
from toutates.models.table import ServedVersion
from toutates.net import Worker
from toutates.net.side_thread import outcome_of
from toutates.protocol.sequence_parameters import Said
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError, anew

__all__ = ["SharedPath"]

logger = logging.getLogger(__name__)

#: Inputs of more bytes are read beside the worker. A MiB takes 0.1 ms, and a worker handles 16 requests of a connection
#: before it looks at the clock.
ASIDE_BYTES: Final = 1_048_576
#: Bytes of inputs that may wait to be read beside a worker, of several requests.
MOST_ASIDE_BYTES: Final = 268_435_456

#: Puts inputs that are read into a batch.
Add = Callable[[Call, Plan, bytes, SharedInputs, str, Said | None], None]
#: The same for inputs that a GPU has.
AddOnDevice = Callable[[Call, Plan, bytes, DeviceLane, DeviceRows], None]


class SharedPath:
    """The requests of one worker and one transport. Used by that worker's thread.

    Args:
        worker: reads large inputs beside itself.
        add: puts a request's rows into a batch; raises RequestError where they are refused.
        add_on_device: the same where a GPU has the inputs.
        count_refusal: counts a request that is refused before.
        outputs: what waits to be written.
    """

    def __init__(
        self,
        worker: Worker,
        add: Add,
        add_on_device: AddOnDevice,
        count_refusal: Callable[[RequestError, ServedVersion | None], None],
        outputs: SharedOutputs,
    ) -> None:
        self._worker = worker
        self._add = add
        self._add_on_device = add_on_device
        self._count_refusal = count_refusal
        self._outputs = outputs
        self._bytes_aside = 0

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
            said: of its sequence. Requests of sequences are read at once, so that they stay in their order.

        Raises:
            RequestError: it is refused, and uses nothing.
        """
        way = shared.device_way
        if way is not None and said is None and self._submit_on_device(call, plan, shared, id_field, way):
            return
        inputs: SharedInputs | None = None
        try:
            self._outputs.check_room(shared.room)
            shared.acquire()
            try:
                large = shared.byte_size > ASIDE_BYTES and said is None
                if large:
                    self._check_room(shared)
                inputs = SharedInputs(shared, contents, self._worker)
                if large and self._read_aside(call, plan, shared, id_field, inputs, identifier):
                    return
                shared.read(inputs)
            except BaseException:
                shared.release()
                raise
        except RequestError as error:
            self._count_refusal(error, plan.version)
            if inputs is not None:
                inputs.done()
            raise
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
            self._outputs.check_room(shared.room)
            shared.acquire()
        except RequestError as error:
            self._count_refusal(error, plan.version)
            raise
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

    def _check_room(self, shared: SharedTensors) -> None:
        if self._bytes_aside and self._bytes_aside + shared.byte_size > MOST_ASIDE_BYTES:
            raise Overloaded(
                f"{self._bytes_aside} bytes of inputs in shared memory wait to be read, and {MOST_ASIDE_BYTES} is the "
                "most; try again later"
            )

    def _read_aside(
        self, call: Call, plan: Plan, shared: SharedTensors, id_field: bytes, inputs: SharedInputs, identifier: str
    ) -> bool:
        """Have inputs read in the other thread; False where they have to be read now.

        The version is held meanwhile, because nobody else knows that there are rows to come.
        """
        if not plan.version.calls.hold():
            return False

        def job() -> Callable[[], None]:
            outcome = outcome_of(partial(shared.read, inputs), f"reading inputs for model '{plan.version.model}'")
            return partial(self._go_on, call, plan, shared, id_field, inputs, identifier, outcome)

        if call.context is not None:
            call.context.found(plan, id_field)
        try:
            self._worker.side.put(call.responder, job)
        except RuntimeError:  # the system has no thread
            plan.version.calls.let_go()
            return False
        self._bytes_aside += shared.byte_size
        return True

    def _go_on(
        self,
        call: Call,
        plan: Plan,
        shared: SharedTensors,
        id_field: bytes,
        inputs: SharedInputs,
        identifier: str,
        error: RequestError | None,
    ) -> None:
        """Put what was read into a batch. An error is the outcome of the request, as if its batch had failed."""
        self._bytes_aside -= shared.byte_size
        try:
            if error is None:
                try:
                    self._add(call, plan, id_field, inputs, identifier, None)
                except RequestError as refusal:
                    error = anew(refusal)
                except Exception:
                    logger.exception("a request for model '%s' got into no batch", plan.version.model)
                    error = ExecutionFailed("internal error")
            if error is not None:
                now_ns = time.monotonic_ns()
                context = call, plan, id_field, now_ns
                timing = Timing(now_ns, now_ns, now_ns, now_ns)
                shared.finish(BatchResult([(context, 0, plan.rows, None)], None, error, timing))
            plan.port.commit()
        finally:
            inputs.done()
            plan.version.calls.let_go()
