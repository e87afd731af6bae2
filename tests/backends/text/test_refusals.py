"""What is wrong with a text, a request or a folder is said by its name, and hurts nobody else."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from tokenizers import processors

from tests.backends.text.serving import compute, load, running, served
from tests.text_models import (
    DIM,
    VOCABULARY,
    WORDS,
    encoder_graph,
    hidden,
    ids_of,
    make_folder,
    make_tokenizer,
    save_weights,
)
from tests.waiting import PATIENCE_S
from toutates.backends.text.interface import (
    DEFAULT_OPTIONS,
    Fault,
    TextError,
    TextModel,
    TextOptions,
    TextResult,
    find_text_model,
    text_models,
)
from toutates.backends.text.queue import TextQueue
from toutates.backends.text.reading import Reader
from toutates.models.table import ModelEntry, ModelState, ModelTable, VersionEntry
from toutates.system.errors import (
    ConfigurationError,
    ExecutionFailed,
    InvalidRequest,
    ModelLoadError,
    ModelNotReady,
    Overloaded,
    TooLate,
    ToutatesError,
    UnknownModel,
)

POOLING = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
DENSE = {"in_features": DIM, "out_features": 2, "bias": False}
YAML = "backend: text\nbatch_size: 4\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(
        tmp_path_factory.mktemp("models") / "small",
        modules=[POOLING],
        files={
            "config_sentence_transformers.json": {"prompts": {"query": "query : "}},
            "sentence_bert_config.json": {"max_seq_length": 8},
        },
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    with served(folder) as model:
        yield model


def refused(model: TextModel, texts: Any, options: TextOptions = DEFAULT_OPTIONS) -> TextError:
    """The error of texts, whether it comes at once or with the result."""
    try:
        error = compute(model, texts, options).error
    except TextError as own:
        error = own
    assert isinstance(error, TextError)
    return error


def vector(model: TextModel, text: Any, options: TextOptions = DEFAULT_OPTIONS) -> Any:
    """The vector of a text."""
    return compute(model, [text], options).vectors[0]


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "fault", "index"),
    [
        (["one", "a\ud800b"], Fault.UNICODE, 1),
        (["one", [6, VOCABULARY]], Fault.TOKEN_ID, 1),
        (["one", [-1]], Fault.TOKEN_ID, 1),
        (["one", []], Fault.EMPTY, 1),
        ([("one", "two")], Fault.WRONG_KIND, 0),
        ([], Fault.EMPTY, None),
        (["one"] * 4_097, Fault.TOO_LONG, None),
    ],
)
def test_the_text_at_fault_is_named(model: TextModel, texts: Any, fault: Fault, index: int | None) -> None:
    error = refused(model, texts)
    assert (error.fault, error.index) == (fault, index)
    assert compute(model, ["one"]).error is None


def test_a_text_beyond_the_limit_is_cut_on_either_side_or_refused(model: TextModel) -> None:
    text = "one two three four five six one two"

    def mean(words: str) -> Any:
        return hidden(ids_of(words)).mean(0)

    for given in (text, [*ids_of(text)]):
        result = compute(model, [given, "six"])
        assert list(result.tokens) == [8, 3]
        error = refused(model, ["six", given], TextOptions(truncate=False))
        assert (error.fault, error.index, error.tokens, error.limit) == (Fault.TOO_LONG, 1, 10, 8)
        assert "10 tokens" in str(error)
    npt.assert_allclose(vector(model, text), mean("one two three four five six"), rtol=1e-5)
    left = vector(model, text, TextOptions(truncate_left=True))
    npt.assert_allclose(left, mean("three four five six one two"), rtol=1e-5)


def test_a_request_may_have_its_texts_cut_to_fewer_tokens_than_the_model_takes(model: TextModel) -> None:
    text, options = "one two three four", TextOptions(max_tokens=4)
    for given in (text, ids_of(text)):
        result = compute(model, [given, "six"], options)
        assert list(result.tokens) == [4, 3]
        npt.assert_allclose(vector(model, given, options), hidden(ids_of("one two")).mean(0), rtol=1e-5)
    assert list(compute(model, ["one " * 20], TextOptions(max_tokens=100)).tokens) == [8]
    error = refused(model, [text], TextOptions(max_tokens=4, truncate=False))
    assert (error.fault, error.tokens, error.limit) == (Fault.TOO_LONG, 6, 4)
    assert list(compute(model, [text], TextOptions(max_tokens=1)).tokens) == [2]  # what is around a text is never cut


def test_of_a_text_of_ten_megabytes_only_the_end_that_counts_is_read(model: TextModel) -> None:
    text = "one " + "two " * 2_500_000 + "six"
    first = vector(model, text)
    npt.assert_allclose(first, hidden(ids_of("one two two two two two")).mean(0), rtol=1e-5)
    last = vector(model, text, TextOptions(truncate_left=True))
    npt.assert_allclose(last, hidden(ids_of("two two two two two six")).mean(0), rtol=1e-5)
    # White space gives no tokens, so that the text behind it is read too.
    blank = vector(model, " " * 300_000 + "one two")
    npt.assert_allclose(blank, hidden(ids_of("one two")).mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (TextOptions(prompt="passage"), Fault.PROMPT),
        (TextOptions(dimensions=0), Fault.DIMENSIONS),
        (TextOptions(dimensions=DIM + 1), Fault.DIMENSIONS),
    ],
)
def test_options_that_the_model_cannot_follow_are_refused_at_once(
    model: TextModel, options: TextOptions, fault: Fault
) -> None:
    with pytest.raises(TextError) as caught:
        model.compute(["one"], options, lambda result: None)
    assert caught.value.fault is fault


def test_a_prompt_for_ids_of_tokens_is_refused(model: TextModel) -> None:
    assert refused(model, [[6]], TextOptions(prompt="query")).fault is Fault.PROMPT


def test_what_nobody_waits_for_is_not_computed(model: TextModel) -> None:
    before = model.statistics()  # type: ignore[attr-defined]
    result = compute(model, ["one", "two"], is_wanted=lambda by_ns: False)
    assert isinstance(result.error, TooLate)
    after = model.statistics()  # type: ignore[attr-defined]
    assert sum(one.count for one in after.batches.values()) == sum(one.count for one in before.batches.values())
    assert after.occupancy.rows == 0


def test_beside_others_it_is_not_even_read(model: TextModel) -> None:
    def read() -> float:
        own = {one.name: one.values for one in model.statistics().own_metrics}  # type: ignore[attr-defined]
        return float(own["toutates_text_read_total"][0])

    before, results = read(), SimpleQueue[TextResult]()
    wanted = (False, True, False)
    for number, is_wanted in enumerate(wanted):
        texts = ["one"] * (number + 2)
        model.add(texts, DEFAULT_OPTIONS, results.put, lambda by_ns, is_wanted=is_wanted: is_wanted)  # type: ignore[misc]
    model.commit()
    found = [results.get(timeout=PATIENCE_S) for _ in wanted]
    assert sorted(len(one.vectors) for one in found) == [0, 0, 3]
    assert all(isinstance(one.error, TooLate) for one in found if not one.vectors)
    assert read() == before + 3


def test_a_full_model_refuses_and_a_closed_one_too(folder: Path) -> None:
    servable: Any = load(folder).servable  # which has no threads, so that nothing leaves
    results: list[TextResult] = []
    servable.compute(["one"] * 4_000, DEFAULT_OPTIONS, results.append)
    with pytest.raises(Overloaded, match="4000 of at most 4096 rows"):
        servable.compute(["one"] * 97, DEFAULT_OPTIONS, results.append)
    with pytest.raises(InvalidRequest, match="needs 269484032 bytes"):
        servable.compute(["x" * (257 << 20)], DEFAULT_OPTIONS, results.append)
    servable.close()
    with pytest.raises(ModelNotReady):
        servable.compute(["one"], DEFAULT_OPTIONS, results.append)
    assert not results


def test_a_batch_that_fails_fails_only_the_request_at_fault(tmp_path: Path) -> None:
    # config.json says of more tokens than the graph has vectors for, so that the graph fails on their ids.
    path = make_folder(tmp_path / "wrong", modules=[POOLING], config={"vocab_size": 1_000})
    document = json.loads((path / "tokenizer.json").read_text())
    document["model"]["vocab"]["seven"] = VOCABULARY
    (path / "tokenizer.json").write_text(json.dumps(document))
    servable: Any = load(path).servable
    results: dict[str, TextResult] = {}
    done = threading.Barrier(2)

    def keep(text: str, result: TextResult) -> None:
        results[text] = result
        if len(results) == 3:
            done.wait(120)

    for text in ("one two", "seven two", "six two"):  # which share a batch, because there is no thread yet
        servable.compute([text], DEFAULT_OPTIONS, lambda result, text=text: keep(text, result))

    with running(servable):
        done.wait(120)
    assert isinstance(results["seven two"].error, ExecutionFailed)
    assert results["one two"].error is results["six two"].error is None


def test_a_bug_in_reading_fails_the_requests_that_are_read_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servable: Any = load(folder).servable
    results: SimpleQueue[TextResult] = SimpleQueue()
    for _ in range(2):
        servable.compute(["one", "two"], DEFAULT_OPTIONS, results.put)

    def read(*given: Any) -> Any:
        raise ZeroDivisionError

    told: list[object] = []
    monkeypatch.setattr(Reader, "read", read)
    monkeypatch.setattr(TextQueue, "note_read", lambda self, slices: told.extend(slices))
    with running(servable):
        for _ in range(2):
            assert isinstance(results.get(timeout=120).error, ExecutionFailed)
        assert len(told) >= 2, "the callers go on waiting behind those who have none that are read"
        monkeypatch.undo()
        assert compute(servable, ["one"]).error is None
        assert servable.statistics().occupancy.rows == 0


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_a_tokenizer_counts_encodes_and_decodes(model: TextModel) -> None:
    tokenizer = model.tokenizer
    assert tokenizer.count("one two") == 4
    assert tokenizer.count("one two", add_special_tokens=False) == 2
    encoded = tokenizer.encode("one six")
    assert (list(encoded.ids), list(encoded.tokens)) == ([2, 6, 12, 3], ["[CLS]", "one", "six", "[SEP]"])
    assert list(encoded.offsets) == [(0, 0), (0, 3), (4, 7), (0, 0)]
    assert list(encoded.special) == [True, False, False, True]
    assert tokenizer.decode([2, 6, 12, 3]) == "one six"
    assert tokenizer.decode([2, 6], skip_special_tokens=False) == "[CLS] one"
    with pytest.raises(TextError) as caught:
        tokenizer.decode([VOCABULARY])
    assert caught.value.fault is Fault.TOKEN_ID
    with pytest.raises(TextError):
        tokenizer.encode("\udfff")


# --- folders ---------------------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """Why a folder is refused."""
    with pytest.raises(ToutatesError) as caught:
        load(path)
    assert isinstance(caught.value, (ConfigurationError, ModelLoadError))
    return str(caught.value)


@pytest.mark.parametrize(
    ("modules", "files", "said"),
    [
        ([("1_x", "my_code.models.Magic", {})], {}, "code of the model's own"),
        ([("1_x", "sentence_transformers.models.LSTM", {})], {}, "does not compute"),
        ([("1_x", "sentence_transformers.models.Transformer", {})], {}, "does not begin with one encoder"),
        ([("1_x", "sentence_transformers.models.Pooling", {"pooling_mode": "median"})], {}, "has no mode 'median'"),
        ([("1_x", "sentence_transformers.models.Pooling", {"pooling_mode_best": True})], {}, "pooling_mode_best"),
        ([("../x", "sentence_transformers.models.Pooling", {})], {}, "not inside of the folder"),
        ([POOLING], {"config_sentence_transformers.json": {"default_prompt_name": "q"}}, "default_prompt_name"),
        ([POOLING], {"config_sentence_transformers.json": {"query_prefix": "[Q] "}}, "query_prefix"),
        ([POOLING], {"sentence_bert_config.json": {"query_expansion": {"strategy": "fixed"}}}, "query_expansion"),
        ([POOLING], {"config.json": "{"}, "is not JSON"),
        ([POOLING], {"modules.json": "[]"}, "no list of modules"),
        ([POOLING], {"config.json": "[" * 100_000}, "is not JSON"),
    ],
)
def test_what_a_folder_declares_and_the_server_does_not_do_is_refused(
    modules: Any, files: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    if modules[0][0].startswith(".."):
        modules = [(name, kind, None) for name, kind, _ in modules]
    assert said in refusal(make_folder(path, modules=modules, files=files))


def test_a_dense_layer_without_weights_that_fit_is_refused(tmp_path: Path) -> None:
    own = {**DENSE, "activation_function": "torch.nn.modules.activation.Tanh"}
    path = make_folder(tmp_path / "dense", modules=[POOLING, ("2_Dense", "sentence_transformers.models.Dense", own)])
    assert "model.safetensors" in refusal(path)
    (path / "2_Dense" / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    assert "is a pickle" in refusal(path)
    (path / "2_Dense" / "model.safetensors").write_bytes(b"\xff" * 100)
    assert "says that its header has" in refusal(path)
    save_weights(path / "2_Dense", linear_weight=np.zeros((3, DIM), np.float32))
    assert "linear.weight has the shape [3, 6]" in refusal(path)
    config = {**own, "activation_function": "my_code.Snake"}
    (path / "2_Dense" / "config.json").write_text(json.dumps(config))
    assert "activation_function" in refusal(path)


def test_a_tokenizer_that_cannot_be_read_is_refused_with_the_way_to_mend_it(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "broken", modules=[POOLING])
    (path / "tokenizer.json").write_text("{}")
    assert "is no tokenizer that can be read" in refusal(path)
    (path / "tokenizer.json").unlink()
    assert "copy the whole model folder" in refusal(path)
    (path / "vocab.txt").write_text("a")
    assert "convert 'vocab.txt'" in refusal(path)


def test_a_graph_that_is_missing_or_of_another_task_is_refused(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "graphs", modules=[POOLING])
    (path / "model.onnx").rename(path / "model_O2.onnx")
    assert "name one of these as model_filename: model_O2.onnx" in refusal(path)
    (path / "config.yaml").write_text(f"{YAML}model_filename: model_O2.onnx\n")
    load(path)
    (path / "config.yaml").write_text(YAML)
    (path / "model_O2.onnx").unlink()
    (path / "model.safetensors").write_bytes(b"")
    assert "toutates import" in refusal(path)
    (path / "model.onnx").write_bytes(encoder_graph("logits"))
    assert "Export it again for the task of the model, which is embed" in refusal(path)
    labels = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
    make_folder(path, graph=encoder_graph("logits"), modules=None, config=labels)
    (path / "modules.json").unlink()
    assert "the graph returns 6 scores, and config.json has 2 labels" in refusal(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pooling: cls", "is said by modules.json already"),
        ("max_tokenz: 4", "is no parameter of text models"),
        ("default_prompt: passage", "not among the model's prompts"),
        ("truncate: maybe", "neither true nor false"),
        ("token_ids: any", "is not one of own, accept"),
    ],
)
def test_parameters_that_cannot_be_followed_are_refused(line: str, said: str, tmp_path: Path) -> None:
    path = make_folder(tmp_path / "set", modules=[POOLING])
    (path / "config.yaml").write_text(f"{YAML}parameters: {{{line}}}\n")
    assert said in refusal(path)


# --- ids of tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[6], [6, 7, 3], [2, 6, 7], [3, 6, 2], [2], [3], [0, 2, 6, 3], [2, 6, 3, 0]])
def test_ids_without_the_frame_of_the_models_tokenizer_are_refused(model: TextModel, ids: list[int]) -> None:
    error = refused(model, ["one", ids])
    assert (error.fault, error.index) == (Fault.TOKEN_ID, 1)
    for said in ("begin with 2 ([CLS])", "end with 3 ([SEP])", "check_embedding_ctx_length=False"):
        assert said in str(error)
    own = ids_of("one two")
    npt.assert_array_equal(vector(model, own), vector(model, "one two"))
    npt.assert_array_equal(vector(model, [2, 3]), vector(model, ""))


def test_an_id_beyond_the_vocabulary_is_refused_with_the_same_remedy(model: TextModel) -> None:
    assert "check_embedding_ctx_length=False" in str(refused(model, [[2, VOCABULARY, 3]]))


@pytest.mark.parametrize("left", [False, True])
def test_ids_are_cut_within_their_frame_as_their_text_is(model: TextModel, left: bool) -> None:
    text, options = "one two three four five six one two", TextOptions(truncate_left=left)
    npt.assert_array_equal(vector(model, ids_of(text), options), vector(model, text, options))


@pytest.mark.parametrize(
    ("template", "frame", "own", "others"),
    [
        ("[CLS] $A", "begin with 2 ([CLS])", [2, 6], [6, 2]),
        ("$A [SEP]", "end with 3 ([SEP])", [6, 3], [3, 6]),
        ("[SEP] $A [SEP]", "begin with 3 ([SEP]) and end with 3 ([SEP])", [3, 6, 3], [3]),
        ("[CLS] query $A five [SEP]", "begin with 2 ([CLS]) and end with 3 ([SEP])", [2, 4, 6, 10, 3], [2, 6, 3]),
    ],
)
def test_the_frame_is_what_the_tokenizer_makes(
    template: str, frame: str, own: list[int], others: list[int], tmp_path: Path
) -> None:
    path = make_folder(tmp_path / "framed", modules=[POOLING])
    tokenizer = make_tokenizer()
    known = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]", "query", "five")]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=known)
    tokenizer.save(str(path / "tokenizer.json"))
    with served(path) as model:
        npt.assert_array_equal(vector(model, own), vector(model, "one"))
        assert frame in str(refused(model, [others]))


def test_ids_for_a_tokenizer_without_special_tokens_are_refused(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "bare", modules=[POOLING])
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.save(str(path / "tokenizer.json"))
    with served(path) as model:
        error = refused(model, [[6, 7]])
    assert error.fault is Fault.TOKEN_ID
    assert "check_embedding_ctx_length=False" in str(error)
    assert "parameters: {token_ids: accept}" in str(error)


def test_ids_are_taken_as_they_are_where_the_configuration_says_so(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "set", modules=[POOLING])
    (path / "config.yaml").write_text(f"{YAML}parameters: {{token_ids: accept}}\n")
    with served(path) as model:
        npt.assert_allclose(vector(model, [6, 7]), hidden([6, 7]).mean(0), rtol=1e-5)
        assert refused(model, [[6, VOCABULARY]]).fault is Fault.TOKEN_ID


# --- the table of models ---------------------------------------------------------------------------------------------


def test_models_are_found_by_name_and_by_an_alias_with_a_prompt(folder: Path) -> None:
    version = load(folder)
    entry = ModelEntry("small", {1: VersionEntry(1, ModelState.READY, served=version)})
    models = ModelTable({"small": entry})
    assert [one.name for one in text_models(models)] == ["small"]
    assert find_text_model(models, "small").prompt is None
    assert find_text_model(models, "small:query").prompt == "query"
    with pytest.raises(TextError):
        find_text_model(models, "small:passage")
    with pytest.raises(UnknownModel):
        find_text_model(models, "other:query")
    version.servable.close()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_vectors_of_tokens_count_as_memory_under_way(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "narrow", modules=[POOLING])
    (path / "config.yaml").write_text(f"{YAML}capacity_bytes: 1000\n")
    with served(path) as model:
        every = TextOptions(token_vectors=True)
        assert compute(model, ["one two three"] * 5, every).error is None  # of 120 bytes each
        error = compute(model, ["one two three"] * 20, every).error
        assert isinstance(error, Overloaded)
        assert error.retry_after_s is not None
        assert "results under way" in str(error)
        assert compute(model, ["one two three"] * 20).error is None
        assert model.statistics().occupancy.in_flight_bytes == 0  # type: ignore[attr-defined]


def test_no_more_than_a_million_characters_of_white_space_are_read(model: TextModel) -> None:
    text = " " * 1_000_000 + "one"
    assert compute(model, [text]).tokens == [2]
    assert compute(model, [text], TextOptions(truncate_left=True)).tokens == [3]
    error = refused(model, [text], TextOptions(truncate=False))
    assert error.fault is Fault.TOO_LONG
    assert "characters" in str(error)


def test_what_a_caller_raises_hurts_nobody_else(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(result: TextResult) -> None:
        raise RuntimeError("a caller's own")

    with served(folder) as model:
        model.compute(["one"], DEFAULT_OPTIONS, broken)
        assert compute(model, ["two"]).error is None
    assert "a caller's own" in caplog.text


def test_ids_of_tokens_have_no_prompt_to_leave_out(tmp_path: Path) -> None:
    path = make_folder(
        tmp_path / "prompted",
        modules=[("1_Pooling", "sentence_transformers.models.Pooling", {"include_prompt": False})],
        files={
            "config_sentence_transformers.json": {
                "prompts": {"query": "query : "},
                "default_prompt_name": "query",
            }
        },
    )
    ids = ids_of("one two")
    with served(path) as model:
        found: Any = compute(model, [ids, "six"]).vectors
    npt.assert_allclose(found[0], hidden(ids).mean(0), rtol=1e-5)
    npt.assert_allclose(found[1], hidden(ids_of("query : six"))[3:].mean(0), rtol=1e-5)
