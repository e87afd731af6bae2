"""What one worker remembers of kinds of requests, so that those who ask again need not wait for those who never do.

A client in real use sends few kinds of requests again and again. One that sends another kind each time, by mistake (a
time stamp among the parameters) or to do harm, must not push the plans of the others out. So:

- A kind seen for the first time is on *probation*, first in first out. Whoever never sends it again goes no further.
- Seen again, it becomes *recent*. When there are MAX_PLANS of these, a new generation begins: they become the *earlier*
  ones, and those that were earlier are forgotten. An earlier plan that is asked for is recent again.

A kind that is asked for once per generation is therefore kept for ever, whatever the others do; a generation is
MAX_PLANS kinds that were each seen at least twice. None of this is on the way of a request whose plan is recent.

Memory per worker is at most that of 3 x MAX_PLANS plans, with keys of MAX_KEY_BYTES and, the recent ones alone, layouts
of ``plan.MAX_LAYOUT_BYTES``.
"""

from __future__ import annotations

from typing import Final

from toutates.engine.servable import Way
from toutates.infer.plan import Plan
from toutates.infer.scanning import Layout

__all__ = ["PlanCache"]

#: Kinds of request per generation, and on probation. A client in real use has one per model and batch size.
MAX_PLANS: Final = 1_024
#: Longer keys are not remembered: names and shapes need a few hundred bytes.
MAX_KEY_BYTES: Final = 4_096
#: Lengths of messages whose layout is remembered.
MAX_LENGTHS: Final = 1_024


class PlanCache:
    """See the module. Belongs to one worker.

    Attributes:
        recent: the plans in use, by the constant bytes of their requests; always the same dict.
        latest: by length of the message, what the last one of that length turned out to be; always the same dict.
    """

    __slots__ = ("_earlier", "_probation", "latest", "recent")

    def __init__(self) -> None:
        self.recent: dict[bytes, Plan] = {}
        self.latest: dict[int, tuple[Layout, Plan, Way]] = {}
        self._earlier: dict[bytes, Plan] = {}
        self._probation: dict[bytes, Plan] = {}

    def recall(self, key: bytes) -> Plan | None:
        """The plan of a kind that is not recent, which makes it so; None if there is none."""
        plan = self._earlier.pop(key, None) or self._probation.pop(key, None)
        if plan is not None:
            if len(self.recent) >= MAX_PLANS:
                self._begin_generation()
            self.recent[key] = plan
        return plan

    def remember(self, key: bytes, plan: Plan) -> None:
        """A kind that there was no plan for."""
        if len(key) > MAX_KEY_BYTES:
            return
        if len(self._probation) >= MAX_PLANS:
            del self._probation[next(iter(self._probation))]
        self._probation[key] = plan

    def remember_layout(self, length: int, layout: Layout, plan: Plan, writer: Way) -> None:
        """Messages of ``length`` bytes looked like this lately."""
        if len(self.latest) >= MAX_LENGTHS:
            self.latest.clear()
        self.latest[length] = (layout, plan, writer)

    def clear(self) -> None:
        """Forget everything."""
        for part in (self.recent, self._earlier, self._probation):
            part.clear()
        self.latest.clear()

    def _begin_generation(self) -> None:
        self._earlier = dict(self.recent)
        self.recent.clear()
        for plan in self._earlier.values():
            plan.layouts.clear()
        # Those who would still find their plan there must ask for it once, to be seen in this generation.
        self.latest.clear()
