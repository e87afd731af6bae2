"""Files of models that nobody means well with, or that a program has written wrongly: each in a model of its own."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import onnx

from tests.e2e.dependent_models import F, graph, node

__all__ = ["HOSTILE", "good_graph", "put"]

#: The files of a model by their paths in it, or what makes them in its directory.
Files = Mapping[str, bytes] | Callable[[Path], None]
_PYTHON: Final = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
_TENSORS: Final = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }\n'
)
_DEEP: Final = 5_000


def good_graph() -> bytes:
    """A graph that is served."""
    return graph([node("Neg", "x", "y")], [("x", F, ["n", 2])], [("y", F, ["n", 2])]).SerializeToString()


def _configured(pbtxt: str) -> Files:
    return {"1/model.onnx": good_graph(), "config.pbtxt": pbtxt.encode(errors="surrogateescape")}


def _yaml(text: str) -> Files:
    return {"1/model.onnx": good_graph(), "1/config.yaml": text.encode()}


def _pbtxts() -> Iterator[tuple[str, str]]:
    numbers = {
        "data_type": _TENSORS.replace("TYPE_FP32", "99", 1),
        "negative_type": _TENSORS.replace("TYPE_FP32", "-1", 1),
        "format": 'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] format: 77 }',
        "kind": "instance_group { kind: 77 }",
        "secondary": "instance_group { secondary_devices { kind: 77 } }",
        "priority": "optimization { priority: 77 }",
        "action": "dynamic_batching { default_queue_policy { timeout_action: 77 } }",
        "actions": "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 1 value { timeout_action: 77 } } }",
        "control": 'sequence_batching { control_input { name: "c" control { kind: 77 } } }',
        "corrid": 'sequence_batching { control_input { name: "c" control { kind: 3 data_type: 77 } } }',
        "state": 'sequence_batching { state { input_name: "x" output_name: "y" data_type: 77 dims: 2 } }',
        "initial": 'sequence_batching { state { input_name: "x" output_name: "y" data_type: 11 dims: 2 '
        'initial_state { name: "s" data_type: 77 dims: 2 zero_data: true } } }',
        "batch_input": 'batch_input { kind: 77 target_name: "t" data_type: TYPE_INT32 source_input: "x" }',
        "batch_type": 'batch_input { target_name: "t" data_type: 77 source_input: "x" }',
        "batch_output": 'batch_output { kind: 77 target_name: "y" source_input: "x" }',
        "warmup": 'model_warmup { name: "w" inputs { key: "x" value { data_type: 77 dims: 2 zero_data: true } } }',
    }
    yield from ((f"enum_{name}", text) for name, text in numbers.items())
    most = 2**63 - 1
    yield "dims_negative", _TENSORS.replace("[ 2 ]", "[ -7 ]")
    yield "dims_most", _TENSORS.replace("[ 2 ]", f"[ {most}, {most} ]")
    yield "dims_least", _TENSORS.replace("[ 2 ]", f"[ {-(2**63)} ]")
    yield "dims_beyond", _TENSORS.replace("[ 2 ]", f"[ {2**63} ]")
    yield "dims_many", _TENSORS.replace("[ 2 ]", "[ " + "1, " * 2_000 + "2 ]")
    yield "dims_nan", _TENSORS.replace("[ 2 ]", "[ nan ]")
    yield "rows_most", f"max_batch_size: {2**31 - 1}"
    yield "rows_least", f"max_batch_size: {-(2**31)}"
    yield "delay_most", f"dynamic_batching {{ max_queue_delay_microseconds: {2**64 - 1} }}"
    yield "preferred_most", f"max_batch_size: 8 dynamic_batching {{ preferred_batch_size: {2**31 - 1} }}"
    yield "levels_most", f"dynamic_batching {{ priority_levels: {2**64 - 1} default_priority_level: {2**63} }}"
    yield "queue_most", f"dynamic_batching {{ default_queue_policy {{ max_queue_size: {2**32 - 1} }} }}"
    yield "count_most", f"instance_group {{ count: {2**31 - 1} }}"
    yield "count_least", f"instance_group {{ count: {-(2**31)} }}"
    yield "gpus_odd", f"instance_group {{ kind: KIND_GPU gpus: [ {2**31 - 1}, -1 ] }}"
    yield "groups_many", "instance_group { }\n" * 2_000
    yield "inputs_many", "".join(f'input {{ name: "x{at}" data_type: TYPE_FP32 dims: [ 2 ] }}\n' for at in range(1_000))
    yield "versions_odd", f"version_policy {{ specific {{ versions: [ {-(2**63)}, 0, {most} ] }} }}"
    yield "latest_most", f"version_policy {{ latest {{ num_versions: {2**32 - 1} }} }}"
    yield "idle_most", f"sequence_batching {{ max_sequence_idle_microseconds: {2**64 - 1} }}"
    yield "utilization_nan", "sequence_batching { direct { minimum_slot_utilization: nan } }"
    yield "controls_nan", 'sequence_batching { control_input { name: "x" control { fp32_false_true: [ nan, inf ] } } }'
    yield (
        "warmup_most",
        (
            f'model_warmup {{ name: "w" batch_size: {2**32 - 1} count: {2**32 - 1} inputs {{ key: "x" value '
            f"{{ data_type: TYPE_FP32 dims: [ {most} ] random_data: true }} }} }}"
        ),
    )
    yield (
        "warmup_path",
        (
            'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 '
            'input_data_file: "../../../../etc/passwd" } } }'
        ),
    )
    yield "filename_odd", 'default_model_filename: "../../good/1/model.onnx"'
    yield "filename_long", f'default_model_filename: "{"a" * 5_000}"'
    yield "filename_nul", 'default_model_filename: "a\\000b"'
    yield "labels_nul", 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "a\\000b" }'
    yield (
        "parameters_odd",
        "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in (
                ("intra_op_thread_count", "9" * 30),
                ("toutates.capacity", "nan"),
                ("gpu_mem_limit", "-1"),
            )
        ),
    )
    yield "tags_odd", 'metric_tags { key: "\\000" value: "\\n" }'
    yield (
        "ensemble_self",
        (
            'platform: "ensemble" ' + _TENSORS + 'ensemble_scheduling { step { model_name: "SELF" model_version: -1 '
            'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }'
        ),
    )
    yield "ensemble_nothing", 'platform: "ensemble" ' + _TENSORS + "ensemble_scheduling { step { } }"
    yield "backend_odd", 'backend: "../../x"'
    yield "platform_odd", 'platform: "\\303\\050"'
    yield "escapes", 'name: "\\777\\xff'
    yield "nested", "sequence_batching { " * _DEEP
    yield "no_text", "\0" * 1_000
    yield "large", "# " + "x" * 2**21


_YAMLS: Final[Mapping[str, str]] = {
    "list": "[1, 2, 3]",
    "number": "7",
    "text": "hello",
    "nothing": "null",
    "nested": "[" * _DEEP,
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nbackend: *c\n",
    "itself": "&a [*a]",
    "tag": "!!python/object/apply:os.system ['true']",
    "nan": "batch_size: .nan\nmax_queue_delay_us: .inf\ncapacity: -.inf\n",
    "most": f"batch_size: {2**70}\ncapacity: {-(2**70)}\nnum_executors: 1{'0' * 5_000}\n",
    "types": "backend: [a]\nbatch_size: {a: b}\ncapacity: [1]\nnum_executors: yes\nallocator: 2026-01-01\nsession: 5\n",
    "keys": "1: 2\n[a]: b\n? {c: d}\n: e\nnull: f\n2026-01-01: g\n",
    "shapes": "input_shapes: {x: [-9, .nan, a, null]}\noutput_shapes: [1]\npadding: {inputs: [x], outputs: 7}\n",
    "sections": "warmup: {a: b}\nsequences: [1]\nragged: x\nprofiling: [y]\nlabels: 5\nparameters: [1]\n",
    "bytes": "backend: !!binary aGVsbG8=\n",
    "double": "batch_size: 1\nbatch_size: 2\n",
    "date": "batch_size: 99999-99-99\ncapacity: 2026-13-45 25:61:61\n",
    "sexagesimal": "batch_size: 190:20:30\ncapacity: 0o17\n",
}


def _graphs() -> Iterator[tuple[str, bytes]]:
    whole = good_graph()
    yield "empty", b""
    yield "short", whole[: len(whole) // 2]
    yield "zeros", b"\0" * 4_096
    yield "ones", b"\xff" * 4_096
    yield "varints", b"\x80" * 100_000
    # Fields of groups and of messages in each other, deeper than a reader goes.
    yield "groups", b"\x0b" * 100_000
    inner = b""
    for _ in range(2_000):
        inner = b"\x3a" + _varint(len(inner)) + inner
    yield "nested", inner
    yield "length", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
    for name, change in _CHANGES.items():
        model = onnx.load_from_string(whole)
        change(model)
        yield name, model.SerializeToString()


def _varint(number: int) -> bytes:
    octets = []
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def _dimension(size: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = size

    return change


def _nameless(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = model.graph.output[0].name = ""
    model.graph.input[0].name = model.graph.node[0].input[0] = ""


def _outside(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer.add(name="w", data_type=F, dims=[2**62, 2**62])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "../../../../etc/passwd"), ("offset", "-9"), ("length", "99999999999999999999")):
        weight.external_data.add(key=key, value=value)


def _bare_outside(model: onnx.ModelProto) -> None:
    model.graph.initializer.add(name="w", data_type=F, dims=[2]).data_location = onnx.TensorProto.EXTERNAL


def _metadata(model: onnx.ModelProto) -> None:
    for at in range(1_000):
        model.metadata_props.add(key=f"\0\n{at % 3}", value="\x1b[31m" * 10)


_CHANGES: Final[Mapping[str, Callable[[onnx.ModelProto], None]]] = {
    "no_opset": lambda model: model.ClearField("opset_import"),
    "opset_most": lambda model: setattr(model.opset_import[0], "version", 2**63 - 1),
    "ir_least": lambda model: setattr(model, "ir_version", -(2**63)),
    "no_graph": lambda model: model.ClearField("graph"),
    "no_type": lambda model: model.graph.input[0].ClearField("type"),
    "no_shape": lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"),
    "element_odd": lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 99),
    "element_least": lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", -1),
    "dimension_most": _dimension(2**63 - 1),
    "dimension_least": _dimension(-(2**63)),
    "dimension_zero": _dimension(0),
    "nameless": _nameless,
    "name_odd": lambda model: setattr(model.graph.input[0], "name", "\0\x1b[31m\n\u202e"),
    "no_inputs": lambda model: model.graph.ClearField("input"),
    "no_outputs": lambda model: model.graph.ClearField("output"),
    "outside": _outside,
    "bare_outside": _bare_outside,
    "metadata": _metadata,
}


def _text(**files: bytes | str | object) -> Files:
    """The folder of a text model, with these files in place of the right ones."""
    whole: dict[str, object] = {
        "tokenizer.json": {
            "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"},
            "pre_tokenizer": {"type": "Whitespace"},
        },
        "config.json": {"hidden_size": 2, "vocab_size": 2, "max_position_embeddings": 8, "model_type": "bert"},
        "model.onnx": good_graph(),
    }
    for name, own in files.items():
        whole[name.replace("__", "/").replace("_json", ".json").replace("_st", ".safetensors")] = own
    return {
        name: own if isinstance(own, bytes) else own.encode() if isinstance(own, str) else json.dumps(own).encode()
        for name, own in whole.items()
        if own is not None
    }


def _safetensors(header: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


_SAFETENSORS: Final[Mapping[str, bytes]] = {
    "empty": b"",
    "short": b"\x01\x02",
    "length_most": _safetensors(b"{}", 2**64 - 1),
    "list": _safetensors(b"[]"),
    "types": _safetensors(b'{"w": 7, "v": [1], "u": {"dtype": 9, "shape": "x", "data_offsets": {}}}'),
    "negative": _safetensors(b'{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [-4, 9]}}'),
    "most": _safetensors(
        b'{"w": {"dtype": "F32", "shape": [9223372036854775807], "data_offsets": [0, 18446744073709551615]}}'
    ),
    "nested": _safetensors(b'{"w":' + b"[" * 50_000 + b"}"),
    "metadata": _safetensors(b'{"__metadata__": 7}'),
    "no_utf8": _safetensors(b"\xff\xfe{}"),
}
_TEXTS: Final[Mapping[str, Files]] = {
    "tokenizer_list": _text(tokenizer_json=[]),
    "tokenizer_number": _text(tokenizer_json=5),
    "tokenizer_empty": _text(tokenizer_json=b""),
    "tokenizer_nested": _text(tokenizer_json=b"[" * 100_000),
    "tokenizer_types": _text(tokenizer_json={"model": {"type": 5, "vocab": []}, "added_tokens": 7, "truncation": "x"}),
    "tokenizer_vocabulary": _text(tokenizer_json={"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": 3}}),
    "tokenizer_panic": _text(tokenizer_json={"model": {"type": "BPE", "vocab": {}, "merges": [["a"], 5, "a b c"]}}),
    "config_list": _text(config_json=[1]),
    "config_number": _text(config_json=7),
    "config_nested": _text(config_json=b'{"a":' * 50_000),
    "config_types": _text(
        config_json={
            "hidden_size": "x",
            "vocab_size": [],
            "max_position_embeddings": {},
            "model_type": 5,
            "architectures": 3,
        }
    ),
    "config_most": _text(config_json={"hidden_size": 2**80, "max_position_embeddings": -(2**80), "id2label": [1, 2]}),
    "config_nan": _text(
        config_json=b'{"hidden_size": NaN, "max_position_embeddings": Infinity, "architectures": [null]}'
    ),
    "config_labels": _text(
        config_json={
            "architectures": ["BertForSequenceClassification"],
            "id2label": {"x": 5, "-1": None},
            "num_labels": -3,
        }
    ),
    "modules_object": _text(modules_json={"a": 1}),
    "modules_types": _text(modules_json=[5, None, {"type": 7, "path": []}, {"path": "../../.."}]),
    "modules_paths": _text(
        modules_json=[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        + [{"idx": 1, "name": "1", "path": "p", "type": "sentence_transformers.models.Pooling"}] * 3,
        p__config_json=[],
    ),
    "pooling_types": _text(
        modules_json=[
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "p", "type": "sentence_transformers.models.Pooling"},
        ],
        p__config_json={"word_embedding_dimension": "x", "pooling_mode_mean_tokens": [1]},
    ),
    "tokenizer_config": _text(tokenizer_config_json=[{}], special_tokens_map_json=5),
    "sentence_config": _text(sentence_bert_config_json={"max_seq_length": "many", "do_lower_case": {}}),
    "no_tokenizer": _text(tokenizer_json=None, modules_json=[]),
    **{f"weights_{name}": _text(**{"model.onnx": None, "model_st": content}) for name, content in _SAFETENSORS.items()},
}


def _linked(path: Path) -> None:
    (path / "1").mkdir(parents=True)
    (path / "1/model.onnx").symlink_to("model.onnx")
    (path / "config.pbtxt").symlink_to(path)
    (path / "2").symlink_to("..")


def _deep(path: Path) -> None:
    """More directories in each other than a model has; fewer than what removes them can call itself."""
    (path / "1").mkdir(parents=True)
    (path / "1/model.onnx").write_bytes(good_graph())
    here = os.open(path / "1", os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def _special(path: Path) -> None:
    (path / "1").mkdir(parents=True)
    os.mkfifo(path / "1/model.onnx")
    os.mkfifo(path / "config.pbtxt")
    os.mkfifo(path / "1/config.yaml")


def _directories(path: Path) -> None:
    (path / "1/model.onnx/model.onnx").mkdir(parents=True)
    (path / "1/config.yaml").mkdir()
    (path / "config.pbtxt").mkdir()


def _no_names(path: Path) -> None:
    (path / "1").mkdir(parents=True)
    (path / "1/model.onnx").write_bytes(good_graph()[:20])
    for name in (b"\xff\xfe", b"caf\xe9.onnx", b"a\nb", b"\x1b[31m"):
        Path(os.fsdecode(os.fsencode(path / "1") + b"/" + name)).write_bytes(b"x")


def _python(path: Path) -> None:
    (path / "1/model.py").mkdir(parents=True)
    (path / "config.pbtxt").write_text('backend: "python"\n' + _TENSORS)


def _coded(code: str) -> Files:
    return {
        "1/model.py": code.encode(errors="surrogateescape"),
        "config.pbtxt": ('backend: "python"\n' + _TENSORS).encode(),
    }


_OTHERS: Final[Mapping[str, Files]] = {
    "links": _linked,
    "deep": _deep,
    "special": _special,
    "directories": _directories,
    "no_names": _no_names,
    "python_folder": _python,
    "python_empty": _coded(""),
    "python_zeros": _coded("\0\0"),
    "python_bytes": _coded("x = '\udcff'"),
    "python_nested": _coded("(" * _DEEP),
    "python_exits": _coded("import sys; sys.exit(7)"),
    "python_raises": _coded("class Odd(BaseException):\n    pass\nraise Odd()\n"),
    "python_no_class": _coded("TritonPythonModel = 5\n"),
    "python_config": _coded(
        _PYTHON + "    @staticmethod\n    def auto_complete_config(config):\n        return {'input': 5}\n"
    ),
    "python_text": _coded(
        _PYTHON + "    def initialize(self, args):\n        raise ValueError('\\ud800\\x1b[31m\\0')\n"
    ),
    "python_environment": {
        **_coded(_PYTHON),  # type: ignore[dict-item]
        "config.pbtxt": (
            'backend: "python"\n' + _TENSORS + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: '
            '"$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }'
        ).encode(),
        "env.tar.gz": b"\x1f\x8b" + b"\0" * 40,
    },
    "skops": {"1/model.skops": b"PK\x05\x06" + b"\0" * 18},
    "xgboost": {"1/xgboost.json": b'{"learner": []}', "config.pbtxt": b'backend: "fil"'},
    "lightgbm": {"1/model.txt": b"tree\nversion=v4\nnum_class=-1\n"},
    "openvino": {"1/model.xml": b"<net><layers><layer id='x'/></layers></net>", "1/model.bin": b""},
    "labels": {
        "1/model.onnx": good_graph(),
        "config.pbtxt": b'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "l.txt" }',
        "l.txt": b"\xff\xfe\0" * 1_000,
    },
    "torchserve": {"MAR-INF/MANIFEST.json": b"[]", "1/MAR-INF/MANIFEST.json": b'{"model": 5}'},
}

#: By the name of the model.
HOSTILE: Final[Mapping[str, Files]] = {
    **{f"pbtxt_{name}": _configured(text) for name, text in _pbtxts()},
    **{f"yaml_{name}": _yaml(text) for name, text in _YAMLS.items()},
    **{f"graph_{name}": {"1/model.onnx": content} for name, content in _graphs()},
    **{f"text_{name}": files for name, files in _TEXTS.items()},
    **_OTHERS,
}


def put(root: Path, name: str) -> None:
    """Put a model of HOSTILE into a repository."""
    files = HOSTILE[name]
    if callable(files):
        files(root / name)
        return
    for path, content in files.items():
        target = root / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
