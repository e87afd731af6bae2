"""Which configuration to measure next: a climb by single steps and by steps of two keys at a time, from a few starts.

A point has a place on each axis. The search asks for points and is told their scores; it measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import product
from typing import Final

from toutates.tune.scores import Score

__all__ = ["Point", "batch_of_profile", "climb", "fit_line"]

Point = tuple[int, ...]

#: A step has to be better by so much. It is below the noise of a load, because small gains of several keys add up;
#: whether all of them together are one is told by the comparison in turns.
_MARGIN: Final = 0.005
#: Values of an axis that are all tried.
_FEW: Final = 4
#: Of the time of a batch, what may be spent on other things than its rows.
_OVERHEAD: Final = 0.1


def climb(
    lengths: Sequence[int],
    starts: Sequence[Point],
    most: int,
    pairs: Sequence[tuple[int, int]],
    margin: float = _MARGIN,
    known: Mapping[Point, Score] | None = None,
) -> Generator[Point, Score, Point]:
    """Search. Yields a point to measure, is sent its score, and returns the best point that it came to.

    Args:
        lengths: how many places each axis has.
        starts: points to begin with, at least one. The search climbs from the best of them.
        most: points to measure.
        pairs: axes that are changed two at a time where no single step helps.
        margin: by what share a step has to be better.
        known: scores of points that were measured before, which count as measured.
    """
    known = dict(known or {})
    best = starts[0]
    moves = [*_single_moves(lengths), *_paired_moves(len(lengths), pairs)]
    for start in starts:
        if start not in known and len(known) < most:
            known[start] = yield start
            if known[start].beats(known[best]):
                best = start
    climbs = True
    while climbs:
        climbs = False
        for move in moves:
            while (point := _moved(best, move, lengths)) is not None:
                if point not in known:
                    if len(known) >= most:
                        return best
                    known[point] = yield point
                if not known[point].beats(known[best], margin):
                    break
                best, climbs = point, True
    return best


def _single_moves(lengths: Sequence[int]) -> list[Point]:
    """One step on an axis up or down, then two, over a dip; then, where there are few values, what is left of them."""
    return [
        tuple(size * sign if place == axis else 0 for place in range(len(lengths)))
        for size in (1, 2, 3)
        for axis, length in enumerate(lengths)
        if size < length <= _FEW or size <= 2 < length
        for sign in (1, -1)
    ]


def _paired_moves(count: int, pairs: Sequence[tuple[int, int]]) -> list[Point]:
    return [
        tuple(first if place == one else second if place == other else 0 for place in range(count))
        for one, other in pairs
        for first, second in product((1, -1), repeat=2)
    ]


def _moved(point: Point, move: Point, lengths: Sequence[int]) -> Point | None:
    """The point after a move; None if that is outside."""
    moved = tuple(place + step for place, step in zip(point, move, strict=True))
    return moved if all(0 <= place < length for place, length in zip(moved, lengths, strict=True)) else None


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """``a`` and ``b`` of time = a + b x rows, by least squares; neither is below 0.

    Args:
        points: rows and times, with at least two numbers of rows.
    """
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)
    return max(0.0, mean_y - slope * mean_x), slope


def batch_of_profile(fixed: float, per_row: float, most_rows: int, bound: float | None = None) -> int:
    """The rows of a batch to begin with: as many as make what a run costs by itself a tenth of its time.

    Args:
        fixed, per_row: time of a run = fixed + per_row x rows.
        most_rows: of a batch.
        bound: on the latency, in the same unit; a request may have to wait for another batch first.
    """
    rows = most_rows if per_row <= 0 else fixed / per_row * (1 - _OVERHEAD) / _OVERHEAD
    if bound is not None and per_row > 0:
        rows = min(rows, (bound / 2 - fixed) / per_row)
    return int(max(1, min(rows, most_rows)))
