"""Decides which observed requests are traced.

A caller whose ``traceparent`` says whether it records the trace decides for its request. Of the other requests, one in
``rate`` is traced.

Requests are not counted by model for that. One request in ``Rules.every`` is observed, whatever its model, and stands
for that many requests. They are added up by model. Each time the sum reaches the model's rate, a request is traced.
"""

from __future__ import annotations

from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.settings import Rule, TraceSettings

__all__ = ["Sampler"]


class Sampler:
    """Decides for the requests of one worker. Used by that worker's thread only."""

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._rules = settings.rules
        #: by model, how many requests the observed ones since the last trace stand for
        self._passed: dict[str, int] = {}

    def wants(self, model: str, traceparent: str, weight: int) -> bool:
        """Whether an observed request is to be traced.

        Args:
            model: the model's name.
            traceparent: the request's header field; "" for none.
            weight: how many requests the observed one stands for; 0 for one that was observed for its ``traceparent``.
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
