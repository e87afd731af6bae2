"""How often the garbage collector visits everything."""

from __future__ import annotations

import gc

import pytest

from toutates.system.garbage import rare_full_collections


def test_thresholds_are_as_before_after_the_block() -> None:
    before = gc.get_threshold()
    with rare_full_collections():
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 100 * max(before[2], 1)
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="no"), rare_full_collections():
        raise ValueError("no")
    assert gc.get_threshold() == before
