"""A sequence of names that are found one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

__all__ = ["FoundNames"]


class FoundNames(Sequence[str]):
    """Names that may have to be looked for, so that no more of them are found than somebody asks for."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Find them, in their order."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, int) and at >= 0:
            for name in islice(self, at, None):
                return name
            raise IndexError(at)
        return list(self)[at]
