"""Which requests are traced.

A caller who says that it records the trace decides for its request, and so does one who says that it does not
(``traceparent``). Of the others one in so many is traced.

No request is counted or drawn for that. The server looks closer at one request in ``Rules.every``, whatever its model,
so one that is looked at stands for so many; a model's are added up, and each time they make its rate, one is traced.
"""

from __future__ import annotations

from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.settings import Rule, TraceSettings

__all__ = ["Sampler"]


class Sampler:
    """Decides for one worker's requests; used by that worker's thread only."""

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._rules = settings.rules
        #: by model, for how many requests since the last trace those stand that were looked at
        self._passed: dict[str, int] = {}

    def wants(self, model: str, traceparent: str, weight: int) -> bool:
        """Whether a request that was looked at is to be traced.

        Args:
            model: its name.
            traceparent: of its header list, "" for none.
            weight: for how many requests it stands that do not decide for themselves.
        """
        rules = self._settings.rules
        if rules is not self._rules:
            self._rules = rules
            self._passed = {}
        rule = rules.of(model)
        if not rule.on:
            return False
        context = parse_traceparent(traceparent)
        if context is not None:
            return context.sampled
        return bool(weight and rule.rate) and self._is_next(model, rule, weight)

    def _is_next(self, model: str, rule: Rule, weight: int) -> bool:
        passed = self._passed.get(model, 0) + weight
        if passed < rule.rate:
            self._passed[model] = passed
            return False
        self._passed[model] = (passed - rule.rate) % rule.rate
        if not rule.budget.take():
            return False
        if not rule.budget.left:
            self._settings.refresh()
        return True
