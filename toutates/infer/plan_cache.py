"""The plans that one worker remembers: a scan-resistant cache, in which kinds of requests that come again stay.

A client in real use sends few kinds of requests again and again. One that sends another kind each time, by mistake (a
time stamp among the parameters) or to do harm, must not push the plans of the others out. So:

- A kind that is seen for the first time is on *probation*. Probation holds MAX_PLANS plans, first in first out.
- A kind that is seen again becomes *recent*. When MAX_PLANS plans are recent, a new generation begins: the recent plans
  become the *earlier* ones, and the earlier ones are forgotten. An earlier plan that is asked for becomes recent again.

So a kind that is asked for once per generation is kept for ever, whatever other clients send. A generation is MAX_PLANS
kinds that were each seen at least twice. A request whose plan is recent costs one look-up in a dict.

Memory per worker is at most that of 3 x MAX_PLANS plans, with keys of MAX_KEY_BYTES and, the recent ones alone, layouts
of ``plan.MAX_LAYOUT_BYTES``.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Any, Final

from toutates.engine.servable import Way
from toutates.infer.plan import Plan

__all__ = ["PlanCache"]

#: Kinds of request per generation, and on probation. A client in real use has one per model and batch size.
MAX_PLANS: Final = 1_024
#: Plans with longer keys are not remembered: names and shapes need a few hundred bytes.
MAX_KEY_BYTES: Final = 4_096
#: Keys, such as lengths of messages, for which the last layout is remembered.
MAX_LAYOUTS: Final = 1_024


class PlanCache:
    """The plans of one worker, by the constant bytes of their requests. Used by that worker's thread only.

    Attributes:
        recent: the recent plans, by the constant bytes of their requests; always the same dict object.
        latest: layout, plan and way of the last request, by length of the message, or by what else a service finds
            them; always the same dict object. A layout has the type of the service's. The way is None for requests all
            of whose inputs are in shared memory.
    """

    __slots__ = ("_earlier", "_keys", "_probation", "latest", "recent")

    def __init__(self) -> None:
        self.recent: dict[bytes, Plan] = {}
        self.latest: dict[int | bytes, tuple[Any, Any, Any]] = {}
        self._earlier: dict[bytes, Plan] = {}
        self._probation: dict[bytes, Plan] = {}
        #: by model, the keys of all plans for requests to it: where models come and go, each of them is forgotten soon
        self._keys: dict[str, set[bytes]] = {}

    def recall(self, key: bytes) -> Plan | None:
        """Make a plan recent, and return it; None if there is none for ``key``. Recent plans are not looked at."""
        plan = self._earlier.pop(key, None) or self._probation.pop(key, None)
        if plan is not None:
            if len(self.recent) >= MAX_PLANS:
                self._begin_generation()
            self.recent[key] = plan
        return plan

    def remember(self, key: bytes, plan: Plan) -> None:
        """Put a new plan on probation."""
        if len(key) > MAX_KEY_BYTES:
            return
        if len(self._probation) >= MAX_PLANS:
            oldest = next(iter(self._probation))
            self._unlist(oldest, self._probation.pop(oldest))
        self._forget(key)  # one that did not fit the request
        self._probation[key] = plan
        for name in _names_of(plan):
            keys = self._keys.get(name)
            if keys is None:
                self._keys[name] = {key}
            else:
                keys.add(key)

    def remember_layout(self, key: int | bytes, layout: Any, plan: Plan, writer: Way | None) -> None:
        """Note the layout, plan and way of the last request of a length, or another key of ``latest``."""
        if len(self.latest) >= MAX_LAYOUTS:
            self.latest.clear()
        self.latest[key] = (layout, plan, writer)

    def forget(self, models: Set[str]) -> None:
        """Forget what is for requests to these models."""
        for name in models:
            for key in list(self._keys.get(name, ())):
                self._forget(key)
        for found in [found for found, latest in self.latest.items() if _is_for(latest[1], models)]:
            del self.latest[found]

    def clear(self) -> None:
        """Forget everything."""
        for part in (self.recent, self._earlier, self._probation):
            part.clear()
        self._keys.clear()
        self.latest.clear()

    def _forget(self, key: bytes) -> None:
        for part in (self.recent, self._earlier, self._probation):
            plan = part.pop(key, None)
            if plan is not None:
                self._unlist(key, plan)

    def _unlist(self, key: bytes, plan: Plan) -> None:
        for name in _names_of(plan):
            keys = self._keys.get(name)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[name]

    def _begin_generation(self) -> None:
        for key, plan in self._earlier.items():
            self._unlist(key, plan)
        self._earlier = dict(self.recent)
        self.recent.clear()
        for plan in self._earlier.values():
            plan.layouts.clear()
        # A kind that is found by its layout is not asked for. It has to be, to count as seen in this generation.
        self.latest.clear()


def _names_of(plan: Plan) -> Collection[str]:
    """Names of the models that a plan's requests may go to."""
    return {plan.version.model, *plan.names} if plan.names else (plan.version.model,)


def _is_for(plan: Plan, models: Set[str]) -> bool:
    return plan.version.model in models or (bool(plan.names) and not models.isdisjoint(plan.names))
