"""The pattern that buffers are filled with in tests, and how it is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from toutates.system.errors import ConfigurationError
from toutates.system.poison import VARIABLE, Poison, Refilled, current

POISON = Poison(bytes(range(0x90, 0xA0)))


def filled(size: int) -> bytes:
    array = np.zeros(size, np.uint8)
    POISON.fill(array)
    return array.tobytes()


@pytest.mark.parametrize("before", range(18))
@pytest.mark.parametrize("phase", range(16))
def test_eight_bytes_in_a_row_are_found_wherever_they_begin(before: int, phase: int) -> None:
    pattern = filled(64)[phase:]
    assert POISON.is_in(b"\1" * before + pattern[:8] + b"\1" * 5)
    assert POISON.is_in(b"\1" * before + pattern[:8])
    assert not POISON.is_in(b"\1" * before + pattern[:7] + b"\1" * 5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.bool_, np.uint8])
def test_arrays_of_any_type_and_size_are_filled_whole(dtype: type) -> None:
    for shape in ((), (1,), (3, 5), (2, 0), (33,)):
        array: npt.NDArray[Any] = np.zeros(shape, dtype)
        POISON.fill(array)
        content = array.tobytes()
        assert content == filled(len(content)) == (POISON.pattern * 20)[: len(content)]


def test_a_row_of_four_bytes_is_found_at_its_place_alone() -> None:
    content = filled(16)
    rows = b"\0\0\0\0" + content[4:8] + b"\0\0\0\0"
    assert POISON.is_in_rows(rows, 4)
    assert not POISON.is_in_rows(content[4:8], 4)
    assert POISON.is_in_rows(content[4:8], 4, first=1)
    assert POISON.is_in_rows(memoryview(rows), 4)
    assert POISON.is_in_rows(np.frombuffer(rows, np.uint8), 4)


def test_shorter_rows_say_nothing_by_themselves() -> None:
    assert not POISON.is_in_rows(filled(2), 2)
    assert not POISON.is_in_rows(filled(1), 1)
    assert POISON.is_in_rows(filled(8), 1)
    assert not POISON.is_in_rows(b"", 0)


def test_other_bytes_are_not_taken_for_it() -> None:
    random = np.random.default_rng(7)
    poison = Poison.drawn()
    assert not poison.is_in(random.bytes(8_000_000))
    assert not poison.is_in(random.normal(size=500_000).astype(np.float32).view(np.uint8))
    assert not poison.is_in(bytes(1_000_000))
    assert not poison.is_in(b"\xff" * 1_000_000)
    for pattern in (poison.pattern[::-1] * 100, poison.pattern[:7] * 100):
        assert not poison.is_in(pattern)


def test_buffers_that_are_used_again_are_filled_again() -> None:
    table: Refilled[npt.NDArray[np.float32]] = Refilled(POISON, lambda array: [array])
    table["a"] = np.zeros(4, np.float32)
    assert table.get("a").tobytes() == filled(16)
    assert table.get("b") is None


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for off in ("", "0"):
        monkeypatch.setenv(VARIABLE, off)
        assert current() is None
    monkeypatch.delenv(VARIABLE)
    assert current() is None
    monkeypatch.setenv(VARIABLE, "1")
    drawn = current()
    assert drawn is not None
    assert drawn is current()
    assert drawn.pattern != Poison.drawn().pattern
    monkeypatch.setenv(VARIABLE, POISON.pattern.hex())
    certain = current()
    assert certain is not None
    assert certain.pattern == POISON.pattern


@pytest.mark.parametrize("wrong", ["yes", "80", "8" * 32, bytes(range(16)).hex()])
def test_another_value_is_an_error_that_says_what_it_may_be(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, wrong)
    with pytest.raises(ConfigurationError, match="32 hexadecimal digits of 16 different bytes"):
        current()


def test_objects_are_strings_that_nobody_wrote() -> None:
    array = np.empty((2, 3), np.object_)
    POISON.fill(array)
    assert set(array.flat) == {POISON.string}
    assert POISON.is_in(POISON.string)
