"""One connection of a client: bytes in and requests out, answers in and bytes out.

The bytes of a head are looked up before they are parsed: a client sends the same ones over and over. However the bytes
are cut, the same requests come out.

The driver owns sockets and clocks. It hands in what it reads (``receive``, ``receive_end``), calls ``go_on`` while
``behind`` is set and whenever an answer is complete, sends what ``take_output`` gives, and closes the connection when
``finished`` is set and everything is sent. ``receiving`` says what the peer owes, which the driver may bound in time
(``time_out``). While ``direct`` is set, what comes next belongs to a large body: the driver had better put it into
``views`` and call ``take_direct`` than hand it in.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from toutates.http1.body_memory import BodyMemory, MakeMemory
from toutates.http1.chunks import ChunkReader
from toutates.http1.coding import STATE_BYTES, HasRoom, Inflater, too_large
from toutates.http1.exchange import Answers, Buffer, Request, write_text
from toutates.http1.head import CHUNKED, Head, admit_head, check_start, read_head
from toutates.http1.limits import Limits
from toutates.http1.responses import CONTINUE, Refused, encode_fields

__all__ = ["Connection", "Receiving"]

#: Heads and chunks that one call of ``receive`` or ``go_on`` reads at most. Each takes up to 100 us, so that a driver
#: which bounds its turns by the clock can look at it every 1.6 ms.
STEPS: Final = 16
#: What a piece of a decompressed body counts as. It takes up to 500 us, and zlib lets other threads have the GIL
#: meanwhile, which it may take long to get back.
STEPS_OF_INFLATION: Final = 8
#: Bytes of a body that one read brings at most, some 0.3 ms.
MOST_AT_ONCE: Final = 1_048_576

_END_OF_HEAD: Final = b"\r\n\r\n"


class Receiving(IntEnum):
    """What a connection waits for from its peer."""

    #: The next request, if there is to be one.
    IDLE = 0
    #: The rest of a request's head.
    HEAD = 1
    #: The rest of a request's body.
    BODY = 2
    #: Nothing: what has come waits for answers to be complete, or for the next ``go_on``.
    PAUSED = 3
    #: Nothing any more.
    ENDED = 4


class Connection:
    """HTTP/1.1 with one client, without a socket.

    Args:
        limits: what a peer may make us hold.
        admit: looks at a head, before its body is read, and gives the bytes that the body may have. It may raise
            ``Refused``. It is asked once for heads that come again, so it may look at nothing but the head.
        common: gives the fields that every answer has (``encode_fields``), such as the date.
        write_refusal: gives the fields and the body with which a refused request is answered; plain text by default.
        make_request: makes a request of its head, its body and the connection's answers.
        make_memory: makes the memory of large bodies, where their heads allow it; None for none.
        has_room: see ``Inflater``.

    Attributes:
        answers: to the requests so far.
        behind: whether ``go_on`` has something to do at once.
        latest: the head of the last request, if all that has come is read and another plain request may follow.
        remembered_bytes: what the heads that are remembered take.
    """

    def __init__(
        self,
        limits: Limits,
        admit: Callable[[Head], int] | None = None,
        common: Callable[[], bytes] | None = None,
        write_refusal: Callable[[Refused], tuple[bytes, bytes]] = write_text,
        make_request: Callable[[Head, bytes | bytearray, Answers], Request] = Request,
        make_memory: MakeMemory | None = None,
        has_room: HasRoom | None = None,
    ) -> None:
        self._limits = limits
        self._has_room = has_room
        self._admit = admit or (lambda head: limits.max_body_size)
        kept = encode_fields({"keep-alive": f"timeout={limits.keep_alive_s}"}) if limits.keep_alive_s else b""
        self.answers = Answers(common, write_refusal, kept)
        self._make_request = make_request
        self._make_memory = make_memory
        self._heads: dict[bytes, Head] = {}
        self.remembered_bytes = 0
        self.latest: Head | None = None
        #: what came; read up to ``_at``, and looked through for a head's end up to ``_seen``
        self._data = b""
        self._at = 0
        self._seen = 0
        #: of the request whose body is being read
        self._head: Head | None = None
        self._body = bytearray()
        #: the body, where it has memory of its own
        self._memory: BodyMemory | None = None
        #: bytes of the body that have come, as they came
        self._came = 0
        self._chunks: ChunkReader | None = None
        self._inflater: Inflater | None = None
        #: whether the next head waits for answers
        self._paused = False
        self._leaving = False
        self._draining = False
        self._peer_ended = False
        self.behind = False

    # --- from the peer -----------------------------------------------------------------------------------------------

    def answer_by(
        self,
        admit: Callable[[Head], int],
        write_refusal: Callable[[Refused], tuple[bytes, bytes]],
        make_request: Callable[[Head, bytes | bytearray, Answers], Request],
    ) -> None:
        """Have heads looked at, refusals written and requests made by others; heads are looked at anew."""
        self._admit = admit
        self.answers.write_refusal = write_refusal
        self._make_request = make_request
        self.forget()

    def forget(self) -> None:
        """Remember no head any more."""
        self._heads.clear()
        self.remembered_bytes = 0
        self.latest = None

    def receive(self, data: bytes) -> list[Request]:
        """Take what the peer has sent. Returns the requests that are whole now; each wants an answer.

        One request, in one piece, with the same head as the last one, is what nearly always comes: 0.6 us.
        """
        answers = self.answers
        latest = self.latest
        if (
            latest is not None
            and len(data) == latest.whole_size
            and data.startswith(latest.octets)
            and not answers.complete
            and len(answers.queue) < self._limits.max_pipelined
        ):
            request = self._make_request(latest, data[-latest.body_size :] if latest.body_size else b"", answers)
            answers.queue.append(request)
            return [request]
        self.latest = None
        if answers.complete:
            return []
        if self._data:
            self._cut_off()
            self._data += data
            return self.go_on()
        found: list[Request] = []
        at = self._read_known(data, found) if self._head is None and not self._leaving else 0
        if at < len(data):
            self._data = data
            self._at = self._seen = at
            found += self.go_on()
        return found

    def go_on(self) -> list[Request]:
        """Go on with what has come. Returns the requests that are whole now."""
        found: list[Request] = []
        self.behind = self._paused = False
        try:
            left = STEPS
            while left > 0:
                if self.answers.complete:
                    return found
                head = self._head
                if not (self._read_head(found) if head is None else self._read_body(head, found)):
                    break
                left -= 1 if head is None or self._inflater is None else STEPS_OF_INFLATION
            else:
                self.behind = True
            if 2 * self._at >= len(self._data):
                self._cut_off()
            self._look_for_end()
        except Refused as refusal:
            self._refuse(refusal)
        return found

    @property
    def direct(self) -> bool:
        """Whether the next bytes had better be put into ``views`` than handed in."""
        return self._memory is not None

    @property
    def awaited_bytes(self) -> int:
        """Bytes that are still to come of the body that is received directly; 0 for none."""
        return 0 if self._memory is None else self._memory.missing

    def views(self) -> list[memoryview]:
        """Where the next bytes had better be put; none if they are to be handed in.

        They are put there, the views are forgotten, and ``take_direct`` is called, before anything else is done.
        """
        return [] if self._memory is None else [self._memory.room()[:MOST_AT_ONCE]]

    def take_direct(self, count: int) -> list[Request]:
        """Take ``count`` bytes that are in ``views``, one at least. Returns the request that is whole now, if it is."""
        memory, head = self._memory, self._head
        assert memory is not None
        assert head is not None
        memory.advance(count)
        self._came += count
        found: list[Request] = []
        if not memory.missing:
            self._complete(head, self._whole(), found)
        return found

    @property
    def idle(self) -> bool:
        """Whether the next byte is the first one of a head, and the request may be taken when it is whole."""
        return self.receiving is Receiving.IDLE and len(self.answers.queue) < self._limits.max_pipelined

    def take_whole(self, head: Head, body: Any) -> list[Request]:
        """Take a whole request while ``idle`` is set; returns it.

        Args:
            head: its head, which is plain.
            body: what ``BodyMemory.take`` would give.
        """
        found: list[Request] = []
        self._complete(head, body, found)
        return found

    def begin_in(self, head: Head, memory: BodyMemory, came: int) -> None:
        """Take the beginning of a request while ``idle`` is set; ``memory`` has the first bytes of its body.

        Args:
            head: its head, which is plain.
            memory: of the body.
            came: bytes of the body that are there, not all.
        """
        self.latest = None
        self._head, self._memory, self._came = head, memory, came

    def receive_end(self) -> None:
        """The peer sends no more. It is still answered, with an error if the last request is not whole."""
        self._peer_ended = True
        self._look_for_end()

    def time_out(self) -> None:
        """The peer took too long: nothing more is read, and a request that has begun is answered with 408."""
        if self.receiving in (Receiving.HEAD, Receiving.BODY):
            self._refuse(Refused(408, "the request took too long"))
        self._stop_reading()

    def turn_away(self, refusal: Refused) -> None:
        """Answer with an error before any request has come, and read nothing."""
        self._refuse(refusal)

    def lose(self) -> None:
        """Read nothing more, and send only what ``take_output`` gives: the client is gone, or is to go."""
        self._stop_reading()
        self.answers.drop()

    def leave(self) -> None:
        """End the connection with the answer to the last request that has come, or to the next one where none waits.

        That answer says so (RFC 9112 section 9.6): a client whose next request is on its way does not lose it.
        """
        self._leaving = True
        self.latest = None
        self._end_with_last()

    def drain(self) -> None:
        """End the connection when what has been read of requests is answered; what waits to be read is dropped."""
        self._leaving = self._draining = True
        self.latest = None
        if self._head is None and self.receiving is not Receiving.HEAD:
            self._stop_reading()

    # --- to the peer -------------------------------------------------------------------------------------------------

    def take_output(self) -> list[Buffer]:
        """The bytes to send to the peer, in pieces; the connection forgets them."""
        return self.answers.take()

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""
        return bool(self.answers.out)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def receiving(self) -> Receiving:
        """What the connection waits for from its peer."""
        if self.answers.complete:
            return Receiving.ENDED
        if self.behind or self._paused:
            return Receiving.PAUSED
        if self._head is not None:
            return Receiving.BODY
        return Receiving.HEAD if len(self._data) > self._at else Receiving.IDLE

    @property
    def unanswered(self) -> int:
        """Requests whose answers are not complete, or wait for others."""
        return len(self.answers.queue)

    @property
    def finished(self) -> bool:
        """Whether nothing is read any more and every answer is complete."""
        return self.answers.complete and not self.answers.queue

    @property
    def held_bytes(self) -> int:
        """Bytes that the peer makes us hold: of requests that are not whole, and of answers that are not sent."""
        inflated = self._inflater.size + STATE_BYTES if self._inflater is not None else 0
        in_memory = self._memory.held_bytes if self._memory is not None else 0
        return len(self._data) + len(self._body) + in_memory + inflated + self.answers.size

    def note_counted(self) -> None:
        """Note that ``held_bytes`` are counted where ``has_room`` looks."""
        if self._inflater is not None:
            self._inflater.counted = self._inflater.body.size

    def _read_known(self, data: bytes, found: list[Request]) -> int:
        """Read the requests at the beginning of ``data`` whose heads are remembered and plain; 1 us each.

        Returns where the rest begins. Nothing else has been received that was not read.
        """
        heads, answers, make_request = self._heads, self.answers, self._make_request
        queue = answers.queue
        head: Head | None = None
        at, size = 0, len(data)
        room = self._limits.max_pipelined - len(queue)
        while at < size and room > 0:
            end = data.find(_END_OF_HEAD, at) + len(_END_OF_HEAD)
            head = heads.get(data[at:end])
            if head is None or not head.plain or end + head.body_size > size:
                return at
            at = end + head.body_size
            request = make_request(head, data[end:at], answers)
            queue.append(request)
            found.append(request)
            room -= 1
        if at == size:
            self.latest = head
        return at

    def _cut_off(self) -> None:
        """Let go of what has been read."""
        self._data = self._data[self._at :]
        self._seen = max(self._seen - self._at, 0)
        self._at = 0

    # --- reading -----------------------------------------------------------------------------------------------------

    def _look_for_end(self) -> None:
        """After the peer's last byte: see whether all requests have been read."""
        if not self._peer_ended:
            return
        receiving = self.receiving
        if receiving is Receiving.IDLE:
            self._stop_reading()
        elif receiving in (Receiving.HEAD, Receiving.BODY):
            self._refuse(Refused(400, "the request ends too early"))

    def _read_head(self, found: list[Request]) -> bool:
        """Read the next head. Returns False if it is not whole, or has to wait for answers."""
        data, limits = self._data, self._limits
        while data.startswith(b"\r\n", self._at):  # RFC 9112 section 2.2
            self._at += 2
        at = self._at
        if at == len(data):
            return False
        if len(self.answers.queue) >= limits.max_pipelined:
            self._paused = True
            return False
        most = at + limits.max_head_size
        end = data.find(_END_OF_HEAD, max(self._seen - 3, at), most)
        if end < 0:
            if data[at : at + 2] != b"\r":
                check_start(data, at, max(self._seen, at), most)
            if len(data) >= most:
                raise Refused(431, f"the request's head has more than {limits.max_head_size} bytes")
            self._seen = len(data)
            return False
        end += len(_END_OF_HEAD)
        octets = data[at:end]
        head = self._heads.get(octets)
        if head is None:
            check_start(data, at, at, end)
            head = self._learn(octets)
        if head.expects_continue and self.answers.queue:
            self._paused = True  # the answers before this one come first
            return False
        self._at = self._seen = end
        self._begin(head, found)
        return True

    def _learn(self, octets: bytes) -> Head:
        """Parse a head that is not remembered, and remember it."""
        limits = self._limits
        head = read_head(octets, limits)
        admit_head(head, self._admit)
        # What a bug of the server's own has refused may be none the next time.
        if head.refusal is not None and (head.refusal.ends or head.refusal.status == 500):
            head.keep_alive = head.keep_alive and not head.refusal.ends
            return head
        head.plain = head.refusal is None and head.body_size >= 0 and head.keep_alive
        head.plain = head.plain and not (head.coding or head.expects_continue)
        if len(octets) <= limits.max_remembered_size and limits.remembered_heads:
            size = len(octets) + head.kept_bytes
            while self._heads and (
                len(self._heads) >= limits.remembered_heads
                or self.remembered_bytes + size > limits.max_remembered_bytes
            ):
                oldest = next(iter(self._heads))
                self.remembered_bytes -= len(oldest) + self._heads.pop(oldest).kept_bytes
            self._heads[octets] = head
            self.remembered_bytes += size
            head.octets = octets
            head.whole_size = len(octets) + head.body_size
        return head

    def _begin(self, head: Head, found: list[Request]) -> None:
        """Go on with a request whose head has been read."""
        if head.refusal is not None:
            if head.body_size:
                self._head = head
                raise head.refusal.anew()  # nobody wants to read what follows
            self._answer_refusal(self._make_request(head, b"", self.answers), head.refusal)
        elif not head.body_size:
            self._complete(head, b"", found)
        else:
            self._head, self._body, self._came = head, bytearray(), 0
            self._chunks = ChunkReader(self._limits) if head.body_size == CHUNKED else None
            self._inflater = Inflater(head.coding, head.max_body_size, self._has_room) if head.coding else None
            if head.expects_continue:
                self.answers.interim(CONTINUE)

    def _read_body(self, head: Head, found: list[Request]) -> bool:
        """Read a piece of a body. Returns False where that needs more bytes."""
        if self._inflater is not None and self._inflater.step():
            return True
        if self._chunks is not None:
            return self._read_chunk(head, self._chunks, found)
        missing = head.body_size - self._came
        if not missing:
            self._complete(head, self._whole(), found)
            return True
        piece = self._data[self._at : self._at + missing]
        self._at += len(piece)
        if len(piece) == head.body_size and self._inflater is None:
            self._complete(head, piece, found)  # as it came
        else:
            if piece and not self._came and head.in_memory and self._inflater is None:
                self._begin_memory(head, len(piece))
            self._put(piece)
        return bool(piece)

    def _begin_memory(self, head: Head, least: int) -> None:
        """Have memory for a body that has begun, if it is large and there is any."""
        if self._make_memory is not None and head.body_size >= self._limits.large_body_size:
            self._memory = self._make_memory(head, least)

    def _read_chunk(self, head: Head, chunks: ChunkReader, found: list[Request]) -> bool:
        """Read a piece of a body in chunks, or of what is around them."""
        if chunks.ended:
            self._complete(head, self._whole(), found)
            return True
        step = chunks.step(self._data, self._at)
        if step is None:
            return False
        self._at, piece = step
        if self._came + chunks.missing > head.max_body_size:
            raise too_large(head.max_body_size)
        self._put(piece)
        return True

    def _put(self, piece: bytes) -> None:
        self._came += len(piece)
        if self._inflater is not None:
            self._inflater.put(piece)
        elif self._memory is not None:
            self._memory.add(piece)
        else:
            self._body += piece

    def _whole(self) -> bytearray:
        if self._memory is None:
            return self._body if self._inflater is None else self._inflater.finish()
        memory, self._memory = self._memory, None
        body: bytearray = memory.take()  # it is read like one
        return body

    def _complete(self, head: Head, body: bytes | bytearray, found: list[Request]) -> None:
        """Add a request that is whole to ``found``."""
        self._forget_body()
        request = self._make_request(head, body, self.answers)
        self.answers.queue.append(request)
        found.append(request)
        if self._draining or not head.keep_alive:
            self._stop_reading()
        elif self._leaving:
            self._end_with_last()

    # --- ends --------------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refused) -> None:
        """Answer what is being read with an error, and read nothing any more."""
        request = self._make_request(self._head or _UNREAD, b"", self.answers)
        self._stop_reading()
        self._answer_refusal(request, refusal)

    def _answer_refusal(self, request: Request, refusal: Refused) -> None:
        self.answers.queue.append(request)
        if self._draining or not request.head.keep_alive:
            self._stop_reading()
        elif self._leaving:
            self._end_with_last()
        request.refuse(refusal)

    def _end_with_last(self) -> None:
        """Read nothing any more, if all that has come is read, and the answer to the last of it can say so."""
        if self.receiving is Receiving.IDLE and self.answers.last_waits:
            self._stop_reading()

    def _stop_reading(self) -> None:
        self.answers.complete = True
        self.behind = False
        self.latest = None
        self._data = b""
        self._at = self._seen = 0
        self._forget_body()

    def _forget_body(self) -> None:
        self._head = None
        self._body = bytearray()
        if self._memory is not None:
            self._memory.drop()
            self._memory = None
        self._came = 0
        self._chunks = None
        self._inflater = None


#: Stands for the head of a request that was none.
_UNREAD: Final = Head("", "", {}, http_1_0=False, keep_alive=False)
