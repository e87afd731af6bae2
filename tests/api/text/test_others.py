"""Cohere's reranking, the proxy's /v1/embedding, and what all APIs read their bodies with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy.testing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.text.doubles import CLASSIFIER, RERANKER, Double, as_vector, vector_of
from tests.api.text.front import Front, front, key_file
from toutates.access.key_file import read_key_file
from toutates.access.quotas import Quotas
from toutates.api.text import large_json
from toutates.api.text.half_characters import STEPPED_BYTES
from toutates.api.text.handler import TextSettings
from toutates.api.text.proxy import ProxySettings, read_proxy_settings
from toutates.system.errors import ConfigurationError


@pytest.fixture(scope="module")
def api() -> Iterator[Front]:
    with front({"judge": Double(RERANKER)}) as made:
        yield made


# --- Cohere ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ranked(api: Front, path: str) -> None:
    documents = ["one", {"text": "two", "title": "b"}, "three"]
    asked = {"model": "judge", "query": "q", "documents": documents}
    document = api.ask(path, asked).document
    scores = [result["relevance_score"] for result in document["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in document["results"]) == [0, 1, 2]
    assert document["model"] == "judge"
    assert document["usage"]["total_tokens"] == 12
    assert document["meta"]["api_version"] == {"version": "2"}
    assert document["id"]
    [best] = api.ask(path, asked | {"top_n": 1, "return_documents": True}).document["results"]
    assert best["document"] == {"text": ["one", "two", "three"][best["index"]]}


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"documents": []}, 400),
        ({"documents": ["a"] * 2_049}, 400),
        ({"documents": ["a", ""]}, 200),
        ({"query": ""}, 400),
        ({"top_n": 0}, 400),
        ({"max_tokens_per_doc": 4}, 400),
        ({"max_tokens_per_doc": 4_096}, 200),
        ({"model": "other"}, 404),
        ({"documents": [{"title": "a"}]}, 422),
        ({"query": 1}, 422),
    ],
)
def test_refusals_have_coheres_form(api: Front, more: dict[str, Any], status: int) -> None:
    for path in ("/v1/rerank", "/v2/rerank"):
        answer = api.ask(path, {"model": "judge", "query": "q", "documents": ["a"]} | more)
        assert answer.status == status
        assert status == 200 or set(answer.document) == {"message"}


def test_a_lone_surrogate_is_refused_in_each_form(api: Front) -> None:
    for path, body, member, place in (
        ("/v2/rerank", rb'{"model":"judge","query":"q","documents":["a","b \ud800"]}', "message", "`documents[1]`"),
        ("/v1/embedding", rb'[{"query":"ab\udc00"}]', "msg", "`[0].query`"),
    ):
        answer = api.ask(path, body)
        assert (answer.status, set(answer.document)) == (400, {member})
        assert f"{place} is no valid Unicode: it has the surrogate U+D" in answer.document[member]
        assert answer.document[member].endswith("at character 2")


@pytest.mark.parametrize("more", [0, STEPPED_BYTES])
def test_half_an_emoji_is_named_with_its_text_and_its_place(api: Front, more: int) -> None:
    """Of a short body, and of one that is read in steps."""
    body = rb'{"model":"minilm","input":["whole \ud83d\ude00","%bhalf \ud83d x"]}' % (b"a" * more)
    answer = api.ask("/v1/embeddings", body)
    assert answer.status == 400
    assert answer.document["error"]["param"] == "input[1]"
    assert answer.document["error"]["message"] == (
        f"`input[1]` is no valid Unicode: it has the surrogate U+D83D at character {more + 5}"
    )


def test_keys_are_asked_for(tmp_path: Path) -> None:
    with front({"judge": Double(RERANKER)}, key_file=key_file(tmp_path, "key")) as api:
        answer = api.ask("/v2/rerank", {"query": "q", "documents": ["a"]})
        assert (answer.status, set(answer.document)) == (401, {"message"})


# --- the proxy -------------------------------------------------------------------------------------------------------


def test_queries_become_embeddings() -> None:
    with front() as api:
        document = api.ask("/v1/embedding", [{"query": "a"}, {"query": "b"}]).document
        npt.assert_array_equal(as_vector([entry["embedding"] for entry in document]), [vector_of("a"), vector_of("b")])
        assert api.ask("/v1/embedding", []).document == []
        for body, status in (
            (b"{}", 400),
            (b"[", 400),
            (b'[{"query":""}]', 400),
            (b'[{"query":1}]', 400),
            (b"[" + b",".join([b'{"query":"a"}'] * 2_049) + b"]", 400),
        ):
            answer = api.ask("/v1/embedding", body)
            assert (answer.status, set(answer.document)) == (status, {"msg"})
        answer = api.ask("/v1/embedding?model=other", [{"query": "a"}])
        assert (answer.status, set(answer.document)) == (404, {"msg"})


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        (ProxySettings(model="two"), 200),
        (ProxySettings(model="two", version="1", size=8), 200),
        (ProxySettings(model="two", version="2"), 404),
        (ProxySettings(model="two", size=1_024), 500),
        (ProxySettings(model="mood"), 400),
        (ProxySettings(), 404),  # no model is called "model", and two could be meant
    ],
)
def test_the_environment_chooses_the_model(settings: ProxySettings, status: int) -> None:
    models = {"one": Double(), "two": Double(), "mood": Double(CLASSIFIER)}
    with front(models, settings=TextSettings(settings)) as api:
        assert api.ask("/v1/embedding", [{"query": "a"}]).status == status


def test_the_environment_is_read() -> None:
    environment = {
        "MODEL_NAME": "e5",
        "MODEL_VERSION": "2",
        "INPUT_NAME": "t",
        "OUTPUT_NAME": "e",
        "EMBEDDING_SIZE": "8",
    }
    assert read_proxy_settings(environment) == ProxySettings("e5", "2", "t", "e", 8)
    assert read_proxy_settings({}) == ProxySettings()


@pytest.mark.parametrize("name", ["MODEL_VERSION", "EMBEDDING_SIZE"])
def test_a_variable_of_somebody_else_refuses_requests_to_its_api_alone(name: str) -> None:
    settings = TextSettings(read_proxy_settings({name: "v1.2"}))
    with front({"one": Double()}, settings=settings) as api:
        answer = api.ask("/v1/embedding", [{"query": "a"}])
        assert (answer.status, answer.document) == (
            500,
            {"msg": f"the server's environment variable {name} is no number above 0: correct or unset it"},
        )
        assert api.ask("/v1/embeddings", {"model": "one", "input": "a"}).status == 200


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no key"),
        ("# none\n", "has no key"),
        ("one key\n", "line 1 is no key"),
        ("é\n", "line 1 is no key"),
        ("k\n" * 1 + "\n".join(f"k{n}" for n in range(1_100)), "has 1101 keys"),
        ("x" * 2_000_000, "has more than"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=problem) as error:
        read_key_file(path, Quotas(lambda: 0))
    assert "--api-key-file" in str(error.value)
    with pytest.raises(ConfigurationError, match="there is no such file"):
        read_key_file(tmp_path / "none", Quotas(lambda: 0))


# --- large JSON ------------------------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(
    _VALUES,
    st.booleans(),
    st.sampled_from((None, 1)),
    st.integers(32, 40),
    st.lists(st.tuples(st.integers(0), st.sampled_from(b'",[]{}:\\u0dD8a \xe9\xff1')), max_size=2),
)
def test_large_json_is_what_msgspec_reads(value: Any, ascii: bool, indent: Any, piece: int, changes: Any) -> None:
    octets = bytearray(json.dumps(value, ensure_ascii=ascii, indent=indent).encode())
    for at, octet in changes:
        octets[at % len(octets)] = octet
    try:
        expected = repr(msgspec.json.decode(octets))
    except (msgspec.DecodeError, UnicodeError):
        expected = "bad"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "PIECE_BYTES", piece)
        try:
            read = repr(large_json.read_large(octets, lambda: None))
        except large_json.BadJson:
            read = "bad"
    assert read == expected


@pytest.mark.parametrize("octets", [b"[" * 100, b'[""' + b',""' * 10_000 + b"]", b"[1" + b",1" * 600_000 + b"]"])
def test_too_many_values_are_too_much(octets: bytes) -> None:
    with pytest.raises(large_json.TooMuch):
        large_json.read_large(octets, lambda: None)
