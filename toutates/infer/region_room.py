"""How many regions of shared memory there may be, and of how many bytes: of all callers, and of each who is known."""

from __future__ import annotations

from typing import Final

from toutates.system.errors import Overloaded

__all__ = ["RegionRoom"]

#: Of all, one owner has a half at most, so that nobody takes everything.
_OF_ONE: Final = 2


class RegionRoom:
    """Counts regions. Not thread-safe.

    Args:
        most: regions.
        most_bytes: of all regions together.
        owned: whether regions belong to callers; else all are of one, who may have all of it.

    Attributes:
        used: regions, and their bytes.
    """

    def __init__(self, most: int, most_bytes: int, *, owned: bool) -> None:
        self._all = most, most_bytes
        self._each = (most // _OF_ONE, most_bytes // _OF_ONE) if owned else self._all
        self.used = 0, 0
        #: regions and bytes, of owners who have any
        self._owners: dict[str, tuple[int, int]] = {}

    def refuse_unless(self, owner: str, told: str, size: int = 0) -> None:
        """Refuse a region for which there is no room; what others have stays untold.

        Args:
            owner: whose it will be.
            told: its name.
            size: bytes.

        Raises:
            Overloaded: there are too many, or too large ones.
        """
        (number, held), (most, most_bytes) = self._owners.get(owner, (0, 0)), self._each
        refused = f"cannot register shared memory region '{told}'"
        if number >= most:
            raise Overloaded(
                f"{refused}: {most} are registered, and that is the most; unregister those that are not used"
            )
        if held + size > most_bytes:
            raise Overloaded(
                f"{refused} of {size} bytes: {held} are registered, and {most_bytes} is the most; unregister regions "
                "that are not used"
            )
        if self.used[0] >= self._all[0] or self.used[1] + size > self._all[1]:
            raise Overloaded(f"{refused} of {size} bytes: the regions of others leave no room for it now")

    def change(self, owner: str, regions: int, size: int) -> None:
        """Count regions of so many bytes that have come, or, with numbers below 0, have gone."""
        number, held = self._owners.pop(owner, (0, 0))
        if number + regions:
            self._owners[owner] = number + regions, held + size
        self.used = self.used[0] + regions, self.used[1] + size
