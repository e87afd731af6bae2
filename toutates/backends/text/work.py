"""Requests of a text model on their way: their texts, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from toutates.backends.text.interface import Float32, SparseVector, Text, TextOptions
from toutates.engine.padded.lanes import Entry
from toutates.engine.result import Timing
from toutates.system.errors import RequestError

__all__ = ["Ids", "Row", "Settled", "Sink", "TextRequest"]

#: The ids of a text's tokens.
Ids: TypeAlias = Sequence[int] | npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """Options of a request as the model follows them. One object for all requests with the same options.

    Attributes:
        options: of the request.
        special: whether strings get special tokens.
        limit: of tokens.
        cuts: whether a text that is too long is cut, and not refused.
        left: whether its beginning is.
        prompt: what is put before a text.
        prompt_tokens: how many of a text's first tokens are not pooled.
        normalize: whether vectors have length 1 in the end.
        dimensions: that vectors are cut to; None for all.
        activation: what becomes of logits.
        skips: whether the vectors of some tokens are left out, as they are of a document.
        counts: whether what is computed for a text may be so large that it counts as memory under way.
        as_is: whether strings are read as they come, and each gets one vector, so that they may run ``here``.
    """

    options: TextOptions
    special: bool
    limit: int
    cuts: bool
    left: bool
    prompt: str
    prompt_tokens: int
    normalize: bool
    dimensions: int | None
    activation: Callable[[Float32], Float32]
    skips: bool
    counts: bool = False
    as_is: bool = False


class Sink(Protocol):
    """Takes requests that are over, in the thread that has computed the last of their texts."""

    def finish(self, requests: Sequence[TextRequest], timing: Timing) -> None:
        """Hand out what has become of requests: all of them have either their vectors, or an error.

        Args:
            requests: of this sink.
            timing: of the batch that was the last for each of them.
        """
        ...


class TextRequest:
    """Texts that came together.

    Attributes:
        texts: as they came; bytes are UTF-8.
        settled: how they are computed.
        sink: takes it when it is over.
        context: the sink's own.
        is_wanted: whether somebody waits for it still at a time, monotonic nanoseconds. Called in any thread.
        caller: whose it is: callers take turns. Compared with others; None for all that nobody knows.
        led: how many batches the model's callers had led when the turn began for which its texts were read last.
        text_size: bytes of its texts, or characters.
        size: bytes that it keeps, those of large results included. This and what follows but the vectors and times,
            which the executors write, are guarded by the SuperTensor's lock.
        new_size: bytes of large results that are not in ``size`` yet.
        arrived_ns: when it came, monotonic.
        vectors, tokens: what has been computed, by text.
        left: texts that have not been.
        error: why it failed; None if it did not. An executor may set it, and what is left of it is then not computed.
        is_over: whether a sink has it.
        read_ns, run_ns: sums over the texts of the time that reading their tokens and their batches took.
    """

    __slots__ = (
        "arrived_ns",
        "caller",
        "context",
        "error",
        "is_over",
        "is_wanted",
        "led",
        "left",
        "new_size",
        "read_ns",
        "run_ns",
        "settled",
        "sink",
        "size",
        "text_size",
        "texts",
        "tokens",
        "vectors",
    )

    def __init__(
        self,
        texts: Sequence[Text | bytes | tuple[bytes, bytes]],
        settled: Settled,
        sink: Sink,
        context: Any,
        is_wanted: Callable[[int], bool],
        text_size: int,
        arrived_ns: int,
        result_size: int = 0,
        caller: object = None,
    ) -> None:
        count = len(texts)
        self.texts = texts
        self.settled = settled
        self.sink = sink
        self.context = context
        self.is_wanted = is_wanted
        self.caller = caller
        self.led = 0
        self.text_size = text_size
        self.size = text_size + result_size
        self.new_size = 0
        self.arrived_ns = arrived_ns
        self.vectors: list[Float32 | SparseVector | None] = [None] * count
        self.tokens = [0] * count
        self.left = count
        self.error: RequestError | None = None
        self.is_over = False
        self.read_ns = self.run_ns = 0


class Row(Entry):
    """One text whose tokens are known.

    Attributes:
        request: that it is of.
        index: of the text in it.
        ids: of the tokens.
        segments: which of a pair's texts each is of; None for all of the first.
        has_prompt: whether a prompt was put before it.
        is_taken: whether it waits no more.
    """

    __slots__ = ("has_prompt", "ids", "index", "is_taken", "segments")

    def __init__(self, request: TextRequest, index: int, ids: Ids, *, has_prompt: bool = True) -> None:
        # As ``Entry``'s, whose call would cost as much as all of this.
        self.length = len(ids)
        self.port = 0
        self.context = request
        self.rows = 1
        self.contents = ()
        self.part = None
        self.held_bytes = self.arrived_ns = 0
        self.index = index
        self.ids = ids
        self.segments: Sequence[int] | None = None
        self.has_prompt = has_prompt
        self.is_taken = False

    @property
    def request(self) -> TextRequest:
        request: TextRequest = self.context
        return request
