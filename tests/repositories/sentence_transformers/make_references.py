"""Make the folder ``references``: tiny models of transformers with random weights, and what transformers computes.

    pip install torch transformers    # in an environment of its own
    python tests/repositories/sentence_transformers/make_references.py

Each model is a folder as ``save_pretrained`` writes it, with ``outputs.npz`` beside it: the inputs, with padding on
both sides, and the outputs in float32. All weights are random, biases and normalizations too.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent / "references"
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 160,
}
DISTIL: dict[str, Any] = {
    "vocab_size": 40,
    "dim": 16,
    "n_layers": 3,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 160,
}
MODERN: dict[str, Any] = {**SIZES, "num_hidden_layers": 5, "local_attention": 8, "pad_token_id": 0}
SPECIAL: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
BIASES: dict[str, Any] = {
    key: True for key in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
}
#: By folder: the class, its settings, and how the weights are stored.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertModel", {**SIZES}, "float32"),
    "bert-labels": ("BertForSequenceClassification", {**SIZES, "hidden_act": "gelu_new", "num_labels": 3}, "float32"),
    "bert-tokens": ("BertForMaskedLM", {**SIZES, "hidden_act": "relu", "layer_norm_eps": 1e-5}, "float32"),
    "bert-bfloat16": ("BertModel", {**SIZES, "hidden_act": "silu"}, "bfloat16"),
    "roberta-labels": (
        "RobertaForSequenceClassification",
        {**SIZES, "num_labels": 1, "pad_token_id": 1, "type_vocab_size": 1},
        "float32",
    ),
    "xlm-roberta-tokens": (
        "XLMRobertaForMaskedLM",
        {**SIZES, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        "float16",
    ),
    "distilbert-labels": ("DistilBertForSequenceClassification", {**DISTIL, "num_labels": 2}, "float32"),
    "distilbert-tokens": ("DistilBertForMaskedLM", {**DISTIL, "activation": "relu"}, "float32"),
    "mpnet": ("MPNetModel", {**SIZES}, "float32"),
    "mpnet-labels": ("MPNetForSequenceClassification", {**SIZES, "num_labels": 1}, "float32"),
    "mpnet-tokens": ("MPNetForMaskedLM", {**SIZES}, "float32"),
    "modernbert": ("ModernBertModel", {**MODERN, **SPECIAL}, "float32"),
    "modernbert-labels": (
        "ModernBertForSequenceClassification",
        {**MODERN, **SPECIAL, **BIASES, "num_labels": 2, "classifier_pooling": "mean"},
        "float32",
    ),
    "modernbert-tokens": (
        "ModernBertForMaskedLM",
        {**MODERN, **SPECIAL, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": False},
        "float32",
    ),
}


def make(name: str) -> None:
    """Make one folder."""
    class_name, settings, stored = MODELS[name]
    torch.manual_seed(len(name))
    cls = getattr(transformers, class_name)
    model = cls(cls.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.25)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.add_(1)
    model = model.to(getattr(torch, stored))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    model = model.float()
    rng = np.random.default_rng(0)
    padding = model.config.pad_token_id or 0
    lengths, length = (150, 90, 3, 148), 150
    ids = rng.integers(4, 40, (len(lengths), length))
    mask = np.ones_like(ids)
    for row, real in enumerate(lengths):
        hidden = slice(0, length - real) if row == 3 else slice(real, length)  # the last is padded on the left
        ids[row, hidden], mask[row, hidden] = padding, 0
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    kept = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "type_vocab_size", 1) > 1 and name.startswith("bert"):
        kinds = (np.arange(length) > 40).astype(np.int64) * mask
        inputs["token_type_ids"], kept["token_type_ids"] = torch.tensor(kinds), kinds
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    hidden_states = outputs.last_hidden_state if hasattr(outputs, "last_hidden_state") else outputs.hidden_states[-1]
    kept["last_hidden_state"] = hidden_states.numpy() * mask[..., None]
    if hasattr(outputs, "logits"):
        logits = outputs.logits.numpy()
        kept["logits"] = logits * mask[..., None] if logits.ndim == 3 else logits
    # Every tenth token is enough, and keeps the file small.
    for key in ("last_hidden_state", "logits"):
        if key in kept and kept[key].ndim == 3:
            kept[key] = kept[key][:, ::10]
    small: dict[str, Any] = {
        key: value.astype(np.int16) if value.dtype == np.int64 else value for key, value in kept.items()
    }
    np.savez_compressed(folder / "outputs.npz", **small)


if __name__ == "__main__":
    for one in sys.argv[1:] or MODELS:
        make(one)
