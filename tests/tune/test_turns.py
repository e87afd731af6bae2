"""What is said of two configurations that were measured in turns."""

from __future__ import annotations

import math

import pytest

from toutates.tune.turns import Verdict, verdict_of


def test_an_interval_is_shown_with_its_blocks() -> None:
    verdict = verdict_of([math.log(1.10), math.log(1.11), math.log(1.12)])
    assert verdict.text() == "+11.0% (+5.4% to +16.9%, 3 blocks in turns)"
    assert verdict.better


@pytest.mark.parametrize("ratios", [[1.0, 1.5], [0.5, 2.0], [0.2, 5.0, 1.0]])
def test_an_interval_that_says_nothing_is_not_shown(ratios: list[float]) -> None:
    verdict = verdict_of([math.log(one) for one in ratios])
    told = f"({len(ratios)} blocks in turns differ too much to say how certain that is)"
    assert verdict.text() == f"{verdict.ratio - 1:+.1%} {told}"
    assert not verdict.better


def test_two_blocks_that_agree_have_an_interval() -> None:
    assert Verdict(1.2, 1.1, 1.3, 2).text() == "+20.0% (+10.0% to +30.0%, 2 blocks in turns)"
