"""Tensors that are dear to take apart: many strings, numbers as protobuf has them, and all of an output as classes."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from fuzz.attacks.bombs import Bomb
from fuzz.attacks.wire import field, framed, infer_message, varint

__all__ = ["Classes", "FailingStrings", "LargeRows", "ManyStrings", "SurplusStrings", "TypedStrings", "UnpackedNumbers"]

_MEGABYTES: Final = 20
#: The status of a refusal, and of nothing wrong.
_REFUSED: Final = ("grpc-status 3",)


def _typed(model: str, datatype: str, shape: list[int], contents: bytes) -> bytes:
    """A request whose one input has typed contents."""
    tensor = field(1, b"INPUT") + field(2, datatype.encode()) + field(3, b"".join(map(varint, shape)))
    return field(1, model.encode()) + field(5, tensor + field(5, contents))


class SurplusStrings(Bomb):
    """Millions of empty strings for a shape of ten."""

    name = "surplus-strings"
    summary = f"{_MEGABYTES} MB of empty BYTES elements, for a shape of 10"
    limit = "no more elements are looked for than the shape asks for: INVALID_ARGUMENT"
    stops = _REFUSED
    ahead = 1

    @cached_property
    def body(self) -> bytes:
        return framed(infer_message("strings", [1, 10], bytes(_MEGABYTES * 1_000_000), "BYTES"))


class ManyStrings(Bomb):
    """The same for a shape of as many."""

    name = "many-strings"
    summary = f"{_MEGABYTES} MB of empty BYTES elements, for a shape of as many"
    limit = "1,048,576 elements, looked for in an executor's thread: INVALID_ARGUMENT"
    stops = _REFUSED
    ahead = 1

    @cached_property
    def body(self) -> bytes:
        size = _MEGABYTES * 1_000_000
        return framed(infer_message("strings", [1, size // 4], bytes(size), "BYTES"))


class FailingStrings(Bomb):
    """Large strings that are run in the memory they came in, and fail there."""

    name = "failing-strings"
    summary = "BYTES elements of 4 MB that say no number, to a model that reads numbers; each fourth says one"
    limit = "a message's memory is let go with its run, whatever keeps the error: INTERNAL"
    stops = ("grpc-status 0", "grpc-status 13")

    @cached_property
    def _bodies(self) -> tuple[bytes, bytes]:
        return self._saying(b"12.5"), self._saying(b"none")

    def _saying(self, text: bytes) -> bytes:
        size = 4_000_000
        content = size.to_bytes(4, "little") + text.rjust(size)
        return framed(infer_message("numbers", [1, 1], content, "BYTES"))

    @cached_property
    def body(self) -> bytes:
        return self._bodies[0]

    def body_for(self, stream_id: int) -> bytes:
        return self._bodies[stream_id // 2 % 4 > 0]


class TypedStrings(Bomb):
    """Millions of empty strings as fields of protobuf."""

    name = "typed-strings"
    summary = f"{_MEGABYTES} MB of `bytes_contents` without bytes"
    limit = "8,192 `bytes_contents` in a large request, read without protobuf: INVALID_ARGUMENT"
    stops = _REFUSED
    ahead = 1

    @cached_property
    def body(self) -> bytes:
        count = _MEGABYTES * 500_000
        return framed(_typed("strings", "BYTES", [1, count], b"\x42\0" * count))


class UnpackedNumbers(Bomb):
    """Numbers each with a tag of its own, which protobuf's pure-Python parser takes 2 us for."""

    name = "unpacked-numbers"
    summary = f"{_MEGABYTES} MB of `fp32_contents`, not packed"
    limit = "typed contents above 32 KiB have to be packed, and are read without protobuf: INVALID_ARGUMENT"
    stops = _REFUSED
    ahead = 1

    @cached_property
    def body(self) -> bytes:
        count = _MEGABYTES * 200_000
        return framed(_typed("shapes", "FP32", [1, count], b"\x35\0\0\0\0" * count))


class LargeRows(Bomb):
    """Ordinary requests that are as large as they may be, of numbers and of strings in turns."""

    name = "large-rows"
    summary = "60 MB of FP32 and of BYTES in turns, one row each"
    limit = "rows are copied in steps of 4 MiB, with others' requests between them, and strings not at all"
    stops = ("grpc-status 0", "grpc-status 8")  # the latter where a connection may hold less
    connections = 1
    ahead = 1

    @cached_property
    def _bodies(self) -> tuple[bytes, bytes]:
        numbers, size = 15_000_000, 6_000_000
        strings = (size.to_bytes(4, "little") + bytes(size)) * 10
        return (
            framed(infer_message("shapes", [1, numbers], bytes(4 * numbers), "FP32")),
            framed(infer_message("strings", [1, 10], strings, "BYTES")),
        )

    @cached_property
    def body(self) -> bytes:
        return self._bodies[0]

    def body_for(self, stream_id: int) -> bytes:
        return self._bodies[stream_id // 2 % 2]


class Classes(Bomb):
    """All values of a large output, sorted."""

    name = "classes"
    summary = "3 rows of 262,144 values, all of them as classes, and one class of each"
    limit = "16,384 classes per output, for which the others are not sorted: INVALID_ARGUMENT"
    stops = ("grpc-status 0", *_REFUSED)
    ahead = 1

    @cached_property
    def _bodies(self) -> tuple[bytes, bytes]:
        return self._asking(262_144), self._asking(1)

    def _asking(self, classes: int) -> bytes:
        parameter = field(1, b"classification") + field(2, b"\x10" + varint(classes))
        output = field(6, field(1, b"OUTPUT") + field(2, parameter))
        return framed(infer_message("shapes", [3, 262_144], bytes(4 * 3 * 262_144), "FP32", rest=output))

    @cached_property
    def body(self) -> bytes:
        return self._bodies[0]

    def body_for(self, stream_id: int) -> bytes:
        return self._bodies[stream_id // 2 % 2]
