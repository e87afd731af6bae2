"""The routes of text-embeddings-inference: bodies, statuses and types of errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.api.text.doubles import CLASSIFIER, EMBEDDER, RERANKER, SPARSE, Double, as_vector, vector_of
from tests.api.text.front import Front, front, key_file
from tests.api.text.line import request
from tests.waiting import wait_until
from toutates.api.restrictions import RestrictedProtocol
from toutates.backends.text.interface import Scores


@pytest.fixture(scope="module")
def api() -> Iterator[Front]:
    """One model of each kind, so that none has to be named."""
    kinds = {"minilm": EMBEDDER, "splade": SPARSE, "judge": RERANKER, "mood": CLASSIFIER}
    with front({name: Double(info) for name, info in kinds.items()}) as made:
        yield made


def ok(api: Front, path: str, **document: Any) -> Any:
    answer = api.ask(path, document)
    assert answer.status == 200, answer.body
    return answer.document


def refused(api: Front, path: str, **document: Any) -> tuple[int, str]:
    answer = api.ask(path, document)
    assert set(answer.document) == {"error", "error_type"}, answer.body
    return answer.status, answer.document["error_type"]


def options_of(api: Front, model: str) -> Any:
    double: Any = api.table.models[model].served()[-1].servable
    return double.asked[-1][1]


def test_embed_gives_a_vector_for_each_text(api: Front) -> None:
    assert as_vector(ok(api, "/embed", inputs="a")).tolist() == [vector_of("a").tolist()]
    npt.assert_array_equal(as_vector(ok(api, "/embed", inputs=["a", "b"])), [vector_of("a"), vector_of("b")])
    assert len(ok(api, "/embed", inputs=[1, 2])) == 1
    assert len(ok(api, "/embed", inputs=[[1, 2], "b", [3]])) == 3


def test_options_of_embed_reach_the_model(api: Front) -> None:
    ok(api, "/embed", inputs="a")
    options = options_of(api, "minilm")
    assert (options.normalize, options.truncate, options.truncate_left, options.prompt) == (True, None, None, None)
    ok(
        api,
        "/embed",
        inputs="a",
        normalize=False,
        truncate=True,
        truncation_direction="left",
        prompt_name="query",
        dimensions=3,
        whatever=[1],
    )
    options = options_of(api, "minilm")
    assert (options.normalize, options.truncate, options.truncate_left) == (False, True, True)
    assert (options.prompt, options.dimensions) == ("query", 3)


def test_embed_all_gives_a_vector_for_each_token(api: Front) -> None:
    document = ok(api, "/embed_all", inputs=["a b", "c"])
    assert [np.shape(text) for text in document] == [(4, 8), (3, 8)]
    npt.assert_array_equal(as_vector(document[1][2]), vector_of("c 2"))


def test_embed_sparse_gives_what_is_not_zero(api: Front) -> None:
    [entries] = ok(api, "/embed_sparse", inputs="a b")
    assert [entry["index"] for entry in entries] == [0, 1, 2, 3]
    npt.assert_array_equal(as_vector([entry["value"] for entry in entries]), vector_of("a b", 4))


def test_predict_sorts_labels_by_their_score(api: Front) -> None:
    scores = np.abs(vector_of("fine", 2))
    expected = sorted(zip(scores.tolist(), ("bad", "good"), strict=True), reverse=True)
    assert ok(api, "/predict", inputs="fine") == [{"score": score, "label": label} for score, label in expected]
    assert options_of(api, "mood").scores is Scores.PROBABILITIES
    [one, two] = ok(api, "/predict", inputs=[["fine"], ["fine", "so"]], raw_scores=True)
    assert len(one) == len(two) == 2
    assert options_of(api, "mood").scores is Scores.RAW
    assert len(ok(api, "/predict", inputs=["fine", "so"])) == 2  # labels of a pair


def test_rerank_puts_the_best_first(api: Front) -> None:
    texts = ["one", "two", "three"]
    document = ok(api, "/rerank", query="q", texts=texts)
    assert {entry["index"] for entry in document} == {0, 1, 2}
    assert [entry["score"] for entry in document] == sorted((entry["score"] for entry in document), reverse=True)
    assert all("text" not in entry for entry in document)
    document = ok(api, "/rerank", query="q", texts=texts, return_text=True, raw_scores=True)
    assert all(entry["text"] == texts[entry["index"]] for entry in document)
    long = ["x\n" * 1_000_000]
    assert ok(api, "/rerank", query="q", texts=long, return_text=True)[0]["text"] == long[0]


def test_similarity_is_the_cosine_with_each_sentence(api: Front) -> None:
    document = ok(api, "/similarity", inputs={"source_sentence": "a", "sentences": ["a", "b"]})
    npt.assert_allclose(document, [1, vector_of("a") @ vector_of("b")], rtol=1e-6)


def test_the_servers_own_route_takes_what_clients_send_to_a_server_of_one_model(api: Front) -> None:
    sentences = {"source_sentence": "a b", "sentences": ["a b", "c"]}
    for path, document in (
        ("/embed", {"inputs": ["a b", "c"], "normalize": True}),
        ("/similarity", {"inputs": sentences}),
        ("/rerank", {"query": "q", "texts": ["a", "b"], "model": "judge"}),
    ):
        assert ok(api, "/", **document) == ok(api, path, **document)
    assert api.ask("/", b'{"inputs":1}').status == 422


def test_tokenize_and_decode(api: Front) -> None:
    [tokens] = ok(api, "/tokenize", inputs="ab c", model="minilm")
    assert [token["text"] for token in tokens] == ["[CLS]", "ab", "c", "[SEP]"]
    assert [(token["special"], token["start"], token["stop"]) for token in tokens] == [
        (True, None, None),
        (False, 0, 2),
        (False, 3, 4),
        (True, None, None),
    ]
    assert set(tokens[0]) == {"id", "text", "special", "start", "stop"}
    assert len(ok(api, "/tokenize", inputs=["a", "b"], add_special_tokens=False, model="minilm")) == 2
    assert ok(api, "/decode", ids=[1, 5, 2], model="minilm") == ["w5"]
    assert ok(api, "/decode", ids=[[1, 5], [6]], skip_special_tokens=False, model="minilm") == ["w1 w5", "w6"]


@pytest.mark.parametrize(
    ("path", "document", "status", "kind"),
    [
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/rerank", {"query": "q", "texts": []}, 400, "Empty"),
        ("/predict", {"inputs": []}, 400, "Empty"),
        ("/decode", {"ids": []}, 400, "Empty"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty"),
        ("/embed", {"inputs": ""}, 422, "Validation"),
        ("/embed", {"inputs": ["a", ""]}, 422, "Validation"),
        ("/embed", {"inputs": ["a"] * 2_049}, 422, "Validation"),
        ("/embed_all", {"inputs": ["a"] * 33}, 422, "Validation"),
        ("/embed", {"inputs": "a", "dimensions": 0}, 422, "Validation"),
        ("/embed", {"inputs": "a", "dimensions": 9}, 422, "Validation"),
        ("/embed", {"inputs": "a", "prompt_name": "passage"}, 422, "Validation"),
        ("/embed", {"inputs": [5_000]}, 422, "Validation"),
        ("/embed", {"inputs": "word " * 20, "truncate": False}, 422, "Validation"),
        ("/embed", {"inputs": "a", "model": "other"}, 404, "Validation"),
        ("/embed", {"inputs": "a", "model": "judge"}, 424, "Backend"),
        ("/rerank", {"query": "q", "texts": ["not a number"], "model": "minilm"}, 424, "Backend"),
        ("/rerank", {"query": "", "texts": ["a"]}, 422, "Validation"),
        ("/", {"inputs": {"source_sentence": "", "sentences": ["a"]}}, 422, "Validation"),
        ("/", {"query": "q", "texts": []}, 400, "Empty"),
        ("/", {"inputs": ["a"] * 2_049}, 422, "Validation"),
        ("/tokenize", {"inputs": "a" * 4_001, "model": "minilm"}, 422, "Validation"),
        ("/tokenize", {"inputs": "a"}, 422, "Validation"),  # of which model?
        ("/decode", {"ids": [5_000], "model": "minilm"}, 422, "Validation"),
    ],
)
def test_refusals_have_teis_status_and_type(
    api: Front, path: str, document: dict[str, Any], status: int, kind: str
) -> None:
    assert refused(api, path, **document) == (status, kind)


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"{}", "application/json", 422),
        (b'{"inputs":1}', "application/json; charset=utf-8", 422),
        (b'{"inputs":["a",1]}', "application/json", 422),
        (b'{"inputs":"a","truncation_direction":"up"}', "application/json", 422),
        (b'{"inputs":"\\ud800"}', "application/json", 400),
        (b'{"inputs":"a"}', "text/plain", 415),
        (b'{"inputs":"a"}', "", 415),
        (b'{"inputs":"a"}', "application/vnd.it+json", 200),
    ],
)
def test_what_no_handler_sees_is_refused_in_plain_text(api: Front, body: bytes, content_type: str, status: int) -> None:
    answer = api.ask("/embed", body, content_type=content_type)
    assert answer.status == status
    if status != 200:
        assert answer.fields["content-type"] == "text/plain; charset=utf-8"
        assert answer.body


def test_a_wrong_method_is_refused(api: Front) -> None:
    assert api.ask("/embed").status == 405
    assert api.ask("/info", {}).status == 405


def test_models_are_chosen_by_member_or_query_where_several_would_do() -> None:
    with front({"one": Double(), "two": Double()}) as api:
        answer = api.ask("/embed", {"inputs": "a"})
        assert answer.status == 422
        assert answer.document["error"] == "the request has to name its model, by `model`: one of 'one', 'two'"
        assert api.ask("/embed", {"inputs": "a", "model": "two"}).status == 200
        assert api.ask("/embed?model=two", {"inputs": "a"}).status == 200
        assert api.ask("/embed?model=three", {"inputs": "a"}).status == 404
        assert api.ask("/info?model=one").document["model_id"] == "one"
        assert api.ask("/info").status == 422


def test_answers_say_how_long_they_took(api: Front) -> None:
    fields = api.ask("/embed", {"inputs": ["ab c", [1, 2]]}).fields
    assert fields["x-compute-characters"] == "6"
    assert fields["x-compute-tokens"] == "6"
    assert fields["x-inference-time"] == "3"
    assert fields["x-tokenization-time"] == "0"
    assert fields["x-tokenization-time-us"] == "1"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("minilm", {"embedding": {"pooling": "mean"}}),
        ("splade", {"embedding": {"pooling": "splade"}}),
        ("judge", {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        ("mood", {"classifier": {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}}),
    ],
)
def test_info_says_what_the_model_is(api: Front, model: str, kind: Any) -> None:
    document = api.ask(f"/info?model={model}").document
    assert document["model_type"] == kind
    assert document["served_model_name"] == document["model_id"] == model
    assert (document["max_input_length"], document["max_client_batch_size"]) == (16, 2_048)


def test_health_is_empty_or_says_that_it_is_not_well(api: Front) -> None:
    answer = api.ask("/health")
    assert (answer.status, answer.body) == (200, b"")
    api.plane.readiness.update(serving=False)
    answer = api.ask("/health")
    assert (answer.status, answer.document) == (503, {"error": "unhealthy", "error_type": "Unhealthy"})
    api.plane.readiness.update(serving=True)


def test_keys_open_all_but_health(tmp_path: Path) -> None:
    with front(key_file=key_file(tmp_path, "key")) as api:
        for path, document in (("/embed", {"inputs": "a"}), ("/info", None)):
            answer = api.ask(path, document)
            assert (answer.status, answer.body) == (401, b"")
            assert api.ask(path, document, authorization="Bearer key").status == 200
        assert api.ask("/health").status == 200


def test_restrictions_of_rest_hold_here_too() -> None:
    secret = RestrictedProtocol(("inference",), "x-key", "secret")
    with front(secrets={"inference": secret}) as api:
        assert refused(api, "/embed", inputs="a") == (403, "Validation")
        assert api.ask("/embed", {"inputs": "a"}, x_key="secret").status == 200
        assert api.ask("/info").status == 200


def test_vectors_of_many_tokens_are_written_beside_the_worker() -> None:
    with front({"minilm": Double()}) as api:
        document = ok(api, "/embed_all", inputs=["a b c d e f g h i j k l m n"] * 32)
        assert np.shape(document) == (32, 16, 8)
        document = ok(api, "/embed", inputs=["a"] * 2_000)
        assert np.shape(document) == (2_000, 8)
        assert api.connection.kept_bytes == 0


def test_a_caller_who_leaves_is_nobodys_problem() -> None:
    model = Double()
    with front({"minilm": model}) as api:
        model.held = []
        api.send(request("/embed", {"inputs": ["a"] * 2_000}))
        api.connection.connection_lost()
        [compute] = model.held
        compute()

        def is_over() -> bool:
            while api.worker.soon:
                api.worker.soon.pop(0)()
            return not api.watching.observer.under_way

        wait_until(is_over)
        assert not api.worker.bugs
        assert not api.connection.kept_bytes
