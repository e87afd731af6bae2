"""Text models of every kind compute what their folders say, whatever shares a batch with a text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.testing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests.backends.text.serving import compute, served
from tests.text_models import DIM, encoder_graph, hidden, ids_of, make_folder, save_weights, table
from tests.waiting import wait_until
from toutates.backends.onnx.inspection import ALL_DEVICES
from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.text.interface import DEFAULT_OPTIONS, Scores, SparseVector, Task, TextOptions, VectorForm
from toutates.backends.text.kind import TextKind
from toutates.backends.text.reading import Reader
from toutates.models.kinds import inspect_version
from toutates.models.repository import scan, scan_model

OLD = "sentence_transformers.models."
MULTI = "sentence_transformers.multi_vector_encoder.modules"
NEW = "sentence_transformers.sentence_transformer.modules."
TEXTS = ["one", "one two three four five six one two three four", "two three", "six", ""]
IDENTITY = "torch.nn.modules.linear.Identity"


def vectors_of(path: Path, texts: Sequence[Any] = TEXTS, options: TextOptions | None = None) -> list[Any]:
    """What a folder's model makes of texts that share batches."""
    with served(path) as model:
        result = compute(model, texts, options or TextOptions())
    assert result.error is None
    return list(result.vectors)


def close(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        npt.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def weighted(h: Any) -> Any:
    weights = np.arange(1, len(h) + 1)[:, None]
    return (h * weights).sum(0) / weights.sum()


POOLINGS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "cls": ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda h: h[0]),
    "max": ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, lambda h: h.max(0)),
    "mean": ({"pooling_mode_mean_tokens": True}, lambda h: h.mean(0)),
    "mean_sqrt_len_tokens": (
        {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_mean_tokens": False},
        lambda h: h.sum(0) / np.sqrt(len(h)),
    ),
    "weightedmean": ({"pooling_mode_weightedmean_tokens": True}, weighted),
    "lasttoken": ({"pooling_mode_lasttoken": True}, lambda h: h[-1]),
}


@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling_mode_of_both_generations_and_padding_on_both_sides(mode: str, tmp_path: Path) -> None:
    old, pool = POOLINGS[mode]
    wanted = [pool(hidden(ids_of(text))) for text in TEXTS]
    first = make_folder(
        tmp_path / "old", modules=[("1_Pooling", f"{OLD}Pooling", {"word_embedding_dimension": DIM, **old})]
    )
    close(vectors_of(first), wanted)
    second = make_folder(
        tmp_path / "new",
        modules=[("1_Pooling", f"{NEW}pooling.Pooling", {"embedding_dimension": DIM, "pooling_mode": mode})],
        files={"tokenizer_config.json": {"padding_side": "left"}},
    )
    close(vectors_of(second), wanted)


def test_several_modes_are_concatenated_in_the_order_of_their_generation(tmp_path: Path) -> None:
    old = {"pooling_mode_lasttoken": True, "pooling_mode_cls_token": True}
    path = make_folder(tmp_path / "old", modules=[("1_Pooling", f"{OLD}Pooling", old)])
    h = [hidden(ids_of(text)) for text in TEXTS]
    close(vectors_of(path), [np.concatenate([one[0], one[-1]]) for one in h])
    new = {"pooling_mode": ["mean", "cls"]}
    path = make_folder(tmp_path / "new", modules=[("1_Pooling", f"{NEW}pooling.Pooling", new)])
    close(vectors_of(path), [np.concatenate([one.mean(0), one[0]]) for one in h])


def test_without_modules_the_mean_is_taken_or_what_the_configuration_says(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "plain", modules=None)
    close(vectors_of(path), [hidden(ids_of(text)).mean(0) for text in TEXTS])
    (path / "config.yaml").write_text(
        "backend: text\nbatch_size: 8\ncapacity: 4\nnum_executors: 2\nallocator: cpu\n"
        "parameters: {pooling: cls, normalize: true}\n"
    )
    first = [hidden(ids_of(text))[0] for text in TEXTS]
    close(vectors_of(path), [one / np.linalg.norm(one) for one in first])


def test_dense_layer_norm_dropout_and_normalize_follow_the_pooling(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    weight, bias = rng.standard_normal((4, DIM)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    scale, shift = rng.standard_normal(4).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    path = make_folder(
        tmp_path / "deep",
        modules=[
            ("1_Pooling", f"{OLD}Pooling", {}),
            ("2_Dense", f"{OLD}Dense", {"in_features": DIM, "out_features": 4, "bias": True,
                                        "activation_function": "torch.nn.modules.activation.Tanh"}),
            ("3_LayerNorm", f"{OLD}LayerNorm", {"dimension": 4}),
            ("4_Dropout", f"{OLD}Dropout", {"dropout": 0.1}),
            ("5_Normalize", "sentence_transformers.base.modules.normalize.Normalize", None),
        ],
    )  # fmt: skip
    save_weights(path / "2_Dense", linear_weight=weight, linear_bias=bias)
    save_weights(path / "3_LayerNorm", norm_weight=scale, norm_bias=shift)
    wanted = []
    for text in TEXTS:
        v = np.tanh(weight @ hidden(ids_of(text)).mean(0) + bias)
        wanted.append((v - v.mean()) / np.sqrt(v.var() + 1e-5) * scale + shift)
    close(vectors_of(path), [one / np.linalg.norm(one) for one in wanted])
    close(vectors_of(path, options=TextOptions(normalize=False)), wanted)
    # Vectors are cut before they are normalized.
    cut = [one[:2] / np.linalg.norm(one[:2]) for one in wanted]
    close(vectors_of(path, options=TextOptions(dimensions=2)), cut)


def test_prompts_are_put_before_texts_and_left_out_of_the_pooling_where_the_folder_says_so(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "query : ", "passage": ""}, "default_prompt_name": "query"}
    for include in (True, False):
        path = make_folder(
            tmp_path / f"prompt{include}",
            modules=[("1_Pooling", f"{OLD}Pooling", {"include_prompt": include})],
            files={"config_sentence_transformers.json": settings},
        )
        with served(path) as model:
            first = 0 if include else 3  # [CLS], "query" and ":"
            h = [hidden(ids_of(f"query : {text}")) for text in TEXTS]
            close(compute(model, TEXTS).vectors, [one[first:].mean(0) for one in h])
            plain = [hidden(ids_of(text)).mean(0) for text in TEXTS]
            close(compute(model, TEXTS, TextOptions(prompt="")).vectors, plain)
            assert compute(model, ["one two"]).tokens == [6]


def test_token_vectors_are_those_of_each_token(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "tokens", modules=[("1_Pooling", f"{OLD}Pooling", {})])
    close(vectors_of(path, options=TextOptions(token_vectors=True)), [hidden(ids_of(text)) for text in TEXTS])


@pytest.mark.parametrize("integers", [TensorProto.INT64, TensorProto.INT32])
def test_segments_and_positions_are_fed_where_the_graph_wants_them(integers: int, tmp_path: Path) -> None:
    graph = encoder_graph(integers=integers, extra=["token_type_ids", "position_ids"])
    for side in ("left", "right"):
        path = make_folder(
            tmp_path / side, graph=graph, modules=None, files={"tokenizer_config.json": {"padding_side": side}}
        )
        wanted = []
        for text in TEXTS:
            ids = ids_of(text)
            wanted.append((hidden(ids) + 10 * np.arange(len(ids))[:, None]).mean(0))
        close(vectors_of(path), wanted)


def test_a_graph_that_pools_is_taken_at_its_word(tmp_path: Path) -> None:
    path = make_folder(
        tmp_path / "pooled",
        graph=encoder_graph("sentence_embedding"),
        modules=[("1_Pooling", f"{OLD}Pooling", {}), ("2_Normalize", f"{OLD}Normalize", None)],
    )
    means = [table()[ids_of(text)].mean(0) for text in TEXTS]
    close(vectors_of(path), [one / np.linalg.norm(one) for one in means])


def test_a_table_of_vectors_takes_the_mean_without_special_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder(
        tmp_path / "static",
        graph=b"",
        modules=None,
        files={"modules.json": [{"idx": 0, "path": "", "type": f"{NEW}static_embedding.StaticEmbedding"}]},
    )
    save_weights(path, embedding_weight=table())
    (path / "config.json").unlink()
    document = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**document, "truncation": None}))
    (path / "config.yaml").write_text("backend: text\nparameters: {token_ids: accept}\n")
    wanted = [table()[ids_of(text)[1:-1]].mean(0) if text else np.zeros(DIM) for text in TEXTS]
    with served(path) as model:
        result = compute(model, TEXTS)
        close(result.vectors, wanted)
        assert list(result.tokens) == [1, 10, 2, 1, 0]
        assert model.info.model_type == "static"
        close(compute(model, [[6, 7]]).vectors, [table()[[6, 7]].mean(0)])
        # The caller's thread runs a short text, once runs are known to be quick and the executor is idle.
        ran_in: SimpleQueue[threading.Thread] = SimpleQueue()

        def runs_here() -> bool:
            model.compute(["one"], DEFAULT_OPTIONS, lambda result: ran_in.put(threading.current_thread()))
            return ran_in.get(timeout=120) is threading.current_thread()

        wait_until(runs_here)
        # A run that the system interrupts is still known to be quick, because it takes no more of the processor's time.
        read = Reader.read

        def interrupted(self: Reader, slices: Any) -> Any:
            time.sleep(0.02)
            return read(self, slices)

        with monkeypatch.context() as patched:
            patched.setattr(Reader, "read", interrupted)
            assert runs_here()
        assert runs_here()
        assert compute(model, ["one " * 300]).tokens == [300]


def test_splade_weights_are_the_greatest_of_all_tokens(tmp_path: Path) -> None:
    for mode in ("max", "sum"):
        path = make_folder(
            tmp_path / mode,
            graph=encoder_graph("token_embeddings"),
            modules=[("1_SpladePooling", "sentence_transformers.sparse_encoder.models.SpladePooling",
                      {"pooling_strategy": mode, "activation_function": "relu"})],
            files={"config_sentence_transformers.json": {"model_type": "SparseEncoder"}},
        )  # fmt: skip
        found = vectors_of(path)
        for one, text in zip(found, TEXTS, strict=True):
            assert isinstance(one, SparseVector)
            weights = np.log1p(np.maximum(hidden(ids_of(text)), 0))
            whole = weights.max(0) if mode == "max" else weights.sum(0)
            dense = np.zeros(DIM, np.float32)
            dense[one.indices] = one.values
            npt.assert_allclose(dense, whole, rtol=1e-5, atol=1e-6)
            assert (one.values > 0).all()


def test_colbert_keeps_a_vector_per_token_and_documents_leave_out_skipped_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((3, DIM)).astype(np.float32)
    path = make_folder(
        tmp_path / "colbert",
        modules=[
            ("1_Dense", "sentence_transformers.base.modules.dense.Dense",
             {"in_features": DIM, "out_features": 3, "bias": False, "activation_function": IDENTITY,
              "module_input_name": "token_embeddings"}),
            ("2_Normalize", "sentence_transformers.base.modules.normalize.Normalize",
             {"module_input_name": "token_embeddings"}),
            ("3_MultiVectorMask", f"{MULTI}.multi_vector_mask.MultiVectorMask",
             {"skiplist_words": ["."]}),
        ],
        files={
            "config_sentence_transformers.json": {"prompts": {"query": "", "document": ""}},
            "sentence_bert_config.json": {"query_length": 4, "document_length": 8},
        },
    )  # fmt: skip
    save_weights(path / "1_Dense", linear_weight=weight)

    def wanted(ids: list[int], kept: list[int]) -> Any:
        v = (hidden(ids) @ weight.T)[kept]
        return v / np.linalg.norm(v, axis=1, keepdims=True)

    with served(path) as model:
        assert model.info.form is VectorForm.MULTI
        ids = ids_of("one . two")
        close(compute(model, ["one . two"]).vectors, [wanted(ids, [0, 1, 3, 4])])
        close(compute(model, ["one . two"], TextOptions(prompt="query")).vectors, [wanted([2, 6, 11, 3], [0, 1, 2, 3])])
        assert compute(model, ["one two three four five six one two"]).tokens == [8]


def test_cross_encoders_score_pairs_and_cut_the_longer_one(tmp_path: Path) -> None:
    path = make_folder(
        tmp_path / "reranker",
        graph=encoder_graph("logits", columns=1),
        modules=None,
        config={"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        files={"tokenizer_config.json": {"model_max_length": 9}},
    )
    pairs = [("one", "two three"), ("one two", "one two three four five six one two")]
    ids = [[2, 6, 3, 7, 8, 3], [2, 6, 7, 3, 6, 7, 8, 9, 3]]
    logits = [table()[one].mean(0)[:1] for one in ids]
    with served(path) as model:
        assert model.info.task is Task.RERANK
        close(compute(model, pairs).vectors, [1 / (1 + np.exp(-one)) for one in logits])
        close(compute(model, pairs, TextOptions(scores=Scores.RAW)).vectors, logits)
        assert compute(model, pairs).tokens == [6, 9]


def test_classifiers_have_labels_and_what_their_logits_become(tmp_path: Path) -> None:
    names = {str(at): f"label {at}" for at in range(DIM)}
    path = make_folder(
        tmp_path / "classifier",
        graph=encoder_graph("logits"),
        modules=None,
        config={"architectures": ["BertForSequenceClassification"], "id2label": names},
    )
    logits = [table()[ids_of(text)].mean(0) for text in TEXTS]
    with served(path) as model:
        assert model.info.labels == tuple(names.values())
        close(compute(model, TEXTS).vectors, logits)
        powers = [np.exp(one) for one in logits]
        for scores in (Scores.PROBABILITIES, Scores.SOFTMAX):
            close(compute(model, TEXTS, TextOptions(scores=scores)).vectors, [p / p.sum() for p in powers])
        close(compute(model, TEXTS, TextOptions(scores=Scores.SIGMOID)).vectors, [p / (1 + p) for p in powers])
    own = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **own}))
    close(vectors_of(path), [1 / (1 + np.exp(-one)) for one in logits])


def test_a_flat_folder_and_one_with_versions_are_the_same_model(tmp_path: Path) -> None:
    flat = make_folder(tmp_path / "flat", modules=[("1_Pooling", f"{OLD}Pooling", {})])
    (flat / "onnx").mkdir()
    (flat / "model.onnx").rename(flat / "onnx" / "model.onnx")
    make_folder(tmp_path / "versions" / "1", modules=[("1_Pooling", f"{OLD}Pooling", {})])
    close(vectors_of(flat), vectors_of(tmp_path / "versions"))


def test_words_are_put_into_lower_case_where_the_folder_says_so(tmp_path: Path) -> None:
    files = {"sentence_bert_config.json": {"max_seq_length": 5, "do_lower_case": True}}
    path = make_folder(tmp_path / "lower", modules=[("1_Pooling", f"{OLD}Pooling", {})], files=files)
    close(vectors_of(path, ["ONE Two"]), [hidden(ids_of("one two")).mean(0)])
    close(vectors_of(path, ["one two three four five"]), [hidden(ids_of("one two three")).mean(0)])


def test_a_repository_may_be_the_folder_of_a_text_model_itself(tmp_path: Path) -> None:
    make_folder(tmp_path / "alone", modules=[("1_Pooling", f"{OLD}Pooling", {})])
    [found] = scan(tmp_path / "alone")
    assert (found.name, found.is_lone, [version.problem for version in found.versions]) == ("alone", True, [""])
    make_folder(tmp_path / "many" / "one", modules=None)
    make_folder(tmp_path / "many" / "two" / "1", modules=None)
    assert [(one.name, one.is_lone) for one in scan(tmp_path / "many")] == [("one", True), ("two", False)]


def test_a_model_is_inspected_on_the_cpu_whatever_it_is_to_be_served_with(tmp_path: Path) -> None:
    make_folder(tmp_path / "seen", modules=[("1_Pooling", f"{OLD}Pooling", {})])
    [version] = scan_model(tmp_path / "seen").versions
    found = inspect_version([TextKind(SessionOptions(ALL_DEVICES))], "seen", version)
    assert [tensor.name for tensor in found.signature.outputs] == ["embedding"]
    assert found.config().backend == "text"


def test_texts_that_change_each_other_in_one_run_are_computed_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = onnx.load_from_string(encoder_graph())
    [last] = [node for node in graph.graph.node if node.output[0] == "last_hidden_state"]
    last.output[0] = "own_state"
    graph.graph.node.extend(
        [
            helper.make_node("ReduceMean", ["own_state"], ["of_all"], axes=[0, 1], keepdims=1),
            helper.make_node("Add", ["own_state", "of_all"], ["last_hidden_state"]),
        ]
    )
    mean = [("1_Pooling", OLD + "Pooling", {"pooling_mode_mean_tokens": True, "word_embedding_dimension": DIM})]
    path = make_folder(tmp_path / "mixed", graph=graph.SerializeToString(), modules=mean)
    alone = [vectors_of(path, [text])[0] for text in TEXTS]
    assert "what it makes of a text has other values for rows that are run together" in caplog.text
    close(vectors_of(path, TEXTS * 3), alone * 3)

    path = make_folder(tmp_path / "plain", modules=mean)
    caplog.clear()
    vectors_of(path)
    assert "rows depend" not in caplog.text
