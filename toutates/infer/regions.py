"""The regions of shared memory that clients have registered: which there are, and who uses them now.

One table serves all workers, which look at it and leave all else to other threads: to open, read, write or close what
belongs to a client may take as long as he likes. A request has names of regions, which are looked up each time. From
then until the request is over its regions are *in use*: a region in use that is unregistered stays, and its name stays
taken, until its last request has ended. So a name means the same region for all of a request. Texts of errors are
Triton's.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from toutates.engine.result import BatchResult
from toutates.infer.region_room import RegionRoom
from toutates.net.side_thread import SideThread
from toutates.system.cuda import HANDLE_BYTES, Cuda, CudaError, DeviceMemory
from toutates.system.errors import (
    AlreadyExists,
    ExecutionFailed,
    InvalidRequest,
    RequestError,
    UnknownModel,
    Unsupported,
)
from toutates.system.logs.limit import LineLimit
from toutates.system.memory import available_memory
from toutates.system.shared_memory import SharedObject, object_name

__all__ = ["FLAG", "MOST_NAME_BYTES", "MOST_REGIONS", "Kind", "Memory", "Place", "Region", "Regions", "own_name"]

logger = logging.getLogger(__name__)

FLAG: Final = "--allow-client-shm"
#: Regions at the same time. Each has an open file, and all of them are told by one answer.
MOST_REGIONS: Final = 512
#: Longest name, and longest key, of a region, bytes.
MOST_NAME_BYTES: Final = 512
#: Keys of Triton's own segments begin so. Ours have no names.
_RESERVED: Final = "triton_python_backend_shm_region_"
_MOST: Final = 2**64 - 1

Buffer = bytes | bytearray | memoryview


def own_name(owner: str, name: str) -> str:
    """The name of a region in a table whose regions have owners: nobody else has it, whatever names are sent.

    Args:
        owner: a text without NUL.
        name: as the owner knows it; "" for all of its regions.
    """
    return f"{owner}\0{name}"


class Kind(Enum):
    """What a region is of; the values are Triton's words for it."""

    SYSTEM = "system"
    CUDA = "CUDA"


class Memory(Protocol):
    """What a region is a part of: an object of ``system.shared_memory``, or memory of a GPU of ``system.cuda``."""

    def read_into(self, view: bytearray | memoryview, offset: int) -> int: ...
    def write(self, pieces: Sequence[Buffer], offset: int, is_wanted: Callable[[], bool]) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a region a tensor is. Numbers are below 2**64, and not checked.

    Attributes:
        region: the region's name.
        offset: of the tensor in the region, bytes.
        byte_size: of the tensor; of an output the most that it may have.
    """

    region: str
    offset: int
    byte_size: int


@dataclass(slots=True, eq=False)
class Region:
    """A region.

    Attributes:
        name: by which requests name it; in a table whose regions have owners, see ``own_name``.
        kind: what it is of.
        key: of the object that it is a part of; "" for CUDA's.
        device: number of the GPU; 0 for system memory.
        offset: where it begins in its memory, bytes.
        byte_size: its size.
        memory: read and written by the threads beside workers.
        uses: by requests under way, one per place.
        leaving: whether it goes with the last of them.
    """

    name: str
    kind: Kind
    key: str
    device: int
    offset: int
    byte_size: int
    memory: Memory
    uses: int = 0
    leaving: bool = False

    @property
    def host_bytes(self) -> int:
        """Of its bytes, those that are in the host's memory."""
        return self.byte_size if self.kind is Kind.SYSTEM else 0


class Regions:
    """The table. Any thread may use it; its lock is held for constant time.

    Workers do not register, unregister, read and write.

    Args:
        allowed: whether clients may register regions.
        most: regions at the same time.
        most_bytes: of all regions of the host's memory together; None for the memory that the process may use. Those of
            GPUs are not bounded so: whoever registers one has the memory.
        cuda: of this process; None where there is none, or where regions are not allowed.
        gpus: whether there would be one if regions were allowed.
        holders: of an access file, asked for those who have a share, see ``RegionRoom``. Regions belong to their
            callers then, and ``own_name`` makes all names. None where they are everybody's.

    Attributes:
        has_cuda: whether memory of GPUs can be registered.
    """

    def __init__(
        self,
        *,
        allowed: bool = False,
        most: int = MOST_REGIONS,
        most_bytes: int | None = None,
        cuda: Cuda | None = None,
        gpus: bool = False,
        holders: Callable[[], frozenset[str]] | None = None,
    ) -> None:
        self._owned = holders is not None
        self._allowed = allowed
        self._cuda = cuda
        self.has_cuda = allowed and cuda is not None
        self._gpus = gpus or cuda is not None
        self._limit: LineLimit[str] = LineLimit()
        most_bytes = available_memory() if allowed and most_bytes is None else most_bytes or 0
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}
        #: what there is until it is closed
        self._room = RegionRoom(most, most_bytes, holders)
        #: what the last request has used, and the thread that closes it
        self._unclosed: deque[Region] = deque()
        self._closer = SideThread("regions", lambda then: None)

    @property
    def extensions(self) -> tuple[str, ...]:
        """Triton's names for what is offered, for ServerMetadata."""
        if not self._allowed:
            return ()
        return ("system_shared_memory", "cuda_shared_memory") if self.has_cuda else ("system_shared_memory",)

    def shown(self, name: str) -> str:
        """A region's name as its owner knows it."""
        return name.partition("\0")[2] if self._owned else name

    # --- registering -------------------------------------------------------------------------------------------------

    def refuse_unless_allowed(self) -> None:
        """Refuse a client that registers or unregisters unless the operator allows it.

        Raises:
            Unsupported: it is not allowed.
        """
        if not self._allowed:
            raise Unsupported(f"Client shared memory is disabled. Start the server with '{FLAG}=true' to enable.")

    def refuse_cuda_unless_allowed(self) -> None:
        """The same for memory of GPUs; where there are none nothing is refused, and nothing can be registered.

        Raises:
            Unsupported: it is not allowed.
        """
        if self._gpus:
            self.refuse_unless_allowed()

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of an object of POSIX shared memory. Blocks, as long as the object's owner likes.

        Args:
            name: of the region.
            key: the object's name.
            offset, byte_size: of the part, bytes.

        Raises:
            RequestError: in Triton's words.
        """
        told = self.shown(name)
        if not object_name(key):
            raise InvalidRequest(f"cannot register shared memory region '{told}' - invalid shm key '{key}'")
        if object_name(key).startswith(_RESERVED):
            raise InvalidRequest(
                f"cannot register shared memory region '{told}' with key '{key}' as the key contains the reserved "
                f"prefix '{_RESERVED}'"
            )
        self._check_new(name, key)
        try:
            memory = SharedObject(key)
        except (OSError, ValueError):
            raise ExecutionFailed(f"Unable to open shared memory region: '{key}'") from None
        try:
            if offset + byte_size > memory.size:
                raise InvalidRequest(f"failed to register shared memory region '{told}': invalid args")
            if not byte_size or offset % mmap.PAGESIZE:  # which Triton cannot map
                raise InvalidRequest(
                    f"failed to register shared memory region '{told}': unable to process address spaceInvalid argument"
                )
            self.add(Region(name, Kind.SYSTEM, key, 0, offset, byte_size, memory))
        except OSError:
            memory.close()
            raise ExecutionFailed(f"Invalid shared memory region: '{key}'") from None
        except BaseException:
            memory.close()
            raise

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> None:
        """Register memory of a GPU. Blocks, the first time on a GPU for as long as CUDA needs to start there.

        Args:
            name: of the region.
            handle: the 64 bytes of a ``cudaIpcMemHandle_t``.
            device: number of the GPU.
            byte_size: of the memory, from its beginning.

        Raises:
            RequestError: in Triton's words.
        """
        if self._cuda is None:
            told = self.shown(name)
            raise InvalidRequest(f"failed to register CUDA shared memory region: '{told}', GPUs not supported")
        self._check_new(name, "")
        if len(handle) != HANDLE_BYTES:
            raise InvalidRequest(
                f"failed to register shared memory region: invalid args: 'raw_handle' has {len(handle)} bytes, a "
                f"cudaIpcMemHandle_t has {HANDLE_BYTES}"
            )
        try:
            memory = self._cuda.open(device, handle)
        except CudaError as error:
            if not self._limit.count(str(error), time.monotonic_ns()):
                logger.info("a client's CUDA shared memory cannot be opened on GPU %d: %s", device, error)
            raise InvalidRequest("failed to register shared memory region: invalid args") from None
        try:
            if byte_size > memory.size:
                raise InvalidRequest(f"failed to register shared memory region '{self.shown(name)}': invalid args")
            self.add(Region(name, Kind.CUDA, "", device, 0, byte_size, memory))
        except BaseException:
            memory.close()
            raise

    def add(self, region: Region) -> None:
        """Enter a region, whose memory is the table's from now on.

        Raises:
            RequestError: its name is taken, or there are too many; its memory is the caller's still.
        """
        with self._lock:
            self._refuse_taken(region.name, region.host_bytes)
            self._regions[region.name] = region
            self._room.change(self._owner(region.name), 1, region.host_bytes)

    def _owner(self, name: str) -> str:
        return name.partition("\0")[0] if self._owned else ""

    def _check_new(self, name: str, key: str) -> None:
        for what, text in (("name", self.shown(name)), ("key", key)):
            size = len(text.encode())
            if size > MOST_NAME_BYTES:
                raise InvalidRequest(
                    f"cannot register a shared memory region whose {what} has {size} bytes, at most {MOST_NAME_BYTES} "
                    "are taken"
                )
        with self._lock:
            self._refuse_taken(name)

    def _refuse_taken(self, name: str, size: int = 0) -> None:
        """Call with the lock held."""
        told = self.shown(name)
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{told}' already in manager")
        self._room.refuse_unless(self._owner(name), told, size)

    def unregister(self, kind: Kind, name: str) -> None:
        """Unregister a region, or all of a kind if ``name`` is "" or its owner's "".

        Those in use leave when their requests are over. Blocks: whoever closes the last use of an object whose name is
        gone frees all of its memory.
        """
        with self._lock:
            gone = [region for region in self._named(name) if region.kind is kind]
            for region in gone:
                region.leaving = True
            gone = [region for region in gone if not region.uses]
            self._remove(gone)
        for region in gone:
            self._close(region)

    def close(self) -> None:
        """Unregister all regions, at the end of the server."""
        self._closer.stop()
        self._close_used()
        for kind in Kind:
            self.unregister(kind, "")

    def _named(self, name: str) -> list[Region]:
        """The region of a name, or all that it stands for. Call with the lock held."""
        if name and self.shown(name):
            region = self._regions.get(name)
            return [] if region is None else [region]
        return [region for region in self._regions.values() if region.name.startswith(name)]

    def _remove(self, regions: Sequence[Region]) -> None:
        """Call with the lock held."""
        for region in regions:
            del self._regions[region.name]

    def _close(self, region: Region) -> None:
        """Close what has been removed; it counts as its owner's until then."""
        try:
            region.memory.close()
        finally:
            with self._lock:
                self._room.change(self._owner(region.name), -1, -region.host_bytes)

    def _close_used(self) -> None:
        """Close what the last request has used."""
        while self._unclosed:
            self._close(self._unclosed.popleft())

    def status(self, kind: Kind, name: str) -> list[Region]:
        """The regions of a kind, or of its owner, or the one of a name that is not "".

        Raises:
            UnknownModel: there is none of that name and kind.
        """
        told = self.shown(name)
        if not told:
            with self._lock:
                return [region for region in self._named(name) if region.kind is kind]
        region = self._regions.get(name)
        if region is None:
            raise UnknownModel(f"Unable to find {kind.value.lower()} shared memory region: '{told}'")
        if region.kind is not kind:
            words = {Kind.SYSTEM: "system shared memory", Kind.CUDA: "CUDA shared memory"}
            raise UnknownModel(f"The region named '{told}' is registered as {words[region.kind]}, not {words[kind]}")
        return [region]

    # --- requests ----------------------------------------------------------------------------------------------------

    def check(self, place: Place) -> None:
        """See that a place is in a region that is registered.

        Raises:
            UnknownModel: there is no such region.
            InvalidRequest: the place is not in it.
        """
        name, offset, size = place.region, place.offset, place.byte_size
        region = self._regions.get(name)
        if region is None:
            raise UnknownModel(f"Unable to find shared memory region: '{self.shown(name)}'")
        if offset >= region.byte_size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{self.shown(name)}'")
        if offset + size > _MOST:
            raise InvalidRequest(
                f"Integer overflow detected: byte_size ({size}) + offset ({offset}) exceeds maximum value ({_MOST}) "
                f"for region '{self.shown(name)}'"
            )
        if offset + size > region.byte_size:
            raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{self.shown(name)}'")

    def acquire(self, places: Sequence[Place], known: Sequence[Region] = ()) -> Sequence[Region]:
        """Use the regions of these places, until ``release``.

        Args:
            places: where a request has its tensors.
            known: what was returned for the same places before. A region never changes its size, so a place that was in
                one that is still registered is in it still: that takes one look-up, in place of a check of 0.5 us.

        Returns:
            The region of each place.

        Raises:
            RequestError: as ``check``; none is used then.
        """
        named = self._regions
        with self._lock:
            for region in known:
                if named.get(region.name) is not region:
                    known = ()
                    break
            if not known:
                for place in places:
                    self.check(place)
                known = [named[place.region] for place in places]
            for region in known:
                region.uses += 1
        return known

    def release(self, regions: Sequence[Region]) -> None:
        """The request of an ``acquire``, which returned these, is over."""
        gone: list[Region] | None = None
        with self._lock:
            for region in regions:
                region.uses -= 1
                if region.leaving and not region.uses:
                    gone = gone or []
                    gone.append(region)
            if gone is None:
                return
            self._remove(gone)
        self._unclosed += gone
        try:
            self._closer.put(None, self._close_used)
        except RuntimeError:  # the system has no thread
            self._close_used()

    def releasing(self, finish: Callable[[BatchResult], None]) -> Callable[[BatchResult], None]:
        """A function that calls ``finish``, and then releases what the requests of a batch have acquired.

        Their contexts have a plan with ``shared`` tensors as their second part.
        """

        def finish_and_release(result: BatchResult) -> None:
            try:
                finish(result)
            finally:
                if not result.more:
                    for context, _, _, part in result.pending:
                        if part is None or not part[0].left:
                            context[1].shared.release()

        return finish_and_release

    def address(self, place: Place, device: int) -> int | None:
        """Where a GPU has a place whose region is in use; None where the place is not in its memory."""
        region = self._regions[place.region]
        memory = region.memory
        return memory.address + place.offset if isinstance(memory, DeviceMemory) and memory.device == device else None

    def read(self, place: Place, view: bytearray | memoryview, tensor: str) -> None:
        """Fill a view with the bytes of a place whose region is in use.

        Raises:
            InvalidRequest: its object has become too short, or cannot be read.
        """
        region = self._regions[place.region]
        try:
            got = region.memory.read_into(view, region.offset + place.offset)
        except (OSError, RequestError, CudaError) as error:
            raise InvalidRequest(
                f"input '{tensor}' cannot be read from {self._described(region)}: {_said(error)}"
            ) from None
        if got < len(view):
            raise InvalidRequest(
                f"input '{tensor}' has {len(view)} bytes in {self._described(region)}, of which {got} are left: the "
                "object has become smaller since it was registered"
            )

    def write(
        self,
        place: Place,
        pieces: Sequence[Buffer],
        tensor: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write an output to a place whose region is in use.

        Args:
            place: where.
            pieces: of the output, one behind the other.
            tensor: the output's name.
            is_wanted: whether to go on, asked for each MiB.

        Raises:
            ExecutionFailed: it is too large, its object has become too short or cannot be written, or nobody wants it.
        """
        size = sum(map(len, pieces))
        if size > place.byte_size:
            raise ExecutionFailed(
                f"shared memory size specified with the request for output '{tensor}' ({place.byte_size} bytes) should "
                f"be at least {size} bytes to hold the results"
            )
        region = self._regions[place.region]
        start = region.offset + place.offset
        try:
            end = region.memory.write(pieces, start, is_wanted)
        except (OSError, RequestError, CudaError) as error:
            raise ExecutionFailed(
                f"output '{tensor}' cannot be written to {self._described(region)}: {_said(error)}"
            ) from None
        if end < start + size:
            raise ExecutionFailed(
                f"output '{tensor}' has no room in {self._described(region)}: the object has become smaller since it "
                "was registered"
            )

    def _described(self, region: Region) -> str:
        of = f"'{region.key}'" if region.kind is Kind.SYSTEM else f"GPU {region.device}"
        return f"shared memory region '{self.shown(region.name)}', which is of {of}"


def _said(error: Any) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
