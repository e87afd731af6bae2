"""Bodies of /v1/embeddings that are like an earlier one, against reading them.

Invariant: where a body is known by what is around its text, it is read as the earlier one was, but for the text, which
is the one that was found; it is never known where it is refused.

A case is the length of the first body in two bytes, that body, and the second one.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.fuzz.sessions import mutate
from toutates.api.text import openai
from toutates.api.text.alike import AlikeBodies
from toutates.api.text.problems import Problem
from toutates.api.text.routes import Asked

__all__ = ["check", "make_case"]

ROUTE = openai.ROUTES[0]
TEXTS = (
    "a",
    "input",
    "table",
    "two words",
    ",",
    ":",
    "null",
    "é😀",
    "\u3042\u3044",
    "a\u00a0b",
    "\u200b",
    'a "quoted" text',
    "back\\slash",
    "\n",
    "\x01",
    "\x7f",
    "\x85",
    "probeOfAnotherText",
    "textOfAnotherProbe",
    "\\u0041",
    "",
    "x" * 1_025,
)
#: Bytes that are put in the text's place as they are.
RAW = (b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\x00", b"\t", b'","model":"other', b'"', b"\\", b"\\u0041", b"\xc3\xa9")


def make_case(rng: random.Random) -> bytes:
    """A body, and one that is mostly like it."""
    first = _body(rng, rng.choice(TEXTS))
    kind = rng.randrange(4)
    if kind == 0:
        second = mutate(first, rng)
    elif kind == 1:
        second = _body(rng, rng.choice(TEXTS))
    else:
        mark = b'"input": "'
        at = first.find(mark) + len(mark)
        end = first.find(b'"', at)
        raw = (
            rng.choice(RAW) if rng.random() < 0.5 else json.dumps(rng.choice(TEXTS), ensure_ascii=False).encode()[1:-1]
        )
        second = first[:at] + raw + first[end:]
        if kind == 3 and rng.random() < 0.5:
            second = mutate(second, rng)
    return len(first).to_bytes(2, "big") + first + second


def _body(rng: random.Random, text: str) -> bytes:
    members: list[tuple[str, Any]] = [("input", text), ("model", rng.choice(("m", text)))]
    members += rng.sample([("encoding_format", "base64"), ("dimensions", 3), ("user", text), ("input", "b")], 2)
    rng.shuffle(members)
    pairs = [f"{json.dumps(name)}: {_written(rng, value)}" for name, value in members]
    return ("{" + ", ".join(pairs) + "}").encode("utf-8", "surrogatepass")


def _written(rng: random.Random, value: Any) -> str:
    if isinstance(value, str) and rng.random() < 0.2:
        return '"' + "".join([f"\\u{ord(one):04x}" for one in value if ord(one) < 0x10000]) + '"'
    return json.dumps(value, ensure_ascii=rng.random() < 0.3)


class _Table(SimpleNamespace):
    """As a table of models, it can be referred to weakly."""


def check(case: bytes) -> None:
    """See the module."""
    size = int.from_bytes(case[:2], "big")
    first, second = case[2 : 2 + size], case[2 + size :]
    asked = _asked(first)
    if asked is None or len(asked.texts) != 1 or type(asked.texts[0]) is not str:
        return
    table: Any = _Table(traffic=SimpleNamespace(routes={}))
    work: Any = SimpleNamespace(
        observer=SimpleNamespace(observer=SimpleNamespace(due=False)), get_table=lambda: table, crowds={}, inflight=None
    )
    work.gather = work.crowds.__setitem__
    lookup: Any = SimpleNamespace(table=table)
    found: Any = SimpleNamespace(model=None, name="m")
    bodies = AlikeBodies(work, ROUTE, lookup)
    bodies.learn(first, asked, found, asked.options)
    for body in (first, second):
        call: Any = SimpleNamespace(body=body)
        work.crowds.clear()
        if not bodies.take(call):
            continue
        [crowd] = work.crowds.values()
        assert crowd.calls == [call]
        read = _asked(body)
        assert read is not None, "a body is known that is refused"
        assert list(read.texts) == crowd.texts
        assert msgspec.structs.replace(read, texts=asked.texts) == asked


def _asked(body: bytes) -> Asked | None:
    assert ROUTE.post is not None
    try:
        asked = ROUTE.post.asked(body, "")
    except Problem:
        return None
    assert isinstance(asked, Asked)
    return asked
