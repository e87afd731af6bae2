"""OpenAI's API: what its description has, and what clients make of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.api.text.doubles import CLASSIFIER, Double, as_vector, vector_of
from tests.api.text.front import Front, front, inflight, key_file
from tests.api.text.line import request
from toutates.api.text.half_characters import STEPPED_BYTES
from toutates.api.text.reading import LARGE_BYTES, MAX_BODY_BYTES
from toutates.infer.tracing.settings import read_changes
from toutates.system.errors import ConfigurationError


@pytest.fixture(scope="module")
def api() -> Iterator[Front]:
    with front() as made:
        yield made


def embed(api: Front, given: Any, **more: Any) -> Any:
    answer = api.ask("/v1/embeddings", {"input": given, "model": "minilm", **more})
    assert answer.status == 200, answer.body
    assert answer.fields["content-type"] == "application/json"
    return answer.document


def refused(api: Front, given: Any, **more: Any) -> tuple[int, Any]:
    answer = api.ask("/v1/embeddings", {"input": given, "model": "minilm", **more})
    error = answer.document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return answer.status, error


def test_one_text_as_floats(api: Front) -> None:
    document = embed(api, "a short text")
    [entry] = document.pop("data")
    assert document == {"object": "list", "model": "minilm", "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    npt.assert_array_equal(as_vector(entry.pop("embedding")), vector_of("a short text"))
    assert entry == {"object": "embedding", "index": 0}


@pytest.mark.parametrize("texts", [["a"], ["a", "b c", "a"], [f"text {n}" for n in range(2_048)]])
def test_base64_is_of_the_bytes_of_each_vector_in_the_order_of_the_input(api: Front, texts: list[str]) -> None:
    data = embed(api, texts, encoding_format="base64")["data"]
    assert [entry["index"] for entry in data] == list(range(len(texts)))
    for text, entry in zip(texts, data, strict=True):
        vector = np.frombuffer(base64.b64decode(entry["embedding"], validate=True), "<f4")
        npt.assert_array_equal(vector, vector_of(text))


def test_ids_of_tokens_are_one_text_or_several(api: Front) -> None:
    assert len(embed(api, [1, 2, 3])["data"]) == 1
    document = embed(api, [[1, 2, 3], [4]])
    assert len(document["data"]) == 2
    assert document["usage"]["prompt_tokens"] == 4


def test_dimensions_shorten_the_vector(api: Front) -> None:
    [entry] = embed(api, "a", dimensions=3, user="me")["data"]
    assert len(entry["embedding"]) == 3


def test_a_prompt_is_named_by_a_member_or_by_the_model(api: Front) -> None:
    [entry] = embed(api, "a", prompt_name="query")["data"]
    npt.assert_array_equal(as_vector(entry["embedding"]), vector_of("query: a"))
    answer = api.ask("/v1/embeddings", {"input": "a", "model": "minilm:query"})
    npt.assert_array_equal(as_vector(answer.document["data"][0]["embedding"]), vector_of("query: a"))


def test_members_that_are_null_are_as_if_left_out(api: Front) -> None:
    embed(api, "a", dimensions=None, user=None, encoding_format=None)


@pytest.mark.parametrize(
    ("given", "more", "param"),
    [
        ("", {}, "input"),
        ([], {}, "input"),
        (["a", ""], {}, "input[1]"),
        ([[1], []], {}, "input[1]"),
        ([[]], {}, "input[0]"),
        (["a", 1], {}, "input"),
        (1.5, {}, "input"),
        (None, {}, "input"),
        ([1, -1], {}, "input[1]"),
        ([1, 2**31], {}, "input[1]"),
        ([[1, 1_000]], {}, "input[0]"),
        (["a"] * 2_049, {}, "input"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"dimensions": 9}, "dimensions"),
        ("a", {"dimensions": "3"}, "dimensions"),
        ("a", {"encoding_format": "bytes"}, "encoding_format"),
        ("a", {"user": 1}, "user"),
        ("a", {"temperature": 1}, "temperature"),
        ("a", {"prompt_name": "passage"}, "prompt_name"),
        ("word " * 20, {"truncate": False}, "input[0]"),
    ],
)
def test_what_is_refused_names_its_member(api: Front, given: Any, more: Any, param: str) -> None:
    status, error = refused(api, given, **more)
    assert (status, error["type"], error["param"], error["code"]) == (400, "invalid_request_error", param, None)


def test_a_text_that_is_too_long_is_cut_unless_the_request_says_otherwise(api: Front) -> None:
    assert embed(api, "word " * 20)["usage"]["prompt_tokens"] == 16
    _, error = refused(api, "word " * 20, truncate=False)
    assert error["message"] == "`input[0]` must have at most 16 tokens. Given: 22"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"input":"a","model":"minilm"} x',
        b'{"input":"\\ud800","model":"minilm"}',
        b'{"input":"\xff","model":"minilm"}',
        b'{"input":["\\udc00 b"],"model":"minilm"}',
        b'{"input":"a","model":"minilm","user":' + b"[" * 20_000,
        b"[" * 40_000,
        b'{"input":' + b"[" * (STEPPED_BYTES + 1),
    ],
)
def test_what_is_no_json_is_refused(api: Front, body: bytes) -> None:
    answer = api.ask("/v1/embeddings", body)
    assert answer.status == 400
    assert answer.document["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"[]", b"1", b"{}", b'{"input":"a"}', b'{"model":"minilm"}'])
def test_a_body_of_another_form_is_refused(api: Front, body: bytes) -> None:
    assert api.ask("/v1/embeddings", body).status == 400


@pytest.mark.parametrize("size", [LARGE_BYTES, STEPPED_BYTES, 10_000_000])
def test_a_large_text_is_read_beside_the_worker(api: Front, size: int) -> None:
    text = "é\n😀 " * (size // 20)
    [entry] = embed(api, [text])["data"]
    npt.assert_array_equal(as_vector(entry["embedding"]), vector_of(text))
    status, _ = refused(api, [text, ""])
    assert status == 400
    assert api.connection.kept_bytes == 0


def test_a_body_that_is_too_large_is_refused_in_the_form_of_the_api(api: Front) -> None:
    for octets in (
        request("/v1/embeddings", b"", content_length=str(MAX_BODY_BYTES + 1)).replace(b"content-length: 0\r\n", b""),
        request("/v1/embeddings", b"", transfer_encoding="chunked").replace(b"content-length: 0\r\n", b"")
        + b"%x\r\n" % (MAX_BODY_BYTES + 1),
    ):
        api.connect()
        api.send(octets)
        answer = api.read()
        assert answer.status == 413
        assert answer.document["error"]["type"] == "invalid_request_error"
    api.connect()


def test_many_values_are_refused_before_they_cost_memory(api: Front) -> None:
    for texts in (b'""' + b',""' * 1_000_000, b"1" + b",1" * 1_500_000):
        answer = api.ask("/v1/embeddings", b'{"model":"minilm","input":[%b]}' % texts)
        assert answer.status == 400
        assert "more than" in answer.document["error"]["message"]


def test_an_unknown_model_is_not_found(api: Front) -> None:
    for name in ("other", "x" * 10_000, "é"):
        answer = api.ask("/v1/embeddings", {"input": "a", "model": name})
        assert answer.status == 404, name
        assert answer.document["error"]["code"] == "model_not_found"
        assert answer.document["error"]["param"] == "model"
    assert api.ask("/v1/embeddings", {"input": "a", "model": "minilm:passage"}).status == 400


def test_without_any_text_model_nothing_is_found() -> None:
    with front({}) as empty:
        assert empty.ask("/v1/embeddings", {"input": "a", "model": "m"}).document["error"]["code"] == "model_not_found"
        assert empty.ask("/v1/models").document == {"object": "list", "data": []}


def test_a_model_of_another_task_is_refused() -> None:
    with front({"mood": Double(CLASSIFIER)}) as other:
        answer = other.ask("/v1/embeddings", {"input": "a", "model": "mood"})
        assert answer.status == 400
        assert answer.document["error"]["message"] == "the model 'mood' is not an embedding model"


def test_a_vector_that_is_no_number_is_the_servers_fault(api: Front) -> None:
    answer = api.ask("/v1/embeddings", {"input": "not a number", "model": "minilm"})
    assert (answer.status, answer.document["error"]["type"]) == (500, "server_error")


def test_an_empty_name_is_as_none(api: Front) -> None:
    for path in ("/v1/embeddings", "/embeddings"):
        for body in ({"input": "a"}, {"input": "a", "model": ""}, {"input": "a", "model": None}):
            answer = api.ask(path, body)
            assert answer.status == 400
            error = answer.document["error"]
            assert (error["message"], error["param"]) == ("model: Object missing required field `model`", "model")


def test_models_are_listed(api: Front) -> None:
    document = api.ask("/v1/models").document
    [entry] = document["data"]
    assert document["object"] == "list"
    created = int(api.table.find("minilm", "").loaded_s)
    assert entry == {"id": "minilm", "object": "model", "created": created, "owned_by": "toutates"}
    assert created > 1_700_000_000
    assert api.ask("/v1/models/minilm").document == entry
    answer = api.ask("/v1/models/other")
    assert (answer.status, answer.document["error"]["code"]) == (404, "model_not_found")
    assert api.ask("/v1/models", {}).status == 405
    assert api.ask("/v1/embeddings").status == 405
    with front() as other:  # whose connection ends with it
        answer = other.ask("/v1/models", b"x" * 70_000, method="GET")
        assert (answer.status, answer.document["error"]["message"]) == (
            413,
            "the request's body has more than 65536 bytes",
        )


def test_who_is_one_too_many_is_told_when_to_come_again() -> None:
    model = Double()
    with front({"minilm": model}, inflight=inflight(1)) as full:
        model.held = []
        full.send(request("/v1/embeddings", {"input": "a", "model": "minilm"}))
        [first] = model.held
        full.connect()
        answer = full.ask("/v1/embeddings", {"input": "a", "model": "minilm"})
        assert (answer.status, answer.document["error"]["code"]) == (429, "rate_limit_exceeded")
        assert float(answer.fields["retry-after-ms"]) > 0
        first()
        model.held = None
        while full.worker.soon:
            full.worker.soon.pop(0)()
        assert full.ask("/v1/embeddings", {"input": "a", "model": "minilm"}).status == 200
        model.full = True
        assert full.ask("/v1/embeddings", {"input": "a", "model": "minilm"}).status == 429


def test_texts_are_their_callers_or_else_their_connections(tmp_path: Path) -> None:
    body = {"input": "a", "model": "minilm"}
    for path, expected in ((key_file(tmp_path, "first"), "key in line 3"), (None, "here")):
        model = Double()
        with front({"minilm": model}, key_file=path) as api:
            assert api.ask("/v1/embeddings", body, authorization="Bearer first").status == 200
        assert model.callers == [expected]


def test_keys_are_asked_for_and_read_again(tmp_path: Path) -> None:
    path = key_file(tmp_path, "first", "second")
    with front(key_file=path) as api:
        body = {"input": "a", "model": "minilm"}

        def status(*keys: str) -> list[int]:
            return [api.ask("/v1/embeddings", body, authorization=key).status for key in keys]

        assert status("Bearer first", "bearer second", "", "first", "Bearer", "Bearer third", "Basic first") == [
            200,
            200,
            *[401] * 5,
        ]
        error = api.ask("/v1/embeddings", body).document["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert api.ask("/v1/models").status == 401
        key_file(tmp_path, "second", "third")
        api.keys.reload()
        assert status("Bearer first", "Bearer second", "Bearer third") == [401, 200, 200]
        path.write_text("")
        with pytest.raises(ConfigurationError, match="has no key"):
            api.keys.reload()
        assert status("Bearer first", "Bearer second") == [401, 200]


def test_nobody_without_a_key_has_a_large_body_read(tmp_path: Path) -> None:
    with front(key_file=key_file(tmp_path, "key")) as api:
        api.send(request("/v1/embeddings", b"", content_length="1000000").replace(b"content-length: 0\r\n", b""))
        answer = api.read()
        assert (answer.status, answer.document["error"]["code"]) == (401, "invalid_api_key")
        assert api.connection.drained


def test_an_answer_is_in_one_write_after_the_head(api: Front) -> None:
    api.send(request("/v1/embeddings", {"input": "a", "model": "minilm", "encoding_format": "base64"}))
    while api.worker.soon:
        api.worker.soon.pop(0)()
    *_, end_of_head, body = api.connection.take_output()
    assert bytes(end_of_head).endswith(b"\r\n\r\n")
    assert json.loads(bytes(body))["object"] == "list"


def test_answers_are_counted_and_observed() -> None:
    with front() as api:
        api.ask("/v1/embeddings", {"input": ["a", "b"], "model": "minilm"})
        api.ask("/v1/embeddings", {"input": "a", "model": "other"})
        api.ask("/v1/models")
        assert api.counters.text_answers == {"200 /v1/embeddings": 1, "404 /v1/embeddings": 1, "200 /v1/models": 1}
        one, other = api.observed
        assert one.version is not None
        assert (one.version.model, one.rows, one.status, one.peer) == ("minilm", 2, 200, "here")
        assert other.version is None
        assert other.status == 404
        assert "'other'" in other.text
        assert not api.watching.observer.under_way


def test_a_request_is_traced_whose_caller_records_the_trace() -> None:
    sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with front() as api:
        for levels in (["OFF"], ["TIMESTAMPS"]):
            api.watching.trace_settings.update("", read_changes({"trace_level": levels}))
            body = {"input": ["one", "two"], "model": "minilm"}
            assert api.ask("/v1/embeddings", body, traceparent=sampled).status == 200
            assert api.ask("/v1/embeddings", {**body, "input": ""}, traceparent=sampled).status == 400
    answered, refused = api.watching.traced
    assert (answered.route, answered.model, answered.rows, answered.status) == ("/v1/embeddings", "minilm", 2, 200)
    assert answered.traceparent == sampled
    assert 0 < answered.planned_ns <= answered.answered_ns
    assert (refused.status, refused.text) == (400, "`input` cannot be an empty string")
