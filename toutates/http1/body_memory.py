"""What a driver may hand in, so that large bodies are received straight into memory of their own."""

from __future__ import annotations

from typing import Any, Protocol

from toutates.http1.head import Head

__all__ = ["BodyMemory", "MakeMemory"]


class BodyMemory(Protocol):
    """The memory of one body, which belongs to the driver.

    Attributes:
        missing: bytes of the body that have not come.
        held_bytes: bytes of memory that count as taken.
    """

    missing: int
    held_bytes: int

    def room(self) -> memoryview:
        """Where the next bytes belong, or some of them; not empty while some are missing."""
        ...

    def advance(self, count: int) -> None:
        """``count`` bytes are in ``room``."""
        ...

    def add(self, part: bytes, /) -> None:
        """Copy the next bytes."""
        ...

    def take(self) -> Any:
        """The whole body, which is a part of its buffer: ``len`` bytes from the attribute ``start`` on."""
        ...

    def drop(self) -> None:
        """The body will never be whole."""
        ...


class MakeMemory(Protocol):
    """Makes the memory of a body; None where there is to be none."""

    def __call__(self, head: Head, least: int, /) -> BodyMemory | None:
        """Memory of the body of a request, of which ``least`` bytes are there."""
        ...
