"""The least rate of downloads: by time that is spent waiting, over windows, however the content is cut into answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from toutates.repositories.pace import CHUNK, Pace, Patience, TooSlow

RATE = 100


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def reading(self, pieces: Sequence[tuple[float, bytes]]) -> Callable[[int], bytes]:
        """Each piece comes after so many seconds."""
        left = list(pieces)

        def read(size: int) -> bytes:
            if not left:
                return b""
            took_s, piece = left.pop(0)
            assert len(piece) <= size
            self.now += took_s
            return piece

        return read


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_pieces_are_put_together_where_they_come_fast(clock: Clock) -> None:
    quarter = bytes(CHUNK // 4)
    found = list(Pace(Patience(RATE), clock).chunks(clock.reading([(0.0, quarter)] * 9)))
    assert [len(one) for one in found] == [CHUNK, CHUNK, CHUNK // 4]


def test_pieces_are_given_out_within_a_second_or_so_where_they_come_slowly(clock: Clock) -> None:
    found = list(Pace(Patience(RATE), clock).chunks(clock.reading([(0.6, bytes(100))] * 5)))
    assert [len(one) for one in found] == [200, 200, 100]


def test_what_came_before_a_cut_is_given_out_and_then_the_cut_is_raised(clock: Clock) -> None:
    """Or a server that ends each answer within a second would be asked for the same bytes for ever."""
    pieces = clock.reading([(0.1, b"ab"), (0.1, b"c")])

    def read(size: int) -> bytes:
        if piece := pieces(size):
            return piece
        raise ConnectionError("cut")

    chunks = Pace(Patience(RATE), clock).chunks(read)
    assert next(chunks) == b"abc"
    with pytest.raises(ConnectionError, match=r"^cut$"):
        next(chunks)


def test_a_byte_now_and_then_is_too_slow(clock: Clock) -> None:
    with pytest.raises(
        TooSlow, match=r"^6 bytes of it have come in 60 s, less than the 100 bytes per second of --down"
    ):
        list(Pace(Patience(RATE), clock).chunks(clock.reading([(10.0, b"x")] * 100)))
    assert clock.now == 60


def test_pauses_shorter_than_the_window_are_no_matter(clock: Clock) -> None:
    pieces = [(19.0, bytes(10)), (19.0, bytes(10)), (25.0, bytes(CHUNK // 2))] * 20
    assert sum(map(len, Pace(Patience(RATE), clock).chunks(clock.reading(pieces)))) == 20 * (CHUNK // 2 + 20)


def test_time_of_whoever_uses_the_content_does_not_count(clock: Clock) -> None:
    came = 0
    for chunk in Pace(Patience(RATE), clock).chunks(clock.reading([(1.0, bytes(200))] * 100)):
        clock.now += 1000.0
        came += len(chunk)
    assert came == 20_000


def test_answers_that_end_before_the_window_does_count_together(clock: Clock) -> None:
    """A server that cuts each answer off in time would not be found out otherwise."""
    one = Pace(Patience(RATE), clock)
    for answer in range(1, 20):
        try:
            list(one.chunks(clock.reading([(19.0, b"x"), (11.0, b"x")])))
        except TooSlow:
            pass
        assert one.misses == answer // 2


def test_a_rate_of_0_is_none(clock: Clock) -> None:
    assert sum(map(len, Pace(Patience(0), clock).chunks(clock.reading([(19.0, b"x")] * 1000)))) == 1000
