"""config.yaml: good files, mutated ones, and any other YAML.

Invariant: a file is read, or refused with ConfigurationError, which can be logged and names the file in every line, and
the key where one is wrong; settings are within their bounds, and what is written from them is read as the same.

A case is a file's bytes.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.fuzz.sessions import mutate
from toutates.models.config.settings import CONFIG_NAME, ModelSettings, load_settings
from toutates.models.config.yaml_writer import write_yaml
from toutates.system.errors import ConfigurationError

__all__ = ["check", "load", "make_case"]

GOOD = """\
# A model of two inputs.
backend: supertensor
batch_size: 256
capacity: 64
num_executors: 6
allocator: cpu
input_shapes:
  pf_points: [-1, 2, 50]
  0: [-1]
output_shapes: {softmax: [-1, 8]}
profiling:
  file_prefix: /tmp/profile
  stop_after_batches: 1000
capacity_bytes: 1073741824
max_queue_size: 10
max_queue_delay_us: 100
preferred_batch_sizes: [2, 4]
priority_levels: 3
default_priority: 2
queue_timeout_us: 1000
queue_timeout_action: delay
priority_queues: {1: {max_queue_size: 4, queue_timeout_us: 5, allow_timeout_override: true}}
outputs: [softmax]
model_filename: graph.onnx
devices: [cpu, "gpu:1"]
accelerators: {tensorrt: {trt_fp16_enable: 1}}
session: {intra_threads: 2, execution_mode: parallel, graph_level: basic, arena_shrinkage: "cpu:0"}
warmup:
- {name: a, batch_size: 8, inputs: {x: {datatype: FP32, shape: [4], data: random}}}
- {count: 2, inputs: {y: {datatype: BOOL, shape: [], file: f}}}
parameters: {threads: 2}
"""
PADDED = """\
padding:
  inputs: {input_ids: {axis: 1, value: 0}, position_ids: {value: -1}}
  mask: attention_mask
  outputs: {last_hidden_state: 1}
  buckets: [16, 64, 256]
  max_batch_tokens: 4096
"""
RAGGED = """\
ragged:
  inputs: {values: [-1, -1], points: [-1, -1, 3]}
  batch_inputs:
    ends: {kind: ends, of: values, datatype: INT32}
    shapes: {kind: shapes, of: points, datatype: INT64}
  outputs: {scaled: {of: values, shape: [-1, -1]}}
  max_batch_elements: 1048576
"""
#: What a good file has of rows of different length.
OF_LENGTHS = ("", PADDED, RAGGED)
KEYS = ("backend", *ModelSettings.__dataclass_fields__)
PIECES = (
    *(
        *KEYS,
        "file_prefix",
        "stop_after_batches",
        "supertensor",
        "cpu",
        "cuda_pinned",
        "batchsize",
        *("inputs", "axis", "mask", "buckets", "max_batch_tokens"),
        *("batch_inputs", "kind", "of", "datatype", "shape", "ends", "max_batch_elements"),
        "x" * 300,
        "\u00fc",
    ),
    *(": ", ":", "- ", "\n", "\n  ", "[", "]", "{", "}", ", ", "? ", "& a", "&a ", "*a", "<<: ", "|\n", ">-\n  ", "# "),
    *("!!int ", "!!float ", "!!binary ", "!!set ", "!x ", "%YAML 1.1\n", "---\n", "...\n", "'", '"', "\\", "\t", "\0"),
    *("0", "-1", "1", "64", "010", "0x10", "1_000", "1:30", "1e3", ".inf", ".nan", "9" * 400, "yes", "null", "~"),
    *("2001-01-01", '"\\U00110000"', '"\\ud800"', "\ud800"),
)
VALUES: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        64,
        2**20,
        2**31,
        10**30,
        True,
        False,
        None,
        1.5,
        float("inf"),
        "",
        "64",
        "cpu",
        "supertensor",
        "\ud800",
    ),
    *([], {}, [[1]], {"x": [-1, 8]}, {"x": "y"}, {1: [2]}, {"x": [1.0]}, {"file_prefix": 5}, {"x": [1] * 40}, b"\xff"),
    *({"inputs": {}}, {"inputs": {"x": {}}}, {"inputs": {"x": [-1, 8]}, "batch_inputs": {}}, {"inputs": {"x": [8]}}),
    *({"inputs": {"x": [-1, -1]}, "batch_inputs": {"y": {"kind": "ends", "of": "x", "datatype": "FP32"}}},),
    *({"inputs": {"x": {"axis": 1}}, "buckets": [4, 8]}, {"batch_inputs": {"y": {"kind": "end", "of": 5}}}),
    *({"inputs": {"x": [-1, -1]}, "outputs": {"y": {"of": "x", "shape": [-1]}}},),
)


#: Problems that are no key's: the file is not what keys are read from.
_WHOLE_FILE = (
    "line ",
    "is empty",
    "is not a mapping",
    "is nested too deeply",
    "is larger",
    "special characters",
    "unacceptable",
)


#: Around the bounds of the numbers.
EDGES = (-1, 0, 1, 2**10, 2**10 + 1, 2**16, 2**16 + 1, 2**20, 2**20 + 1, 2**31 - 1, 2**31)


def make_case(rng: random.Random) -> bytes:
    """A good file with some keys changed, its text mutated, or pieces of YAML in any order."""
    kind = rng.random()
    good = GOOD + rng.choice(OF_LENGTHS)
    if kind < 0.4:
        document: dict[Any, Any] = yaml.safe_load(good)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
            key = rng.choice((*KEYS, *KEYS, *KEYS, "batchsize", 7, "x" * 200))
            if rng.random() < 0.3:
                document.pop(key, None)
            else:
                document[key] = rng.choice(VALUES if rng.random() < 0.5 else EDGES)
        text = yaml.safe_dump(document, default_flow_style=rng.choice((True, False, None)), allow_unicode=True)
        return text.encode(errors="surrogatepass")
    if kind < 0.7:
        return mutate(good.encode(), rng)
    text = "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 40)))
    return (good * rng.randint(0, 1) + text).encode(errors="surrogatepass")


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / CONFIG_NAME
        try:
            settings = load(source, case)
        except ConfigurationError as error:
            _check_refusal(error, source)
            return
        _check_bounds(settings)
        assert load(source, write_yaml(settings).encode()) == settings, "settings change when they are written and read"


def load(source: Path, octets: bytes) -> ModelSettings:
    """The settings in a file of these bytes."""
    source.write_bytes(octets)
    settings = load_settings(source.parent)
    assert settings is not None
    return settings


def _check_refusal(error: ConfigurationError, source: Path) -> None:
    said = str(error)
    said.encode()  # a log is UTF-8
    lines = said.splitlines()
    assert 1 <= len(lines) <= 11, "a log would be flooded"
    for line in lines:
        assert line.startswith(f"{source}: "), f"the file is not named: {line}"
        assert len(line) < 1_000, "a log would be flooded"
        assert all(character.isprintable() for character in line), f"a log would be garbled: {line!r}"
    if len(lines) == 1:
        assert error.source == source
        assert error.key or error.problem.startswith(_WHOLE_FILE), f"no key is named: {said}"
    else:
        for line in lines[:10]:
            where = line.removeprefix(f"{source}: ").partition(": ")[0]
            assert where.strip(), f"no key is named: {line}"


def _check_bounds(settings: ModelSettings) -> None:
    for name, highest in (("batch_size", 2**20), ("capacity", 2**16), ("num_executors", 2**10)):
        assert type(getattr(settings, name)) is int
        assert 1 <= getattr(settings, name) <= highest
    assert settings.allocator in ("cpu", "cuda_pinned")
    for shapes in (settings.input_shapes, settings.output_shapes):
        for shape in shapes.values():
            assert len(shape) <= 32
            assert all(type(size) is int and (size == -1 or 1 <= size < 2**31) for size in shape)
