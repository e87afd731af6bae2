"""How many regions of shared memory there may be, and of how many bytes: of all callers, and of each who is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toutates.system.errors import Overloaded

__all__ = ["RegionRoom"]

#: Half of all is for the shares of the holders, the other half for whoever comes first.
_SHARED: Final = 2


class RegionRoom:
    """Counts regions. Not thread-safe.

    Where regions have owners, each holder has a share of its own, which others never get. An owner is a holder, or one
    of several of the same holder, as the subjects of an issuer are: such an owner has to leave the others of its holder
    as much as it has itself.

    Args:
        most: regions.
        most_bytes: of all regions together.
        holders: asked for those who have a share, another object after each change; None where all regions are of one,
            who may have all of it.
    """

    def __init__(self, most: int, most_bytes: int, holders: Callable[[], frozenset[str]] | None = None) -> None:
        self._holders = holders
        self._regions = _Amount(most)
        self._bytes = _Amount(most_bytes)

    @property
    def used(self) -> tuple[int, int]:
        """Regions, and their bytes."""
        return self._regions.used, self._bytes.used

    def refuse_unless(self, owner: str, told: str, size: int = 0) -> None:
        """Refuse a region for which there is no room; what others have stays untold.

        Args:
            owner: whose it will be; what stands before the first ``\\x01`` is the holder.
            told: its name.
            size: bytes.

        Raises:
            Overloaded: there are too many, or too large ones.
        """
        refused, regions, held = f"cannot register shared memory region '{told}'", self._regions, self._bytes
        if self._holders is None:
            if regions.used >= regions.most:
                raise Overloaded(
                    f"{refused}: {regions.most} are registered, and that is the most; unregister those that are not "
                    "used"
                )
            if held.used + size > held.most:
                raise Overloaded(
                    f"{refused} of {size} bytes: {held.used} are registered, and {held.most} is the most; unregister "
                    "regions that are not used"
                )
            return
        holders = self._holders()
        if not (regions.has_room(owner, 1, holders) and held.has_room(owner, size, holders)):
            of_size = f" of {size} bytes" if size else ""
            raise Overloaded(
                f"{refused}{of_size}: this caller has {regions.of(owner)}, of {held.of(owner)} bytes, and there is no "
                "room for more now; unregister those that are not used"
            )

    def change(self, owner: str, regions: int, size: int) -> None:
        """Count regions of so many bytes that have come, or, with numbers below 0, have gone."""
        self._regions.change(owner, regions)
        self._bytes.change(owner, size)


class _Amount:
    """What there is of something, and who has how much of it.

    Attributes:
        most: there may be.
        used: of that.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        #: of owners and holders who have any
        self._held: dict[str, int] = {}
        self._holders: frozenset[str] = frozenset()
        self._share = 0
        #: what is left of the shares of all holders
        self._promised = 0

    def of(self, owner: str) -> int:
        return self._held.get(owner, 0)

    def has_room(self, owner: str, more: int, holders: frozenset[str]) -> bool:
        if holders is not self._holders:
            self._holders = holders
            self._share = max(self.most // _SHARED // max(len(holders), 1), 1)
            self._promised = sum(map(self._left_of, holders))
        holder = _holder(owner)
        own, free = self._left_of(holder), self.most - self.used
        # More may be promised than is free, because the holders have changed.
        room = min(max(free - self._promised + own, own), free)
        if owner == holder:
            return more <= room
        # One more, so that the last one that is free is somebody's.
        return self.of(owner) + more <= room - more + 1

    def _left_of(self, holder: str) -> int:
        """What is left of a holder's share."""
        return max(self._share - self.of(holder), 0) if holder in self._holders else 0

    def change(self, owner: str, more: int) -> None:
        holder = _holder(owner)
        before = self._left_of(holder)
        for name in {owner, holder}:
            held = self._held.pop(name, 0) + more
            if held:
                self._held[name] = held
        self._promised += self._left_of(holder) - before
        self.used += more


def _holder(owner: str) -> str:
    return owner.partition("\x01")[0]
