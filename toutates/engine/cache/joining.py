"""Different answers of one round, handed over together: what an answer costs is mostly its hand-over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toutates.engine.cache.store import CachedAnswer
from toutates.engine.result import Outputs, PendingRequest

__all__ = ["joined"]


def joined(
    found: Mapping[CachedAnswer, list[PendingRequest]], *, batched: bool
) -> Iterator[tuple[Outputs, list[PendingRequest]]]:
    """Outputs, and the requests that get their rows: those of small answers of the same row shapes together.

    Args:
        found: by answer, the requests that get it, each with all of its rows from the first on.
        batched: whether the model is; else an answer has no rows.
    """
    alike: dict[tuple[tuple[int, ...], ...], list[CachedAnswer]] = {}
    for answer, pending in found.items():
        if batched and answer.is_small and len(found) > 1:
            alike.setdefault(answer.outputs.row_shapes, []).append(answer)
        else:
            yield answer.outputs, pending
    for answers in alike.values():
        yield _side_by_side(answers, found)


def _side_by_side(
    answers: list[CachedAnswer], found: Mapping[CachedAnswer, list[PendingRequest]]
) -> tuple[Outputs, list[PendingRequest]]:
    """Small answers with rows of the same shapes as the outputs of one batch."""
    some = answers[0].outputs
    if len(answers) == 1:
        return some, found[answers[0]]
    at = 0
    pending: list[PendingRequest] = []
    for answer in answers:
        own = found[answer]
        pending += [(context, at, rows, None) for context, _, rows, _ in own]
        at += own[0][2]
    data = tuple([b"".join(contents) for contents in zip(*[answer.outputs.data for answer in answers], strict=True)])
    return Outputs(data, some.row_bytes, some.row_shapes, fixed=some.fixed), pending
