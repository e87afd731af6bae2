"""Bodies that are like an earlier one are known by what is around their text, and answered as if they were read."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy.testing as npt
import pytest

from tests.api.text.doubles import vector_of
from tests.api.text.front import Front, front, inflight, key_file
from tests.api.text.line import request
from tests.api.text.test_crowds import Here, answers, crowd, vector
from tests.tables import table_of
from toutates.api.text import openai
from toutates.api.text.alike import MOST_AROUND, MOST_KINDS, AlikeBodies, body_around
from toutates.api.text.routes import Computing
from toutates.backends.text.interface import MOST_CHARACTERS_HERE

_READER = openai.ROUTES[0].post.reader  # type: ignore[union-attr]
_PATH = "/v1/embeddings"


class Reads:
    """Counts the bodies that are read for their requests, in place of known."""

    def __init__(self) -> None:
        self.count = 0
        self._asked = Computing.asked

    def __call__(self, computing: Computing, body: bytes, model: str) -> Any:
        self.count += 1
        return self._asked(computing, body, model)


@pytest.fixture
def reads() -> Iterator[Reads]:
    counting = Reads()
    with patch.object(Computing, "asked", lambda *given: counting(*given)):
        yield counting


@pytest.fixture
def model() -> Here:
    return Here()


def rarely_observed(api: Front) -> Front:
    observer = api.watching.observer
    for sampling in observer._samplings:
        observer.sample(sampling, 1 << 40)
        sampling.next_at = 1 << 40
    observer._plan_next()
    return api


@pytest.fixture
def api(model: Here) -> Iterator[Front]:
    with front({"table": model}) as made:
        yield rarely_observed(made)


def ask(api: Front, text: str, **members: Any) -> Any:
    """One round of one request."""
    [answer] = answers(api, crowd(api, [{"input": text, **members}]))
    return answer


def raw(api: Front, body: bytes, path: str = _PATH) -> Any:
    api.connect()
    api.send(request(path, body))
    return api.read()


@pytest.mark.parametrize("form", ["base64", "float", None])
def test_all_but_the_first_are_known_and_get_their_own_vectors(api: Front, reads: Reads, form: str | None) -> None:
    for at, text in enumerate(["one", "two words", "naïve", "日本", "one", "it's {not} [JSON]: , null"]):
        answer = raw(
            api, json.dumps({"model": "table", "input": text, "encoding_format": form}, ensure_ascii=False).encode()
        )
        npt.assert_array_equal(vector(answer), vector_of(text))
        words = len(text.split()) + 2
        assert answer.document["usage"] == {"prompt_tokens": words, "total_tokens": words}
        assert answer.document["model"] == "table"
        assert reads.count == 1, at
    assert api.counters.text_answers == {f"200 {_PATH}": 6}


def test_known_bodies_of_a_round_are_one_run(api: Front, model: Here, reads: Reads) -> None:
    ask(api, "first")
    texts = [f"text {at}" for at in range(20)]
    for text, answer in zip(texts, answers(api, crowd(api, [{"input": text} for text in texts])), strict=True):
        npt.assert_array_equal(vector(answer), vector_of(text))
    assert [run for run, _ in model.runs] == [["first"], texts]
    assert reads.count == 1


def test_bodies_of_several_kinds_are_known(api: Front, model: Here, reads: Reads) -> None:
    kinds: list[dict[str, Any]] = [{}, {"dimensions": 3}, {"encoding_format": "base64"}, {"user": "u"}]
    for _ in range(3):
        for members in kinds:
            answer = ask(api, "some text", **members)
            assert len(vector(answer)) == members.get("dimensions", 8)
    assert reads.count == len(kinds)


@pytest.mark.parametrize(
    "written",
    [b"", b'a \\"b\\"', b"a\\u0062", b"a\\nb", b"\\\\", b"a\xc2\xa0b", b"\x7f", b"x" * (MOST_CHARACTERS_HERE + 1)],
)
def test_texts_that_are_not_plain_are_read(api: Front, reads: Reads, written: bytes) -> None:
    ask(api, "first")
    before, behind = b'{"model": "table", "input": "', b'"}'
    answer = raw(api, before + written + behind)
    assert reads.count == 2
    if written:
        npt.assert_array_equal(vector(answer), vector_of(json.loads(before + written + behind)["input"]))
    else:
        assert answer.status == 400
        assert answer.document["error"]["message"] == "`input` cannot be an empty string"


@pytest.mark.parametrize("written", [b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"a\x00b", b"a\tb", b'"', b'a","mo":"b'])
def test_bodies_that_are_refused_are_refused_by_what_they_are(api: Front, written: bytes) -> None:
    body = b'{"model": "table", "input": "' + written + b'"}'
    unknown = raw(api, body)
    ask(api, "first")
    known = raw(api, body)
    assert (known.status, known.body) == (unknown.status, unknown.body)
    assert known.status == 400


def test_a_body_whose_beginning_and_end_overlap_is_not_known(api: Front) -> None:
    assert raw(api, b'{"input":"ab","model":"table"}').status == 200
    assert raw(api, b'{"input":"","model":"table"}').status == 400
    assert raw(api, b'{"input":"model":"table"}').status == 400
    assert raw(api, b'{"input":","model":"table"}').status == 400


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"model":"x","input":"\\u0078"}', "x"),
        (b'{"model":"m","input":",","user":null}', ","),
        (b'{"input":"x","input":"\\u0078","model":"m"}', "x"),
        (b'{"user":"\\"x\\"","input":"\\u0078","model":"m"}', "x"),
        (b'{"user":"\\"x","input":"\\u0078","model":"m"}', "x"),
        (b'{"input":["x"],"model":"m"}', "x"),
        (
            b'{"user":"\\"probeOfAnotherText","input":"\\u0070robeOfAnotherText","model":"m"}',
            "probeOfAnotherText",
        ),
    ],
)
def test_what_looks_like_the_text_and_is_something_else_is_no_kind(body: bytes, text: str) -> None:
    around = body_around(body, text, "input", _READER)
    if around is None:
        return
    known = _READER.decode(body)
    for other in ("y", "a,b", ":", "m", "input", "null"):
        read = _READER.decode(other.encode().join(around))
        assert read.input == other
        read.input = known.input
        assert read == known


def test_a_text_that_is_another_member_too_is_found_by_what_reading_says() -> None:
    body = b'{"input":"m","model":"m"}'
    assert body_around(body, "m", "input", _READER) == (b'{"input":"', b'","model":"m"}')
    assert body_around(b'{"model":"m","input":"m"}', "m", "input", _READER) is None  # it is found at the wrong place


def test_another_table_of_models_is_looked_into(api: Front, model: Here) -> None:
    ask(api, "one")
    ask(api, "two")
    newer = Here()
    with front({"table": newer}) as other:
        api.table = other.table
        answer = ask(api, "three")
    npt.assert_array_equal(vector(answer), vector_of("three"))
    assert [run for run, _ in newer.runs] == [["three"]]
    assert [run for run, _ in model.runs] == [["one"], ["two"]]


def learn(api: Front, table: Any) -> AlikeBodies:
    """The bodies, after one of a model that was found in a table."""
    bodies: AlikeBodies = api.apis._bodies[_PATH]
    body = b'{"model":"table","input":"a"}'
    asked: Any = openai.ROUTES[0].post.asked(body, "")  # type: ignore[union-attr]
    found = api.apis.lookup.find("table", asked.wants)
    with patch.object(api.apis.lookup, "_table", lambda: table):
        bodies.learn(body, asked, found, asked.options)
    return bodies


def test_kinds_end_with_their_table(api: Front) -> None:
    table = table_of({})
    bodies = learn(api, table)
    assert len(bodies._kinds) == 1
    del table
    gc.collect()
    assert not bodies._kinds
    assert ask(api, "b").status == 200


def test_callers_with_keys_are_looked_at_each_time(tmp_path: Path, model: Here, reads: Reads) -> None:
    with front({"table": model}, key_file=key_file(tmp_path, "a-key-of-sixteen-letters-or-more")) as made:
        api = rarely_observed(made)
        for _ in range(3):
            answer = api.ask(_PATH, {"model": "table", "input": "a"}, authorization="Bearer no-such-key")
            assert answer.status == 401
    assert reads.count == 0
    assert not model.runs


def test_a_model_that_the_query_names_is_asked_for(model: Here, reads: Reads) -> None:
    other = Here()
    with front({"table": model, "other": other}) as made:
        api = rarely_observed(made)
        for text in ("one", "two"):
            api.ask(_PATH, {"model": "table", "input": text})
        body = {"model": "", "input": "three"}
        for _ in range(2):
            assert api.ask(f"{_PATH}?model=other", body).document["model"] == "other"
    assert [run for run, _ in model.runs] == [["one"], ["two"]]
    assert [run for run, _ in other.runs] == [["three"], ["three"]]


def test_known_requests_count_as_in_flight(model: Here, reads: Reads) -> None:
    bound = inflight(3)
    with front({"table": model}, inflight=bound) as made:
        api = rarely_observed(made)
        ask(api, "first")
        texts = ["a", "later", "not a number", "b"]
        connections = crowd(api, [{"input": text} for text in texts])
        assert bound.count == 3
        found = answers(api, connections)
        assert [answer.status for answer in found] == [200, 200, 500, 429]
        assert bound.count == 0
        model.most = 0
        assert ask(api, "c").status == 200
        model.most = 64
        [gone] = crowd(api, [{"input": "d"}])
        gone.connection_lost()
        assert ask(api, "e").status == 200
        assert bound.count == 0
    assert reads.count == 2  # of the first, and of the one that is refused


def test_what_a_run_leaves_out_and_what_fails_is_as_for_bodies_that_are_read(api: Front, model: Here) -> None:
    ask(api, "first")
    texts = ["a", "later", "not a number", "b"]
    found = answers(api, crowd(api, [{"input": text} for text in texts]))
    assert [answer.status for answer in found] == [200, 200, 500, 200]
    npt.assert_array_equal(vector(found[1]), vector_of("later"))
    npt.assert_array_equal(vector(found[3]), vector_of("b"))
    assert [list(texts) for texts, _ in model.asked] == [["later"]]
    assert api.counters.text_answers == {f"200 {_PATH}": 4, f"500 {_PATH}": 1}
    model.full = True
    first, second = answers(api, crowd(api, [{"input": "later"}, {"input": "a"}]))
    assert (first.status, second.status) == (429, 200)


def test_a_bug_in_an_answer_costs_that_request_alone(api: Front, model: Here) -> None:
    ask(api, "first")
    [kind] = api.apis._bodies[_PATH]._kinds
    mistake = ZeroDivisionError("a bug")

    def write(vector: Any, tokens: int, found: Any) -> Any:
        if tokens == 4:
            raise mistake
        return write_one(vector, tokens, found)

    write_one: Any = kind.asked.write_one
    kind.asked.write_one = write
    connections = crowd(api, [{"input": "a"}, {"input": "b c"}, {"input": "d"}])
    while api.worker.soon:
        api.worker.soon.pop(0)()
    assert api.worker.bugs == [mistake]
    api.worker.bugs.clear()
    assert [answer.status for answer in answers(api, connections)] == [200, 500, 200]


def test_requests_that_are_to_be_observed_are_read(model: Here, reads: Reads) -> None:
    with front({"table": model}) as api:
        for text in ("a", "b", "c"):
            assert ask(api, text).status == 200
        assert len(api.observed) == 3
    assert reads.count == 3


def test_pipelined_requests_that_are_known_and_others_are_answered_in_their_order(api: Front) -> None:
    ask(api, "first")
    texts = ["a", "later", "b", 'with "quotes"', "c"]
    api.connect()
    api.send(b"".join(request(_PATH, {"model": "table", "input": text}) for text in texts))
    while api.worker.soon:
        api.worker.soon.pop(0)()
    out = b"".join(api.connection.take_output())
    bodies = [json.loads(part.split(b"\r\n\r\n", 1)[1]) for part in out.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert len(bodies) == len(texts)
    for body, text in zip(bodies, texts, strict=True):
        npt.assert_allclose(body["data"][0]["embedding"], vector_of(text).tolist(), rtol=1e-6)


def test_kinds_are_few_and_the_oldest_is_forgotten(api: Front, reads: Reads) -> None:
    for at in range(MOST_KINDS + 1):
        ask(api, "a", user=f"user {at}")
    assert len(api.apis._bodies[_PATH]._kinds) == MOST_KINDS
    reads.count = 0
    ask(api, "b", user=f"user {MOST_KINDS}")
    assert reads.count == 0
    ask(api, "b", user="user 0")
    assert reads.count == 1


def test_a_body_with_much_around_its_text_is_no_kind(api: Front, reads: Reads) -> None:
    for _ in range(2):
        ask(api, "a", user="u" * MOST_AROUND)
    assert reads.count == 2


class Uncopied(bytes):
    """A body that a worker must not copy."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("it was copied")


def test_a_large_body_that_begins_and_ends_like_a_known_one_is_not_copied(api: Front, reads: Reads) -> None:
    ask(api, "a")
    [kind] = api.apis._bodies[_PATH]._kinds
    longest = kind.before + "\U0001f600".encode() * MOST_CHARACTERS_HERE + kind.behind
    assert len(kind.text_of(longest)) == MOST_CHARACTERS_HERE
    assert kind.text_of(Uncopied(kind.before + b"a" * kind.most + kind.behind)) == ""
    reads.count = 0
    ask(api, "a" * kind.most)
    assert reads.count == 1


def test_where_no_two_bodies_are_alike_few_are_looked_at(api: Front) -> None:
    looks = []

    def look(*arguments: Any) -> Any:
        looks.append(arguments)
        return body_around(*arguments)

    with patch("toutates.api.text.alike.body_around", look):
        for at in range(500):
            ask(api, "a", user=f"user {at}")
    assert len(looks) < MOST_KINDS + 10


def test_a_name_whose_requests_are_divided_is_looked_up_each_time(api: Front) -> None:
    assert not learn(api, SimpleNamespace(traffic=SimpleNamespace(routes={"table": None})))._kinds
