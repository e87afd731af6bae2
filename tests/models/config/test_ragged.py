"""``ragged`` of config.yaml, and what config.pbtxt has of it: read, against the graph too, and every mistake told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format

from tests.models.config.test_settings import REQUIRED
from toutates.engine.ragged.ragged import BatchInput, Ragged
from toutates.models.config.describe import model_config
from toutates.models.config.ragged import (
    MadeInput,
    RaggedKeys,
    RaggedSettings,
    ScatteredOutput,
    ragged_of,
    seen_by_clients,
)
from toutates.models.config.settings import ModelSettings, load_settings
from toutates.models.config.signature_of import signature_of
from toutates.models.config.triton_configuration import TritonConfiguration, triton_configuration
from toutates.models.config.yaml_writer import write_yaml
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError

SOURCE = Path("config.yaml")

#: As the graph has them.
VALUES, ENDS = TensorSpec("values", BY_NAME["FP32"], (-1,)), TensorSpec("ends", BY_NAME["INT32"], (-1,))
FORMS = TensorSpec("forms", BY_NAME["INT64"], (-1, 2))
SUM, SAME = TensorSpec("sum", BY_NAME["FP32"], (-1, 1)), TensorSpec("same", BY_NAME["FP32"], (-1,))
GRAPH = ([VALUES, ENDS, FORMS], [SUM, SAME])

YAML = """\
ragged:
  inputs: {values: [-1, -1, 4]}
  batch_inputs:
    ends: {kind: ends, of: values, datatype: INT32}
    forms: {kind: shapes, of: values, datatype: INT64}
  outputs: {same: {of: values, shape: [-1, -1, 4]}}
  max_batch_elements: 65536
"""
WANTED = RaggedSettings(
    {"values": (-1, -1, 4)},
    (MadeInput("ends", "ends", "values", "INT32"), MadeInput("forms", "shapes", "values", "INT64")),
    {"same": ScatteredOutput("values", (-1, -1, 4))},
    65_536,
)
PBTXT = """
max_batch_size: 8
input { name: "values" data_type: TYPE_FP32 dims: [ -1, 4 ] allow_ragged_batch: true }
output { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "same" data_type: TYPE_FP32 dims: [ -1, 4 ] }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "values" }
batch_input { kind: BATCH_ITEM_SHAPE target_name: "forms" data_type: TYPE_INT64 source_input: "values" }
batch_output { target_name: "same" source_input: "values" }
parameters { key: "toutates.max_batch_elements" value { string_value: "65536" } }
"""


def load(folder: Path, text: str, **changes: str) -> ModelSettings:
    lines = [f"{key}: {value}\n" for key, value in (REQUIRED | changes).items()]
    (folder / "config.yaml").write_text("".join(lines) + text)
    settings = load_settings(folder)
    assert settings is not None
    return settings


def read(text: str) -> TritonConfiguration:
    return triton_configuration(text_format.Parse(text, ModelConfig()), "m", Path("config.pbtxt"))


def signature(settings: ModelSettings, given: TritonConfiguration | None = None) -> Signature:
    assert settings.ragged is not None
    inputs, outputs = seen_by_clients(*GRAPH, settings.ragged, SOURCE, RaggedKeys())
    return signature_of(inputs, outputs, settings, source=SOURCE, declared=given.declared if given else None)


def test_both_files_say_the_same_and_each_becomes_the_other(tmp_path: Path) -> None:
    own = load(tmp_path, YAML)
    given = read(PBTXT)
    assert own.ragged == given.settings.ragged == WANTED
    assert given.warning == ""
    (tmp_path / "config.yaml").write_text(write_yaml(own))
    assert load_settings(tmp_path) == own
    written = model_config("m", signature(own), own, with_own=True)
    assert triton_configuration(written, "m", SOURCE).settings.ragged == WANTED


def test_the_tensors_for_clients_and_those_of_a_run(tmp_path: Path) -> None:
    for seen in (signature(load(tmp_path, YAML)), signature(read(PBTXT).settings, read(PBTXT))):
        assert [(tensor.name, tensor.shape) for tensor in seen.inputs] == [("values", (-1, 4))]
        assert [(tensor.name, tensor.shape) for tensor in seen.outputs] == [("sum", (1,)), ("same", (-1, 4))]
        ragged = ragged_of(WANTED, seen, SOURCE, RaggedKeys())
        ends = BatchInput(replace(ENDS, shape=()), "ends", 0)
        forms = BatchInput(replace(FORMS, shape=(2,)), "shapes", 0)
        assert ragged == Ragged(frozenset({0}), (ends, forms), {1: 0}, 65_536)
        assert [tensor.name for tensor in ragged.run_signature(seen).inputs] == ["values", "ends", "forms"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ragged: {}", "ragged.inputs: names no input"),
        ("ragged: {inputs: {x: [-1]}}", "ragged.inputs.x: is not the shape of rows (got [-1])"),
        ("ragged: {inputs: {x: [8, -1]}}", "ragged.inputs.x: is not the shape of rows (got [8, -1])"),
        ("ragged: {inputs: {x: [-1, -1]}, other: 1}", "ragged.other: unknown key"),
        (
            "ragged: {batch_inputs: {y: {kind: sizes, of: x, datatype: INT32}}}",
            "ragged.batch_inputs.y.kind: must be counts or ends or offsets or longest or shapes or flat_shapes",
        ),
        (
            "ragged: {batch_inputs: {y: {kind: ends, datatype: INT8, of: x}}}",
            "ragged.batch_inputs.y.datatype: must be INT32 or INT64 or FP32",
        ),
        ("ragged: {batch_inputs: {y: {kind: ends, datatype: INT32}}}", "ragged.batch_inputs.y.of: required key"),
        (
            "ragged: {inputs: {x: [-1, -1]}, outputs: {z: {of: x, shape: [2]}}}",
            "ragged.outputs.z.shape: is not the shape of rows",
        ),
        (
            "ragged: {inputs: {x: [-1, 1]}, max_batch_elements: 0}",
            "ragged.max_batch_elements: is not an integer from 1",
        ),
        ("ragged: {inputs: {x: [-1, 1]}}\npadding: {inputs: {x: {}}}", "ragged: stands beside padding"),
    ],
)
def test_mistakes_in_a_config_yaml_are_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, text + "\n")
    assert problem in str(raised.value)
    assert "; " in str(raised.value)


X = "input { name: 'x' data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true } "
BATCHED = "max_batch_size: 4 " + X


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (X, "input.allow_ragged_batch: is for models whose requests are batched"),
        ("max_batch_size: 4 batch_output { target_name: 'y' source_input: 'x' }", "batch_output: has no input with"),
        (BATCHED + "sequence_batching { }", "sequence_batching: does not go with ragged inputs"),
        (
            "max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: [ -1, 1 ] reshape { shape: -1 } "
            "allow_ragged_batch: true }",
            "input 'x' reshape: does not go with allow_ragged_batch",
        ),
        (BATCHED + "batch_input { data_type: TYPE_INT32 source_input: 'x' }", "batch_input target_name: is missing"),
        (
            BATCHED + "batch_input { target_name: 'n' data_type: TYPE_INT32 }",
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0",
        ),
        (
            BATCHED + "batch_input { target_name: 'n' data_type: TYPE_INT32 source_input: 'other' }",
            "batch_input 'n' source_input: unknown source input name 'other'",
        ),
        (
            BATCHED + "batch_input { target_name: 'n' data_type: TYPE_FP64 source_input: 'x' }",
            "batch_input 'n' data_type: must be TYPE_INT32, TYPE_INT64 or TYPE_FP32 (got 'TYPE_FP64')",
        ),
        (
            BATCHED + "batch_input { target_name: 'x' data_type: TYPE_INT32 source_input: 'x' }",
            "batch_input 'x': is declared as an input of clients too",
        ),
        (
            BATCHED + "batch_output { target_name: 'y' source_input: 'x' }",
            "batch_output 'y': unknown target output name 'y'",
        ),
        (
            BATCHED + "output { name: 'y' data_type: TYPE_FP32 dims: -1 } "
            "batch_output { target_name: [ 'y', 'y' ] source_input: 'x' }",
            "batch_output 'y': is specified twice",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_a_config_pbtxt_are_told_in_tritons_words(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(text)
    assert problem in str(raised.value)
    assert "; " in str(raised.value)


def test_everything_that_contradicts_the_graph_is_told_at_once() -> None:
    settings = RaggedSettings(
        {"values": (-1, -1), "forms": (-1, 2), "other": (-1, 1)},
        (
            MadeInput("ends", "shapes", "values", "INT64"),
            MadeInput("ends", "ends", "nothing", "INT32"),
            MadeInput("forms", "flat_shapes", "ends", "INT64"),
            MadeInput("missing", "ends", "values", "INT32"),
        ),
        {"same": ScatteredOutput("values", (-1, -1, -1)), "none": ScatteredOutput("values", (-1, 1))},
    )
    with pytest.raises(ConfigurationError) as raised:
        seen_by_clients(*GRAPH, settings, SOURCE, RaggedKeys())
    told = str(raised.value).splitlines()
    for problem in (
        "ragged.inputs.forms: the graph has the input as [-1, 2], and a ragged one has one open dimension",
        "ragged.inputs.other: the model has no such input; the model's inputs: values, ends, forms",
        "ragged.batch_inputs.ends: has the datatype INT64, and the graph's input INT32",
        "ragged.batch_inputs.ends: the graph has the input as [-1], and shapes are [-1, 1]",
        "ragged.batch_inputs.ends: is made twice",
        "ragged.batch_inputs.ends: unknown source input name 'nothing'",
        "ragged.batch_inputs.forms: is a ragged input of clients too",
        "ragged.batch_inputs.forms: unknown source input name 'ends'",
        "ragged.batch_inputs.missing: the model has no such input",
        "ragged.outputs.same: has more open dimensions than input 'values'",
        "ragged.outputs.none: the model has no such output",
    ):
        assert any(problem in line for line in told), (problem, told)
    assert all(line.startswith("config.yaml: ") and "; " in line for line in told)


def test_strings_and_models_without_batches_are_refused() -> None:
    text = TensorSpec("text", BY_NAME["BYTES"], (1,))
    seen = Signature((TensorSpec("values", BY_NAME["FP32"], (-1, 4)), text), (SUM,), batched=False)
    with pytest.raises(ConfigurationError) as raised:
        ragged_of(RaggedSettings({"values": (-1, -1, 4)}), seen, SOURCE, RaggedKeys())
    told = str(raised.value)
    assert "ragged: is for models whose requests are batched" in told
    assert "ragged: does not go with tensor 'text' of BYTES" in told
