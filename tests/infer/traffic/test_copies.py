"""Copies of requests are bounded."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Final

import pytest

from toutates.infer.traffic.copies import MAX_AT_ONCE, MAX_COPIED, CopiedContext, Copies, comparing
from toutates.models.table import ModelTable
from toutates.models.traffic.rules import Shadow, Target
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.signature import Signature, TensorSpec

SHADOW: Final = Shadow(Target("new"), 1.0, 0.0, 0.0)
IN, OUT = (TensorSpec(name, BY_NAME["UINT8"], (-1,)) for name in ("IN", "OUT"))
SIGNATURE: Final = Signature((IN,), (OUT,), batched=True)


def plan_of(size: int) -> Any:
    version = SimpleNamespace(signature=SIGNATURE)
    request = SimpleNamespace(inputs=(0,), shapes=((size,),), parameters={}, outputs=(0,))
    return SimpleNamespace(
        version=version,
        request=request,
        rows=1,
        outputs_in=lambda _: (0,),
        tensor_of=lambda *_: WireTensor("OUT", "UINT8", (1, size)),
    )


def take(copies: Copies, size: int) -> Any:
    return copies.take("name", SHADOW, plan_of(size), [bytes(size)])


@pytest.fixture
def copies() -> Copies:
    return Copies(lambda: ModelTable({}), most=3, most_bytes=1_000)


def skipped(copies: Copies) -> int:
    counts = copies.statistics().get(("name", Target("new")))
    return 0 if counts is None else counts.skipped


def test_so_many_copies_are_taken_and_others_are_counted(copies: Copies) -> None:
    kept = [take(copies, 10) for _ in range(5)]
    assert [one is not None for one in kept] == [True] * 3 + [False] * 2
    assert skipped(copies) == 2
    assert copies.held == (3, 30)
    kept.clear()
    assert copies.held == (0, 0)
    assert take(copies, 10) is not None


def test_a_request_is_not_copied_where_there_is_no_memory_for_that(copies: Copies) -> None:
    class Large(bytes):
        def __bytes__(self) -> bytes:
            raise MemoryError

    for _ in range(4):
        assert copies.take("name", SHADOW, plan_of(10), [Large(10)]) is None
    assert skipped(copies) == 4
    assert copies.held == (0, 0)


def test_copies_hold_so_many_bytes(copies: Copies) -> None:
    kept = take(copies, 900)
    assert take(copies, 101) is None
    assert take(copies, 100) is not None
    assert skipped(copies) == 1
    del kept
    assert take(copies, 900) is not None


def test_large_request_is_not_copied() -> None:
    copies = Copies(lambda: ModelTable({}))
    assert take(copies, MAX_COPIED + 1) is None
    assert take(copies, MAX_COPIED) is not None


def test_answers_of_a_batch_are_copied_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker copies them one after the other, and has others to serve."""
    copies = Copies(lambda: ModelTable({}))
    monkeypatch.setattr(copies, "_put", lambda job: None)
    kept = [take(copies, 1) for _ in range(5)]
    call: Any = None
    contexts = [CopiedContext.of((call, plan_of(1), b"", 0), one) for one in kept]
    outputs = SimpleNamespace(rows=lambda *_, batched: bytes(MAX_COPIED), row_shapes=[(MAX_COPIED,)])
    pending = [(context, 0, 1, None) for context in contexts]
    finished: list[Any] = []
    result = SimpleNamespace(outputs=outputs, pending=pending, timing=SimpleNamespace(done_ns=0))
    comparing(copies, finished.append)(result)  # type: ignore[arg-type]
    assert finished == [result]
    assert [len(one.sent) for one in kept] == [1] * (MAX_AT_ONCE // MAX_COPIED) + [0] * 3
    assert skipped(copies) == 3


def test_closed_copies_take_none(copies: Copies) -> None:
    copies.close()
    assert take(copies, 1) is None


def test_copy_that_is_freed_by_who_counts_another_one_stops_nobody(copies: Copies) -> None:
    """Python frees objects between any two steps of a thread, so also where the thread has the lock of the copies."""
    kept = [take(copies, 10)]

    class Name(str):
        """Frees the copy while it is looked up."""

        def __hash__(self) -> int:
            kept.clear()
            return hash(str(self))

    thread = threading.Thread(target=copies.count, args=((Name("name"), SHADOW.target), "skipped"), daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert copies.held == (0, 0)
    assert skipped(copies) == 1
