"""Encoders in plain NumPy and double precision, from the published architectures: graphs are compared with them.

Weights have the names of transformers. Nothing of the product is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_erf = np.vectorize(math.erf)

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "linear": lambda x: x,
}


class Weights:
    """Weights by name, in double precision, and the layers that they make."""

    def __init__(self, values: Mapping[str, npt.NDArray[Any]], epsilon: float) -> None:
        self.values = {name: value.astype(np.float64) for name, value in values.items()}
        self.epsilon = epsilon

    def linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.values[f"{name}.weight"].T
        return y + self.values[f"{name}.bias"] if f"{name}.bias" in self.values else y

    def norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        y: Array = (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon) * self.values[f"{name}.weight"]
        )
        return y + self.values[f"{name}.bias"] if f"{name}.bias" in self.values else y


def _attend(q: Array, k: Array, v: Array, heads: int, allowed: npt.NDArray[Any], bias: Array | float = 0.0) -> Array:
    """Attention; the arrays are [batch, length, hidden], ``allowed`` broadcasts to [batch, heads, length, length]."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + bias
    scores = np.where(allowed, scores, -1e30)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    seen: Array = (shares @ v).transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)
    return seen


def post_norm(config: Mapping[str, Any], values: Mapping[str, Array], ids: Ids, mask: Ids, kinds: Ids) -> Array:
    """BERT, RoBERTa, DistilBERT or MPNet: [batch, length, hidden]."""
    kind = config["model_type"]
    distil, mpnet = kind == "distilbert", kind == "mpnet"
    epsilon = 1e-12 if distil else config.get("layer_norm_eps", 1e-12)
    weights = Weights(values, epsilon)
    heads = config["n_heads" if distil else "num_attention_heads"]
    act = ACTIVATIONS[config["activation" if distil else "hidden_act"]]
    length = ids.shape[1]
    positions = np.arange(length)[None]
    if kind in ("roberta", "mpnet"):
        real = (ids != 1).astype(np.int64)
        positions = np.cumsum(real, 1) * real + 1
    x = weights.values["embeddings.word_embeddings.weight"][ids]
    x = x + weights.values["embeddings.position_embeddings.weight"][positions]
    if "embeddings.token_type_embeddings.weight" in values:
        x = x + weights.values["embeddings.token_type_embeddings.weight"][kinds]
    x = weights.norm(x, "embeddings.LayerNorm")
    allowed = mask[:, None, None, :] == 1
    bias: Array | float = 0.0
    if mpnet:
        table = weights.values["encoder.relative_attention_bias.weight"]
        distances = np.arange(length)[None, :] - np.arange(length)[:, None]
        bias = table[_buckets(distances)].transpose(2, 0, 1)[None]
    for number in range(config["n_layers" if distil else "num_hidden_layers"]):
        if distil:
            layer = f"transformer.layer.{number}."
            names = ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm"]
            names += ["ffn.lin1", "ffn.lin2", "output_layer_norm"]
        else:
            layer = f"encoder.layer.{number}."
            names = [f"attention.self.{part}" for part in ("query", "key", "value")]
            names += ["attention.output.dense", "attention.output.LayerNorm"]
            if mpnet:
                names = [*(f"attention.attn.{part}" for part in "qkvo"), "attention.LayerNorm"]
            names += ["intermediate.dense", "output.dense", "output.LayerNorm"]
        q, k, v, out, first, up, down, second = (layer + name for name in names)
        seen = _attend(weights.linear(x, q), weights.linear(x, k), weights.linear(x, v), heads, allowed, bias)
        x = weights.norm(x + weights.linear(seen, out), first)
        x = weights.norm(x + weights.linear(act(weights.linear(x, up)), down), second)
    return x


def _buckets(distances: Ids) -> Ids:
    """MPNet: 16 rows for each direction, 8 of them for the distances below 8, the others by logarithm up to 128."""
    far = np.abs(distances)
    by_log = 8 + np.floor(np.log(np.maximum(far, 1) / 8) / math.log(128 / 8) * 8 + 1e-9).astype(np.int64)
    rows: Ids = np.where(distances > 0, 16, 0) + np.where(far < 8, far, np.minimum(by_log, 15))
    return rows


def modern(config: Mapping[str, Any], values: Mapping[str, Array], ids: Ids, mask: Ids) -> Array:
    """ModernBERT: [batch, length, hidden]."""
    weights = Weights(values, config["norm_eps"])
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    half = hidden // heads // 2
    length = ids.shape[1]
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= config["local_attention"] // 2
    x = weights.norm(weights.values["embeddings.tok_embeddings.weight"][ids], "embeddings.norm")
    for number in range(config["num_hidden_layers"]):
        full = number % config["global_attn_every_n_layers"] == 0
        theta = config["global_rope_theta" if full else "local_rope_theta"]
        angles = np.arange(length)[:, None] * theta ** (-np.arange(half) / half)

        def turned(y: Array, angles: Array = angles) -> Array:
            pairs = y.reshape(*y.shape[:2], heads, 2, half)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
            return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-2).reshape(y.shape)

        layer = f"layers.{number}."
        y = weights.norm(x, f"{layer}attn_norm") if number else x
        q, k, v = np.split(weights.linear(y, f"{layer}attn.Wqkv"), 3, axis=-1)
        allowed = (mask[:, None, None, :] == 1) & (full | near)
        x = x + weights.linear(_attend(turned(q), turned(k), v, heads, allowed), f"{layer}attn.Wo")
        a, b = np.split(weights.linear(weights.norm(x, f"{layer}mlp_norm"), f"{layer}mlp.Wi"), 2, axis=-1)
        x = x + weights.linear(ACTIVATIONS[config["hidden_activation"]](a) * b, f"{layer}mlp.Wo")
    return weights.norm(x, "final_norm")
