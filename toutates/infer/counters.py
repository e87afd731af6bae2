"""Counters of the ModelInfer requests of one worker that belong to no model version."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["InferCounters"]


@dataclass(slots=True)
class InferCounters:
    """Plain numbers. The worker's thread writes them, any thread may read them.

    Attributes:
        parsed: requests that were parsed and validated, because there was no plan for their kind.
        unknown: requests refused because there is no such model or version.
        overloaded: requests refused because as many were in flight as ``--max-inflight-requests`` allows.
        invalid: requests refused for another reason, before it was known which version they were for.
        text_answers: answers of the APIs for text, by status and route: "200 /embed". A new key comes with a new dict.
    """

    parsed: int = 0
    unknown: int = 0
    overloaded: int = 0
    invalid: int = 0
    text_answers: dict[str, int] = field(default_factory=dict)
