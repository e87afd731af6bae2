"""Plots as SVG that stands in a page: lines, bars and marks between two axes. Colours are the page's variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

__all__ = ["Bars", "Line", "Plot", "draw", "shown"]

_WIDTH, _HEIGHT = 540, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 48
#: Of an axis from its lower to its upper end, as a share of what is there.
_LEAST_SPREAD: Final = 0.1


@dataclass(frozen=True, slots=True)
class Line:
    """Points that a line joins.

    Attributes:
        name: in the legend.
        points: x and y.
        colour: of the page's palette, 1 to 4.
        marked: whether points have marks.
        dashed: whether the line is.
        spans: of y, beside each point; empty for none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 1
    marked: bool = False
    dashed: bool = False
    spans: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from the x axis up: left end, right end and height of each."""

    bars: Sequence[tuple[float, float, float]]
    colour: int = 1


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    Attributes:
        title: what it shows, for those who do not see it too.
        x, y: what the axes are.
        lines, bars: what is drawn.
        log_x, log_y: whether an axis is logarithmic.
        ticks_x: places and texts; empty for those that fit.
        level: a line across, and its text.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line] = ()
    bars: Sequence[Bars] = ()
    log_x: bool = False
    log_y: bool = False
    ticks_x: Sequence[tuple[float, str]] = ()
    level: tuple[float, str] | None = None
    lowest_y: float | None = field(default=0.0)


def shown(value: float) -> str:
    """A number with as many digits as mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class _Scale:
    def __init__(
        self, values: Sequence[float], begin: float, end: float, logarithmic: bool, lowest: float | None
    ) -> None:
        low, high = min(values), max(values)
        self.logarithmic = logarithmic
        if logarithmic:
            low, high = max(low, 1e-9), max(high, 1e-9)
            if high < low * 1.5:
                low, high = low / 1.5, high * 1.5
        else:
            low = low if lowest is None else min(low, lowest)
            # Else ticks, whose texts have three digits, would have the same text.
            lacking = _LEAST_SPREAD * max(abs(low), abs(high)) - (high - low)
            if lacking > 0:
                low, high = low - lacking / 2, high + lacking / 2
            if high <= low:
                high = low + 1
            high += (high - low) * 0.05
        self._low, self._high, self._begin, self._end = low, high, begin, end

    def __call__(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(max(value, 1e-9) / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low)
        return round(self._begin + share * (self._end - self._begin), 1)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            decades = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
            steps: Sequence[int] = (1, 2, 5) if len(decades) <= 4 else (1,)
            return [
                step * 10.0**power
                for power in decades
                for step in steps
                if self._low <= step * 10.0**power <= self._high
            ]
        raw = (self._high - self._low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
        first = math.ceil(self._low / step - 1e-9)
        return [place * step for place in range(first, math.floor(self._high / step + 1e-9) + 1)]


def draw(plot: Plot) -> str:
    """The plot as an element of a page; "" where there is nothing to draw."""
    xs = [x for line in plot.lines for x, _ in line.points]
    xs += [x for group in plot.bars for bar in group.bars for x in bar[:2]]
    ys = [y for line in plot.lines for _, y in line.points]
    ys += [y for line in plot.lines for span in line.spans for y in span]
    ys += [bar[2] for group in plot.bars for bar in group.bars]
    if plot.level:
        ys.append(plot.level[0])
    if not xs or not ys:
        return ""
    x = _Scale(xs, _LEFT, _WIDTH - _RIGHT, plot.log_x, None)
    y = _Scale(ys, _HEIGHT - _BOTTOM, _TOP, plot.log_y, plot.lowest_y)
    parts = [_grid(plot, x, y)]
    parts += [_draw_bars(group, x, y) for group in plot.bars]
    parts += [_draw_line(line, x, y) for line in plot.lines]
    if plot.level:
        at = y(plot.level[0])
        parts.append(
            f'<line class="level" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
            f'<text class="level" x="{_WIDTH - _RIGHT}" y="{at - 5}" text-anchor="end">{escape(plot.level[1])}</text>'
        )
    named = [line for line in plot.lines if line.name]
    legend = "".join(f'<span><i class="c{line.colour}"></i>{escape(line.name)}</span>' for line in named)
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(plot.title)}">{"".join(parts)}</svg>'
    note = f'<p class="legend">{legend}</p>' if len(named) > 1 else ""
    return f"<figure><figcaption>{escape(plot.title)}</figcaption>{note}{svg}</figure>"


def _grid(plot: Plot, x: _Scale, y: _Scale) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in y.ticks():
        at = y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{shown(value)}</text>')
    for value, text in plot.ticks_x or [(value, shown(value)) for value in x.ticks()]:
        at = x(value)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="name" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(plot.x)}</text>')
    across = (bottom + _TOP) / 2
    parts.append(
        f'<text class="name" transform="translate(14 {across}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y)}</text>"
    )
    return "".join(parts)


def _draw_bars(group: Bars, x: _Scale, y: _Scale) -> str:
    bottom = _HEIGHT - _BOTTOM
    return "".join(
        f'<rect class="c{group.colour}" x="{x(left)}" y="{y(height)}" width="{max(0.5, x(right) - x(left) - 0.5):.1f}" '
        f'height="{max(0.0, bottom - y(height)):.1f}"/>'
        for left, right, height in group.bars
    )


_MARK: Final = 3.5


def _draw_line(line: Line, x: _Scale, y: _Scale) -> str:
    path = " ".join(f"{x(at)},{y(value)}" for at, value in line.points)
    kind = f"c{line.colour}{' dashed' if line.dashed else ''}"
    parts = [f'<polyline class="{kind}" points="{path}"/>'] if len(line.points) > 1 else []
    for (at, _), (low, high) in zip(line.points, line.spans, strict=False):
        parts.append(f'<line class="{kind}" x1="{x(at)}" x2="{x(at)}" y1="{y(low)}" y2="{y(high)}"/>')
    if line.marked or len(line.points) == 1:
        parts += [
            f'<circle class="c{line.colour}" cx="{x(at)}" cy="{y(value)}" r="{_MARK}">'
            f"<title>{shown(at)}: {shown(value)}</title></circle>"
            for at, value in line.points
        ]
    return "".join(parts)
