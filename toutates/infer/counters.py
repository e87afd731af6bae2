"""What one worker counts of ModelInfer requests beside, or before, their model version."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["InferCounters"]


@dataclass(slots=True)
class InferCounters:
    """Plain numbers, written by the worker's thread only.

    Attributes:
        parsed: requests of a kind that there was no plan for, so that they were parsed and validated.
        unknown: refused because there is no such model or version.
        overloaded: refused because the server had all the requests in flight that it may.
        invalid: refused for something else, before it was clear which version they were for.
    """

    parsed: int = 0
    unknown: int = 0
    overloaded: int = 0
    invalid: int = 0
