"""Answers of outputs below four bytes a row, in which no pattern can be told from a value.

They are asked of two servers whose patterns differ in every byte. What the same request gets of both is the same,
unless it follows the patterns.
"""

from __future__ import annotations

from typing import Final

from tests.e2e.process import VARIABLE

__all__ = ["PATTERNS", "VARIABLE", "follows"]

#: Values of the variable, one for each server.
PATTERNS: Final = (bytes(range(0x80, 0x90)).hex(), bytes(range(0xA0, 0xB0)).hex())


def follows(answers: tuple[bytes, bytes]) -> bool:
    """Whether a byte of the answers of both servers to one request is that of their patterns at one place."""
    first, second = (bytes.fromhex(pattern) for pattern in PATTERNS)
    places = set(zip(first, second, strict=True))
    return any(pair in places for pair in zip(*answers, strict=True))
