from __future__ import annotations

from toutates.system.logs.limit import LineLimit, Told, few


def test_lines_pass_up_to_their_limit_and_the_rest_is_counted_and_reported() -> None:
    ended: list[tuple[str, int]] = []
    limit: LineLimit[str] = LineLimit(lambda kind, left_out: ended.append((kind, left_out)), period_ns=10)
    assert [limit.count("a", now, 2) for now in (0, 1, 2, 9)] == [0, 0, 1, 2]
    assert limit.count("b", 5) == 0
    assert (limit.next_ns, limit.left_out) == (10, 2)
    limit.flush(9)
    assert not ended
    # The period began with its first line.
    assert limit.count("a", 10, 2) == 0
    assert ended == [("a", 2)]
    assert limit.next_ns is None
    assert limit.count("b", 14) == 1
    limit.flush(15)
    assert ended == [("a", 2), ("b", 1)]
    assert limit.count("b", 15) == 0
    assert limit.left_out == 3


def test_kinds_are_bounded_and_only_those_with_nothing_to_report_are_forgotten() -> None:
    limit: LineLimit[int] = LineLimit(period_ns=10, max_kinds=2)
    for kind in (1, 2, 2):
        assert limit.has_room(kind, 0)
        limit.count(kind, 0)
    assert limit.has_room(1, 0)
    assert not limit.has_room(3, 9)
    assert limit.has_room(3, 10)
    assert limit.next_ns == 10
    limit.count(3, 10)
    assert not limit.has_room(1, 10)


def test_only_what_is_new_is_told() -> None:
    told = Told()
    assert told.news("a", ["x", "y"]) == ["x", "y"]
    assert told.news("a", ["x", "y", "z"]) == ["z"]
    assert told.news("b", ["x"]) == ["x"]
    assert told.news("a", ["z"]) == []
    assert told.news("a", ["x", "z"]) == ["x"]  # it was gone meanwhile
    assert (told.last("b"), told.last("c")) == ("x", "")
    assert told.forget("b")
    assert not told.forget("b")
    assert told.news("b", ["x"]) == ["x"]
    assert told.news("b", []) == []
    assert not told.forget("b")


def test_the_same_is_told_again_after_a_while() -> None:
    now = 0.0
    told = Told(60.0, lambda: now)
    assert told.news("a", ["x"]) == ["x"]
    now = 59.0
    assert told.news("a", ["x", "y"]) == ["y"]
    now = 60.0
    assert told.news("a", ["x", "y"]) == ["x"]
    now = 119.0
    assert told.news("a", ["x", "y"]) == ["y"]


def test_of_many_texts_a_few_are_shown() -> None:
    texts = [str(number) for number in range(12)]
    assert few(texts[:10]) == texts[:10]
    assert few(texts) == [*texts[:10], "and 2 more like these"]
