"""ModernBERT: normalization before each part of a layer, rotated positions, and layers that see the near tokens alone.

Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder", 2024; rotary positions: Su et al.,
"RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toutates.repositories.sentence_transformers.family import Family, Head
from toutates.repositories.sentence_transformers.graph import FUSED, Array, Value
from toutates.repositories.sentence_transformers.layers import ACTIVATIONS, MASKED, Builder

__all__ = ["ModernBert"]

_FULL: Final = "full_attention"
_NEAR: Final = "sliding_attention"


class ModernBert(Family):
    """See the head of the module."""

    prefix = "model."
    passed_over = (r"(.*\.)?rotary_emb\.inv_freq", r"decoder\.weight")
    heads_of_others = (r"(head|decoder|classifier)\..*",)
    settings_of_heads = (
        *Family.settings_of_heads,
        *("classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias"),
    )
    words = ".embeddings.tok_embeddings.weight"

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        settings = self.settings
        self.hidden_size = settings.integer("hidden_size")
        self.heads = settings.integer("num_attention_heads")
        self.inner_size = settings.integer("intermediate_size")
        self.positions = settings.integer("max_position_embeddings")
        self.kind = settings.text("hidden_activation", "gelu", ACTIVATIONS)
        self.epsilon = settings.number("norm_eps", 1e-5)
        self.norm_bias = settings.flag("norm_bias", False)
        self.attention_bias = settings.flag("attention_bias", False)
        self.inner_bias = settings.flag("mlp_bias", False)
        self.reach = settings.integer("local_attention", 128) // 2
        self.layer_types = self._layer_types()
        self.bases = {_FULL: self._base(_FULL), _NEAR: self._base(_NEAR)}
        settings.integer("pad_token_id", 0, 0)
        # Files have these two, which the architecture does not read.
        settings.text("position_embedding_type", "absolute", ("absolute",))
        settings.value("layer_norm_eps")
        if self.hidden_size % (2 * self.heads):
            raise settings.refused(
                "num_attention_heads", f"does not divide the hidden size {self.hidden_size} evenly", "mend the file"
            )

    def _layer_types(self) -> list[str]:
        settings = self.settings
        count = settings.integer("num_hidden_layers")
        every = settings.integer("global_attn_every_n_layers", 3)
        types = settings.value("layer_types")
        if types is None:
            return [_NEAR if number % every else _FULL for number in range(count)]
        if not isinstance(types, list) or len(types) != count or not all(one in (_FULL, _NEAR) for one in types):
            raise settings.refused("layer_types", f"is no list of {count} of {_FULL} and {_NEAR}", "mend the file")
        return types

    def _base(self, layer_type: str) -> float:
        """Theta of the rotation in layers of one type."""
        settings = self.settings
        key, default = ("global_rope_theta", 160_000.0) if layer_type == _FULL else ("local_rope_theta", 10_000.0)
        base = settings.number(key, default)
        parameters = settings.value("rope_parameters")
        if parameters is None:
            return base
        mine: Any = parameters.get(layer_type) if isinstance(parameters, dict) else None
        if not isinstance(mine, dict) or {**mine, "rope_theta": 0} != {"rope_type": "default", "rope_theta": 0}:
            problem = f"has no rotation of the type default for {layer_type}"
            raise settings.refused("rope_parameters", problem, "convert the model by --with-optimum")
        theta: Any = mine.get("rope_theta", base)
        if isinstance(theta, bool) or not isinstance(theta, int | float) or not theta > 1:
            raise settings.refused("rope_parameters", f"has no rope_theta for {layer_type}", "mend the file")
        return float(theta)

    def encode(self) -> Value:
        """See ``Family``."""
        graph, builder, size = self.graph, self.builder, self.hidden_size
        ids = graph.input("input_ids")
        mask = builder.mask()
        self._mask = mask
        near = self._near(ids)
        hidden = graph.add("Gather", builder.weight(self.words, self.vocabulary, size), ids)
        hidden = builder.norm(hidden, ".embeddings.norm", size, self.epsilon, bias=self.norm_bias)
        normed = hidden  # the first layer has no normalization of its own
        for number, kind in enumerate(self.layer_types):
            layer = f".layers.{number}."
            seen = self._attention(normed, f"{layer}attn.", kind, mask, near if kind == _NEAR else "")
            normed, hidden = builder.norm_and_sum(
                (seen, hidden), f"{layer}mlp_norm", size, self.epsilon, bias=self.norm_bias
            )
            inner = self._feed_forward(normed, f"{layer}mlp.")
            last = number == len(self.layer_types) - 1
            name = ".final_norm" if last else f".layers.{number + 1}.attn_norm"
            normed, hidden = builder.norm_and_sum((inner, hidden), name, size, self.epsilon, bias=self.norm_bias)
        return normed

    def _near(self, ids: Value) -> Value:
        """What keeps tokens from those that are farther than ``reach``, [1, 1, length, length]."""
        graph = self.graph
        length = graph.add("Squeeze", self.builder.length(ids))
        positions = graph.add("Range", graph.constant(0), length, graph.constant(1))
        distances = graph.add(
            "Abs", graph.add("Sub", positions, graph.add("Unsqueeze", positions, graph.constant([1])))
        )
        far = graph.add("Greater", distances, graph.constant(self.reach))
        scores = graph.add("Where", far, graph.constant(MASKED), graph.constant(0.0))
        return graph.add("Unsqueeze", scores, graph.constant([0, 1]))

    def _attention(self, value: Value, name: str, kind: str, mask: Value, scores: Value) -> Value:
        builder, graph, size = self.builder, self.graph, self.hidden_size
        parts = []
        for at in range(3):
            part = builder.product(value, f"{name}Wqkv.weight", size, 3 * size, slice(at * size, (at + 1) * size))
            if self.attention_bias:  # before the rotation
                part = graph.add("Add", part, self._part_of_bias(f"{name}Wqkv.bias", at))
            if at < 2:
                caches = (self._cache(np.cos, kind), self._cache(np.sin, kind))
                part = graph.add("RotaryEmbedding", part, graph.constant([0]), *caches, domain=FUSED)
            parts.append(part)
        seen = builder.attention(parts, self.heads, mask, scores=scores)
        return builder.linear(seen, f"{name}Wo", size, size, bias=self.attention_bias)

    def _part_of_bias(self, name: str, at: int) -> Value:
        size = self.hidden_size
        tensor = self.builder.weights.take(name, (3 * size,))
        return self.graph.weight(f"{name}[{at}]", (size,), lambda: tensor.float32()[at * size : (at + 1) * size])

    def _cache(self, function: Any, kind: str) -> Value:
        """Cosine or sine of every position's angles, [positions, half of a head's size]."""
        half = self.hidden_size // self.heads // 2

        def make() -> Array:
            # In float32, step by step as transformers computes it.
            powers = np.arange(0, 2 * half, 2, dtype=np.float32) / np.float32(2 * half)
            angles = np.arange(self.positions, dtype=np.float32)[:, None] / np.float32(self.bases[kind]) ** powers
            cache: Array = function(angles)
            return cache

        return self.graph.weight(f"{function.__name__}[{kind}]", (self.positions, half), make)

    def _feed_forward(self, value: Value, name: str) -> Value:
        """act(a) x b, of the two halves of one linear layer, and a second layer."""
        builder, graph, inner = self.builder, self.graph, self.inner_size
        both = builder.linear(value, f"{name}Wi", self.hidden_size, 2 * inner, bias=self.inner_bias)
        parts = graph.add_many("Split", (both, graph.constant([inner, inner])), (True, True), axis=-1)
        gated = graph.add("Mul", builder.activation(parts[0], self.kind), parts[1])
        return builder.linear(gated, f"{name}Wo", inner, self.hidden_size, bias=self.inner_bias)

    def pooled(self, hidden: Value) -> Value:
        """See ``Family``: the first token's vector, or the mean over those that are no padding."""
        if self.settings.text("classifier_pooling", "cls", ("cls", "mean")) == "cls":
            return super().pooled(hidden)
        graph = self.graph
        real = graph.add("Cast", self._mask, to=_FLOAT)
        weighted = graph.add("Mul", hidden, graph.add("Unsqueeze", real, graph.constant([2])))
        count = graph.add("ReduceSum", real, graph.constant([1]), keepdims=1)
        return graph.add("Div", graph.add("ReduceSum", weighted, graph.constant([1]), keepdims=0), count)

    def label_head(self) -> Head:
        """See ``Family``."""
        return self._head("classifier")

    def token_head(self) -> Head:
        """See ``Family``."""
        return self._head("decoder", "decoder.bias" if self.settings.flag("decoder_bias", True) else "")

    def _head(self, out: str, out_bias: str = "") -> Head:
        settings = self.settings
        return Head(
            "head.dense",
            out,
            settings.text("classifier_activation", "gelu", ACTIVATIONS),
            "head.norm",
            self.epsilon,
            dense_bias=settings.flag("classifier_bias", False),
            norm_bias=self.norm_bias,
            out_bias=out_bias,
        )


#: TensorProto.FLOAT.
_FLOAT: Final = 1
