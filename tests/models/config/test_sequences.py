"""What is said of sequences in config.pbtxt and config.yaml, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from toutates.models.config.sequences import ControlSettings, SequenceSettings, StateSettings
from toutates.models.config.settings import ModelSettings, load_settings
from toutates.models.config.triton_configuration import triton_configuration
from toutates.models.config.triton_sequences import sequence_message
from toutates.models.config.yaml_writer import write_yaml
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import TensorSpec
from toutates.system.errors import ConfigurationError

DIRECT = SequenceSettings(
    max_idle_us=5_000,
    max_queue_delay_us=7,
    minimum_slot_utilization=0.5,
    controls=(
        ControlSettings("S", "start", "INT32", (0.0, 1.0)),
        ControlSettings("E", "end", "FP32", (0.0, 1.0)),
        ControlSettings("R", "ready", "BOOL", (0.0, 1.0)),
        ControlSettings("C", "corrid", "BYTES"),
    ),
    states=(
        StateSettings("a", "b", "zero", "", "FP32", (-1, 4), (2, 4)),
        StateSettings("c", "d", "file", "begin", "INT64", (3,), (3,)),
        StateSettings("e", "f", "", "", "FP16", (1,)),
    ),
)
OLDEST = SequenceSettings(
    "oldest",
    max_candidates=32,
    max_queue_delay_us=9,
    preferred_batch_sizes=(2, 4),
    iterative=True,
    preserve_ordering=True,
)


def of_triton(text: str) -> SequenceSettings:
    config = ModelConfig()
    text_format.Parse(f"name: 'm' max_batch_size: 8 {text}", config)
    settings = triton_configuration(config, "m", Path("config.pbtxt")).settings.sequences
    assert settings is not None
    return settings


@pytest.mark.parametrize("settings", [DIRECT, OLDEST], ids=["direct", "oldest"])
def test_the_same_is_read_of_what_is_written(settings: SequenceSettings, tmp_path: Path) -> None:
    message = text_format.MessageToString(sequence_message(settings))
    assert of_triton(f"sequence_batching {{ {message} }}") == settings
    (tmp_path / "config.yaml").write_text(write_yaml(ModelSettings(sequences=settings)))
    read = load_settings(tmp_path)
    assert read is not None
    assert read.sequences == settings


def test_the_defaults_are_tritons() -> None:
    assert of_triton("sequence_batching { }") == SequenceSettings(max_idle_us=1_000_000)


def test_the_dims_of_a_state_may_fix_sizes_that_the_graph_leaves_open_in_its_output() -> None:
    config = ModelConfig()
    state = "state { input_name: 'h' output_name: 'k' data_type: TYPE_FP32 dims: [ 2, 1, 4 ] }"
    tensors = "input { name: 'x' data_type: TYPE_FP32 dims: 3 } output { name: 'y' data_type: TYPE_FP32 dims: 3 }"
    text_format.Parse(f"name: 'm' {tensors} sequence_batching {{ {state} }}", config)
    said = triton_configuration(config, "m", Path("config.pbtxt"))
    fp32 = BY_NAME["FP32"]
    x, h = TensorSpec("x", fp32, (3,)), TensorSpec("h", fp32, (2, -1, 4))
    y, k = TensorSpec("y", fp32, (3,)), TensorSpec("k", fp32, (-1, -1, -1))
    settings = said.declared.apply(said.settings, [x, h], [y, k])
    assert settings.input_shapes["h"] == settings.output_shapes["k"] == (2, 1, 4)


PAIR = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"
STATE = "input_name: 'a' output_name: 'b' data_type: TYPE_FP32 dims: 4"
INITIAL = "name: 'i' data_type: TYPE_FP32 dims: 4 zero_data: true"
REFUSED = {
    "no name": (f"control_input {{ control {{ {PAIR} }} }}", "sequence batching control tensor must have a name for m"),
    "two kinds": (
        f"control_input {{ name: 'x' control {{ {PAIR} }} control {{ kind: CONTROL_SEQUENCE_END }} }}",
        "sequence batching control tensor 'x' is specified for multiple control kinds for m",
    ),
    "two tensors": (
        f"control_input {{ name: 'x' control {{ {PAIR} }} }} control_input {{ name: 'y' control {{ {PAIR} }} }}",
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    "no pair": (
        "control_input { name: 'x' control { kind: CONTROL_SEQUENCE_START } }",
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_START for m",
    ),
    "two pairs": (
        f"control_input {{ name: 'x' control {{ {PAIR} bool_false_true: [ false, true ] }} }}",
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for CONTROL_SEQUENCE_START for m",
    ),
    "three values": (
        "control_input { name: 'x' control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1, 2 ] } }",
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_END for m",
    ),
    "type of ids": (
        "control_input { name: 'x' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } }",
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64",
    ),
    "pair of ids": (
        "control_input { name: 'x' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 "
        "int32_false_true: 0 } }",
        "sequence batching must not specify either 'int32_false_true'",
    ),
    "preferred": (
        "oldest { preferred_batch_size: 9 }",
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    "candidates": ("oldest { max_candidate_sequences: 2000000000 }", "is not from 0 to 1048576"),
    "delay": ("direct { max_queue_delay_microseconds: 60000001 }", "max_queue_delay_microseconds: is above 60000000"),
    "idle": ("max_sequence_idle_microseconds: 1000000000001", "max_sequence_idle_microseconds: is above"),
    "utilization": (
        "direct { minimum_slot_utilization: 1.5 }",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    "two initial states": (
        f"state {{ {STATE} initial_state {{ {INITIAL} }} initial_state {{ {INITIAL} }} }}",
        "initial_state field for state input 'a' must contain exactly one or zero element. Found '2' elements.",
    ),
    "initial type": (
        f"state {{ {STATE} initial_state {{ {INITIAL.replace('FP32', 'FP64')} }} }}",
        "The data type used for 'initial_state' field of state 'a' does not match the state data type.",
    ),
    "initial name": (
        f"state {{ {STATE} initial_state {{ data_type: TYPE_FP32 dims: 4 zero_data: true }} }}",
        "Field 'name' must be set when using initial_state for state input 'a'.",
    ),
    "initial rank": (
        f"state {{ {STATE} initial_state {{ {INITIAL} dims: 2 }} }}",
        "doesn't match the size of 'state' dimensions for state input 'a'. 2 != 1",
    ),
    "initial size": (
        f"state {{ {STATE} initial_state {{ {INITIAL.replace('dims: 4', 'dims: 3')} }} }}",
        "'initial_state' dim for input name 'a' doesn't match 'state' dim description. 3 != 4",
    ),
    "initial data": (
        f"state {{ {STATE} initial_state {{ name: 'i' data_type: TYPE_FP32 dims: 4 }} }}",
        "initial_state setting expects state'a' to have state_data set",
    ),
    "a file elsewhere": (
        f"state {{ {STATE} initial_state {{ name: 'i' data_type: TYPE_FP32 dims: 4 data_file: '../x' }} }}",
        "data_file leaves the directory initial_state",
    ),
    "growable": (f"state {{ {STATE} use_growable_memory: true }}", "you must also enable 'use_single_buffer'"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_what_triton_refuses_is_refused_in_its_words(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of_triton(f"sequence_batching {{ {text} }}")
    assert problem in str(raised.value)
    assert "config.pbtxt: sequence_batching" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("strategy: newest", "sequences.strategy: must be direct or oldest"),
        ("max_candidates: 4", "sequences.max_candidates: has no effect with the strategy direct"),
        ("minimum_slot_utilization: 2", "sequences.minimum_slot_utilization: is not a number from 0 to 1"),
        ("controls: {x: {kind: start, datatype: FP64}}", "sequences.controls.x.datatype: must be INT32"),
        (
            "controls: {x: {kind: start, datatype: INT32, values: [1]}}",
            "x.values: are not two numbers",
        ),
        ("states: [{input: a, output: b, file: ../c}]", "sequences.states[0].file: leaves the directory initial_state"),
        (
            "states: [{input: a, output: b, initial: zero, file: c}]",
            "[0].initial: stands beside `file`",
        ),
        ("states: [{output: b}]", "sequences.states[0].input: required key is missing; add `input: state_in`"),
        ("states: [{input: a}]", "sequences.states[0].output: required key is missing; add `output: state_out`"),
        ("states: [{input: '', output: b}]", "sequences.states[0].input: is not a text"),
        ("idle: 4", "sequences.idle: unknown key"),
    ],
)
def test_a_wrong_section_names_file_key_and_remedy(text: str, problem: str, tmp_path: Path) -> None:
    base = "backend: supertensor\nbatch_size: 8\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"
    (tmp_path / "config.yaml").write_text(f"{base}sequences: {{{text}}}\n")
    with pytest.raises(ConfigurationError) as raised:
        load_settings(tmp_path)
    assert problem in str(raised.value)
    assert "; " in str(raised.value)
