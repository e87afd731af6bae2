"""A plan whose requests are divided between versions, and some of them copied.

Such a plan looks like any other to the path of an inference: what differs is its port. So requests of names without
traffic pay for none of this, and those of names with it for one choice each: 0.7 us at random, 1.3 us by their id, on a
slow and busy machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from random import Random
from typing import Final
from zlib import crc32

import numpy as np

from toutates.engine.lane import Piece, RowShapes
from toutates.engine.servable import Buffer, Content, Port, Way
from toutates.infer.answers import RequestContext, SequenceContext
from toutates.infer.plan import Plan
from toutates.infer.traffic.copies import CopiedContext, Copies
from toutates.models.table import ServedVersion
from toutates.models.traffic.rules import BY_ID, Route, Target, cuts_of, spread
from toutates.protocol.strings import StringRows
from toutates.system.errors import InvalidRequest, RequestError

__all__ = ["Arm", "Divider", "divided", "fits"]

_MISMATCH: Final = "the versions that its requests are divided between do not take the same requests"


class Arm:
    """One of the versions of a plan.

    Args:
        target: which it is.
        plan: of requests to it.
        order: for each of its inputs, which of the first version's it is; None where they are in the same order.
        count: of the requests that it got; its only element is one more with each.
    """

    __slots__ = ("count", "order", "plan", "target")

    def __init__(self, target: Target, plan: Plan, order: list[int] | None, count: list[int]) -> None:
        self.target = target
        self.plan = plan
        self.order = order
        self.count = count


def fits(first: Plan, other: Plan) -> list[int] | None:
    """How the inputs of a plan for the same requests are ordered; see ``Arm``.

    Raises:
        InvalidRequest: its requests do not go the same way.
    """
    order = _order(first, other)
    ours, others = first.request, other.request
    same = (
        order is not None
        and [ours.shapes[at] for at in order] == list(others.shapes)
        and [ours.sizes[at] for at in order] == list(others.sizes)
        and ours.rows == others.rows
        and first.way.packed == other.way.packed
        and first.version.decoupled == other.version.decoupled
    )
    if not same or order is None:
        raise InvalidRequest(_MISMATCH)
    return None if order == sorted(order) else order


def _order(first: Plan, other: Plan) -> list[int] | None:
    ours, others = first.version.signature.inputs, other.version.signature.inputs
    at = {ours[index].name: position for position, index in enumerate(first.request.inputs)}
    found = [at.get(others[index].name, -1) for index in other.request.inputs]
    return None if -1 in found or len(found) != len(at) else found


class Divider:
    """Chooses versions for the requests of one worker's service.

    Args:
        identity_of: the bytes of a request's id, the same over every transport, from what goes into its answer; b"" for
            none.
        copies: takes copies of requests; None where nobody compares them.

    Attributes:
        counts: of requests, by the name of the route and the version. Other threads read them.
    """

    def __init__(self, identity_of: Callable[[bytes], bytes], copies: Copies | None) -> None:
        self.identity_of = identity_of
        self.copies = copies
        self.counts: dict[tuple[str, Target], list[int]] = {}
        # Of its own: on free-threaded Python all workers would wait for the lock of the common one.
        self.random_bits = Random().getrandbits

    def count_of(self, route: Route, target: Target) -> list[int]:
        """The count of a version's requests."""
        key = route.name, target
        count = self.counts.get(key)
        if count is None:
            count = [0]
            self.counts = {**self.counts, key: count}
        return count

    def number_of(self, route: Route, identity: bytes) -> int:
        """The number below 2**32 that says which version an identity gets; of b"", a random one."""
        return spread(identity, crc32(route.name.encode())) if identity else self.random_bits(32)

    def chosen(self, route: Route, identity: bytes) -> int:
        """The position of the version that a request gets."""
        return bisect_right(cuts_of(route.weights), self.number_of(route, identity))


def divided(
    divider: Divider,
    route: Route,
    plan: Plan,
    arms: Sequence[Arm],
    cuts: Sequence[int],
    copying: Callable[[ServedVersion], Port] | None,
) -> Plan:
    """A plan like ``plan``, whose requests are divided.

    Args:
        divider: of the service.
        route: that the requests take.
        plan: of the first version that answers.
        arms: all versions that requests may get.
        cuts: see ``cuts_of``.
        copying: the port to a version for requests that are copied; None where none are.
    """
    made = copy(plan)
    made.layouts = {}
    made.packed = made.writer and made.packed  # not BYTES that may stay where they are: they are read once for all
    made.port = _DividedPort(divider, route, made, arms, cuts, copying)
    return made


class _DividedPort:
    """Hands requests to the ports of the versions. See ``Port``."""

    __slots__ = (
        "_arms",
        "_by_id",
        "_copying",
        "_cuts",
        "_divider",
        "_made",
        "_name",
        "_salt",
        "_shadow",
        "_shadow_cut",
        "counters",
    )

    def __init__(
        self,
        divider: Divider,
        route: Route,
        made: Plan,
        arms: Sequence[Arm],
        cuts: Sequence[int],
        copying: Callable[[ServedVersion], Port] | None,
    ) -> None:
        self.counters = made.port.counters
        self._divider = divider
        self._made = made
        self._arms = arms
        self._cuts = cuts
        self._copying = copying
        self._by_id = route.sticky == BY_ID
        self._salt = crc32(route.name.encode())
        self._shadow = route.shadow
        self._shadow_cut = 0 if route.shadow is None or copying is None else route.shadow.cut
        self._name = route.name

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> Way:
        """See ``Port``. Nobody asks: the plan has its way already."""
        return self._made.way

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``: those of the versions do so at the round's end."""

    def add_packed(self, way: Way, rows: int, context: RequestContext, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``."""
        arm, plan, context = self._choose(context)
        order = arm.order
        if order is not None:
            spans = [bound for at in order for bound in spans[2 * at : 2 * at + 2]]
        port = plan.port
        if self._shadow_cut and self._divider.random_bits(32) < self._shadow_cut:
            whole = memoryview(buffer)
            sent = [whole[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]
            port, context = self._copied(plan, context, sent)
        try:
            port.add_packed(plan.way, rows, context, buffer, spans)
        except RequestError:
            self._made.version = plan.version  # whose refusal it was
            raise

    def add_contents(self, way: Way, rows: int, context: RequestContext, contents: Sequence[Content]) -> None:
        """See ``Port``. The path of an inference has no such requests."""
        raise NotImplementedError

    def add_gathered(
        self, way: Way, rows: int, context: RequestContext, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """See ``Port``."""
        arm, plan, context = self._choose(context)
        if arm.order is not None:
            arrays = [arrays[at] for at in arm.order]
        port = plan.port
        if self._shadow_cut and self._divider.random_bits(32) < self._shadow_cut:
            port, context = self._copied(plan, context, [_bytes_of(array) for array in arrays])
        try:
            port.add_gathered(plan.way, rows, context, arrays, held_bytes)
        except RequestError:
            self._made.version = plan.version
            raise

    def _choose(self, context: RequestContext) -> tuple[Arm, Plan, RequestContext]:
        """The version that a request gets, and the request's context for it."""
        call, _, id_field, arrival = context
        cuts = self._cuts
        said = context.said if isinstance(context, SequenceContext) else None
        if not cuts:
            arm = self._arms[0]
        elif said is not None and said[0]:
            # All requests of a sequence go where its state is.
            arm = self._arms[bisect_right(cuts, spread(str(said[0]).encode(), self._salt))]
        elif self._by_id and id_field:
            identity = self._divider.identity_of(id_field)
            arm = self._arms[bisect_right(cuts, spread(identity, self._salt))]
        else:
            arm = self._arms[bisect_right(cuts, self._divider.random_bits(32))]
        plan = arm.plan
        arm.count[0] += 1
        if call.context is not None:
            call.context.version = plan.version
        own: RequestContext = call, plan, id_field, arrival
        return arm, plan, own if said is None else SequenceContext.of(own, said)

    def _copied(self, plan: Plan, context: RequestContext, sent: Sequence[Buffer]) -> tuple[Port, RequestContext]:
        """The port and the context of a request that is to be copied; the ordinary ones where it cannot be."""
        shadow, copies, copying = self._shadow, self._divider.copies, self._copying
        if shadow is None or copies is None or copying is None or isinstance(context, SequenceContext):
            return plan.port, context
        kept = copies.take(self._name, shadow, plan, sent)
        if kept is None:
            return plan.port, context
        return copying(plan.version), CopiedContext.of(context, kept)


def _bytes_of(array: Piece) -> Buffer:
    if isinstance(array, StringRows):
        return memoryview(array.content)[:-1]  # behind the elements is a byte that is not used
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
