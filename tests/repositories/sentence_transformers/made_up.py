"""Models with random weights, as folders: what ``save_pretrained`` would write, without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, processors

Arrays = dict[str, npt.NDArray[Any]]

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "pad_token_id": 0,
}
DISTIL: dict[str, Any] = {
    "model_type": "distilbert",
    "vocab_size": 50,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 20,
    "max_position_embeddings": 64,
    "activation": "gelu",
    "pad_token_id": 0,
}
MODERN: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 64,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "global_attn_every_n_layers": 3,
    "local_attention": 6,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "pad_token_id": 0,
}


def weights_of(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Random weights of a model without a head, by transformers' names."""
    rng = np.random.default_rng(seed)
    kind = config["model_type"]
    hidden = config.get("hidden_size", config.get("dim"))
    inner = config.get("intermediate_size", config.get("hidden_dim"))
    found: Arrays = {}

    def add(name: str, *shape: int, around: float = 0.0) -> None:
        found[name] = (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    def linear(name: str, wide: int, size: int, bias: bool = True) -> None:
        add(f"{name}.weight", size, wide)
        if bias:
            add(f"{name}.bias", size)

    def norm(name: str, bias: bool = True) -> None:
        add(f"{name}.weight", hidden, around=1.0)
        if bias:
            add(f"{name}.bias", hidden)

    if kind == "modernbert":
        add("embeddings.tok_embeddings.weight", config["vocab_size"], hidden)
        norm("embeddings.norm", bias=False)
        for number in range(config["num_hidden_layers"]):
            layer = f"layers.{number}."
            if number:
                norm(f"{layer}attn_norm", bias=False)
            linear(f"{layer}attn.Wqkv", hidden, 3 * hidden, bias=False)
            linear(f"{layer}attn.Wo", hidden, hidden, bias=False)
            norm(f"{layer}mlp_norm", bias=False)
            linear(f"{layer}mlp.Wi", hidden, 2 * inner, bias=False)
            linear(f"{layer}mlp.Wo", inner, hidden, bias=False)
        norm("final_norm", bias=False)
        return found
    add("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    add("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    if "type_vocab_size" in config:
        add("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    norm("embeddings.LayerNorm")
    if kind == "mpnet":
        add("encoder.relative_attention_bias.weight", 32, config["num_attention_heads"])
    for number in range(config.get("num_hidden_layers", config.get("n_layers"))):
        if kind == "distilbert":
            layer = f"transformer.layer.{number}."
            linears = [f"attention.{part}_lin" for part in ("q", "k", "v", "out")]
            norms, up, down = ("sa_layer_norm", "output_layer_norm"), "ffn.lin1", "ffn.lin2"
        else:
            layer = f"encoder.layer.{number}."
            linears = [*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense"]
            norms, up, down = ("attention.output.LayerNorm", "output.LayerNorm"), "intermediate.dense", "output.dense"
            if kind == "mpnet":
                linears = [f"attention.attn.{part}" for part in "qkvo"]
                norms = ("attention.LayerNorm", "output.LayerNorm")
        for name in linears:
            linear(layer + name, hidden, hidden)
        for name in norms:
            norm(layer + name)
        linear(layer + up, hidden, inner)
        linear(layer + down, inner, hidden)
    return found


def safetensors(tensors: Mapping[str, npt.NDArray[Any]], header: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file of float32 tensors; ``header`` holds in place of the right one."""
    entries: dict[str, Any] = {}
    at = 0
    for name, value in tensors.items():
        entries[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(entries if header is None else header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(value.tobytes() for value in tensors.values())


def write_tokenizer(folder: Path, size: int = 50) -> None:
    """A tokenizer of letters with [CLS] and [SEP] around, and truncation and padding that a server has to undo."""
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    words |= {letter: at for at, letter in enumerate("abcdefghijklmnopqrstuvwxyz0123456789.,?!-/@:_()", 4) if at < size}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_model(folder: Path, config: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]] | None = None) -> Path:
    """A folder with config.json, weights and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(weights_of(config) if weights is None else weights))
    write_tokenizer(folder, config["vocab_size"])
    return folder
