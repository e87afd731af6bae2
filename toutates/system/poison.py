"""A test mode in which memory that nobody has written is found in answers: buffers are filled with a pattern.

It is on where the environment variable ``TOUTATES_TEST_POISON`` is set when buffers' owners are made: to ``1`` for a
random pattern, or to the 32 hexadecimal digits of a certain one. Where it is off, no request executes an instruction
for it: whoever owns buffers asks ``current`` once, when it is made.

All bytes of a pattern differ and are from 0x80 to 0xfe. So it is no text in ASCII, no truth value and not NaN, zeros
are none of it, and each byte says which of the 16 it is. Strings that nobody has written are 15 bytes of it, so many as
a string of ONNX Runtime has inside itself.
"""

from __future__ import annotations

import functools
import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from toutates.system.errors import ConfigurationError, ExecutionFailed

__all__ = ["FOUND", "VARIABLE", "Poison", "Refilled", "current"]

logger = logging.getLogger(__name__)

V = TypeVar("V")

#: The environment variable that switches the mode on.
VARIABLE: Final = "TOUTATES_TEST_POISON"
_VARIABLE: Final = os.fsencode(VARIABLE)
#: What ``os.environ`` looks into: it takes 3 us to say that it has no such variable, and every load asks some times.
_ENVIRONMENT: Final[Mapping[bytes, bytes]] = getattr(os.environ, "_data", os.environb)
#: Bytes of a pattern, and how many of them in a row are no chance: among 10**12 random bytes, one in a million times.
SIZE: Final = 16
HIT: Final = 8
#: The shortest content that says anything by itself.
LEAST: Final = 4
#: What every line begins with that says that an answer was refused.
FOUND: Final = "memory that nobody wrote"


class Poison:
    """A pattern, which buffers are filled with and answers are searched for. Any thread may use it.

    Args:
        pattern: 16 different bytes from 0x80 to 0xfe.

    Attributes:
        pattern: as given.
        string: what a string has that nobody has written.
        hits: outputs in which it was found.

    Raises:
        ValueError: the pattern is another one.
    """

    def __init__(self, pattern: bytes) -> None:
        if len(set(pattern)) != len(pattern) or len(pattern) != SIZE or min(pattern) < 0x80 or max(pattern) > 0xFE:
            raise ValueError("a pattern is 16 different bytes from 0x80 to 0xfe")
        self.pattern = pattern
        self.string = pattern[: SIZE - 1]
        self.hits = 0
        self._twice = 2 * pattern
        self._block = np.frombuffer(pattern, np.uint8)
        self._windows = frozenset(self._twice[at : at + HIT] for at in range(SIZE))
        #: whether two bytes, as a number, are neighbours in the pattern
        self._pairs = np.zeros(65_536, np.bool_)
        ends = self._twice[: SIZE + 1]
        self._pairs[[int(np.frombuffer(ends[at : at + 2], np.uint16)[0]) for at in range(SIZE)]] = True

    @classmethod
    def drawn(cls) -> Poison:
        """One of a random pattern."""
        return cls(bytes(random.SystemRandom().sample(range(0x80, 0xFF), SIZE)))

    def tell(self) -> None:
        """Log which pattern it is."""
        logger.info(
            "%s: buffers are filled with the pattern %s, which answers are searched for", VARIABLE, self.pattern.hex()
        )

    def fill(self, array: npt.NDArray[Any]) -> None:
        """Fill a C-contiguous array, from its first byte on; one of objects with strings."""
        if array.dtype.hasobject:
            array.fill(self.string)
            return
        content = array.reshape(-1).view(np.uint8)
        whole = len(content) // SIZE * SIZE
        content[:whole].reshape(-1, SIZE)[:] = self._block
        content[whole:] = self._block[: len(content) - whole]

    def filling(self, allocate: Callable[..., npt.NDArray[Any]]) -> Callable[..., npt.NDArray[Any]]:
        """What makes arrays as ``allocate`` does, and fills them."""

        def filled(*arguments: Any) -> npt.NDArray[Any]:
            array = allocate(*arguments)
            self.fill(array)
            return array

        return filled

    def is_in(self, content: bytes | memoryview | npt.NDArray[np.uint8]) -> bool:
        """Whether eight bytes of the pattern in a row are in a content, wherever they begin."""
        found = np.frombuffer(content, np.uint8)
        if len(found) < HIT:
            return False
        # Of eight bytes in a row three pairs at least begin at an even place.
        pairs = self._pairs[found[: len(found) // 2 * 2].view(np.uint16)]
        if not pairs.any():
            return False
        for at in np.flatnonzero(pairs[:-2] & pairs[1:-1] & pairs[2:]).tolist():
            for start in range(max(2 * at - 2, 0), 2 * at + 1):
                if found[start : start + HIT].tobytes() in self._windows:
                    return True
        return False

    def is_in_rows(self, content: bytes | memoryview | npt.NDArray[np.uint8], row_bytes: int, first: int = 0) -> bool:
        """Whether the pattern is in a content, or is the whole of a row of fewer than eight bytes.

        Args:
            content: whole rows.
            row_bytes: of one row. Rows of fewer than four bytes say nothing by themselves: servers with different
                patterns are to be compared.
            first: the first of the rows, in a buffer that was filled from row 0 on.
        """
        if LEAST <= row_bytes < HIT:
            own = np.frombuffer(content, np.uint8).tobytes()
            for start in range(0, len(own), row_bytes):
                place = (first * row_bytes + start) % SIZE
                if own[start : start + row_bytes] == self._twice[place : place + row_bytes]:
                    return True
        return self.is_in(content)

    def found_in(self, model: str, output: str) -> ExecutionFailed:
        """The error of a request whose output has the pattern, which is logged."""
        self.hits += 1
        logger.error(
            "%s is in output '%s' of model '%s': the pattern %s was found, and the request has failed",
            FOUND,
            output,
            model,
            self.pattern.hex(),
            extra={"model": model},
        )
        return ExecutionFailed(
            f"output '{output}' of model '{model}' has {FOUND}: the pattern of {VARIABLE} was found in it"
        )


class Refilled(dict[object, V]):
    """A table of what has buffers that are used again: ``get`` fills them.

    Args:
        poison: that they are filled with.
        buffers: those of a value.
    """

    def __init__(self, poison: Poison, buffers: Callable[[V], Iterable[npt.NDArray[Any]]]) -> None:
        super().__init__()
        self._poison = poison
        self._buffers = buffers

    def get(self, key: object, default: Any = None, /) -> Any:
        """The value of a key, whose buffers are about to be used."""
        value = super().get(key)
        if value is None:
            return default
        for array in self._buffers(value):
            self._poison.fill(array)
        return value


def current() -> Poison | None:
    """The pattern of this process; None where the mode is off, as it is for everybody but tests.

    Raises:
        ConfigurationError: ``TOUTATES_TEST_POISON`` has another value than it may have.
    """
    if _VARIABLE not in _ENVIRONMENT:
        return None
    said = os.environ.get(VARIABLE, "0")
    return None if said in ("", "0") else _of(said, os.getpid())


@functools.lru_cache(maxsize=1)
def _of(said: str, process: int) -> Poison:
    """The pattern of a value of the variable. A process that was forked draws one of its own."""
    try:
        return Poison.drawn() if said == "1" else Poison(bytes.fromhex(said))
    except ValueError:
        raise ConfigurationError(
            "is neither 1 nor the 32 hexadecimal digits of 16 different bytes from 80 to fe", key=VARIABLE, value=said
        ) from None
