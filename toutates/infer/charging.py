"""Services of inference where callers are known: each request is held against its caller's models and quota.

They stand in place of the plain ones where an access file is given. Without one no request pays for any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

from toutates.access.worker_gate import WorkerGate
from toutates.engine.servable import Buffer, Way
from toutates.infer.answers import RequestContext
from toutates.infer.call import Handler
from toutates.infer.observing import Sampling
from toutates.infer.plan import Plan
from toutates.infer.regions import Place, own_name
from toutates.infer.rest.call import Asked
from toutates.infer.rest.service import RestInferService
from toutates.infer.service import InferService
from toutates.infer.shared_tensors import SharedTensors
from toutates.infer.streaming import StreamInferService
from toutates.infer.validation import ValidatedRequest
from toutates.models.table import ServedVersion
from toutates.protocol.sequence_parameters import Said
from toutates.system.errors import OwnRequestsFirst, RequestError

__all__ = ["ChargingInferService", "ChargingRestInferService", "ChargingStreamInferService"]

#: Callers for whom a plan of requests with regions is remembered.
MAX_OWNERS: Final = 64


class _Charging(InferService):
    """What all of them have in common. ``gate`` is set right after the service is made."""

    gate: WorkerGate

    def _find(self, model: str, version: str) -> ServedVersion:
        """See ``InferService``. A model that is not the caller's is refused whether there is one or not."""
        caller = self.gate.caller
        if caller is not None and caller.models:
            caller.check_model(model, self._table.traffic.leads_to(model))
        return super()._find(model, version)

    def _whose(self, context: RequestContext) -> str:
        """See ``InferService``. Who is known is the same by every connection.

        Requests with shared memory were charged before, and have no caller here; their plans know whose they are.
        """
        caller, shared = self.gate.caller, context[1].shared
        return (caller.identity if caller else shared.whose if shared else "") or super()._whose(context)

    def for_its_caller(self, again: Callable[[], None]) -> Callable[[], None]:
        """See ``LateHandling``."""
        caller = self.gate.caller

        def again_for_caller() -> None:
            self.gate.caller = caller
            try:
                again()
            finally:
                self.gate.caller = None

        return again_for_caller

    def _charge(self, plan: Plan) -> None:
        """Take a request out of its caller's quota; requests that were charged before have none here.

        Raises:
            RequestError: it is refused.
        """
        caller = self.gate.caller
        if caller is None:
            return
        try:
            if caller.models:
                if plan.names:
                    caller.check_model(plan.names[0], plan.names)
                else:
                    caller.check_model(plan.version.model)
            if caller.bucket is not None:
                caller.take(plan.rows, self.worker.now_ns)
        except RequestError as error:
            self._count_refusal(error, plan.version)
            raise

    def _give_back(self, plan: Plan) -> None:
        """Undo ``_charge`` for a request that comes again."""
        caller = self.gate.caller
        if caller is not None and caller.bucket is not None:
            caller.bucket.give_back(plan.rows, self.worker.now_ns)

    def _pack(self, call: Any, plan: Plan, writer: Way, id_field: bytes, buffer: Buffer, spans: Sequence[int]) -> None:
        self._charge(plan)
        try:
            super()._pack(call, plan, writer, id_field, buffer, spans)
        except OwnRequestsFirst:
            self._give_back(plan)
            raise

    def _pack_said(
        self,
        call: Any,
        plan: Plan,
        writer: Way,
        id_field: bytes,
        buffer: Buffer,
        spans: Sequence[int],
        said: Said | None,
    ) -> None:
        if said is not None:  # else it comes to ``_pack``
            self._charge(plan)
        try:
            super()._pack_said(call, plan, writer, id_field, buffer, spans, said)
        except OwnRequestsFirst:
            if said is not None:
                self._give_back(plan)
            raise

    def _add_arrays(
        self, call: Any, plan: Plan, id_field: bytes, contents: Sequence[Buffer], identifier: str, said: Said | None
    ) -> None:
        self._charge(plan)
        try:
            super()._add_arrays(call, plan, id_field, contents, identifier, said)
        except OwnRequestsFirst:
            self._give_back(plan)
            raise

    def _submit(
        self,
        call: Any,
        plan: Plan,
        id_field: bytes,
        contents: Sequence[Buffer],
        identifier: str,
        said: Said | None = None,
    ) -> None:
        if plan.shared is None:
            super()._submit(call, plan, id_field, contents, identifier, said)
            return
        plan = self._own_plan(plan)
        # Its inputs may be read beside the worker; by then another request is being handled.
        self._charge(plan)
        caller, self.gate.caller = self.gate.caller, None
        try:
            super()._submit(call, plan, id_field, contents, identifier, said)
        except OwnRequestsFirst:
            self.gate.caller = caller
            self._give_back(plan)
            raise
        finally:
            self.gate.caller = caller

    # --- shared memory: the same name means another region for each caller --------------------------------------------

    @property
    def _owner(self) -> str:
        caller = self.gate.caller
        return "" if caller is None else caller.owner

    @property
    def _identity_of_caller(self) -> str:
        caller = self.gate.caller
        return "" if caller is None else caller.identity

    def _check_place(self, place: Place) -> None:
        super()._check_place(replace(place, region=own_name(self._owner, place.region)))

    def _shared(self, version: ServedVersion, validated: ValidatedRequest) -> SharedTensors | None:
        shared = super()._shared(version, validated)
        return None if shared is None else shared.owned_by(self._owner, self._identity_of_caller)

    def _own_plan(self, plan: Plan) -> Plan:
        """The plan for the regions of the request's caller; another caller may have sent the same bytes before."""
        shared, owner = plan.shared, self._owner
        if shared is None or shared.owner == owner:
            return plan
        own: Plan | None = shared.others.get(owner)
        if own is None:
            own = copy(plan)
            own.shared = shared.owned_by(owner, self._identity_of_caller)
            if len(shared.others) >= MAX_OWNERS:
                shared.others.clear()
            shared.others[owner] = own
        return own

    def _entering(self, handler: Handler, head_of: Callable[[Any], Any]) -> Handler:
        """``handler``, for the caller of each request."""
        gate = self.gate

        def enter(call: Any) -> None:
            caller = gate.caller_of_head(head_of(call))
            caller.check_group("inference")
            gate.caller = caller
            try:
                handler(call)
            finally:
                gate.caller = None

        return enter


class ChargingInferService(_Charging, InferService):
    """ModelInfer of one worker."""

    @property
    def handler(self) -> Handler:
        """See ``InferService``."""
        return self._entering(super().handler, _head)

    def observing_handler(self, chosen: Sampling) -> Handler:
        """See ``InferService``."""
        return self._entering(super().observing_handler(chosen), _head)


class ChargingStreamInferService(_Charging, StreamInferService):
    """ModelStreamInfer of one worker: each message is looked at, so a token that ends ends its stream's requests."""

    @property
    def handler(self) -> Handler:
        """See ``InferService``."""
        return self._entering(super().handler, _head_of_message)

    def observing_handler(self, chosen: Sampling) -> Handler:
        """See ``InferService``."""
        return self._entering(super().observing_handler(chosen), _head_of_message)


class ChargingRestInferService(_Charging, RestInferService):
    """Inference over REST of one worker. Who the caller is comes with the head (``api.doors``)."""

    def _read_aside(self, call: Any, asked: Asked, *args: Any) -> None:
        super()._read_aside(call, replace(asked, caller=self.gate.caller), *args)

    def _go_on_with(self, call: Any, asked: Asked, *args: Any, **given: Any) -> None:
        self.gate.caller = asked.caller
        try:
            super()._go_on_with(call, asked, *args, **given)
        finally:
            self.gate.caller = None


def _head(call: Any) -> Any:
    return call.head


def _head_of_message(message: Any) -> Any:
    return message.call.head
