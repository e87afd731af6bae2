"""What waits for a peer keeps little more memory than it shows."""

from __future__ import annotations

import pytest

from toutates.h2grpc.output import SMALL_PART_BYTES, part_of_its_own


@pytest.mark.parametrize(("shown", "together"), [(1_000, 0), (1_000, 1_000), (500, 1_000)])
def test_part_is_copied_out_of_a_buffer_of_more_than_four_times_what_waits_of_it(shown: int, together: int) -> None:
    whole = bytearray(4 * 1_000 + SMALL_PART_BYTES)
    view = memoryview(whole)[:shown]
    assert part_of_its_own(view, together) is view
    larger = bytes(len(whole) + 1)
    part = part_of_its_own(memoryview(larger)[:shown], together)
    assert part == bytes(shown)
    assert part.obj is not larger
