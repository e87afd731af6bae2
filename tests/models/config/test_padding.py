"""``padding`` of config.yaml: what is read, against the graph too, and what is said of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.config.test_settings import REQUIRED
from toutates.engine.padded.padding import PaddedInput
from toutates.models.config.padding import (
    PaddedTensor,
    PaddingSettings,
    padding_of,
    padding_warnings,
    with_made_mask,
)
from toutates.models.config.settings import ModelSettings, load_settings
from toutates.models.config.yaml_writer import write_yaml
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError

SOURCE = Path("config.yaml")

#: A text encoder as exporters make it.
ENCODER = Signature(
    (
        TensorSpec("input_ids", BY_NAME["INT64"], (-1,)),
        TensorSpec("attention_mask", BY_NAME["INT64"], (-1,)),
        TensorSpec("pixels", BY_NAME["UINT8"], (3, -1, 8)),
    ),
    (
        TensorSpec("last_hidden_state", BY_NAME["FP32"], (-1, 384)),
        TensorSpec("pooled", BY_NAME["FP32"], (384,)),
        TensorSpec("text", BY_NAME["BYTES"], (1,)),
    ),
    batched=True,
)
WITHOUT_TEXT = Signature(ENCODER.inputs, ENCODER.outputs[:2], batched=True)


def load(folder: Path, padding: str, **changes: str) -> ModelSettings:
    lines = [f"{key}: {value}\n" for key, value in (REQUIRED | changes).items()]
    (folder / "config.yaml").write_text("".join(lines) + f"padding: {padding}\n")
    settings = load_settings(folder)
    assert settings is not None
    return settings


def test_all_keys_are_read_and_written(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "{inputs: {input_ids: {axis: 1, value: 7}, 0: {value: -1.5}, 'yes': {}}, mask: attention_mask, "
        "outputs: {last_hidden_state: 1}, buckets: [16, 512], max_batch_tokens: 2048}",
    )
    assert settings.padding == PaddingSettings(
        {"input_ids": PaddedTensor(1, 7), "0": PaddedTensor(1, -1.5), "yes": PaddedTensor()},
        "attention_mask",
        {"last_hidden_state": 1},
        (16, 512),
        2048,
    )
    (tmp_path / "config.yaml").write_text(write_yaml(settings))
    assert load_settings(tmp_path) == settings


def test_the_example_of_the_docs_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "model-repository.md").read_text()
    part = page[page.index("### Rows of different length") :]
    (tmp_path / "config.yaml").write_text(part[part.index("```yaml") + 7 : part.index("```\n\nOnly")])
    settings = load_settings(tmp_path)
    assert settings is not None
    assert settings.padding is not None
    assert list(settings.padding.inputs) == ["input_ids", "token_type_ids"]


def test_most_keys_may_be_left_out(tmp_path: Path) -> None:
    settings = load(tmp_path, "{inputs: {input_ids: {}}}")
    assert settings.padding == PaddingSettings({"input_ids": PaddedTensor()})
    (tmp_path / "config.yaml").write_text(write_yaml(settings))
    assert load_settings(tmp_path) == settings


@pytest.mark.parametrize(
    ("padding", "said"),
    [
        ("7", "padding: is not a mapping"),
        ("{}", "padding.inputs: required key is missing"),
        ("{inputs: {}}", "padding.inputs: names no input"),
        ("{inputs: [input_ids]}", "padding.inputs: is not a mapping"),
        ("{inputs: {x: {axis: 0}}}", "padding.inputs.x.axis: is not an integer from 1 to 32"),
        ("{inputs: {x: {value: a}}}", "padding.inputs.x.value: is not a number"),
        ("{inputs: {x: {val: 1}}}", "padding.inputs.x.val: unknown key"),
        ("{inputs: {x: {}}, mask: x}", "padding.mask: is among the inputs too"),
        ("{inputs: {x: {}}, outputs: {y: -1}}", "padding.outputs.y: is not an integer from 1 to 32"),
        ("{inputs: {x: {}}, buckets: [8, 4]}", "padding.buckets: is not a list of ascending lengths"),
        ("{inputs: {x: {}}, buckets: [8, 8]}", "padding.buckets: is not a list of ascending lengths"),
        ("{inputs: {x: {}}, max_batch_tokens: 0}", "padding.max_batch_tokens: is not an integer from 1"),
        ("{inputs: {x: {}}, bucket: [8]}", "padding.bucket: unknown key; did you mean `buckets`?"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, padding: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, padding)
    assert said in str(refused.value)
    assert "config.yaml" in str(refused.value)


def test_other_backends_have_none(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "".join(f"{key}: {value}\n" for key, value in (REQUIRED | {"backend": "python"}).items())
        + "padding: {inputs: {x: {}}}\n"
    )
    with pytest.raises(ConfigurationError, match="padding: is for ONNX models only"):
        load_settings(tmp_path, ["python"])


# --- against the graph -----------------------------------------------------------------------------------------------


def test_tensors_are_found_in_the_graph() -> None:
    settings = PaddingSettings(
        {"input_ids": PaddedTensor(1, 3), "pixels": PaddedTensor(2)},
        "attention_mask",
        {"last_hidden_state": 1},
        (8,),
        99,
    )
    padding = padding_of(settings, WITHOUT_TEXT, SOURCE)
    assert padding is not None
    assert padding.inputs == {0: PaddedInput(0, 3), 2: PaddedInput(1), 1: PaddedInput(0)}
    assert (padding.mask, dict(padding.outputs)) == (1, {0: 0})
    assert (padding.buckets.lengths, padding.most_elements) == ((8,), 99)
    assert padding_warnings(padding, WITHOUT_TEXT, SOURCE) == []
    assert [tensor.optional for tensor in with_made_mask(WITHOUT_TEXT, padding).inputs] == [False, True, False]


def test_an_open_output_that_is_not_cut_back_is_warned_of() -> None:
    padding = padding_of(PaddingSettings({"input_ids": PaddedTensor()}), ENCODER, SOURCE)
    [warning] = padding_warnings(padding, ENCODER, SOURCE)
    assert "'last_hidden_state'" in warning
    assert "write `outputs: {last_hidden_state: 1}`" in warning
    assert padding_warnings(None, ENCODER, SOURCE) == []


IDS = {"input_ids": PaddedTensor()}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (PaddingSettings({"ids": PaddedTensor()}), "padding.inputs: the model has no such input (got 'ids')"),
        (PaddingSettings({"input_ids": PaddedTensor(2)}), "padding.inputs.input_ids.axis: is no open dimension"),
        (PaddingSettings({"pixels": PaddedTensor(1)}), "which is [-1, 3, -1, 8] (got 1); write one of [2]"),
        (PaddingSettings({"input_ids": PaddedTensor(1, 0.5)}), "padding.inputs.input_ids.value: is no value of INT64"),
        (PaddingSettings({"pixels": PaddedTensor(2, 256)}), "padding.inputs.pixels.value: is no value of UINT8"),
        (PaddingSettings({"pixels": PaddedTensor(2, -1)}), "padding.inputs.pixels.value: is no value of UINT8"),
        (PaddingSettings(IDS, "mask"), "padding.mask: the model has no such input"),
        (PaddingSettings(IDS, "", {"pooled": 1}), "padding.outputs.pooled: is no open dimension of 'pooled'"),
        (PaddingSettings(IDS, "", {"last_hidden_state": 1}), "cannot be cut back beside outputs of BYTES"),
    ],
)
def test_what_does_not_fit_the_graph_is_named(settings: PaddingSettings, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        padding_of(settings, ENCODER, SOURCE)
    assert said in str(refused.value)


def test_a_model_must_be_batched_and_have_no_strings() -> None:
    unbatched = Signature(ENCODER.inputs, ENCODER.outputs, batched=False)
    with pytest.raises(ConfigurationError, match="padding: is for models whose requests are batched"):
        padding_of(PaddingSettings(IDS), unbatched, SOURCE)
    strings = Signature((*ENCODER.inputs, TensorSpec("s", BY_NAME["BYTES"], (1,))), ENCODER.outputs, batched=True)
    with pytest.raises(ConfigurationError, match="does not go with input 's' of BYTES"):
        padding_of(PaddingSettings(IDS), strings, SOURCE)
    moved = TensorSpec("input_ids", BY_NAME["INT64"], (-1, 1), reshape=(-1,))
    with pytest.raises(ConfigurationError, match="is shown to clients in another shape"):
        padding_of(PaddingSettings(IDS), Signature((moved,), ENCODER.outputs, batched=True), SOURCE)
    floats = TensorSpec("m", BY_NAME["BF16"], (-1,))
    with pytest.raises(ConfigurationError, match=r"padding\.mask: cannot be made"):
        padding_of(PaddingSettings(IDS, "m"), Signature((*ENCODER.inputs, floats), (), batched=True), SOURCE)
