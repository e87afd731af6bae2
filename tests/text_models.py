"""Small folders of text models for tests: a tokenizer of few words, and a graph whose vectors NumPy makes as well."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

__all__ = [
    "DIM",
    "VOCABULARY",
    "WORDS",
    "encoder_graph",
    "hidden",
    "make_folder",
    "make_tokenizer",
    "save_weights",
    "table",
]

DIM: Final = 6
WORDS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", "one", "two", "three", "four", "five", ".", "six")
VOCABULARY: Final = len(WORDS)

_RANDOM = np.random.default_rng(3)
_TABLE: Final = _RANDOM.standard_normal((VOCABULARY, DIM)).astype(np.float32)


def table() -> npt.NDArray[np.float32]:
    """The vector of each word."""
    return _TABLE


def hidden(ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """What the graph of ``encoder_graph`` makes of a text alone: each token sees the mean of all."""
    own = _TABLE[list(ids)]
    mixed: npt.NDArray[np.float32] = own + 0.5 * own.mean(axis=0)
    return mixed


def ids_of(text: str) -> list[int]:
    """Ids of a text whose words are all known, with special tokens."""
    return [2, *(WORDS.index(word) for word in text.split()), 3]


def make_tokenizer() -> Tokenizer:
    """Splits at blanks and punctuation; [CLS] before a text, [SEP] behind it and behind the second of a pair."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(4)  # which is to be switched off
    tokenizer.enable_padding(length=9)
    return tokenizer


def encoder_graph(
    output: str = "last_hidden_state",
    *,
    integers: int = TensorProto.INT64,
    extra: Sequence[str] = (),
    columns: int = DIM,
) -> bytes:
    """A token and half of the mean of the unmasked; ``extra`` inputs are added, so that wrong ones change the vectors.

    Args:
        output: its name. ``logits`` of two dimensions are the mean alone; ``sentence_embedding`` likewise.
        integers: type of the inputs.
        extra: further inputs, such as token_type_ids: ten times their value is added to a token.
        columns: of what is pooled.
    """

    def node(kind: str, inputs: Sequence[str], result: str, **attributes: Any) -> Any:
        return helper.make_node(kind, inputs, [result], **attributes)

    nodes = [
        node("Gather", ["table", "input_ids"], "own"),
        node("Cast", ["attention_mask"], "mask2", to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask2", "last"], "mask"),
        node("Mul", ["own", "mask"], "masked"),
        node("ReduceSum", ["masked", "first"], "sum", keepdims=1),
        node("ReduceSum", ["mask", "first"], "count", keepdims=1),
        node("Div", ["sum", "count"], "mean"),
        node("Mul", ["mean", "half"], "part"),
        node("Add", ["own", "part"], "state0"),
    ]
    state = "state0"
    for at, name in enumerate(extra):
        nodes += [
            node("Cast", [name], f"float{at}", to=TensorProto.FLOAT),
            node("Mul", [f"float{at}", "ten"], f"tens{at}"),
            node("Unsqueeze", [f"tens{at}", "last"], f"wide{at}"),
            node("Add", [state, f"wide{at}"], f"state{at + 1}"),
        ]
        state = f"state{at + 1}"
    pooled = output in ("logits", "sentence_embedding")
    if pooled:
        nodes.append(node("Squeeze", ["mean", "first"], "whole"))
        nodes.append(node("Slice", ["whole", "start", "columns", "first"], output))
    else:
        nodes.append(node("Identity", [state], output))
    shape: list[str | int | None] = ["batch", columns] if pooled else ["batch", "length", DIM]
    names = ["input_ids", "attention_mask", *extra]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, integers, ["batch", "length"]) for name in names],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(_TABLE, "table"),
            numpy_helper.from_array(np.array([1], np.int64), "first"),
            numpy_helper.from_array(np.array([2], np.int64), "last"),
            numpy_helper.from_array(np.array([0], np.int64), "start"),
            numpy_helper.from_array(np.array([columns], np.int64), "columns"),
            numpy_helper.from_array(np.array(0.5, np.float32), "half"),
            numpy_helper.from_array(np.array(10, np.float32), "ten"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def make_folder(
    path: Path,
    *,
    graph: bytes | None = None,
    modules: Sequence[tuple[str, str, Mapping[str, Any] | None]] | None = (),
    files: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model's folder.

    Args:
        path: of the folder.
        graph: None for ``encoder_graph()``; b"" for none.
        modules: path, type and config.json of each module after the first, which is a Transformer; None for no
            modules.json.
        files: further JSON files by name.
        config: of config.json, beside what it has anyway.
    """
    path.mkdir(parents=True, exist_ok=True)
    graph = encoder_graph() if graph is None else graph
    if graph:
        (path / "model.onnx").write_bytes(graph)
    make_tokenizer().save(str(path / "tokenizer.json"))
    own = {"model_type": "bert", "pad_token_id": 0, "max_position_embeddings": 64, "vocab_size": VOCABULARY}
    contents: dict[str, Any] = {"config.json": {**own, **(config or {})}, **(files or {})}
    if modules is not None:
        entries: list[dict[str, Any]] = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
        ]
        for at, (folder, kind, settings) in enumerate(modules):
            entries.append({"idx": at + 1, "name": str(at + 1), "path": folder, "type": kind})
            if settings is not None:
                contents[f"{folder}/config.json"] = settings
        contents.setdefault("modules.json", entries)
    for name, value in contents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def save_weights(directory: Path, **tensors: npt.NDArray[np.float32]) -> None:
    """Write a safetensors file; names have dots for their underscores: linear_weight."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values, np.float32).tobytes()
        header[name.replace("_", ".")] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
