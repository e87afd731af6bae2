"""Bodies of the APIs for text: valid, mutated and random, read at once and in steps, and compared.

Invariant: for any bytes and any route, a body is read, or refused with a Problem that the API has an answer for. In
steps, as bodies of megabytes are read, it is the same request, or refused as well.

A case is the number of a route in one byte, and the body.
"""

from __future__ import annotations

import json
import random
from typing import Any
from unittest.mock import patch

import msgspec

from tests.fuzz.sessions import mutate
from toutates.api.rest.openapi.text import TEXT_OPERATIONS
from toutates.api.text import large_json, reading, routes
from toutates.api.text.handler import TextSettings, routes_of
from toutates.api.text.problems import Problem
from toutates.api.text.routes import Asked, Route

__all__ = ["check", "make_case"]

ROUTES = [route for route in routes_of(TextSettings()).values() if route.post is not None]
TEXTS = ("", "a", "two words", "é😀\n", 'a "quoted" \\ text', "\x01", "x" * 50)
MEMBERS: tuple[tuple[str, Any], ...] = (
    ("dimensions", 3),
    ("encoding_format", "base64"),
    ("model", "m"),
    ("function_to_apply", "softmax"),
    ("input_type", "query"),
    ("normalize", False),
    ("normalize", None),
    ("normalized", True),
    ("parameters", {"top_k": 1, "truncate": None, "inputs": "b"}),
    ("priority", 1),
    ("prompt_name", None),
    ("raw_scores", True),
    ("return_documents", True),
    ("top_n", -1),
    ("truncate", True),
    ("truncate", "END"),
    ("truncate_prompt_tokens", 3),
    ("truncation_direction", "left"),
    ("unknown", [[], {}]),
)
INPUTS = ("input", "inputs", "texts", "documents", "ids", "query")


def make_case(rng: random.Random) -> bytes:
    """An example of the document, with other texts and members, often mutated."""
    number = rng.randrange(len(ROUTES))
    body = TEXT_OPERATIONS[ROUTES[number].path]["post"].body
    assert body is not None
    document = json.loads(json.dumps(body.example))
    if isinstance(document, dict):
        for name, value in rng.sample(MEMBERS, rng.randrange(3)):
            document[name] = value
        if rng.random() < 0.5:
            document[rng.choice(INPUTS)] = _input(rng, 0)
    octets = json.dumps(document, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1))).encode()
    if rng.random() < 0.5:
        octets = mutate(octets, rng)
    return bytes([number]) + octets


def _input(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(4 if depth < 3 else 2)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1:
        return rng.choice((0, 7, -1, 2**31, 2**70, 1.5, None, True))
    return [_input(rng, depth + 1) for _ in range(rng.randrange(4))]


def check(case: bytes) -> None:
    """See the module."""
    route = ROUTES[case[0] % len(ROUTES)] if case else ROUTES[0]
    at_once = _read(route, case[1:])
    stepped = [patch.object(module, "STEPPED_BYTES", -1) for module in (reading, routes)]
    with stepped[0], stepped[1], patch.object(large_json, "PIECE_BYTES", 32):
        in_steps = _read(route, case[1:])
    if _repeats_names(case[1:]):  # of which only the last counts in steps, and all have to be of their type at once
        return
    if isinstance(at_once, Problem) or isinstance(in_steps, Problem):
        # What is too much of all is refused on one way alone; too deep here, before it is seen to be unknown there.
        assert isinstance(in_steps, Problem), (at_once, in_steps)
        for problem in (at_once, in_steps):
            if isinstance(problem, Problem):
                _check_answer(route, problem)
        return
    assert type(at_once) is type(in_steps)
    if isinstance(at_once, Asked):
        assert list(at_once.texts) == list(in_steps.texts)
        assert (at_once.model, at_once.options, at_once.wants) == (in_steps.model, in_steps.options, in_steps.wants)
        assert at_once.texts


def _read(route: Route, body: bytes) -> Any:
    assert route.post is not None
    try:
        return route.post.asked(body, "")
    except Problem as problem:
        return problem


def _repeats_names(body: bytes) -> bool:
    repeated: list[bool] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        repeated.append(len(dict(pairs)) != len(pairs))

    try:
        json.loads(body, object_pairs_hook=note)
    except (ValueError, RecursionError):
        return False
    return any(repeated)


def _check_answer(route: Route, problem: Problem) -> None:
    status, fields, body = route.form.refuse(problem)
    assert 400 <= status < 500
    assert fields.endswith(b"\r\n")
    if b"json" in fields:
        msgspec.json.decode(body)
