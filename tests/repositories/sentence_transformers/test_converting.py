"""Graphs compute what the published architectures say, and a setting that is not understood is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from tests.repositories.sentence_transformers.forward import ACTIVATIONS, modern, post_norm
from tests.repositories.sentence_transformers.made_up import BERT, DISTIL, MODERN, weights_of, write_model
from toutates.repositories.sentence_transformers.converting import make_graph
from toutates.repositories.sentence_transformers.family import Output
from toutates.system.errors import ConfigurationError

Arrays = dict[str, npt.NDArray[Any]]

ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1}
MPNET = {**{key: value for key, value in BERT.items() if key != "type_vocab_size"}, "model_type": "mpnet"}
MPNET |= {"pad_token_id": 1, "max_position_embeddings": 200}


def computed(
    folder: Path, config: dict[str, Any], inputs: Arrays, output: Output = Output.HIDDEN
) -> npt.NDArray[np.float32]:
    path = folder / "model.onnx"
    make_graph(folder, config, output).write(path)
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    fed = {one.name: inputs[one.name] for one in session.get_inputs()}
    result: npt.NDArray[np.float32] = session.run(None, fed)[0]
    return result


def inputs_of(config: dict[str, Any], length: int) -> Arrays:
    """Four texts: full length, padded on either side, and of one token."""
    rng = np.random.default_rng(1)
    ids = rng.integers(4, 50, (4, length))
    mask = np.ones_like(ids)
    for row, hidden in ((1, slice(length // 2, None)), (2, slice(0, 3)), (3, slice(1, None))):
        ids[row, hidden], mask[row, hidden] = config["pad_token_id"], 0
    kinds = (np.arange(length) % 3 == 0) * mask if config.get("type_vocab_size", 1) > 1 else np.zeros_like(mask)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


@pytest.mark.parametrize(
    ("config", "length"),
    [(BERT, 20), (ROBERTA, 20), ({**ROBERTA, "type_vocab_size": 2}, 20), (MPNET, 190), (DISTIL, 20)],
    ids=["bert", "roberta", "roberta-with-segments", "mpnet", "distilbert"],
)
def test_a_graph_computes_the_published_architecture(config: dict[str, Any], length: int, tmp_path: Path) -> None:
    folder, inputs = write_model(tmp_path / "model", config), inputs_of(config, length)
    expected = post_norm(
        config, weights_of(config), inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"]
    )
    real = inputs["attention_mask"] == 1
    np.testing.assert_allclose(computed(folder, config, inputs)[real], expected[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [5, 40])
def test_a_modernbert_graph_computes_the_published_architecture(length: int, tmp_path: Path) -> None:
    folder, inputs = write_model(tmp_path / "model", MODERN), inputs_of(MODERN, length)
    expected = modern(MODERN, weights_of(MODERN), inputs["input_ids"], inputs["attention_mask"])
    real = inputs["attention_mask"] == 1
    np.testing.assert_allclose(computed(folder, MODERN, inputs)[real], expected[real], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_functions_are_those_of_their_names(kind: str, tmp_path: Path) -> None:
    config = {**BERT, "hidden_act": kind, "num_hidden_layers": 1}
    folder, inputs = write_model(tmp_path / "model", config), inputs_of(config, 4)
    expected = post_norm(
        config, weights_of(config), inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"]
    )
    real = inputs["attention_mask"] == 1
    np.testing.assert_allclose(computed(folder, config, inputs)[real], expected[real], rtol=1e-5, atol=1e-5)


def test_a_text_has_the_same_vectors_alone_and_in_any_company(tmp_path: Path) -> None:
    folder, inputs = write_model(tmp_path / "model", BERT), inputs_of(BERT, 20)
    together = computed(folder, BERT, inputs)
    half = {name: value[1:2, :10] for name, value in inputs.items()}
    np.testing.assert_allclose(computed(folder, BERT, half)[0], together[1, :10], atol=1e-6)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**BERT, "hidden_act": "mish"}, "hidden_act: cannot be converted (got 'mish'); known are gelu"),
        ({**BERT, "hidden_act": None, "is_decoder": True}, "is_decoder: cannot be converted: the model is a decoder"),
        ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type: cannot be converted"),
        ({**BERT, "auto_map": {"AutoModel": "x.X"}}, "auto_map: cannot be converted: the model is computed by Python"),
        ({**BERT, "use_alibi": True}, "use_alibi: is not known for this architecture (got 'True'); if it changes"),
        ({**BERT, "num_attention_heads": 3}, "num_attention_heads: does not divide the hidden size 16"),
        ({**BERT, "num_hidden_layers": 0}, "num_hidden_layers: is no whole number from 1"),
        ({**BERT, "hidden_size": True}, "hidden_size: is no whole number from 1"),
        ({**BERT, "layer_norm_eps": -1}, "layer_norm_eps: is no positive number"),
        ({**BERT, "vocab_size": 51}, "has the shape [50, 16], where config.json has [51, 16]"),
        ({**BERT, "num_hidden_layers": 3}, "encoder.layer.2.attention.self.query.weight: is missing among the weights"),
        ({**BERT, "num_hidden_layers": 1}, "has weights that this architecture does not know: encoder.layer.1."),
        ({**MPNET, "relative_attention_num_buckets": 64}, "relative_attention_num_buckets: is no whole number from 32"),
        ({**MODERN, "layer_types": ["full_attention"]}, "layer_types: is no list of 4 of full_attention"),
        ({**MODERN, "rope_scaling": {"type": "yarn"}}, "rope_scaling: is not known for this architecture"),
        (
            {**MODERN, "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
            "rope_parameters: has no rotation of the type default for full_attention",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_is_not_understood_is_refused_by_name(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    own = {"bert": BERT, "mpnet": MPNET, "modernbert": MODERN}[config["model_type"]]
    folder = write_model(tmp_path / "model", config, weights_of(own))
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        make_graph(folder, config, Output.HIDDEN)


def test_a_setting_can_be_declared_harmless(tmp_path: Path) -> None:
    config = {**BERT, "pretraining_flavour": "vanilla", "left_out": None, "switched_off": False}
    folder = write_model(tmp_path / "model", config)
    make_graph(folder, config, Output.HIDDEN, ["pretraining_flavour"])
    with pytest.raises(ConfigurationError, match="pretraining_flavour: is not known"):
        make_graph(folder, config, Output.HIDDEN)


def test_weights_of_a_head_are_not_needed_for_vectors_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    weights = weights_of(BERT)
    headed = {f"bert.{name}": value for name, value in weights.items()}
    headed["cls.predictions.bias"] = np.zeros(50, np.float32)
    headed["bert.pooler.dense.weight"] = np.zeros((16, 16), np.float32)
    inputs = inputs_of(BERT, 6)
    plain = computed(write_model(tmp_path / "plain", BERT), BERT, inputs)
    np.testing.assert_array_equal(computed(write_model(tmp_path / "headed", BERT, headed), BERT, inputs), plain)
    headed["bert.encoder.layer.0.adapter.lora_A.weight"] = np.zeros((4, 16), np.float32)
    folder = write_model(tmp_path / "adapted", BERT, headed)
    with pytest.raises(ConfigurationError, match=r"does not know: bert\.encoder\.layer\.0\.adapter\.lora_A\.weight"):
        make_graph(folder, BERT, Output.HIDDEN)


def test_names_of_older_files_are_known(tmp_path: Path) -> None:
    weights = weights_of(BERT)
    inputs = inputs_of(BERT, 6)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    plain = computed(write_model(tmp_path / "plain", BERT), BERT, inputs)
    np.testing.assert_array_equal(computed(write_model(tmp_path / "old", BERT, old), BERT, inputs), plain)


def test_large_weights_lie_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, folder = inputs_of(BERT, 6), write_model(tmp_path / "model", BERT)
    inside = computed(folder, BERT, inputs)
    monkeypatch.setattr("toutates.repositories.sentence_transformers.graph._MOST_INSIDE", 1000)
    beside = computed(folder, BERT, inputs)
    np.testing.assert_array_equal(beside, inside)
    assert (folder / "model.onnx").stat().st_size < 20_000 < (folder / "model.onnx_data").stat().st_size


def test_a_weight_that_is_no_number_is_refused(tmp_path: Path) -> None:
    weights = weights_of(BERT)
    weights["encoder.layer.1.output.dense.bias"][3] = np.nan
    folder = write_model(tmp_path / "model", BERT, weights)
    with pytest.raises(ConfigurationError, match=r"encoder\.layer\.1\.output\.dense\.bias: has values that are no"):
        make_graph(folder, BERT, Output.HIDDEN).write(tmp_path / "model.onnx")
