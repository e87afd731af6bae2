"""Plots: what stands at their axes."""

from __future__ import annotations

import re

import pytest

from toutates.bench.svg import Line, Plot, draw


def texts_below(plot: str) -> list[str]:
    """The texts of the ticks at the x axis."""
    return re.findall(r'y="270" text-anchor="middle">([^<]*)<', plot)


@pytest.mark.parametrize(
    "rates", [[12_000.0], [3.0], [0.02], [987.6], [0.0], [1_000.0, 1_001.0], [99_999.0, 100_000.0]]
)
def test_ticks_of_rates_that_are_one_or_close_together_differ(rates: list[float]) -> None:
    texts = texts_below(
        draw(Plot("tried", "requests/s", "ms", [Line("", [(rate, 1.0) for rate in rates])], log_y=True))
    )
    assert len(texts) >= 2
    assert len(set(texts)) == len(texts)


def test_points_lie_between_the_ends_of_the_axis() -> None:
    plot = draw(Plot("tried", "requests/s", "ms", [Line("", [(12_000.0, 1.0)], marked=True)], log_y=True))
    [place] = re.findall(r'<circle class="c1" cx="([^"]*)"', plot)
    assert 64 < float(place) < 524


def test_an_axis_with_room_is_as_it_was() -> None:
    plot = draw(Plot("tried", "requests/s", "ms", [Line("", [(0.0, 1.0), (100.0, 2.0)])]))
    assert texts_below(plot) == ["0", "25", "50", "75", "100"]
