"""Members that clients of other servers send: carried out, refused, or ignored by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from tests.api.text.doubles import CLASSIFIER, EMBEDDER, RERANKER, Double
from tests.api.text.front import Front, front
from tests.tables import table_of
from toutates.backends.text.interface import Scores, TextOptions

HEADER = "x-ignored-members"
SENTENCES = {"source_sentence": "a", "sentences": ["b"]}


@pytest.fixture
def models() -> dict[str, Double]:
    return {"minilm": Double(EMBEDDER), "judge": Double(RERANKER), "mood": Double(CLASSIFIER)}


@pytest.fixture
def api(models: dict[str, Double]) -> Iterator[Front]:
    with front(models) as made:
        yield made


#: By door: a body that is answered, and the model.
DOORS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/embeddings": ({"model": "minilm", "input": "a"}, "minilm"),
    "/embeddings": ({"model": "minilm", "input": "a"}, "minilm"),
    "/embed": ({"inputs": "a"}, "minilm"),
    "/": ({"inputs": "a"}, "minilm"),
    "/embed_all": ({"inputs": "a"}, "minilm"),
    "/similarity": ({"inputs": SENTENCES}, "minilm"),
    "/predict": ({"inputs": "a"}, "mood"),
    "/rerank": ({"query": "q", "texts": ["a", "b"]}, "judge"),
    "/v1/rerank": ({"query": "q", "documents": ["a", "b"]}, "judge"),
    "/v2/rerank": ({"query": "q", "documents": ["a", "b"]}, "judge"),
    "/tokenize": ({"inputs": "a", "model": "minilm"}, "minilm"),
    "/decode": ({"ids": [5], "model": "minilm"}, "minilm"),
}
EMBEDDING_DOORS = ("/v1/embeddings", "/embed", "/")
CUT_DOORS = (*EMBEDDING_DOORS, "/embed_all", "/similarity", "/predict", "/rerank", "/v1/rerank")


def ask(api: Front, path: str, **members: Any) -> Any:
    return api.ask(path, DOORS[path][0] | members)


def options(api: Front, models: dict[str, Double], path: str, **members: Any) -> TextOptions:
    """What has reached the model of a request, which is answered and ignores nothing."""
    answer = ask(api, path, **members)
    assert answer.status == 200, answer.body
    assert HEADER not in answer.fields
    return models[DOORS[path][1]].asked[-1][1]


CARRIED: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    (CUT_DOORS, {"truncate_prompt_tokens": -1}, {"truncate": True, "max_tokens": None}),
    (CUT_DOORS, {"truncate_prompt_tokens": 7}, {"truncate": True, "max_tokens": 7}),
    (CUT_DOORS, {"truncate_prompt_tokens": 7, "truncate": False}, {"truncate": False, "max_tokens": 7}),
    (CUT_DOORS, {"truncation": False}, {"truncate": False}),
    (CUT_DOORS, {"truncate": "NONE"}, {"truncate": False}),
    (CUT_DOORS, {"truncate": "start"}, {"truncate": True, "truncate_left": True}),
    (CUT_DOORS, {"truncate": "END"}, {"truncate": True, "truncate_left": False}),
    (CUT_DOORS, {"truncation_side": "left"}, {"truncate_left": True}),
    (CUT_DOORS, {"add_special_tokens": False}, {"add_special_tokens": False}),
    (CUT_DOORS, {"padding": "do_not_pad", "modality": "text"}, {"truncate": None}),
    (EMBEDDING_DOORS, {"normalized": False}, {"normalize": False}),
    (EMBEDDING_DOORS, {"normalize": False}, {"normalize": False}),
    (EMBEDDING_DOORS, {"use_activation": False, "normalized": False}, {"normalize": False}),
    (EMBEDDING_DOORS, {"input_type": "query"}, {"prompt": "query"}),
    (EMBEDDING_DOORS, {"input_type": "search_query"}, {"prompt": "query"}),
    (EMBEDDING_DOORS, {"task": "query"}, {"prompt": "query"}),
    (EMBEDDING_DOORS, {"output_dimension": 3}, {"dimensions": 3}),
    (EMBEDDING_DOORS, {"truncate_dim": 3, "dimensions": 3}, {"dimensions": 3}),
    (EMBEDDING_DOORS, {"embedding_type": "float", "output_dtype": "float", "late_chunking": False}, {}),
    (EMBEDDING_DOORS, {"encoding_format": "float", "endianness": "little"}, {}),
    (("/predict", "/rerank", "/v1/rerank"), {"use_activation": False}, {"scores": Scores.RAW}),
    (("/predict", "/rerank", "/v1/rerank"), {"activation": True}, {"scores": Scores.PROBABILITIES}),
    (("/predict",), {"function_to_apply": "none"}, {"scores": Scores.RAW}),
    (("/predict",), {"parameters": {"function_to_apply": "softmax"}}, {"scores": Scores.SOFTMAX}),
    (("/predict",), {"parameters": {"function_to_apply": "sigmoid"}}, {"scores": Scores.SIGMOID}),
    (("/embed", "/", "/similarity"), {"parameters": {"truncate": False}}, {"truncate": False}),
    (("/v1/rerank", "/rerank"), {"rank_fields": ["text"], "max_chunks_per_doc": 1}, {}),
]


@pytest.mark.parametrize(("path", "members", "wanted"), [(p, m, w) for paths, m, w in CARRIED for p in paths])
def test_what_changes_an_answer_is_carried_out(
    api: Front, models: dict[str, Double], path: str, members: dict[str, Any], wanted: dict[str, Any]
) -> None:
    found = options(api, models, path, **members)
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_base64_is_asked_for_by_jinas_name_too(api: Front) -> None:
    [entry] = ask(api, "/v1/embeddings", embedding_type="base64").document["data"]
    assert isinstance(entry["embedding"], str)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize("member", ["top_n", "top_k"])
def test_the_best_are_asked_for_by_either_name(api: Front, path: str, member: str) -> None:
    document = ask(api, path, **{member: 1}).document
    assert len(document["results"] if path == "/v1/rerank" else document) == 1
    assert ask(api, path, **{member: 0}).status == (422 if path == "/rerank" else 400)


@pytest.mark.parametrize("member", ["return_text", "return_documents"])
def test_texts_are_repeated_by_either_name(api: Front, member: str) -> None:
    assert "text" in ask(api, "/rerank", **{member: True}).document[0]
    assert "document" in ask(api, "/v2/rerank", **{member: True}).document["results"][0]


def test_the_best_classes_are_asked_for(api: Front) -> None:
    assert len(ask(api, "/predict", parameters={"top_k": 1}).document) == 1
    assert ask(api, "/predict", top_k=0).status == 422


REFUSED: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (CUT_DOORS, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    (CUT_DOORS, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    (CUT_DOORS, {"truncate": "middle"}, "truncate"),
    (CUT_DOORS, {"truncation": 1}, "truncation"),
    (CUT_DOORS, {"truncation_side": "up"}, "truncation_"),
    (CUT_DOORS, {"truncation": True, "truncate": False}, "trunca"),
    (CUT_DOORS, {"padding": "max_length"}, "padding"),
    (CUT_DOORS, {"modality": "image"}, "modality"),
    (CUT_DOORS, {"instruction": "find it"}, "instruction"),
    (EMBEDDING_DOORS, {"normalized": "yes"}, "normalized"),
    (EMBEDDING_DOORS, {"input_type": "passage"}, "passage"),
    (EMBEDDING_DOORS, {"input_type": "query", "task": "passage"}, "task"),
    (EMBEDDING_DOORS, {"task": "text-matching"}, "text-matching"),
    (EMBEDDING_DOORS, {"output_dimension": 9}, "dimensions"),
    (EMBEDDING_DOORS, {"output_dtype": "int8"}, "output_dtype"),
    (EMBEDDING_DOORS, {"embedding_type": "binary"}, "embedding_type"),
    (EMBEDDING_DOORS, {"embedding_type": ["float"]}, "embedding_type"),
    (EMBEDDING_DOORS, {"endianness": "big"}, "endianness"),
    (EMBEDDING_DOORS, {"late_chunking": True}, "late_chunking"),
    (EMBEDDING_DOORS, {"late_chunking": 0}, "late_chunking"),
    (("/embed", "/"), {"encoding_format": "base64"}, "encoding_format"),
    (("/embed_all",), {"normalize": True}, "normalize"),
    (("/embed_all", "/similarity"), {"dimensions": 3}, "dimensions"),
    (("/similarity",), {"normalize": False}, "normalize"),
    (("/predict",), {"function_to_apply": "relu"}, "function_to_apply"),
    (("/predict", "/v1/rerank"), {"activation": "softmax2"}, "activation"),
    (("/rerank", "/v1/rerank"), {"max_chunks_per_doc": 2}, "max_chunks_per_doc"),
    (("/rerank", "/v1/rerank"), {"rank_fields": ["title"]}, "rank_fields"),
    (("/rerank", "/v1/rerank"), {"max_tokens_per_doc": 4}, "max_tokens_per_doc"),
    (("/v1/embeddings", "/embeddings"), {"temperature": 1}, "temperature"),
    (("/v1/embeddings",), {"temperature": 1, "priority": 1}, "temperature"),
    (("/v1/embeddings",), {"parameters": {"dimensions": 3}}, "parameters"),
]


@pytest.mark.parametrize(("path", "members", "said"), [(p, m, s) for paths, m, s in REFUSED for p in paths])
def test_what_cannot_be_carried_out_is_refused_by_its_name(
    api: Front, path: str, members: dict[str, Any], said: str
) -> None:
    answer = ask(api, path, **members)
    assert answer.status in (400, 422)
    assert answer.status == 400 or not path.startswith("/v1/embeddings")
    assert said in answer.body.decode()


@pytest.mark.parametrize("path", DOORS)
def test_what_changes_no_answer_is_ignored_by_its_name(api: Front, path: str) -> None:
    plain = ask(api, path)
    assert HEADER not in plain.fields
    answer = ask(api, path, request_id="r", priority=3)
    assert answer.status == 200, answer.body
    assert answer.fields[HEADER] == "request_id, priority"
    if "rerank" not in path:  # Cohere's answers have an id of their own
        assert answer.body == plain.body


@pytest.mark.parametrize("path", [path for path in DOORS if "embeddings" not in path])
def test_teis_and_coheres_routes_ignore_others_by_their_name(api: Front, path: str) -> None:
    names = {"whatever": [1], "a\r\nx-evil: 1": 2, "": 3, "ü": 4, "x" * 65: 5}
    assert ask(api, path, **names).fields[HEADER] == "whatever, ..."
    many = {f"m{at}": at for at in range(500)}
    assert ask(api, path, **many).fields[HEADER].split(", ") == [*list(many)[:20], "..."]


@pytest.mark.parametrize("path", DOORS)
def test_null_is_as_if_left_out(api: Front, path: str) -> None:
    names = ("normalize", "truncate", "raw_scores", "return_text", "return_documents", "add_special_tokens", "top_n")
    more = ("skip_special_tokens", "truncation_direction", "dimensions", "priority", "temperature", "parameters", "x")
    answer = ask(api, path, **dict.fromkeys((*names, *more)))
    assert answer.status == 200, answer.body
    assert HEADER not in answer.fields
    required = next(iter(DOORS[path][0].keys() - {"model"}))
    assert ask(api, path, **{required: None}).status in (400, 422)


def test_a_large_body_is_sorted_beside_the_worker(api: Front, models: dict[str, Double]) -> None:
    texts = ["word " * 1_000] * 300
    answer = ask(api, "/v1/embeddings", input=texts, priority=1, normalized=False)
    assert (answer.status, answer.fields[HEADER]) == (200, "priority")
    assert models["minilm"].asked[-1][1].normalize is False


def test_depth_in_a_member_that_nobody_knows_is_refused(api: Front) -> None:
    body = b'{"inputs":"a","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    assert api.ask("/embed", body).status == 400
    assert ask(api, "/embed").status == 200


# --- the server's own route ------------------------------------------------------------------------------------------


def test_the_servers_own_route_predicts_where_the_only_model_is_a_classifier() -> None:
    with front({"mood": Double(CLASSIFIER)}) as api:
        for document in (
            {"inputs": "fine"},
            {"inputs": [["fine"], ["a", "b"]]},
            {"inputs": "fine", "raw_scores": True},
        ):
            own = api.ask("/", document)
            assert (own.status, own.document) == (200, api.ask("/predict", document).document)
        assert api.ask("/", {"inputs": "a", "parameters": {"top_k": 1}, "x": 1}).fields[HEADER] == "x"
        assert api.ask("/", {"inputs": [[1, 2]]}).status == 422
        assert api.ask("/", {"inputs": ""}).document["error_type"] == "Validation"


def test_the_servers_own_route_asks_the_model_that_is_named(api: Front) -> None:
    assert [set(one) for one in ask(api, "/", model="mood").document] == [{"score", "label"}] * 2
    assert api.ask("/?model=mood", {"inputs": "a"}).document == ask(api, "/", model="mood").document
    assert len(ask(api, "/").document[0]) == EMBEDDER.dimensions
    assert ask(api, "/", model="judge").status == 424
    assert ask(api, "/", model="nobody").status == 404


def test_the_servers_own_route_looks_for_models_once_for_each_table() -> None:
    with front({"mood": Double(CLASSIFIER)}) as api:
        assert api.ask("/", {"inputs": "a"}).status == 200
        with patch.object(
            type(api.apis.lookup), "all", side_effect=AssertionError("the table is looked through again")
        ):
            assert api.ask("/", {"inputs": "b"}).status == 200
        api.table = table_of({"minilm": Double(EMBEDDER), "mood": Double(CLASSIFIER)})
        assert len(api.ask("/", {"inputs": "a"}).document[0]) == EMBEDDER.dimensions


def test_without_any_model_the_servers_own_route_says_so() -> None:
    with front({}) as api:
        assert api.ask("/", {"inputs": "a"}).status == 404


# --- OpenAI's form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/", "/v1/embeddings/x"])
def test_what_is_not_there_under_v1_is_said_in_openais_form(api: Front, method: str, path: str) -> None:
    answer = api.ask(path, {} if method == "POST" else None, method=method)
    error = answer.document["error"]
    assert (answer.status, error["type"], error["param"], error["code"]) == (404, "invalid_request_error", None, None)
    assert path in error["message"]
    assert ask(api, "/embed").status == 200
